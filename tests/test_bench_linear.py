"""The benchmark of Linear Relation: its peers, its floor, long contexts, and the printed lines."""

import importlib.util
import sys
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from itertools import chain, product
from pathlib import Path

import pytest
import torch
from benchmarks import CPU, CUDA, SHAPE, compared_rows, failed, measured, on_gpu
from conftest import campaign
from torch import Tensor

from relation.bench import linear
from relation.bench.linear import (
    FLA_PEERS,
    chunked_output,
    gated_attention,
    relation_by_attention,
)
from relation.bench.peers import Peer, brief_autotuning, relative_errors
from relation.bench.run import run
from relation.bench.sides import (
    FLOOR,
    Case,
    floor_bytes,
    long_groups,
    operator_part,
    step_groups,
)
from relation.bench.table import notes, sections
from relation.ops import linear_relation
from relation.store.parquet import read_origin
from relation.verify.inputs import Shape

CASE = Case("linear", SHAPE, "fp32", "a machine", "chunked")
RELATION = ("p1", "p2", "info", "log_retention")


def test_the_papers_shapes_steps_and_long_contexts_come_from_the_configuration() -> None:
    paper, compared = campaign("paper"), linear.BENCHMARKS["cuda"]
    assert [shape.dimensions for shape in compared.shapes(paper.systems)] == [
        (32, 8, 1024, 48),
        (16, 8, 2048, 64),
        (4, 8, 4096, 80),
        (1, 8, 65536, 64),
    ]
    steps = step_groups(compared.steps, paper.systems)
    geometry = [("10M", 1024, 32), ("30M", 2048, 16), ("100M", 4096, 4)]
    assert [(g.spec.scale, g.context, g.micro) for g in steps] == geometry
    for group, layers in zip(steps, (6, 10, 20), strict=True):
        layouts = {name: model.layout for name, (_, model) in group.sides.items()}
        assert layouts == {
            "linear-relation": "L" * layers,
            "flash-relation": "F" * layers,
            "flash-attention-2": "A" * layers,
        }
    sweep = long_groups(compared.long, paper.systems)
    contexts = [[group.context for group in together] for together in sweep]
    assert contexts == [[8192, 16384, 32768], [65536], [131072], [262144]]
    for group in chain(*sweep):
        ((side, model),) = group.sides.values()
        assert (group.micro, group.spec.scale, side.variant) == (1, "30M", "linear")
        assert (model.layout, model.d_model) == ("L" * 10, 512)
    assert long_groups(compared.long, campaign("paper", scales="10M,100M").systems) == []


def drawn(shape: Shape, dtype: torch.dtype, seed: int = 0) -> dict[str, Tensor]:
    return linear.draw(shape, dtype, CPU, torch.Generator().manual_seed(seed))


def test_inputs_are_a_layers_as_it_starts() -> None:
    shape = Shape("", 2, 4, 65, 16)
    inputs = drawn(shape, torch.bfloat16)
    for name, x in inputs.items():
        assert x.shape == shape.dimensions[: x.ndim]
        wide = name in ("log_retention", "forgetting")
        assert x.dtype == (torch.float32 if wide else torch.bfloat16)
        assert x.transpose(1, 2).is_contiguous() and x.is_leaf
        assert x.requires_grad == (name != "dy")
    g = inputs["log_retention"].detach()
    # -A dt with A in (1, 16) and dt in (0.001, 0.1); the retention path moves dt by a few percent.
    assert -16 * 0.15 < g.min() < -0.1 and -0.01 < g.max() < -0.0005
    assert g.std(dim=2).max() > 0
    forgetting, others = inputs["forgetting"].detach(), torch.arange(16) % 8 != 0
    assert torch.equal(forgetting[..., others], g[..., others])
    assert -30 <= forgetting.min() < -29 and forgetting[..., ~others].mean() < -14
    for name in ("read", "write"):
        assert inputs[name].float().norm(dim=-1).max() < 1.01
    assert inputs["strength"].min() > 0 and inputs["strength"].max() < 1


def in_float64(inputs: dict[str, Tensor], names: tuple[str, ...]) -> list[Tensor]:
    return [inputs[name].detach().double().requires_grad_() for name in names]


