"""Figures of README and docs are those of the results pages, which commands write."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
DOCS = {page: page.read_text(encoding="utf-8") for page in (ROOT / "docs").rglob("*.md")}
PAGES = "\n".join(page.read_text(encoding="utf-8") for page in (ROOT / "baselines" / "results").glob("*.md")).replace("-", "−")


def missing(pattern: str, text: str, fewest: int) -> list[str]:
    """What ``pattern`` finds in the text and no page has."""
    quoted = re.findall(pattern, text)
    assert len(quoted) >= fewest
    return [figure for figure in quoted if figure not in PAGES]


def test_figures_with_intervals_are_quoted_from_the_pages():
    assert missing(r"−?[\d.]+ (?:± [\d.]+|% \[[\d., ]+\])|> [\d.]+(?= )", "\n".join([README, *DOCS.values()]), fewest=8) == []


def test_speeds_are_quoted_from_the_pages():
    section = README.split("## Speed")[1].split("\n## ")[0]
    assert missing(r"\d{1,3}(?:,\d{3})+", section, fewest=2) == []


def test_the_first_block_is_two_commands():
    block = README.split("```bash\n")[1].split("```")[0]
    assert block.splitlines() == ["pip install -e . && python algos/mappo.py env=merge", 'pip install -e ".[dev]" && pytest']


def test_the_readme_is_short_and_its_links_lead_somewhere():
    assert len(README.splitlines()) <= 200
    for page in (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *DOCS):
        links = re.findall(r"(?:\]\(|src=\")([^)#\"]+)[^)\"]*[)\"]", page.read_text(encoding="utf-8"))
        others = [link for link in links if ":" in link]
        assert [link for link in others if not re.fullmatch(r"https://[\w-]+(\.[\w-]+)+(/\S*)?", link)] == [], page
        assert [link for link in links if link not in others and not (page.parent / link).exists()] == [], page
