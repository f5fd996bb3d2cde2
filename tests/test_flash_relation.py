"""FlashRelation against Full Relation's definition in float64, by the rule of `assert_exact`.

Without a GPU the kernels run in Triton's interpreter, in a process of their own: the interpreter
is chosen when the kernels are imported. Tests marked gpu run them compiled.
"""

import importlib
import math
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from interpreter import INTERPRETED, run_interpreted

from relation import kernels
from relation.errors import InputError
from relation.kernels.documents import Documents
from relation.ops import full_relation

ROOT = Path(__file__).resolve().parents[1]
SLACK = {torch.bfloat16: 1e-3, torch.float16: 1e-3, torch.float32: 1e-5}
RESULTS = ("Y", "dp1", "dp2", "dinfo", "dlam")
# Of launches.toml's entries for Hopper with passes in Gluon.
GLUON_WIDTHS = (48, 64, 80)

Inputs = tuple[torch.Tensor, ...]


def definition(p1, p2, info, lam, tau=2.0, *, transport_self=True):
    """Y = Softmax(R) I with R materialised; past the scores at least FP32, transport in dtype."""
    length, width = p1.shape[-2:]
    p2, info = (x.repeat_interleave(p1.shape[1] // x.shape[1], 1) for x in (p2, info))
    wide = torch.promote_types(p1.dtype, torch.float32)
    U = (p1 @ p2.mT).to(wide) / math.sqrt(width)
    E = U * torch.sigmoid(U)
    S = torch.sigmoid(U.diagonal(dim1=-2, dim2=-1) / tau)
    i = torch.arange(1, length + 1, dtype=wide, device=p1.device)
    history = torch.ones(length, length, dtype=torch.bool, device=p1.device).tril(-1)
    R = (E - lam.to(wide) * i.log()[:, None]).masked_fill(~history, -torch.inf)
    R = torch.where(torch.eye(length, dtype=torch.bool, device=p1.device), S[..., None], R)
    flow = R.softmax(-1)
    return (flow if transport_self else flow.tril(-1)).to(info.dtype) @ info


def draw(seed: int, shape: tuple[int, ...], dtype=torch.float32, device="cpu", lam=0.5) -> Inputs:
    """p1, p2, info and dY (B, H, T, D), stored as (B, T, H, D) as a model's are; and lam."""
    B, H, T, D = shape
    generator = torch.Generator().manual_seed(seed)
    heads = torch.randn(4, B, T, H, D, generator=generator).transpose(2, 3)
    return (*heads.to(device, dtype), torch.tensor(lam, device=device))


def sharing(inputs: Inputs, heads: int) -> Inputs:
    """The same with `heads` heads of p2 and info."""
    p1, p2, info, *others = inputs
    return (p1, p2[:, :heads], info[:, :heads], *others)


@contextmanager
def poisoned_memory() -> Iterator[None]:
    """Uninitialised memory holds NaN."""
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


def differentiate(operator, inputs: Inputs, **options) -> Inputs:
    """Y and the gradients of p1, p2, info and lam."""
    p1, p2, info, dy, lam = (x.detach() for x in inputs)
    leaves = [x.requires_grad_() for x in (p1, p2, info, lam)]
    y = operator(*leaves, **options)
    return (y.detach(), *torch.autograd.grad(y, leaves, dy))


def compare(inputs: Inputs, **options) -> tuple[Inputs, Inputs, Inputs]:
    """The kernel's results, the truth in float64, and the definition's in the inputs' dtype."""
    with poisoned_memory():
        ours = differentiate(kernels.flash_relation, inputs, **options)
    truth = differentiate(definition, tuple(x.double() for x in inputs), **options)
    return ours, truth, differentiate(definition, inputs, **options)


def assert_close(name: str, ours, truth, yardstick, slack: float) -> None:
    """RMS and maximum error at most twice the yardstick's plus slack times the truth's."""
    for measure in (lambda x: x.square().mean().sqrt(), lambda x: x.abs().max()):
        error, allowed = measure(ours.double() - truth), 2 * measure(yardstick.double() - truth)
        allowed += slack * measure(truth)
        assert error <= allowed, f"{name}: {error:.3e} > {allowed:.3e}, {tuple(ours.shape)}"


def assert_exact(inputs: Inputs, slack: float | None = None, **options) -> None:
    """Check Y and the gradients of p1, p2 and info; one dlam says nothing by itself."""
    slack = SLACK[inputs[0].dtype] if slack is None else slack
    results = zip(RESULTS, *compare(inputs, **options), strict=True)
    for name, *three in list(results)[:-1]:
        assert_close(name, *three, slack)


def assert_dlam_exact(shape, dtype=torch.float32, device="cpu", **options) -> None:
    """Check dlam over 16 seeds."""
    runs = [compare(draw(seed, shape, dtype, device), **options) for seed in range(16)]
    three = (torch.stack([results[k][-1].double() for results in runs]) for k in range(3))
    assert_close("dlam", *three, SLACK[dtype])


@pytest.mark.skipif(INTERPRETED, reason="it would start itself")
def test_the_interpreter_reproduces_the_definition():
    run_interpreted(__file__)


@pytest.fixture
def launch_with(monkeypatch) -> Iterator[Callable[..., None]]:
    """Called with fields of Launches, changes those of what the interpreter launches."""
    from relation.kernels.flash_relation import launches

    def change(**fields) -> None:
        monkeypatch.setattr(launches, "INTERPRETED", replace(launches.INTERPRETED, **fields))
        launches.select_launches.cache_clear()

    yield change
    launches.select_launches.cache_clear()


@pytest.fixture
def in_triton(monkeypatch) -> Callable[[], None]:
    """Called, lets every pass to come run in Triton."""

    def change() -> None:
        for name in ("forward", "backward"):
            module = importlib.import_module(f"relation.kernels.flash_relation.{name}")
            monkeypatch.setattr(module, "chosen", lambda *given: None)

    return change


@pytest.fixture
def few_programs(monkeypatch) -> Callable[[int], None]:
    """Called, lets Gluon's launches to come fill as many multiprocessors and no more."""
    plans = importlib.import_module("relation.kernels.plans")

    def change(count: int) -> None:
        module = importlib.import_module("relation.kernels.flash_relation.hopper_launch")
        monkeypatch.setattr(module, "multiprocessors", lambda device: count)
        monkeypatch.setattr(plans, "_plans", {})

    return change


@pytest.fixture
def copied(monkeypatch) -> list[int]:
    """How many tensors each launch to come, forward and backward, copied for descriptors."""
    descriptors = importlib.import_module("relation.kernels.flash_relation.descriptors")
    counts = []
    for name in ("forward", "backward"):
        module = importlib.import_module(f"relation.kernels.flash_relation.{name}")
        launched = getattr(module, f"launch_{name}")

        def counting(*arguments, launch=launched, **options):
            counts.append(0)
            return launch(*arguments, **options)

        def recorded(x: torch.Tensor) -> torch.Tensor:
            found = descriptors.aligned(x)
            counts[-1] += found is not x
            return found

        monkeypatch.setattr(module, "aligned", recorded)
        autograd = importlib.import_module("relation.kernels.flash_relation.autograd")
        monkeypatch.setattr(autograd, f"launch_{name}", counting)
    return counts


@pytest.mark.skipif(not INTERPRETED, reason="run by the test above")
class TestInterpreted:
    @pytest.mark.parametrize("length", [1, 2, 17, 33])
    @pytest.mark.parametrize("width", [16, 20, 48])
    def test_every_shape(self, length, width):
        """Several batches are those of the tests of strides, descriptors and Exchange alone."""
        assert_exact(draw(0, (1, 2, length, width)))

    def test_half_precision(self):
        assert_exact(draw(1, (1, 2, 33, 20), torch.float16))

    def test_exchange_only(self):
        assert_exact(draw(2, (2, 2, 33, 20)), transport_self=False)

    @pytest.mark.parametrize(
        ("width", "transport_self", "descriptors"),
        [(16, True, True), (16, False, False), (48, True, False), (48, False, True)],
    )
    def test_documents(self, launch_with, width, transport_self, descriptors):
        """Ends inside blocks, at their edges and of one token, with blocks of several tiles."""
        from relation.kernels.flash_relation.launches import Launch

        rows, history = Launch(32, 16, 1, 1), Launch(16, 32, 1, 1)
        launch_with(forward=rows, repair=rows, p1=rows, p2_info=history, descriptors=descriptors)
        begins = torch.zeros(2, 81, dtype=torch.int64)
        begins[0, [1, 5, 32, 33, 63, 70]] = begins[1, [48, 64]] = 1
        documents = Documents.of(begins.cumsum(1))
        inputs = draw(12, (2, 2, 81, width))
        options = {"transport_self": transport_self, "documents": documents}
        with poisoned_memory():
            ours = differentiate(kernels.flash_relation, inputs, **options)
        truth = differentiate(full_relation, tuple(x.double() for x in inputs), **options)
        yardstick = differentiate(full_relation, inputs, **options)
        for name, *three in zip(RESULTS, ours, truth, yardstick, strict=True):
            assert_close(name, *three, SLACK[torch.float32])

    @pytest.mark.parametrize("descriptors", [False, True])
    @pytest.mark.parametrize(("heads", "shared"), [(6, 2), (4, 1)])
    def test_heads_that_share(self, launch_with, heads, shared, descriptors):
        launch_with(descriptors=descriptors)
        for width, transport_self in ((16, True), (48, False)):
            inputs = sharing(draw(14, (2, heads, 33, width)), shared)
            assert_exact(inputs, transport_self=transport_self)

    def test_gradients_again_and_of_saved_tensors_that_moved(self):
        """As `retain_graph` asks for them, and activations that are kept elsewhere."""
        inputs = draw(15, (2, 2, 33, 16))
        (*leaves, dy), lam = (x.detach() for x in inputs[:4]), inputs[4]
        leaves = [x.requires_grad_() for x in (*leaves, lam.reshape(1))]
        y = kernels.flash_relation(*leaves)
        first, again = (torch.autograd.grad(y, leaves, dy, retain_graph=True) for _ in range(2))
        packed = torch.autograd.graph.saved_tensors_hooks(
            lambda x: x.clone(memory_format=torch.contiguous_format), lambda x: x
        )
        with packed:
            y = kernels.flash_relation(*leaves)
        moved = torch.autograd.grad(y, leaves, dy)
        for a, b, c in zip(first, again, moved, strict=True):
            assert torch.equal(a, b) and torch.equal(a, c) and a.shape == c.shape

    def test_differentiable_once(self):
        p1, p2, info, dy, lam = draw(16, (1, 2, 17, 16))
        p1 = p1.detach().requires_grad_()
        y = kernels.flash_relation(p1, p2, info, lam)
        (dp1,) = torch.autograd.grad(y, p1, dy.requires_grad_(), create_graph=True)
        with pytest.raises(RuntimeError, match="once_differentiable"):
            dp1.sum().backward()

    @pytest.mark.parametrize(("heads", "transport_self"), [(2, True), (1, False)])
    def test_dlam(self, heads, transport_self):
        assert_dlam_exact((1, heads, 17, 16), transport_self=transport_self)

    @pytest.mark.parametrize("lam", [-4.0, 0.0, 30.0])
    def test_large_scores_and_any_count_correction(self, lam):
        p1, *others = draw(3, (1, 2, 33, 16), lam=lam)
        assert_exact((20 * p1, *others), tau=0.7)

    @pytest.mark.parametrize("width", [60, 80])
    def test_blocks_of_several_tiles(self, launch_with, width):
        """As the shipped launches have: 32 rows owned, history scanned by 16, and the reverse."""
        from relation.kernels.flash_relation.launches import Launch

        rows, history = Launch(32, 16, 1, 1), Launch(16, 32, 1, 1)
        launch_with(forward=rows, repair=rows, p1=rows, p2_info=history)
        for length in (1, 33, 64):
            assert_exact(draw(7, (1, 1, length, width)))

    @pytest.mark.parametrize(
        ("width", "padded"), [(16, True), (20, False), (48, True), (48, False), (80, True)]
    )
    def test_tiles_through_descriptors(self, launch_with, copied, width, padded):
        from relation.kernels.flash_relation.launches import Launch

        rows, history = Launch(32, 16, 1, 1, None, padded), Launch(16, 32, 1, 1, None, padded)
        launch_with(forward=rows, p1=rows, p2_info=history, descriptors=True)
        for length in (1, 33):
            assert_exact(draw(7, (2, 2, length, width)))
        assert copied == [0] * 4

    def test_what_descriptors_cannot_hold_is_copied(self, launch_with, copied):
        """Each of the four inputs in turn off its alignment, and a width whose rows are."""
        launch_with(descriptors=True)
        for k in range(4):
            inputs = list(draw(7, (1, 2, 18, 16)))
            inputs[k] = torch.cat([inputs[k], inputs[k][..., :1]], -1)[..., :-1]
            assert_exact(tuple(inputs))
        assert copied == [1, 1, 1, 1, 1, 1, 0, 1]
        assert_exact(draw(7, (1, 2, 18, 19)))
        assert_exact(draw(7, (1, 2, 18, 20), torch.float16))
        assert copied[8:] == [3, 4, 3, 4]

    def test_exchange_only_and_repairs_through_descriptors(self, launch_with, monkeypatch):
        forward = importlib.import_module("relation.kernels.flash_relation.forward")
        monkeypatch.setattr(forward, "keeps_maximum", lambda dtype: False)
        launch_with(descriptors=True)
        p1, *others = draw(9, (1, 2, 33, 16), lam=-4.0)
        assert_exact((p1, *others), tau=0.7, transport_self=False)
        p1[0, :, 20:30] *= 60
        assert_exact((p1, *others), slack=1e-4)

    @pytest.mark.parametrize(
        ("width", "dtype", "exactly"),
        [
            (16, torch.float32, True),
            (64, torch.bfloat16, True),
            (32, torch.float32, False),  # 1 / sqrt(32) is no power of two
            (16, torch.float16, False),  # small numbers lose digits
        ],
    )
    def test_the_scale_is_multiplied_in_beforehand_where_it_does_not_round(
        self, width, dtype, exactly
    ):
        from relation.kernels.flash_relation.descriptors import scales_exactly

        assert scales_exactly(torch.empty((1, width), dtype=dtype)) == exactly

    @pytest.mark.parametrize("correction", [0.5, 30.0])
    @pytest.mark.parametrize("transport_self", [True, False])
    def test_rows_whose_sums_grow_too_large_are_repaired(
        self, monkeypatch, correction, transport_self
    ):
        """BF16's way through the forward pass, which sums without a maximum, in FP32.

        Scores reach 241 here. The backward pass reads a row's normaliser as one FP32 number, whose
        half unit in the last place at 241 changes a weight by 7.6e-6 of it, and forms the scores
        again, as much off as the definition's: within 1e-4 in all, a tenth of BF16's slack.
        """
        # By its full name: the package's attribute of that name is the function.
        forward = importlib.import_module("relation.kernels.flash_relation.forward")
        monkeypatch.setattr(forward, "keeps_maximum", lambda dtype: False)
        monkeypatch.setattr(forward, "REPAIRED_ROWS", 32)
        p1, *others = draw(9, (2, 1, 51, 16), lam=correction)
        p1[0, :, 20:40] *= 60
        p1[1, 0] *= 12
        assert_exact((p1, *others), slack=1e-4, transport_self=transport_self)

    @pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
    def test_scores_of_a_thousand_stay_finite(self, dtype):
        p1, p2, *others = draw(8, (1, 2, 50, 16), dtype)
        inputs = (40 * p1, 40 * p2, *others)
        assert all(x.isfinite().all() for x in differentiate(kernels.flash_relation, inputs))

    def test_any_strides(self):
        p1, p2, info, dy, lam = draw(4, (2, 2, 17, 20))
        p1 = p1.mT.contiguous().mT
        p2 = torch.cat([p2, p2], 2)[:, :, ::2][:, :, : p1.shape[2]]
        info = torch.randn(1, 1, 17, 20).expand(2, 2, 17, 20)
        assert_exact((p1, p2, info, torch.ones(()).expand_as(dy), lam))

    def test_lam_of_one_element_and_inputs_without_gradient(self):
        p1, p2, info, dy, lam = draw(5, (1, 1, 5, 16))
        lam = lam[None].requires_grad_()
        kernels.flash_relation(p1, p2, info, lam).backward(dy)
        assert lam.grad.shape == (1,)
        assert p1.grad is None

    def test_the_first_row_is_its_own_information(self):
        p1, p2, info, _, lam = draw(6, (1, 2, 5, 16))
        assert torch.equal(kernels.flash_relation(p1, p2, info, lam)[:, :, 0], info[:, :, 0])


def test_importing_kernels_needs_no_triton():
    script = (
        "import sys; sys.modules['triton'] = None\n"
        "from relation import kernels\n"
        "assert 'Triton is not installed' in kernels.why_unavailable('cuda')"
    )
    subprocess.run([sys.executable, "-c", script], cwd=ROOT, check=True)


class TestInputErrors:
    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"p1": torch.zeros(3, 16)}, r"give \(B, H, T, D\)"),
            ({"p2": torch.zeros(1, 1, 4, 16)}, "p2 has shape"),
            ({"info": torch.zeros(1, 1, 3, 16, dtype=torch.float16)}, "dtypes"),
            ({"info": torch.zeros(1, 1, 3, 16, device="meta")}, "one device"),
            ({"lam": 0.5}, "lam is a float; give a floating tensor"),
            ({"lam": torch.zeros(2)}, "one float32 number"),
            ({"lam": torch.zeros((), dtype=torch.bfloat16)}, "one float32 number"),
            ({"tau": 0.0}, "positive"),
            ({"tau": math.nan}, "positive"),
            (dict.fromkeys(("p1", "p2", "info"), torch.zeros(1, 1, 0, 16)), "at least 1"),
            (dict.fromkeys(("p1", "p2", "info"), torch.zeros(1, 1, 3, 15)), "head width is 15"),
            (dict.fromkeys(("p1", "p2", "info"), torch.zeros(1, 1, 3, 129)), "head width is 129"),
            (dict.fromkeys(("p1", "p2", "info"), torch.zeros(1, 1, 3, 16).double()), "float64"),
        ],
    )
    def test_bad_arguments(self, change, message):
        x = torch.zeros(1, 1, 3, 16)
        arguments = {"p1": x, "p2": x, "info": x, "lam": torch.zeros(())} | change
        with pytest.raises(InputError, match=message) as error:
            kernels.flash_relation(**arguments)
        assert "\n" not in str(error.value)

    def test_no_bfloat16_on_a_cpu(self):
        x = torch.zeros(1, 1, 3, 16, dtype=torch.bfloat16)
        with pytest.raises(InputError, match="bit patterns of bfloat16"):
            kernels.flash_relation(x, x, x, torch.zeros(()))

    def test_a_cpu_needs_the_interpreter(self, monkeypatch):
        pytest.importorskip("triton")
        monkeypatch.delenv("TRITON_INTERPRET", raising=False)
        x = torch.zeros(1, 1, 3, 16)
        with pytest.raises(InputError, match="TRITON_INTERPRET=1"):
            kernels.flash_relation(x, x, x, torch.zeros(()))

    def test_other_devices(self):
        pytest.importorskip("triton")
        assert "NVIDIA" in kernels.why_unavailable("mps")


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
class TestOnDevice:
    @pytest.mark.parametrize("dtype", SLACK)
    @pytest.mark.parametrize("width", [16, 32, 48, 60, 64, 80, 96, 128])
    def test_every_length(self, dtype, width):
        for length in (1, 2, 17, 63, 64, 65, 127, 1000, 1024, 2048, 4096):
            # A row's entries share one rounding of dU: with few rows a maximum is a matter of luck.
            batch = max(1, 128 // length)
            assert_exact(draw(length, (batch, 3, length, width), dtype, "cuda"))

    @pytest.mark.parametrize("width", [48, 64, 80, 128])
    def test_rows_whose_sums_grow_too_large_are_repaired(self, width):
        p1, *others = draw(9, (2, 3, 2100, width), torch.bfloat16, "cuda")
        p1[0, :, 40:60] *= 30
        p1[1, 1, 1500:] *= 12
        assert_exact((p1, *others))

    @pytest.mark.parametrize("dtype", SLACK)
    def test_scores_of_a_thousand_stay_finite(self, dtype):
        p1, p2, *others = draw(8, (2, 3, 200, 64), dtype, "cuda")
        inputs = (40 * p1, 40 * p2, *others)
        with poisoned_memory():
            results = differentiate(kernels.flash_relation, inputs)
        assert all(x.isfinite().all() for x in results)

    @pytest.mark.parametrize("dtype", SLACK)
    @pytest.mark.parametrize("transport_self", [True, False])
    def test_dlam(self, dtype, transport_self):
        assert_dlam_exact((2, 3, 127, 64), dtype, "cuda", transport_self=transport_self)

    @pytest.mark.parametrize("dtype", SLACK)
    def test_exchange_only_large_scores_and_any_strides(self, dtype):
        p1, p2, info, dy, lam = draw(1, (2, 3, 127, 64), dtype, "cuda")
        assert_exact((p1, p2, info, dy, lam), transport_self=False)
        for correction in (-4.0, 30.0):
            assert_exact((8 * p1, p2, info, dy, torch.full_like(lam, correction)), tau=0.7)
        assert_exact((p1.mT.contiguous().mT, p2.contiguous(), info[:1, :1].expand_as(p1), dy, lam))

    @pytest.mark.parametrize("width", [48, 64, 80, 128])
    @pytest.mark.parametrize("shared", [1, 2])
    def test_heads_that_share(self, width, shared):
        for length in (65, 1000):
            assert_exact(sharing(draw(3, (2, 4, length, width), torch.bfloat16, "cuda"), shared))

    @pytest.mark.parametrize("width", [48, 64, 80])
    def test_heads_in_several_groups(self, monkeypatch, width):
        launches = importlib.import_module("relation.kernels.flash_relation.launches")
        monkeypatch.setattr(launches, "cache_bytes", lambda device: 1 << 20)
        inputs = draw(3, (3, 4, 300, width), torch.bfloat16, "cuda")
        assert launches.grid(inputs[0], 64)[2] > 1
        assert_exact(inputs)

    @pytest.mark.parametrize("width", [48, 60, 64, 80])
    def test_an_expanded_gradient_is_copied(self, width):
        p1, p2, info, dy, lam = draw(3, (2, 3, 300, width), torch.bfloat16, "cuda")
        assert_exact((p1, p2, info, dy[:1, :1, :1].expand_as(p1), lam))

    @pytest.mark.parametrize("width", GLUON_WIDTHS)
    def test_equal_inputs_give_bitwise_equal_gradients(self, width):
        inputs = draw(2, (4, 8, 1000, width), torch.bfloat16, "cuda")
        once = differentiate(kernels.flash_relation, inputs)
        for _ in range(200):
            again = differentiate(kernels.flash_relation, inputs)
            assert all(map(torch.equal, once, again))

    @pytest.mark.parametrize("width", GLUON_WIDTHS)
    def test_passes_in_gluon_and_in_triton(self, in_triton, width):
        """The shipped choice on Hopper, and what documents and other Tritons take."""
        hopper = importlib.import_module("relation.kernels.flash_relation.hopper")
        told = hopper.describe_passes(torch.device("cuda", 0), torch.bfloat16, width)
        assert ("in Gluon" in told) == (torch.cuda.get_device_capability(0) == (9, 0))
        inputs = draw(5, (2, 3, 300, width), torch.bfloat16, "cuda")
        assert_exact(inputs)
        in_triton()
        assert_exact(inputs)
        assert_exact(inputs, transport_self=False)

    @pytest.mark.parametrize("width", [40, *GLUON_WIDTHS, 72])
    @pytest.mark.parametrize("programs", ["one for all blocks", "as shipped"])
    def test_programs_that_take_many_blocks(self, few_programs, width, programs):
        if programs == "one for all blocks":
            few_programs(1)
        for length in (1, 63, 64, 65, 1000):
            inputs = draw(length, (3, 6, length, width), torch.bfloat16, "cuda")
            assert_exact(inputs)
            assert_exact(sharing(inputs, 2), transport_self=False)
        # More blocks than an H200 has programs.
        assert_exact(draw(6, (1, 14, 2048, width), torch.bfloat16, "cuda"))

    @pytest.mark.parametrize("width", GLUON_WIDTHS)
    def test_exchange_only_large_scores_and_any_strides_at(self, width):
        p1, p2, info, dy, lam = draw(1, (2, 3, 127, width), torch.bfloat16, "cuda")
        assert_exact((p1, p2, info, dy, lam), transport_self=False)
        assert_exact((8 * p1, p2, info, dy, torch.full_like(lam, 30.0)), tau=0.7)
        assert_exact((p1.mT.contiguous().mT, p2.contiguous(), info[:1, :1].expand_as(p1), dy, lam))

    @pytest.mark.parametrize("width", GLUON_WIDTHS)
    def test_launches_beside_each_other_and_in_graphs_do_not_meet(self, width):
        """Streams at once, then two graphs replayed at once: bitwise what one call alone gives."""
        inputs = [draw(k, (2, 8, 1000, width), torch.bfloat16, "cuda") for k in range(4)]
        alone = [differentiate(kernels.flash_relation, x) for x in inputs]
        streams = [torch.cuda.Stream() for _ in inputs]

        def at_once(run) -> None:
            torch.cuda.synchronize()
            for stream, k in zip(streams, range(4), strict=True):
                with torch.cuda.stream(stream):
                    run(k)
            torch.cuda.synchronize()

        results = [None] * 4
        for _ in range(10):
            at_once(
                lambda k: results.__setitem__(k, differentiate(kernels.flash_relation, inputs[k]))
            )
            assert all(map(torch.equal, sum(results, ()), sum(alone, ())))
        graphs = [torch.cuda.CUDAGraph() for _ in inputs]
        for k, graph in enumerate(graphs):
            with torch.cuda.graph(graph):
                results[k] = differentiate(kernels.flash_relation, inputs[k])
        for _ in range(10):
            for x in sum(results, ()):
                x.fill_(torch.nan)
            at_once(lambda k: graphs[k].replay())
            assert all(map(torch.equal, sum(results, ()), sum(alone, ())))

    def test_torch_compile_sees_no_graph_break(self):
        def layer(p1, p2, info, lam):
            return 2 * kernels.flash_relation(2 * p1, p2, info, lam).transpose(1, 2).flatten(2)

        def joined(*inputs):
            p1, p2, info, dy, lam = inputs
            return p1, p2, info, dy.transpose(1, 2).flatten(2), lam

        compiled = torch.compile(layer, fullgraph=True)
        for length in (1000, 127):  # the second makes T dynamic
            inputs = joined(*draw(3, (2, 8, length, 48), torch.bfloat16, "cuda"))
            eager, fused = (differentiate(f, inputs) for f in (layer, compiled))
            for name, ours, theirs in zip(RESULTS, fused, eager, strict=True):
                truth = theirs.double()
                assert_close(name, ours, truth, truth, 1e-3)

    def test_memory_is_linear_in_length(self):
        def peak(length: int) -> int:
            inputs = draw(4, (1, 2, length, 64), torch.bfloat16, "cuda")
            torch.cuda.reset_peak_memory_stats()
            before = torch.cuda.memory_allocated()
            differentiate(kernels.flash_relation, inputs)
            return torch.cuda.max_memory_allocated() - before

        assert peak(16384) <= 2.01 * peak(8192)