@pytest.mark.parametrize("shape", [Shape("", 1, 1, 1, 8), Shape("", 2, 3, 63, 12), SHAPE])
def test_linear_relation_is_gated_attention_less_its_diagonal(shape: Shape) -> None:
    inputs = drawn(replace(shape, heads=2), torch.float32, seed=1)
    given = in_float64(inputs, RELATION)
    dy = inputs["dy"].double()
    found = relation_by_attention(*given, gated_attention)
    expected, _ = linear_relation(*given)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    gradients, truths = (torch.autograd.grad(y, given, dy) for y in (found, expected))
    for gradient, truth in zip(gradients, truths, strict=True):
        torch.testing.assert_close(gradient, truth, rtol=1e-10, atol=1e-10)


def test_the_delta_rule_replaces_what_was_written_under_the_same_key() -> None:
    """With nothing forgotten and orthonormal keys, a full write is read back as it is."""
    width = 4
    keys = torch.eye(width, dtype=torch.float64)
    order = [0, 1, 2, 1, 3, 0]
    write = keys[order][None, None]
    info = torch.randn(1, 1, len(order), width, dtype=torch.float64)
    kept = torch.zeros_like(write)
    full = torch.ones(1, 1, len(order), dtype=torch.float64)
    for key in range(width):
        read = keys[key].expand_as(write)
        read_back = gated_attention(read, write, info, kept, full)[0, 0, -1]
        last = max(t for t, written in enumerate(order) if written == key)
        torch.testing.assert_close(read_back, info[0, 0, last])
    assert not gated_attention(write, write, info, kept, 0 * full).any()
    halved = kept - torch.tensor(2.0).log()
    half = gated_attention(write, write, info, halved, 0.5 * full)[0, 0]
    torch.testing.assert_close(half[3], 0.5 * info[0, 0, 3] + 0.5 * 0.25 * 0.5 * info[0, 0, 1])


FAKE_KERNEL = """
from relation.bench.linear import gated_attention

def {}(*inputs, scale):
    assert scale == 1.0 and all(x.is_contiguous() for x in inputs)
    return gated_attention(*(x.transpose(1, 2) for x in inputs)).transpose(1, 2), None
"""
FAKE_LIBRARY = {
    "__init__.py": """
import importlib
try:
    importlib.import_module("fla.layers")
except ModuleNotFoundError as missing:
    assert missing.name == "fla.layers"
""",
    "layers.py": "import a_package_that_only_layers_need",
    "ops/__init__.py": "",
    "ops/gla.py": FAKE_KERNEL.format("chunk_gla"),
    "ops/kda.py": FAKE_KERNEL.format("chunk_kda"),
}


