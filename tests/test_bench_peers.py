"""What a benchmark compares, what becomes a row, and that models compiled together keep apart."""

import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial

import pytest
import torch
from benchmarks import CASE, CPU, CUDA, OPTIMIZER, SHAPE, compared_rows, failed, on_gpu
from conftest import campaign
from torch import Tensor

from relation.bench import flash
from relation.bench.cute import why_no_cute
from relation.bench.peers import Peer, micro_batch_shapes, relative_errors
from relation.bench.processes import UNAVAILABLE, failure_of
from relation.bench.rounds import Answers
from relation.bench.sides import Case, operator_part, rotating_inputs, step_groups, steps_part
from relation.bench.steps import Setup, build_step
from relation.bench.timing import HOST
from relation.errors import InputError, RunError
from relation.nn import Execution
from relation.ops import full_relation
from relation.store.layouts import BENCH
from relation.variants import ModelConfig
from relation.verify.inputs import Shape


def test_the_papers_shapes_and_steps_come_from_the_configuration() -> None:
    paper = campaign("paper")
    shapes = [shape.dimensions for shape in micro_batch_shapes(paper.systems)]
    assert shapes == [(32, 8, 1024, 48), (16, 8, 2048, 64), (4, 8, 4096, 80)]
    groups = step_groups(flash.BENCHMARKS["cuda"].steps, paper.systems)
    found = {(g.spec.scale, g.context, g.micro): list(g.sides) for g in groups}
    materialised = ["materialised", "materialised-compiled"]
    matched = ["8-documents", "flash-attention-2", "cudnn-attention"]
    assert found == {
        ("10M", 1024, 32): ["flash-relation", *matched, *materialised],
        ("30M", 2048, 16): ["flash-relation", *matched],
        ("100M", 4096, 4): ["flash-relation", *matched],
        ("30M", 1024, 32): ["flash-relation", *materialised],
        ("100M", 1024, 16): ["flash-relation", *materialised],
    }
    for group in groups:
        for side, model in group.sides.values():
            letter = "A" if side.variant == "mha" else "F"
            assert model.layout == letter * {"10M": 6, "30M": 10, "100M": 20}[group.spec.scale]


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.parametrize("shape", [Shape("", 1, 1, 1, 8), Shape("", 2, 3, 63, 48), SHAPE])
@pytest.mark.parametrize("lam, tau", [(0.5, 2.0), (-1.25, 0.75)])
def test_flex_attention_spells_full_relation(shape: Shape, lam: float, tau: float) -> None:
    inputs = flash.draw(shape, torch.float32, CPU, torch.Generator().manual_seed(1))
    p1, p2, info = (inputs[name].detach() for name in ("p1", "p2", "info"))
    p1 = 4 * p1  # scores far from zero, where SiLU is not a line
    lam = torch.tensor(lam)
    log_i = torch.arange(1.0, shape.length + 1).log()
    y = flash.flex_relation(p1, p2, info, lam, log_i, flash.causal_blocks(shape.length, CPU), tau)
    torch.testing.assert_close(y, full_relation(p1, p2, info, lam, tau), rtol=1e-5, atol=1e-5)


def test_inputs_are_stored_as_a_models_are_and_rotate(small_cache: None) -> None:
    first, *others = rotating_inputs(flash.draw, SHAPE, torch.float32, CPU)
    for name in ("p1", "p2", "info", "dy"):
        assert first[name].shape == SHAPE.dimensions
        assert first[name].transpose(1, 2).is_contiguous()
        assert first[name].std().item() == pytest.approx(1.0, abs=0.1)
        assert first[name].requires_grad == (name != "dy")
    held = sum(tensor.nbytes for tensor in first.values())
    assert held * len(others) >= 2**16
    pointers = {copy["p1"].data_ptr() for copy in (first, *others)}
    assert len(pointers) == 1 + len(others)
    assert not torch.equal(others[0]["p1"], first["p1"])


def peer(name: str, call: Callable[..., Tensor], **rest) -> Peer:
    takes = ("p1", "p2", "info", "lam")
    return Peer(name, takes, lambda shape, device: call, full_relation, **rest)


def without_self(p1, p2, info, lam):
    return full_relation(p1, p2, info, lam, transport_self=False)


