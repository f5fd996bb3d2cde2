"""The examples of docs/library.md and docs/quickstart.ipynb run in order on a CPU."""

import json
import re
import runpy
from pathlib import Path

import pytest
from conftest import ROOT

pytest.importorskip("transformers")


@pytest.fixture(autouse=True)
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)


def run(script: Path, blocks: list[str]) -> dict:
    """Run the blocks of code and return the variables that they define."""
    script.write_text("\n".join(blocks))
    return runpy.run_path(str(script))


def test_those_of_the_librarys_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    page = (ROOT / "docs/library.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```", page, re.S | re.M)
    scope = run(tmp_path / "examples.py", blocks)
    assert scope["logits"].shape == (2, 32, 256) and scope["y"].shape == (2, 4, 32, 16)
    assert len(scope["ids"]) == 20 and scope["llama"].model.layers[0].self_attn.lam.requires_grad


def test_the_quickstarts_cells(tmp_path: Path) -> None:
    """The cells check themselves with asserts."""
    notebook = json.loads((ROOT / "docs/quickstart.ipynb").read_text(encoding="utf-8"))
    cells = [cell["source"] for cell in notebook["cells"] if cell["cell_type"] == "code"]
    run(tmp_path / "quickstart.py", ["".join(source) for source in cells])
