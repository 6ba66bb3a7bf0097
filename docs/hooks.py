"""Parts of the pages that are read from the code and from the pages of results whenever the site is built.

``{{ params("merge") }}`` becomes what the function of that name below returns; any other name ends the build.
"""

import ast
import functools
import importlib
import re
from collections.abc import Callable, Iterable, Sequence
from html import unescape
from pathlib import Path
from typing import Any

from latex2mathml.converter import convert
from mkdocs.exceptions import PluginError

from marljax import registry
from marljax.cli import help, info
from marljax.config.hyperparameters import traced_names
from marljax.config.settings import Settings
from marljax.errors import UserError
from marljax.reporting.tables import decimals_for
from marljax.training import policy_file

DOCS = Path(__file__).parent
RESULTS = DOCS.parent / "baselines" / "results"
MARKER = re.compile(r"\{\{(.*?)\}\}")
CALL = re.compile(r" (\w+)\((.*)\) ")


def on_config(config: Any) -> Any:
    """Patterns in the navigation, such as ``tables/*.md``, become the files that they match."""

    def files(entry: Any) -> list[Any]:
        if not isinstance(entry, str) or "*" not in entry:
            return [entry]
        return [path.relative_to(DOCS).as_posix() for path in sorted(DOCS.glob(entry))]

    for section in config.nav:
        for title, entries in section.items():
            if isinstance(entries, list):
                section[title] = [file for entry in entries for file in files(entry)]
    return config


def on_page_markdown(markdown: str, page: Any, **others: Any) -> str:
    """Replaces the markers of a page; their links that begin with / are from the documentation's root."""
    root = "../" * page.file.src_uri.count("/")

    def replacement(marker: re.Match) -> str:
        try:
            return marked(marker[1]).replace("](/", f"]({root}")
        except (UserError, LookupError, SyntaxError, TypeError, ValueError) as error:
            raise PluginError(f"{page.file.src_uri}: {marker[0]}: {error}") from error

    return MARKER.sub(replacement, markdown)


def on_page_content(html: str, page: Any, **others: Any) -> str:
    """Equations as MathML, which browsers show without a script."""

    def replacement(equation: re.Match) -> str:
        tag, tex = equation[1], unescape(equation[2][2:-2])
        mathml = convert(tex, display="block" if tag == "div" else "inline")
        if "\\" in mathml:  # a command that is not known
            raise PluginError(f"{page.file.src_uri}: cannot convert {tex}")
        return f'<{tag} class="equation">{mathml}</{tag}>'

    return re.sub(r'<(div|span) class="arithmatex">(.*?)</\1>', replacement, html, flags=re.DOTALL)


def marked(text: str) -> str:
    """The Markdown for what stands between the braces of a marker."""
    call = CALL.fullmatch(text)
    if call is None or call[1] not in MARKERS:
        raise LookupError(f"unknown marker; write one of {', '.join(MARKERS)} with its arguments")
    return MARKERS[call[1]](*ast.literal_eval(f"[{call[2]}]"))


@functools.cache
def settings(name: str, *overrides: str) -> Settings:
    """Those that ``marljax info`` describes."""
    return info.environment_settings(name, overrides)


def about(name: str) -> str:
    """The text of an environment's class, its tables as Markdown."""
    return re.sub(r"^(=+(?: +=+)+)\n(.*?)^\1\n(.*?)^\1$", _simple_table, info.documentation(settings(name)), flags=re.M | re.S)


def facts(name: str, *overrides: str) -> str:
    """An environment's agents, spaces and scripted policies."""
    return table(("property", "value"), info.facts(settings(name, *overrides)).items())


def options(name: str) -> str:
    """An environment's options."""
    return _settings_table(("option", "default", "values", "meaning"), help.environment_options(settings(name)))


def params(name: str, *overrides: str) -> str:
    """An environment's params."""
    return _settings_table(("param", "default", "unit, range", "meaning"), help.environment_params(settings(name, *overrides)))


def metrics(name: str, *overrides: str) -> str:
    """The metrics of an environment's episodes."""
    rows = help.environment_metrics(settings(name, *overrides))
    return table(("metric", "unit and meaning"), ((f"`{metric}`", meaning) for metric, meaning in rows))


