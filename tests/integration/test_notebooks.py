import pathlib
import subprocess
import sys

import nbformat
import pytest
from nbclient import NotebookClient

NOTEBOOKS = pathlib.Path(__file__).parents[2] / "notebooks"


INSTALLED = """
import pathlib, subprocess, sys
sys.path.append("site")

def run(words, check):
    print("installs", words[-1])
    for name, text in {"marljax/__init__.py": "make = 1", "marljax-1.dist-info/METADATA": "Name: marljax\\nVersion: 1"}.items():
        path = pathlib.Path("site", name)
        path.parent.mkdir(parents=True)
        path.write_text(text)

subprocess.run = run
"""


def test_the_quickstart_installs_from_a_clone_and_once(tmp_path):
    """A folder named marljax beside the notebook is importable, but not an installation."""
    (tmp_path / "marljax").mkdir()
    cells = nbformat.read(NOTEBOOKS / "quickstart.ipynb", as_version=4).cells
    cell = next(cell.source for cell in cells if cell.cell_type == "code")
    code = f"{INSTALLED}\n{cell}\nimport marljax\nprint(marljax.make)\n{cell}"
    shown = subprocess.run([sys.executable, "-S", "-c", code], cwd=tmp_path, capture_output=True, text=True)  # -S: no packages
    assert shown.stdout.splitlines() == ["installs ./marljax", "1"], shown.stderr


@pytest.mark.slow
@pytest.mark.parametrize("path", sorted(NOTEBOOKS.glob("*.ipynb")), ids=lambda path: path.stem)
def test_notebook_runs(path, tmp_path, monkeypatch):
    """Every cell of the notebook as it stands, from a folder of its own; figures and the episode come out."""
    monkeypatch.delenv("XLA_FLAGS")  # it trains for longer than it compiles
    notebook = nbformat.read(path, as_version=4)
    NotebookClient(notebook, timeout=900, resources={"metadata": {"path": tmp_path}}).execute()
    kinds = {kind for cell in notebook.cells for output in cell.get("outputs", []) for kind in output.get("data", {})}
    assert {"image/png", "text/html"} <= kinds
    assert not any("outputs" in cell and cell["outputs"] for cell in nbformat.read(path, as_version=4).cells), (
        "commit without outputs"
    )