def test_errors_are_those_of_the_output_and_of_each_wanted_gradient() -> None:
    inputs = flash.draw(SHAPE, torch.float32, CPU, torch.Generator().manual_seed(2))
    exact = relative_errors(peer("exact", full_relation), full_relation, inputs)
    assert list(exact) == ["Y", "dp1", "dp2", "dinfo", "dlam"]
    assert max(exact.values()) < 1e-5  # FP32: sums of 33 and 16 terms, 6e-8 a rounding
    frozen = relative_errors(peer("x", full_relation, frozen=("lam",)), full_relation, inputs)
    assert list(frozen) == ["Y", "dp1", "dp2", "dinfo"]

    def scaled(*given: Tensor) -> Tensor:
        return 1.5 * full_relation(*given)

    found = relative_errors(peer("scaled", full_relation), scaled, inputs)
    dlam = found.pop("dlam")
    assert found == pytest.approx({"Y": 0.5, "dp1": 0.5, "dp2": 0.5, "dinfo": 0.5})
    assert 0 < dlam < 0.5 * 5  # half the gradient, over its standard deviation


def test_a_scalars_error_is_over_the_rms_of_its_gradient() -> None:
    """Where the gradient itself happens to be nothing, it is no measure."""
    found = []
    for seed in range(64):
        inputs = flash.draw(SHAPE, torch.float32, CPU, torch.Generator().manual_seed(seed))

        def doubled(p1: Tensor, p2: Tensor, info: Tensor, lam: Tensor) -> Tensor:
            return full_relation(p1, p2, info, 2 * lam - lam.detach())

        found.append(relative_errors(peer("doubled", full_relation), doubled, inputs)["dlam"])
    # Here the error is the gradient, whose square is chi-square with one degree of freedom.
    mean = statistics.fmean(error**2 for error in found)
    assert abs(mean - 1) < 5 * (2 / len(found)) ** 0.5


class Wrong(torch.autograd.Function):
    """The identity, whose gradient is off by 3%."""

    @staticmethod
    def forward(ctx, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx, dx: Tensor) -> Tensor:
        return 1.03 * dx


def with_wrong_gradient(of: str, operator: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def call(p1: Tensor, p2: Tensor, info: Tensor, lam: Tensor) -> Tensor:
        given = {"p1": p1, "p2": p2, "info": info, "lam": lam}
        return operator(*(given | {of: Wrong.apply(given[of])}).values())

    return call


@pytest.mark.parametrize("name", ["p1", "p2", "info"])
def test_a_peer_with_a_wrong_gradient_is_no_peer(small_cache: None, name: str) -> None:
    wrong = peer("wrong", with_wrong_gradient(name, full_relation))
    right = peer("right", with_wrong_gradient(name, full_relation), frozen=(name,))
    rows = operator_rows(wrong, right)
    assert rows["right", "forward"]["status"] == "PASS"
    for measure in ("forward", "forward+backward"):
        row = rows["wrong", measure]
        assert (row["status"], row["samples"]) == ("WRONG", [])
        assert f"d{name} is off its definition by 0.03 of its RMS" in row["reason"]


def test_rows_carry_the_error_of_what_they_measure(small_cache: None) -> None:
    def slightly(p1: Tensor, p2: Tensor, info: Tensor, lam: Tensor) -> Tensor:
        return full_relation(p1, p2, info, lam) * 1.0001 + 0.002 * (info - info.detach())

    rows = operator_rows(peer("slightly", slightly), peer("definition", full_relation))
    errors = {key: row["relative_error"] for key, row in rows.items()}
    assert errors["slightly", "forward"] == pytest.approx(1e-4, rel=0.01)
    assert 1e-3 < errors["slightly", "forward+backward"] < 0.02
    assert errors["definition", "forward"] is errors["definition", "forward+backward"] is None


def test_the_hosts_rows_are_times_of_the_same_calls(small_cache: None) -> None:
    measures = [measure + HOST for measure in PASSES]
    rows = operator_rows(peer("kept", full_relation), repeats=2, measures=measures, floor=True)
    assert list(rows) == [(name, m) for m in measures for name in ("tiled", "kept", "floor")]
    assert all(row["status"] == "PASS" and row["seconds"] > 0 for row in rows.values())
    assert all(row["moved_bytes"] is None for row in rows.values())


def test_a_side_measured_alone_is_compared_apart() -> None:
    unit = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]
    sides = {
        "tiled": Answers(samples={"step": unit}),
        "other": Answers(samples={"step": unit[::-1]}, alone=True),
    }
    row = CASE.row("step", "other", sides)
    assert (row["ratio"], row["ratio_low"], row["ratio_high"]) == (1.0, 1 / 6, 6.0)


