import pathlib
import re
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
def test_notebook_runs(path, tmp_path):
    """Every cell of the notebook in a folder of its own, with short trainings; figures or episodes come out."""
    notebook = nbformat.read(path, as_version=4)
    assert not any(cell.get("outputs") for cell in notebook.cells), "commit without outputs"
    for cell in notebook.cells:
        cell.source = re.sub(r"total_steps=\d[\d_]*", "total_steps=8_192", cell.source)
    NotebookClient(notebook, timeout=900, resources={"metadata": {"path": tmp_path}}).execute()
    kinds = {kind for cell in notebook.cells for output in cell.get("outputs", []) for kind in output.get("data", {})}
    assert {"image/png", "text/html"} & kinds