def config(algorithm: str) -> str:
    """An algorithm's hyperparameters, those that can be swept in one program marked."""
    record = registry.algorithm(algorithm).Config
    swept = {f"algo.{name}" for name in traced_names(record)}
    rows = [
        (f"`{row.key}`", f"`{row.value}`", row.takes, row.meaning, "✓" * (row.key in swept))
        for row in help.hyperparameters(record)
    ]
    return table(("hyperparameter", "default", "values", "meaning", "sweep"), rows)


def run_settings() -> str:
    """All settings that are neither an algorithm's nor an environment's."""
    return _settings_table(("setting", "default", "values", "meaning"), help.run_settings())


def suite(name: str) -> str:
    """The names of another library's environments."""
    return ", ".join(f"`{member}`" for member in importlib.import_module(registry.SUITES[name]).names())


def pretrained() -> str:
    """The policies that come with marljax, with the first three metrics of their cards."""
    rows = []
    for name, path in policy_file.pretrained().items():
        card = policy_file.card(path)
        units = settings(card["command"].split()[3].removeprefix("env=")).env.display.units
        shown = []
        for metric, estimate in list(card["result"].items())[:3]:
            unit = units.get(metric, "")
            numbers = [number * (100 if unit == "%" else 1) for number in estimate]
            value, low, high = map(decimals_for([(numbers[2] - numbers[1]) / 2]), numbers)
            shown.append(f"{metric} {value} [{low}, {high}] {unit}".rstrip())
        rows.append((f"`{policy_file.PRETRAINED}/{name}`", ", ".join(shown), f"`{card['command']}`"))
    return table(("name", "result", "command"), rows)


def source(path: str) -> str:
    """A file of the repository, folded."""
    lines = (DOCS.parent / path).read_text(encoding="utf-8").splitlines()
    return "\n".join([f'??? note "{path}"', "", *(f"    {line}".rstrip() for line in ["```python", *lines, "```"])])


def results(page: str, heading: str) -> str:
    """The section under a heading of a page of results, without its pictures, whose links are the page's; those to other pages
    of results remain."""
    text = (RESULTS / f"{page}.md").read_text(encoding="utf-8")
    section = re.search(rf"^(#+) {re.escape(heading)}\n(.*?)(?=^#{{1,6}} |\Z)", text, re.MULTILINE | re.DOTALL)
    if section is None:
        raise LookupError(f"baselines/results/{page}.md has no section '{heading}'")
    text = re.sub(r"^!\[.*\)\n*", "", section[2], flags=re.MULTILINE).strip()
    return re.sub(r"\]\((?=\w+\.md)", "](/tables/", text)


MARKERS: dict[str, Callable[..., str]] = {
    function.__name__: function
    for function in (about, facts, options, params, metrics, config, run_settings, suite, pretrained, source, results)
}


def _settings_table(head: Sequence[str], rows: Iterable[help.Setting]) -> str:
    return table(head, ((f"`{row.key}`", f"`{_shortened(row.value)}`", row.takes, row.meaning) for row in rows))


def _shortened(value: str) -> str:
    """A value without the checksum that stands for a long array's entries."""
    return value.partition(", SHA-256")[0]


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table of texts, in which only backquotes are markup."""
    lines = [head, ["---"] * len(head), *([_escaped(cell) for cell in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _escaped(text: str) -> str:
    code = re.split(r"(`+.*?`+)", text)
    plain = [re.sub(r"([<*_\[\\])", r"\\\1", part) if index % 2 == 0 else part for index, part in enumerate(code)]
    return "".join(plain).replace("|", r"\|")


def _simple_table(match: re.Match) -> str:
    """A table as docstrings have them; a row without a first cell continues the one above, unless its others are filled."""
    starts = [column.start() for column in re.finditer("=+", match[1])]
    ends = [*starts[1:], None]
    rows: list[list[str]] = []
    for line in match[3].splitlines():
        cells = [line[start:end].strip() for start, end in zip(starts, ends, strict=True)]
        if cells[0] or all(cells[1:]):
            rows.append(cells)
        else:
            rows[-1] = [f"{above} {cell}".strip() for above, cell in zip(rows[-1], cells, strict=True)]
    head = [match[2].rstrip("\n")[start:end].strip() for start, end in zip(starts, ends, strict=True)]
    return table(head, rows)