def raising(error: Exception) -> Callable:
    def call(*arguments):
        raise error

    return call


@pytest.mark.parametrize(
    "error, status, reason",
    [
        (torch.OutOfMemoryError("tried to allocate\n1 EiB"), "OOM", "tried to allocate"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory"), "OOM", "DefaultCPUAllocator"),
        (MemoryError(), "OOM", "no message"),
        (InputError("it needs a GPU"), "UNAVAILABLE", "it needs a GPU"),
        (RunError("Y is off"), "WRONG", "Y is off"),
        (ImportError("no module fla"), "FAILED", "ImportError: no module fla"),
        (RuntimeError(""), "FAILED", "RuntimeError: no message"),
    ],
)
def test_a_failure_of_a_peer_is_an_outcome(error: Exception, status: str, reason: str) -> None:
    found = failure_of(error)
    assert found.status == status and found.reason.startswith(reason)
    if status in ("OOM", "KILLED"):
        assert failed(CASE, "forward", CASE.subject, status, reason)["status"] == status
    else:
        with pytest.raises(InputError if status == "UNAVAILABLE" else RunError, match="tiled: "):
            failed(CASE, "forward", CASE.subject, status, reason)


PASSES = ("forward", "forward+backward")


def operator_rows(
    *peers: Peer, repeats: int = 6, measures: Sequence[str] = PASSES, floor: bool = False
) -> dict[tuple[str, str], dict]:
    """The rows of the tiled operator and some peers, by peer and measure."""
    whole = flash.BENCHMARKS["cpu"]
    benchmark = replace(whole, peers=(whole.peers[0], *peers), floor=floor)
    part = operator_part(benchmark, CASE, measures, repeats, CPU)
    rows = compared_rows(part)
    return {(row["peer"], row["measure"]): row for row in rows}


def test_peers_that_fail_are_rows_and_the_others_go_on(small_cache: None) -> None:
    rows = operator_rows(
        peer("greedy", raising(torch.OutOfMemoryError("too much"))),
        peer("broken", raising(RuntimeError("no kernel"))),
        peer("absent", full_relation, why_unavailable=lambda device: f"not on {device}"),
        peer("other", without_self),
        peer("frozen", lambda p1, p2, info, lam: full_relation(p1, p2, info, lam.detach())),
        peer("kept", full_relation, frozen=("lam",)),
    )
    statuses = {name: row["status"] for (name, measure), row in rows.items()}
    # The frozen one promises a gradient for lam.
    told = "PASS OOM FAILED UNAVAILABLE WRONG FAILED PASS"
    names = ("tiled", "greedy", "broken", "absent", "other", "frozen", "kept")
    assert statuses == dict(zip(names, told.split(), strict=True))
    for (name, _), row in rows.items():
        assert set(row) == set(BENCH.names)
        passed = row["status"] == "PASS"
        assert len(row["samples"]) == (6 if passed else 0)
        assert (row["reason"] is None) == passed == (row["seconds"] is not None)
        assert (row["ratio"] is not None) == (name == "kept")
    for measure in ("forward", "forward+backward"):
        ours, theirs = rows["tiled", measure]["samples"], rows["kept", measure]["samples"]
        median = statistics.median(b / a for a, b in zip(ours, theirs, strict=True))
        assert rows["kept", measure]["ratio"] == median


@pytest.mark.parametrize("changes, error, told", [
    ({}, RunError, r"^tiled: tiled on .* is off its definition by"),
    ({"why_unavailable": lambda device: "no GPU"}, InputError, "cannot run on a machine: no GPU"),
])  # fmt: skip
def test_a_subject_that_is_wrong_or_cannot_run_stops_the_run(
    small_cache: None, changes: dict, error: type, told: str
) -> None:
    benchmark = replace(flash.BENCHMARKS["cpu"], peers=(peer("tiled", without_self, **changes),))
    with pytest.raises(error, match=told):
        compared_rows(operator_part(benchmark, CASE, ("forward",), 1, CPU))


def test_a_model_that_cannot_run_here_is_a_row_of_its_step() -> None:
    tiny = campaign("tiny", scales="10M")
    sides = *flash.BENCHMARKS["cpu"].steps["matched"], flash.Side("x", "mha", {"mha": "cudnn"})
    (group,) = step_groups({"matched": sides}, tiny.systems)
    cold = replace(group, spec=replace(group.spec, warmup_updates=0))  # its loss is checked still
    rows = compared_rows(steps_part([cold], lambda _: CASE, 2, CPU))
    statuses = [row["status"] for row in rows]
    assert statuses == ["PASS", "PASS", "UNAVAILABLE"] and rows[2]["peer"] == "x"
    for row in rows[:2]:
        assert row["tokens_per_second"] == group.micro * group.context / row["seconds"]


@pytest.fixture
def graphs_run(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[object]]:
    """Every graph that torch.compile made and ran, in order; nothing is generated."""
    ran: list[object] = []

    def backend(graph: torch.fx.GraphModule, example_inputs: list) -> Callable:
        def call(*inputs):
            ran.append(graph)
            return graph(*inputs)

        return call

    torch.compiler.reset()
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=backend))
    yield ran
    torch.compiler.reset()


