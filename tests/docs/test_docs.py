"""README and the pages: links work; commands parse and use what config/ has; examples run."""

import json
import re
import runpy
import shlex
from importlib.util import find_spec
from pathlib import Path

import pytest
from conftest import ROOT, code_blocks

from relation import plan
from relation.cli import build_parser

PAGES = [
    ROOT / "README.md",
    *sorted((ROOT / "docs").glob("*.md")),
    *sorted((ROOT / "kernels").rglob("README.md")),
    *(ROOT / folder / "README.md" for folder in ("relation/ops", "results")),
]
CHOICES = ("campaign=", "scales=", "variations=", "variants=", "seeds=", "vary=")
each_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))


def inline_commands(page: Path) -> list[str]:
    commands = re.findall(r"`(?:[A-Z]+=\S+ )?(python [^`]*)`", page.read_text(encoding="utf-8"))
    return [command.replace("\n", " ") for command in commands]


def anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.M)
    return {re.sub(r"[^\w -]", "", heading).lower().replace(" ", "-") for heading in headings}


@each_page
def test_links_lead_somewhere(page: Path) -> None:
    for link in re.findall(r"\]\(([^)]+)\)", page.read_text(encoding="utf-8")):
        target, _, anchor = link.partition("#")
        if target.startswith("https:"):
            continue
        file = page.parent / target if target else page
        assert file.exists(), link
        assert not anchor or anchor in anchors(file), link


@each_page
def test_commands_parse_and_choose_what_there_is(page: Path, monkeypatch) -> None:
    monkeypatch.chdir(ROOT)
    blocks = (block.replace("\\\n", " ") for block in code_blocks(page, "console"))
    parser, console = build_parser(), [line for block in blocks for line in block.splitlines()]
    for line in (*console, *inline_commands(page)):
        words = shlex.split(line, comments=True)
        choices = dict(word.split("=", 1) for word in words if word.startswith(CHOICES))
        if choices and line in console:
            assert plan.load(choices).runs, line
        if words[:3] == ["python", "-m", "relation"]:
            unknown = [w for w in parser.parse_known_args(words[3:])[1] if w.startswith("-")]
            assert not unknown or words[3:5] == ["bench", "operators"], line
        elif words[:2] == ["python", "-m"]:
            assert find_spec(words[2]), line
        elif words[:1] == ["python"] and words[1].endswith(".py"):
            assert (ROOT / words[1]).exists(), line


@each_page
def test_files_named_in_the_text_exist(page: Path) -> None:
    """Checks paths with a folder. Paths next to a commit belong to that commit."""
    folders = "relation|report|tests|tools|config|workflow|profiles|results/published"
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.S)
    for name in re.findall(rf"`((?:{folders})/[\w/.-]+)`(?! of (?:commit )?`?[0-9a-f]{{7}})", text):
        assert (ROOT / name).exists(), name


def run(script: Path, blocks: list[str]) -> dict:
    """Run the blocks of code on a CPU and return the variables that they define."""
    pytest.importorskip("transformers")
    script.write_text("\n".join(blocks))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("torch.cuda.is_available", lambda: False)
        return runpy.run_path(str(script))


def test_the_examples_of_the_librarys_page_run(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    scope = run(tmp_path / "examples.py", code_blocks(ROOT / "docs/library.md", "python"))
    assert scope["logits"].shape == (2, 32, 256) and scope["y"].shape == (2, 4, 32, 16)
    assert len(scope["ids"]) == 20 and scope["llama"].model.layers[0].self_attn.lam.requires_grad


def test_the_quickstarts_cells_run(tmp_path: Path, monkeypatch) -> None:
    """The cells check themselves with asserts."""
    monkeypatch.chdir(ROOT)
    notebook = json.loads((ROOT / "docs/quickstart.ipynb").read_text(encoding="utf-8"))
    cells = [cell["source"] for cell in notebook["cells"] if cell["cell_type"] == "code"]
    run(tmp_path / "quickstart.py", ["".join(source) for source in cells])
