"""Which jobs an edit makes stale, in a copy: those whose results it can change, and no other."""

import shutil
from pathlib import Path

import pytest
from conftest import ROOT

from relation.pipeline.hashes import PACKAGES, STAGES, Code
from relation.pipeline.uses import uses_of, uses_of_model, uses_of_report
from relation.spec import DataSpec

CPU = {"mha": "flash", "full": "tiled", "linear": "chunked"}
GPU = {"mha": "flash", "full": "flash", "linear": "flash"}
PAGES = {"cells", "figures", "report", "document"}


def corpus(kind: str) -> frozenset[str]:
    return uses_of(DataSpec("c", "C", 300, {"kind": kind}, None, None, None, None, 8))


# Jobs by name: stage and, where they are known, the entries of registries.
JOBS: dict[str, tuple[str, frozenset[str]]] = {
    "files": ("data", corpus("files")),
    "hub": ("data", corpus("huggingface")),
    "inventory": ("models", uses_of_model("AFL")),
    "mha": ("training", uses_of_model("A", CPU)),
    "full": ("training", uses_of_model("F", CPU)),
    "hybrid": ("training", uses_of_model("LLLF", CPU)),
    "mha-gpu": ("training", uses_of_model("A", GPU)),
    "full-gpu": ("training", uses_of_model("F", GPU)),
    "probe": ("probe", uses_of_model("AF")),
    "diagnose": ("diagnostics", uses_of_model("AF")),
    "measure": ("systems", uses_of_model("AF", CPU)),
    "measure-gpu": ("systems", uses_of_model("AF", GPU)),
    "verify-gpu": ("verification", frozenset({"BACKENDS/full/flash", "BACKENDS/linear/chunked"})),
    "gradients": ("gradients", uses_of_model("AFL", CPU)),
    "recall": ("recall", uses_of_model("FF", CPU)),
    "examine": ("examination", uses_of_model("FF", CPU)),
    "verify": ("verification", uses_of_model("FL", CPU)),
    "collect": ("readings", frozenset()),
    **{page: (page, uses_of_report(["mha", "full", "hybrid"])) for page in sorted(PAGES)},
}
TRAINED = {"mha", "full", "hybrid", "mha-gpu", "full-gpu"}
STEPS = TRAINED | {"measure", "measure-gpu", "gradients", "recall"}
MODELS = STEPS | {"inventory", "probe", "diagnose", "examine"}
FULL_ON_GPU = {"full-gpu", "measure-gpu", "verify-gpu"}