def compiled_update(variant: str, layers: int, **backends: str) -> Callable[[], object]:
    """The next update of a toy model under torch.compile."""
    model = ModelConfig.for_variant(variant, layers, d_model=16, heads=2, d_ff=16, vocab_size=32)
    execution = Execution(**backends, compiled=True)
    step = build_step(Setup(model, execution, OPTIMIZER, "fp32", True, CPU))
    tokens = torch.arange(16).view(2, 8)
    return lambda: step([(tokens, tokens)], tokens.numel(), 1e-3)


def test_compiled_models_in_one_process_keep_apart(graphs_run: list[object]) -> None:
    """A model with graph breaks lends nothing to one without."""
    broken = compiled_update("full", 2, full="reference")
    whole = compiled_update("mha", 2, mha="flash")
    for _ in range(3):
        graphs_run.clear()
        broken()
        assert len(graphs_run) > 1
        graphs_run.clear()
        whole()
        assert len(graphs_run) == 1


def test_layers_around_an_eager_operator_share_their_compiled_code(
    graphs_run: list[object],
) -> None:
    """Deep models stay below the limit of recompilations, past which a layer is not compiled."""
    compiled = []
    for layers in (4, 12):
        graphs_run.clear()
        torch.compiler.reset()
        compiled_update("full", layers, full="reference")()
        compiled.append(len({id(graph) for graph in graphs_run}))
    assert compiled[0] == compiled[1]


@pytest.mark.gpu
def test_every_peer_of_flash_relation_runs_and_agrees() -> None:
    shape = Shape("10M", 2, 4, 512, 48)
    benchmark = flash.BENCHMARKS["cuda"]
    case = Case("flash", shape, "bf16", "a GPU", benchmark.subject)
    measures = ("forward", "forward+backward")
    rows = on_gpu(partial(operator_part, benchmark, case, measures, 6))
    optional = {p.name for p in benchmark.peers if p.why_unavailable is why_no_cute}
    missing = optional if why_no_cute(CUDA) else set()
    assert {(row["peer"], row["status"]) for row in rows} == {
        (p.name, UNAVAILABLE if p.name in missing else "PASS") for p in benchmark.peers
    }
    for row in rows:
        if row["peer"] in missing:
            continue
        assert row["relative_error"] < 0.02
        assert (row["peak_bytes"] or 0) > 0 or row["measure"] == "forward"


@pytest.mark.gpu
def test_equal_models_take_equal_memory_whichever_comes_first() -> None:
    """What a library keeps for the life of the process is no model's."""
    sides = [flash.Side(name, "mha", {"mha": "flash"}) for name in ("first", "second")]
    (group,) = step_groups({"matched": sides}, campaign("paper", scales="10M").systems)
    case = partial(Case, "flash", precision="bf16", device="a GPU", subject="first")
    first, second = on_gpu(partial(steps_part, [group], case, 1))
    assert first["peak_bytes"] == pytest.approx(second["peak_bytes"], rel=0.002)
