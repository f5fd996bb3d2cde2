"""docs/quickstart.ipynb runs from its first cell to its last, and is kept without outputs."""

import json
import os
from pathlib import Path

import pytest
from conftest import ROOT

NOTEBOOK = ROOT / "docs" / "quickstart.ipynb"


def test_it_is_kept_without_outputs() -> None:
    cells = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]
    assert not [cell["id"] for cell in cells if cell.get("outputs") or cell.get("execution_count")]


@pytest.mark.parametrize("place", [NOTEBOOK.parent, ROOT], ids=["its folder", "the project's"])
def test_it_runs_on_a_cpu(monkeypatch: pytest.MonkeyPatch, place: Path) -> None:
    reason = "nbclient, ipykernel or transformers is not installed; pip install '.[hf,notebook]'"
    for package in ("ipykernel", "transformers"):
        pytest.importorskip(package, reason=reason)
    nbclient = pytest.importorskip("nbclient", reason=reason)
    nbformat = pytest.importorskip("nbformat", reason=reason)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]))
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    folder = {"metadata": {"path": str(place)}}
    # Raises CellExecutionError with the cell and its traceback.
    nbclient.NotebookClient(notebook, timeout=180, resources=folder).execute()
    silent = [
        cell.id
        for cell in notebook.cells
        if cell.cell_type == "code" and not any("text" in output for output in cell.outputs)
    ]
    assert not silent