@pytest.fixture
def fake_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A package `fla` whose kernels are the definitions and whose layers cannot be imported."""
    for name, text in FAKE_LIBRARY.items():
        path = tmp_path / "fla" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    present = {name: sys.modules.pop(name) for name in list(sys.modules) if imported(name)}
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(torch, "compile", lambda function, **options: function)
    yield
    for name in [name for name in sys.modules if imported(name)]:
        del sys.modules[name]
    sys.modules.update(present)


def imported(name: str) -> bool:
    return name.split(".")[0] == "fla"


@pytest.mark.parametrize("peer", FLA_PEERS, ids=lambda peer: peer.name)
def test_the_librarys_kernels_are_called_as_they_want_it(fake_library: None, peer: Peer) -> None:
    shape = Shape("", 2, 2, 37, 16)
    errors = relative_errors(peer, peer.build(shape, CPU), drawn(shape, torch.float32))
    assert list(errors) == ["Y", *(f"d{name}" for name in peer.takes)]
    assert max(errors.values()) < 1e-5  # FP32: sums of 37 and 16 terms, 6e-8 a rounding
    assert not {"fla.layers", "fla.models"} & set(sys.modules)


@pytest.mark.parametrize("library, told", [
    (None, "not installed; pip install fla-core"),
    (object(), "it needs a GPU, and this device is cpu"),
])  # fmt: skip
def test_a_missing_library_or_gpu_is_told(
    monkeypatch: pytest.MonkeyPatch, library: object, told: str
) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: library if name == "fla" else find(name)
    )
    for peer in FLA_PEERS:
        assert peer.why_not_timed(SHAPE, CPU).endswith(told)
        assert (peer.why_not_timed(SHAPE, CUDA) is None) == (library is not None)


def test_a_peer_is_not_timed_above_its_longest() -> None:
    short = replace(linear.BENCHMARKS["cpu"].peers[0], longest=SHAPE.length - 1)
    assert f"above T = {SHAPE.length - 1}" in short.why_not_timed(SHAPE, CPU)
    assert replace(short, longest=SHAPE.length).why_not_timed(SHAPE, CPU) is None


def test_only_as_many_tokens_are_checked_as_a_peer_says() -> None:
    def late(*inputs: Tensor) -> Tensor:
        y = chunked_output(*inputs)
        return torch.cat([y[:, :, :20], 2 * y[:, :, 20:]], dim=2)

    found = []
    for tokens in (20, 21):
        peer = Peer("late", RELATION, lambda *_: late, chunked_output, checked_tokens=tokens)
        found.append(max(relative_errors(peer, late, drawn(SHAPE, torch.float32)).values()))
    assert found[0] < 1e-5 and found[1] > 0.05


def test_the_floor_is_a_copy_of_what_must_be_read_and_written(small_cache: None) -> None:
    shape = Shape("", 2, 2, 33, 16)
    inputs = drawn(shape, torch.bfloat16)
    subject = linear.BENCHMARKS["cpu"].peers[0]
    numbers = inputs["p1"].numel()
    # Forward: p1, p2, I in and y out in BF16, g in FP32; backward: those in, dy in, gradients out.
    forward, backward = 4 * 2 + 4, 3 * 2 + 4 + 2 + 3 * 2 + 4
    moved = {"forward": forward * numbers, "forward+backward": (forward + backward) * numbers}
    assert floor_bytes(subject, inputs) == moved
    frozen = replace(subject, frozen=("log_retention",))
    assert floor_bytes(frozen, inputs)["forward+backward"] == moved["forward+backward"] - (
        4 * numbers
    )
    whole, measures = linear.BENCHMARKS["cpu"], tuple(moved)
    benchmark = replace(whole, peers=whole.peers[:1])
    found = compared_rows(operator_part(benchmark, CASE, measures, 6, CPU))
    rows = {(row["peer"], row["measure"]): row for row in found}
    for measure in moved:
        row = rows[FLOOR, measure]
        assert row["status"] == "PASS" and row["ratio"] > 0 and row["relative_error"] is None
        assert row["moved_bytes"] == floor_bytes(subject, drawn(SHAPE, torch.float32))[measure]
        assert rows["chunked", measure]["moved_bytes"] is None


def long_row(length: int, seconds: float, peak: int | None) -> dict:
    case = replace(CASE, shape=Shape("30M", 1, 8, length, 64))
    found = {"tokens_per_second": length / seconds, "peak_bytes": peak}
    return measured(case, "long", "chunked", [seconds] * 6, **found)


def test_the_table_of_long_contexts_shows_rates_and_the_straightness_of_memory() -> None:
    gib, mib = 2**30, 2**20
    rows = [long_row(1024 * n, s, gib + n * mib) for n, s in ((1, 0.5), (2, 0.8), (4, 2.0))]
    case = replace(CASE, shape=Shape("30M", 1, 8, 8192, 64))
    full = failed(case, "long", "chunked", "OOM", "tried to allocate 9 GiB")
    (section,) = sections([*rows, full])
    assert section.title == "30M training step of chunked on one sequence"
    assert section.header == ["T", "step ms", "tok/s", "of T=1,024", "peak GiB", ""]
    assert section.rows == [
        ["1,024", "500.00", "2,048", "1.000", "1.00", ""],
        ["2,048", "800.00", "2,560", "1.250", "1.00", ""],
        ["4,096", "2000.00", "2,048", "1.000", "1.00", ""],
        ["8,192", "-", "-", "-", "-", "OOM"],
    ]
    lines = notes("chunked", [*rows, full], [])
    straight = "1,024 MiB + 1.0 KiB a token by least squares; no point is off that line by more"
    assert any(straight in line and "0.00%" in line for line in lines)
    assert "chunked (30M long T 8192): OOM, tried to allocate 9 GiB" in lines
    bent = [*rows[:2], long_row(4096, 2.0, 2 * gib)]
    (told,) = [line for line in notes("chunked", bent, []) if line.startswith("memory")]
    assert "0.00%" not in told
    assert not [line for line in notes("chunked", rows[:2], []) if line.startswith("memory")]
    (failed_first,) = sections([full, rows[0]])
    assert failed_first.rows[1][3] == "-"


def test_the_floors_bytes_and_speed_are_told_once_a_shape() -> None:
    ours, floor = [4e-3] * 6, [1e-3] * 6
    rows = [
        measured(CASE, "forward", "chunked", ours),
        measured(CASE, "forward", "floor", floor, ours, moved_bytes=150_000_000),
        measured(CASE, "forward+backward", "floor", floor, ours, moved_bytes=3_000_000_000),
        failed(CASE, "forward", "floor", "OOM", "full"),
    ]
    told = "forward 150.0 MB at 150 GB/s, forward+backward 3,000.0 MB at 3,000 GB/s"
    assert f"floor (10M T 33): {told}" in notes("chunked", rows, [])


def test_candidates_are_compiled_before_they_are_timed() -> None:
    triton = pytest.importorskip("triton")
    from triton.runtime.autotuner import Autotuner

    compiled = []

    class Kernel:
        fn = staticmethod(lambda: None)

        def warmup(self, *args, grid, **launch) -> None:
            compiled.append((args, grid, launch["BLOCK"], launch["num_warps"]))

    configs = [triton.Config({"BLOCK": block}, num_warps=2) for block in (16, 32, 64)]
    tuner = Autotuner(Kernel(), ["x"], configs, [], None, None)
    tuner.nargs = {"x": 7}
    before = Autotuner.prune_configs, vars(Autotuner)["do_bench"]
    with pytest.raises(RuntimeError, match="inside"), brief_autotuning():
        assert tuner.prune_configs({"grid": (1,), "warmup": False}) == configs
        assert tuner.do_bench.keywords == {"warmup": 5, "rep": 20}
        raise RuntimeError("inside")
    assert compiled == [((7,), (1,), block, 2) for block in (16, 32, 64)]
    assert (Autotuner.prune_configs, vars(Autotuner)["do_bench"]) == before
    assert tuner.prune_configs({"grid": (1,), "warmup": False}) == configs
    assert len(compiled) == 3


def test_bench_linear_on_a_cpu(small_cache: None, one_process: None, tmp_path: Path) -> None:
    path, tiny = tmp_path / "linear.parquet", campaign("tiny", scales="30M")
    measures = ["backward", "step", "long"]
    found = run("linear", tiny.systems, tiny.settings, "cpu", path, measures, repeats=6)
    assert {(row["measure"], row["length"], row["peer"]) for row in found.rows} == {
        *product(["forward+backward"], (32, 128), ("chunked", "forgetful", "recurrent", FLOOR)),
        *product(["step"], [32], ("chunked", "tiled", "attention")),
        *product(["long"], (8, 16, 32, 64, 128), ["chunked"]),
    }
    for row in found.rows:
        assert row["status"] == "PASS" and row["seconds"] > 0
        assert (row["ratio"] is None) == (row["peer"] == "chunked")
        if row["measure"] == "long":
            assert row["tokens_per_second"] == row["length"] / row["seconds"]
    moments = [state["moment"] for state in read_origin(path)["conditions"]]
    assert moments[-4:] == [f"30M long T={contexts}" for contexts in ("8, 16", "32", "64", "128")]


@pytest.mark.gpu
def test_every_peer_of_linear_relation_runs_and_agrees() -> None:
    whole, shape = linear.BENCHMARKS["cuda"], Shape("10M", 2, 4, 500, 48)
    if importlib.util.find_spec("fla") is None:
        pytest.skip("fla-core is not installed")
    case = Case("linear", shape, "bf16", "a GPU", whole.subject)
    measures = ("forward", "forward+backward")
    rows = on_gpu(partial(operator_part, whole, case, measures, 6))
    names = [*(peer.name for peer in whole.peers), FLOOR]
    assert {(row["peer"], row["status"]) for row in rows} == {(name, "PASS") for name in names}
    for row in rows:
        assert (row["relative_error"] is None) == (row["peer"] == FLOOR)
        assert row["relative_error"] is None or row["relative_error"] < 0.02
