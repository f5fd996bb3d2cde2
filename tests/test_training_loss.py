"""The training loss and its kernel against cross-entropy in float64.

Without a GPU the kernel runs in Triton's interpreter, in a process of its own: the interpreter is
chosen when the kernels are imported. Tests marked gpu run it compiled.
"""

import pytest
import torch
import torch.nn.functional as F
from exactness import assert_close, poisoned_memory
from interpreter import INTERPRETED, run_interpreted
from torch import Tensor

from relation.data.windows import IGNORED
from relation.errors import InputError
from relation.nn import Decoder, ModelConfig
from relation.train import loss as training_loss
from relation.train.step import autocast

ROWS, WIDTH = 37, 24


def draw(vocabulary: int, device: str = "cpu") -> tuple[Tensor, Tensor, Tensor]:
    """States (ROWS, d) and a matrix (V, d), leaves, of logits about +-5; targets, some ignored."""
    generator = torch.Generator().manual_seed(vocabulary)
    states = torch.randn(ROWS, WIDTH, generator=generator).to(device).requires_grad_()
    weight = torch.randn(vocabulary, WIDTH, generator=generator).to(device).requires_grad_()
    targets = torch.randint(vocabulary, (ROWS,), generator=generator)
    targets[::5], targets[1] = IGNORED, vocabulary - 1
    return states, weight, targets.to(device)


def plain(states: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
    logits = F.linear(states, weight)
    wide = torch.promote_types(logits.dtype, torch.float32)
    return F.cross_entropy(logits.to(wide), targets, ignore_index=IGNORED, reduction="sum")


def fused(dtype: torch.dtype):
    def call(states: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
        return training_loss._SummedNLL.apply(states[None], weight, targets[None], dtype)

    return call


def differentiate(function, states: Tensor, weight: Tensor, targets: Tensor) -> tuple[Tensor, ...]:
    """The loss over 7, which every gradient meets on its way, and both gradients."""
    loss = function(states, weight, targets) / 7
    return loss.detach(), *torch.autograd.grad(loss, (states, weight))


def assert_exact(dtype: torch.dtype, vocabulary: int, device: str, compiled: bool = False) -> None:
    """At most twice the error of PyTorch's own in the same precision, tensor by tensor."""
    given = draw(vocabulary, device)
    narrow = [x.detach().to(dtype).requires_grad_() for x in given[:2]]
    truth = differentiate(plain, *(x.detach().double().requires_grad_() for x in narrow), given[2])
    yardstick = differentiate(plain, *narrow, given[2])
    call = torch.compile(fused(dtype)) if compiled else fused(dtype)
    with poisoned_memory():
        ours = differentiate(call, *(x.detach().float().requires_grad_() for x in narrow), given[2])
    slack = 1e-6 if dtype == torch.float32 else 1e-3
    for name, *three in zip(("loss", "dstates", "dweight"), ours, truth, yardstick, strict=True):
        assert_close(name, *three, slack)


@pytest.mark.skipif(INTERPRETED, reason="it would start itself")
def test_the_interpreter_reproduces_the_definition() -> None:
    run_interpreted(__file__)


@pytest.mark.skipif(not INTERPRETED, reason="run by the test above")
class TestInterpreted:
    @pytest.mark.parametrize("vocabulary", [2, 29, 64, 300])
    def test_every_vocabulary(self, vocabulary: int) -> None:
        assert_exact(torch.float32, vocabulary, "cpu")

    def test_logits_that_overflow_are_not_hidden(self) -> None:
        from relation.kernels.cross_entropy import cross_entropy

        logits = torch.tensor([[0.0, torch.inf], [0.0, torch.nan], [3e38, -3e38]])
        nll, _ = cross_entropy(logits, torch.tensor([0, 0, 0]), IGNORED)
        assert nll[:2].isnan().all() and nll[2] == 0

    def test_a_target_outside_the_vocabulary_is_no_number(self) -> None:
        from relation.kernels.cross_entropy import cross_entropy

        logits, targets = torch.zeros(5, 29), torch.tensor([28, 29, 40, -1, IGNORED])
        nll, _ = cross_entropy(logits, targets, IGNORED)
        assert nll.isnan().tolist() == [False, True, True, True, False]

    def test_what_does_not_fit_is_refused(self) -> None:
        from relation.kernels.cross_entropy import cross_entropy

        rows = torch.zeros(3, dtype=torch.int64)
        with pytest.raises(InputError, match="float64; give"):
            cross_entropy(torch.zeros(3, 4, dtype=torch.float64), rows, IGNORED)
        for logits in (
            torch.zeros(3),
            torch.zeros(2, 4),
            torch.zeros(4, 3).T,
            torch.zeros(3, 70000),
        ):
            with pytest.raises(InputError, match="logits"):
                cross_entropy(logits, rows, IGNORED)


@pytest.mark.parametrize("architecture", ["sm_90", "sm_120"])
@pytest.mark.parametrize("vocabulary", [512, 4096, 32768])
def test_the_kernel_fits_every_architecture(architecture: str, vocabulary: int) -> None:
    """A row of the paper's vocabularies is held in registers, none of them spilled."""
    pytest.importorskip("triton")
    if INTERPRETED:
        pytest.skip("the interpreter compiles nothing")
    from relation.kernels.cross_entropy import cross_entropy_kernel, row_options
    from relation.kernels.resources import compile_resources

    options = row_options(vocabulary)
    row = options.pop("ROW")
    types = {"logits": "*bf16", "targets": "*i64", "nll": "*fp32", "dlogits": "*bf16"}
    constants = {"IGNORED": IGNORED, "ROW": row}
    used = compile_resources(cross_entropy_kernel, constants, types, options, architecture)
    assert row >= vocabulary
    assert used.registers * 32 * options["num_warps"] <= 65536
    assert used.stack == 0


def test_a_cpu_takes_pytorchs_own() -> None:
    assert not training_loss._fuses(torch.device("cpu"), 4096)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("vocabulary", [2, 29, 4096, 5000, 32768])
def test_every_vocabulary_on_a_gpu(vocabulary: int, dtype: torch.dtype) -> None:
    assert_exact(dtype, vocabulary, "cuda")


@pytest.mark.gpu
def test_compiled_on_a_gpu() -> None:
    assert_exact(torch.bfloat16, 4096, "cuda", compiled=True)


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_model_has_the_same_loss_with_and_without_a_gradient(precision: str) -> None:
    """With one the kernel forms it, without one PyTorch does."""
    device = torch.device("cuda")
    config = ModelConfig.for_variant("mha", layers=1, d_model=64, heads=4, d_ff=64, vocab_size=300)
    model = Decoder(config)
    model.initialise(0)
    model.to(device)
    tokens = torch.randint(300, (3, 41), generator=torch.Generator().manual_seed(1)).to(device)
    assert training_loss._fuses(device, 300)
    with autocast(device, precision):
        wanted = training_loss.summed_nll(model, tokens[:, :-1], tokens[:, 1:])
        with torch.no_grad():
            plain_loss = training_loss.summed_nll(model, tokens[:, :-1], tokens[:, 1:])
    torch.testing.assert_close(wanted, plain_loss, rtol=1e-5, atol=0)