def hashes(root: Path) -> dict[str, str]:
    code = Code(root)
    return {name: code.hash(STAGES[stage], uses) for name, (stage, uses) in JOBS.items()}


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the code."""
    root = tmp_path_factory.mktemp("edits")
    for package in PACKAGES:
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / package, root / package, ignore=ignored)
    shutil.copy2(ROOT / "config.yaml", root)
    return root


@pytest.fixture(scope="module")
def before(copy: Path) -> dict[str, str]:
    return hashes(copy)


# What was edited; the file, the text and what replaces it; the jobs that rest on it.
NONE: set[str] = set()
BACKENDS, SCHEDULE = "relation/ops/backends.py", "relation/train/schedule.py"
MIXERS, DECODER = "relation/nn/mixers.py", "relation/nn/decoder.py"
LAUNCHES = "kernels/flash_relation/launches.toml"
EDITS: dict[str, tuple[str, str, str, set[str]]] = {
    "a new variant": (
        "relation/variants.py",
        'Variant("linear",',
        'Variant("toy", "Toy"),\n    Variant("linear",',
        NONE,
    ),
    "a new backend": (
        BACKENDS,
        "Registry(\n    Backend(",
        'Registry(\n    Backend("full", "toy", full_relation, summary="toy"),\n    Backend(',
        NONE,
    ),
    "a new layer": (MIXERS, 'Layer("L"', 'Layer("T", FullRelationMixer),\n    Layer("L"', NONE),
    "a new table": (
        "report/values/quality.py",
        "\nPAIRED_NLL = ",
        "\nTOY = replace(MAIN_RESULTS, label='toy')\nPAIRED_NLL = ",
        PAGES - {"figures"},
    ),
    "a new campaign": ("config.yaml", "campaigns:\n", "campaigns:\n  toy: {base: smoke}\n", NONE),
    "a log line": ("relation/train/run.py", "goes on at", "resumes at", NONE),
    "a progress note": ("relation/train/run.py", "['loss']:.3f", "['loss']:.4f", NONE),
    "a progress interval": ("relation/machine/progress.py", "LINES = 15.0", "LINES = 5.0", NONE),
    "an error's wording": ("kernels/checks.py", 'Error(f"', 'Error(f"so: ', NONE),
    "a lock's wording": ("relation/store/locks.py", "is already running", "runs", NONE),
    "a refusal's wording": (BACKENDS, "it needs a CUDA device", "give a CUDA device", NONE),
    "a help text": ("relation/cli/jobs.py", "tokenise one corpus", "tokenise a corpus", NONE),
    "a backend's summary": (BACKENDS, "the direct recurrence", "a recurrence", NONE),
    "a column's description": ("relation/store/layouts.py", '"from 1"', '"counted from 1"', NONE),
    "a docstring": (SCHEDULE, '"""', '"""In other words: ', NONE),
    "an annotation": (SCHEDULE, "-> float", '-> "float"', NONE),
    "a corpus read otherwise": (
        "relation/data/sources.py",
        "iter(self._data)",
        "iter(list(self._data))",
        {"hub"},
    ),
    "the report's prose": ("report/render/pipeline.py", "Draw the", "Draw all", {"report"}),
    "the schedule": (SCHEDULE, "min(rise, fall)", "0.99 * min(rise, fall)", TRAINED | {"recall"}),
    "a kernel": ("kernels/flash_relation/forward.py", "LN_2 =", "LN_2 = 1.0 *", FULL_ON_GPU),
    "a Gluon kernel": (
        "kernels/flash_relation/hopper_tiles.py",
        "-x * LOG2_E",
        "-LOG2_E * x",
        FULL_ON_GPU,
    ),
    "a launch": (LAUNCHES, "warps = 4", "warps = 8", FULL_ON_GPU),
    "a launch's comment": (LAUNCHES, "[", "# a word\n[", NONE),
    "a task's filler": (
        "relation/probes/recall/sequences.py",
        "FILLER = 0",
        "FILLER = 1",
        {"recall"},
    ),
    "bands of use": ("relation/probes/self_use.py", "BANDS = 4", "BANDS = 5", {"examine"}),
    "what is gathered": (
        "relation/pipeline/gather.py",
        "return None",
        "return 0",
        {"collect", "cells", "figures"},
    ),
    "a benchmark's seed": (
        "relation/bench/steps.py",
        "seed=0",
        "seed=1",
        {"measure", "measure-gpu"},
    ),
    "a check's output": (
        "relation/verify/operators.py",
        "y.detach()",
        "-y.detach()",
        {"verify", "verify-gpu"},
    ),
    "what a gradient may miss": (
        "relation/verify/gradients.py",
        "ERROR = 0.01",
        "ERROR = 0.02",
        {"gradients"},
    ),
    "how vectors start": (
        MIXERS,
        '* draw("a_log"',
        '* 0.5 * draw("a_log"',
        {"hybrid", "gradients"},
    ),
    "how matrices start": (DECODER, "scale /= (2", "scale /= (3", STEPS),
    "a layer's output": (MIXERS, "y.transpose(1, 2)", "y.mT.transpose(1, 2)", MODELS),
    "the data's order": (
        "relation/data/windows.py",
        "np.random.",
        "np.random.x.",
        STEPS - {"gradients", "recall"},
    ),
}


@pytest.mark.parametrize("edit", EDITS)
def test_an_edit_makes_stale_what_rests_on_it(
    copy: Path, before: dict[str, str], edit: str
) -> None:
    file, text, new, stale = EDITS[edit]
    path = copy / file
    source = path.read_text(encoding="utf-8")
    assert text in source
    path.write_text(source.replace(text, new, 1), encoding="utf-8")
    try:
        after = hashes(copy)
    finally:
        path.write_text(source, encoding="utf-8")
    assert {name for name in JOBS if after[name] != before[name]} == stale


def test_a_copy_and_a_move_change_nothing(copy: Path, before: dict[str, str]) -> None:
    """Where the project lies is in no hash, nor where in it a definition stands."""
    assert before == hashes(ROOT)
    moved = copy / SCHEDULE
    readers = [copy / "relation/train/run.py", copy / "relation/probes/recall/run.py"]
    texts = [path.read_text(encoding="utf-8") for path in readers]
    moved.rename(copy / "relation/rates.py")
    for path, text in zip(readers, texts, strict=True):
        path.write_text(text.replace("relation.train.schedule", "relation.rates"), encoding="utf-8")
    try:
        assert hashes(copy) == before
    finally:
        (copy / "relation/rates.py").rename(moved)
        for path, text in zip(readers, texts, strict=True):
            path.write_text(text, encoding="utf-8")
