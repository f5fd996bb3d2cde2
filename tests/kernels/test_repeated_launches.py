"""Launches that repeat are bound once by layout, and reach Triton's launcher as Triton calls it."""

import importlib
import warnings
import weakref
from collections.abc import Callable

import pytest
import torch
from interpreter import INTERPRETED

pytest.importorskip("triton")

from relation import kernels
from relation.errors import InputError
from relation.kernels import plans
from relation.kernels.flash_relation.launches import load_launches
from relation.kernels.linear_relation.launches import LAUNCHES

if INTERPRETED:
    pytest.skip("the interpreter launches nothing", allow_module_level=True)

from fake_gpu import FakeDriver, Launched, fake_gpu

FORWARD, BACKWARD, LINEAR_FORWARD, LINEAR_BACKWARD = (
    importlib.import_module(f"relation.kernels.{operator}_relation.{name}")
    for operator in ("flash", "linear")
    for name in ("forward", "backward")
)


def inputs(width: int = 48, length: int = 130, dtype=torch.bfloat16) -> list[torch.Tensor]:
    drawn = torch.randn(4, 1, length, 2, width).to(dtype).transpose(2, 3)
    return [*drawn, torch.tensor(0.5)]


def run(p1, p2, info, dy, lam, bits: int = 16) -> None:
    entries = load_launches()["sm_90"]
    launches = next(e for e in entries if e.bits == bits and e.widest >= p1.shape[3])
    kept = FORWARD.launch_forward(p1, p2, info, lam, 2.0, True, launches)
    BACKWARD.launch_backward(dy, p1, p2, info, *kept, 2.0, True, launches)


@pytest.fixture
def launched(monkeypatch) -> list[Launched]:
    """What the compiled functions were called with, pointers as integers."""
    calls = []

    def record(launch: Launched) -> None:
        # Of an empty tensor, nowhere.
        given = [
            x.data_ptr() or None if isinstance(x, torch.Tensor) else x for x in launch.arguments
        ]
        calls.append(Launched(launch.grid, launch.stream, None, None, tuple(given)))

    monkeypatch.setattr(FakeDriver, "launched", record)
    monkeypatch.setattr(plans, "_plans", {})
    # Whatever keeps a launch from going past Triton's launcher fails.
    warnings.simplefilter("error", UserWarning)
    return calls


@pytest.fixture
def same_memory(monkeypatch):
    """Called before a call, gives its every new tensor the memory of the last with its name."""
    given, now = {}, ["", 0]

    def of(make):
        def again(*arguments, **options):
            before, now[1] = given.setdefault(now[0], []), now[1] + 1
            if len(before) < now[1]:
                before.append(make(*arguments, **options))
            return before[now[1] - 1]

        return again

    for name in ("new_empty", "new_empty_strided", "new_zeros"):
        monkeypatch.setattr(torch.Tensor, name, of(getattr(torch.Tensor, name)))

    def call(name: object = "") -> None:
        now[:] = name, 0

    return call


@pytest.mark.parametrize(
    ("bits", "dtype"),
    [(16, torch.bfloat16), pytest.param(32, torch.float32, marks=pytest.mark.slow)],
)
def test_a_bound_launch_is_what_triton_launches(launched, same_memory, bits, dtype):
    given = inputs(dtype=dtype)
    with fake_gpu("sm_90") as compiled:
        for _ in range(2):
            same_memory()
            run(*given, bits=bits)
    half = len(launched) // 2
    assert half == (4 if bits == 16 else 3)
    assert launched[:half] == launched[half:]
    assert {len(kernels) for kernels in compiled.values()} == {1}


@pytest.mark.parametrize("width", [48, pytest.param(64, marks=pytest.mark.slow)])
def test_a_tensor_elsewhere_is_launched_as_triton_would(launched, same_memory, width):
    given = [inputs(width) for _ in range(3)]
    calls = (0, 1, 2, 1, 0)
    with fake_gpu("sm_90"):
        for call in calls:
            same_memory(call)
            run(*given[call])
        ours = list(launched)
        for call in calls:
            plans._plans.clear()
            same_memory(call)
            run(*given[call])
    assert ours == launched[len(ours) :]
    assert ours[:4] != ours[4:8] != ours[8:12]


def run_linear(p1, p2, info, g, dy, state=None, dfinal=None) -> None:
    *_, kept = LINEAR_FORWARD.launch_forward(p1, p2, info, g, state, 2.0)
    LINEAR_BACKWARD.launch_backward(dy, dfinal, p1, p2, info, g, kept, 2.0)


