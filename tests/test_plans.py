"""Launches that repeat are bound once by layout, and reach Triton's launcher as Triton calls it."""

import importlib
import weakref

import pytest
import torch
from interpreter import INTERPRETED

pytest.importorskip("triton")

from relation import kernels
from relation.errors import InputError
from relation.kernels import checks, plans
from relation.kernels.flash_relation.launches import load_launches

if INTERPRETED:
    pytest.skip("the interpreter launches nothing", allow_module_level=True)

from fake_gpu import FakeDriver, _Launcher, fake_gpu

FORWARD, BACKWARD = (
    importlib.import_module(f"relation.kernels.flash_relation.{name}")
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
def launched(monkeypatch) -> list[tuple]:
    """What Triton's launcher was called with, pointers as integers and descriptors as theirs."""
    calls = []

    def record(self, *arguments) -> None:
        def plain(x):
            x = getattr(x, "base", x)
            return x.data_ptr() if isinstance(x, torch.Tensor) else x

        # The grid, then past stream, function, metadata and hooks the kernel's own arguments.
        calls.append((arguments[:3], [plain(x) for x in arguments[9:]]))

    monkeypatch.setattr(_Launcher, "__call__", record)
    monkeypatch.setattr(plans, "_plans", {})
    return calls


@pytest.fixture
def same_memory(monkeypatch):
    """Called before a call, gives its every new tensor the memory that the call before it got."""
    given, position = [], [0]

    def of(make):
        def again(*arguments, **options):
            position[0] += 1
            if len(given) < position[0]:
                given.append(make(*arguments, **options))
            return given[position[0] - 1]

        return again

    for name in ("new_empty", "new_empty_strided", "new_zeros"):
        monkeypatch.setattr(torch.Tensor, name, of(getattr(torch.Tensor, name)))
    return lambda: position.__setitem__(0, 0)


@pytest.mark.parametrize(("bits", "dtype"), [(16, torch.bfloat16), (32, torch.float32)])
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
    assert len({grid for grid, _ in launched[::4]}) == 2


def test_a_profiler_hears_of_every_launch(launched, monkeypatch):
    heard = []
    import triton

    monkeypatch.setattr(triton.knobs.runtime, "launch_enter_hook", heard.append)
    with fake_gpu("sm_90"):
        given = inputs()
        monkeypatch.setattr(_Launcher, "__call__", lambda self, *a: a[7] and a[7](a[6]))
        for _ in range(2):
            run(*given)
    assert len(heard) == 8


def test_nothing_keeps_a_calls_tensors(launched):
    given = inputs()
    alive = [weakref.ref(x) for x in given]
    with fake_gpu("sm_90"):
        for _ in range(2):
            run(*given)
    del given
    assert [x() for x in alive] == [None] * 5


TOKENS = torch.zeros(2, 3, 8, 16)


@pytest.mark.parametrize(
    "other",
    [
        TOKENS.bfloat16(),
        TOKENS[:1],
        TOKENS.mT.contiguous().mT,
        torch.zeros(TOKENS.numel() + 1)[1:].view(TOKENS.shape),
        TOKENS.to("meta"),
        None,
    ],
    ids=["dtype", "shape", "strides", "alignment", "device", "none"],
)
def test_every_layout_is_checked_and_planned_for_itself(other, monkeypatch):
    monkeypatch.setattr(checks, "_passed", set())
    checked = []

    def check(x, tau) -> None:
        checked.append((x, tau))

    for tau in (2.0, 2.0, 1.0):
        checks.check_once(check, TOKENS, tau=tau)
        checks.check_once(check, other, tau=tau)
    assert checked == [(TOKENS, 2.0), (other, 2.0), (TOKENS, 1.0), (other, 1.0)]
    plan_of = [plans.plan_of(check, None, checks.layout(x)) for x in (TOKENS, other, TOKENS)]
    assert plan_of[0] is plan_of[2] is not plan_of[1]


def test_wrong_input_is_refused_every_time():
    given = [x.requires_grad_() for x in inputs(width=8)]
    for _ in range(2):
        with pytest.raises(InputError, match="head width is 8"):
            kernels.flash_relation(*given[:3], given[4])


def test_every_launch_goes_to_the_current_stream(launched, monkeypatch):
    streams = []
    monkeypatch.setattr(_Launcher, "__call__", lambda self, *given: streams.append(given[3]))
    current = [7]
    monkeypatch.setattr(FakeDriver, "get_current_stream", lambda self, device: current[0])
    given = inputs()
    with fake_gpu("sm_90"):
        for current[0] in (7, 7, 8):
            run(*given)
    assert streams == [7] * 8 + [8] * 4


def test_plans_do_not_pile_up(monkeypatch):
    monkeypatch.setattr(plans, "_plans", {})
    monkeypatch.setattr(plans, "MOST_LAYOUTS", 4)
    for length in range(10):
        plans.plan_of(run, None, length)
    assert len(plans._plans) <= 4
    assert plans.plan_of(run, None, 9) is plans.plan_of(run, None, 9)
