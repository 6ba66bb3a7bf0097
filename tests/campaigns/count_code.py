"""Counts code: lines, functions per 100 lines and their median length by folder, and what an algorithm file imports.

python tests/campaigns/count_code.py
"""

import ast
import statistics
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CODE = ("algos", "baselines", "configs", "envs", "marljax")


def python_files(folder: str) -> list[Path]:
    """The Python files below a folder of the repository, each once: ``marljax/envs`` and others are links."""
    return [path for path in sorted((ROOT / folder).rglob("*.py")) if path.resolve() == path]


def count(paths: list[Path]) -> str:
    """Files, lines, functions per 100 lines and the median length of a function."""
    lines, lengths = 0, []
    for path in paths:
        text = path.read_text(encoding="utf-8")
        lines += text.count("\n")
        functions = (node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.FunctionDef))
        lengths += [node.end_lineno - node.lineno + 1 for node in functions]
    median = statistics.median(lengths) if lengths else 0
    share = 100 * len(lengths) / max(lines, 1)
    return f"{len(paths):4d} files  {lines:6d} lines  {share:4.1f} functions/100 lines, median {median:g}"


def library_imports(path: Path) -> tuple[int, int]:
    """How many names of the library a file imports, and from how many modules."""
    nodes = [node for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))) if isinstance(node, ast.ImportFrom)]
    ours = [node for node in nodes if (node.module or "").startswith("marljax")]
    return sum(len(node.names) for node in ours), len({node.module for node in ours})


def main() -> None:
    """Prints all counts."""
    folders = defaultdict(list)
    for folder in (*CODE, "tests"):
        for path in python_files(folder):
            relative = path.relative_to(ROOT)
            folders["/".join(relative.parts[:2]) if folder == "marljax" else folder].append(path)
    for folder, paths in sorted(folders.items()):
        print(f"{folder:28s} {count(paths)}")
    print(f"{'code':28s} {count([path for folder in CODE for path in python_files(folder)])}")
    for path in python_files("algos"):
        names, modules = library_imports(path)
        print(f"{path.name:28s} {names} names from {modules} modules of marljax")


if __name__ == "__main__":
    main()