@pytest.mark.slow
@pytest.mark.parametrize(("width", "states"), [(64, False), (128, True)])
def test_linear_relations_launches_repeat(launched, same_memory, monkeypatch, width, states):
    entry = next(e for e in LAUNCHES["sm_90", 2] if e.widest >= width)
    for module in (LINEAR_FORWARD, LINEAR_BACKWARD):
        monkeypatch.setattr(module, "select_launches", lambda *given: entry)
    given = torch.randn(5, 1, 130, 2, width).bfloat16().transpose(2, 3)
    given = [*given, *(torch.randn(2, 1, 2, width, width) if states else ())]
    with fake_gpu("sm_90"):
        for _ in range(2):
            same_memory()
            run_linear(*given)
    half = len(launched) // 2
    assert half == (14 if states else 13)
    assert launched[:half] == launched[half:]


def test_one_tensor_given_twice_is_not_taken_for_one_ever_after(launched, same_memory):
    p1, p2, info, dy, lam = inputs(64)
    with fake_gpu("sm_90"):
        run(p1, p1, p1, p1, lam)
        launched.clear()
        same_memory()
        run(p1, p2, info, dy, lam)
        plans._plans.clear()
        same_memory()
        run(p1, p2, info, dy, lam)
    assert launched[:4] == launched[4:]


def test_another_layout_is_bound_anew(launched):
    with fake_gpu("sm_90") as compiled:
        given = inputs()
        run(*given)
        run(*given[:4], torch.tensor([0.1, 0.5])[1:].reshape(()))  # not 16-byte aligned
        run(*(x[:, :, :64] for x in given[:4]), given[4])
    assert len(launched) == 12
    # By lam's alignment: the Gluon kernel masks every length.
    assert len(compiled["hopper_forward_kernel"]) == 2
    assert len(compiled["repair_kernel"]) == 2
    assert len({launch.grid for launch in launched[::4]}) == 2


def test_nothing_keeps_a_calls_tensors(launched):
    given = inputs()
    alive = [weakref.ref(x) for x in given]
    with fake_gpu("sm_90"):
        for _ in range(2):
            run(*given)
    del given
    assert [x() for x in alive] == [None] * 5


def test_wrong_input_is_refused_every_time():
    given = [x.requires_grad_() for x in inputs(width=8)]
    for _ in range(2):
        with pytest.raises(InputError, match="head width is 8"):
            kernels.flash_relation(*given[:3], given[4])


def test_every_launch_goes_to_the_current_stream(launched, monkeypatch):
    current = [7]
    monkeypatch.setattr(FakeDriver, "get_current_stream", lambda self, device: current[0])
    given = inputs()
    with fake_gpu("sm_90"):
        for current[0] in (7, 7, 8):
            run(*given)
    assert [launch.stream for launch in launched] == [7] * 8 + [8] * 4


def eager(operator: str, seed: int) -> tuple[Callable[[], tuple[torch.Tensor, ...]], list]:
    """A call on a GPU that gives the result and all gradients, and its inputs."""
    torch.manual_seed(seed)
    *tokens, g = torch.randn(5, 2, 130, 4, 64, device="cuda").transpose(2, 3)
    p1, p2, info, dy = (x.bfloat16() for x in tokens)
    last = torch.tensor(0.5, device="cuda") if operator == "flash" else -g.abs()
    leaves = [x.requires_grad_() for x in (p1, p2, info, last)]

    def call() -> tuple[torch.Tensor, ...]:
        if operator == "flash":
            y = kernels.flash_relation(*leaves)
        else:
            y, _ = kernels.linear_relation(*leaves)
        return y.detach(), *torch.autograd.grad(y, leaves, dy)

    return call, [*leaves, dy]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("operator", ["flash", "linear"])
def test_a_repeated_call_gives_what_a_first_one_does(operator, monkeypatch):
    """Elsewhere in memory, on another stream, with other values, and replayed in a CUDA graph."""
    monkeypatch.setattr(plans, "_plans", {})
    warnings.simplefilter("error", UserWarning)
    calls = [eager(operator, seed) for seed in range(3)]
    first = []
    for call, _ in calls:
        plans._plans.clear()
        first.append(call())
    for k in (0, 1, 2, 1, 0):
        assert all(map(torch.equal, calls[k][0](), first[k]))
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        there = calls[1][0]()
    torch.cuda.synchronize()
    assert all(map(torch.equal, there, first[1]))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = calls[0][0]()
    with torch.no_grad():
        for x, other in zip(calls[0][1], calls[2][1], strict=True):
            x.copy_(other)
    for _ in range(2):
        graph.replay()
        torch.cuda.synchronize()
        assert all(map(torch.equal, captured, first[2]))
