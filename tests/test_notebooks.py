import pathlib

import nbformat
import pytest
from nbclient import NotebookClient

NOTEBOOKS = pathlib.Path(__file__).parent.parent / "notebooks"


@pytest.mark.slow
@pytest.mark.parametrize("path", sorted(NOTEBOOKS.glob("*.ipynb")), ids=lambda path: path.stem)
def test_notebook_runs(path, tmp_path):
    """Every cell of the notebook as it stands, from a folder of its own; figures and the animation come out."""
    notebook = nbformat.read(path, as_version=4)
    NotebookClient(notebook, timeout=900, resources={"metadata": {"path": tmp_path}}).execute()
    kinds = {kind for cell in notebook.cells for output in cell.get("outputs", []) for kind in output.get("data", {})}
    assert {"image/png", "image/gif"} <= kinds
    assert not any("outputs" in cell and cell["outputs"] for cell in nbformat.read(path, as_version=4).cells), (
        "commit without outputs"
    )
