"""docs/quickstart.ipynb runs from its first cell to its last."""

import os

import pytest
from conftest import ROOT

NOTEBOOK = ROOT / "docs" / "quickstart.ipynb"


def test_it_runs_on_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    for package in ("ipykernel", "transformers", "nbformat", "nbclient"):
        pytest.importorskip(package, reason=f"{package} is not installed")
    import nbclient
    import nbformat

    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]))
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    folder = {"metadata": {"path": str(NOTEBOOK.parent)}}
    # Raises CellExecutionError with the cell and its traceback.
    nbclient.NotebookClient(notebook, timeout=180, resources=folder).execute()
    for cell in notebook.cells:
        if cell.cell_type == "code":
            assert any("text" in output for output in cell.outputs), cell.id
