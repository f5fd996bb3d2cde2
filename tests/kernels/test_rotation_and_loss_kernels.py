"""RoPE's kernel and the loss kernel, and their gradients, against their definitions in float64."""

import pytest
import torch
import torch.nn.functional as F
from equations import differentiate, draw
from exactness import SLACK, assert_close, poisoned_memory
from interpreter import INTERPRETED, run_interpreted
from torch import Tensor

from relation.ops.rotations import apply_rope, rope_angles

SHAPES = [(2, 3, 5, 48), (1, 2, 70, 64), (2, 5, 33, 80), (1, 1, 1, 2)]
IGNORED = -100


def tables(B: int, T: int, D: int, by_row: bool, device="cpu") -> tuple[Tensor, Tensor]:
    """RoPE's tables. With `by_row`, every row of the batch has different positions."""
    cos, sin = rope_angles(torch.arange(3, 3 + T + B, device=device), D, 1e4)
    if not by_row:
        return cos[:T], sin[:T]
    return tuple(torch.stack([t[b : b + T] for b in range(B)]) for t in (cos, sin))


def assert_turned(found: Tensor, x: Tensor, cos: Tensor, sin: Tensor) -> None:
    """Check within one rounding of the float64 definition with the same tables."""
    first, second = x.double().chunk(2, dim=-1)
    cos, sin = (t.double().unsqueeze(-3) for t in (cos, sin))
    truth = x.double() * cos + torch.cat((-second, first), dim=-1) * sin
    bound = torch.finfo(x.dtype).eps / 2 * truth.abs() + 4 * 2**-24 * x.double().abs().max()
    assert (found.dtype, found.shape) == (x.dtype, truth.shape)
    assert ((found.double() - truth).abs() <= bound).all()


def cross_entropy(logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    wide = logits.to(torch.promote_types(logits.dtype, torch.float32)).requires_grad_()
    nll = F.cross_entropy(wide, targets, ignore_index=IGNORED, reduction="none")
    (dlogits,) = torch.autograd.grad(nll.sum(), wide)
    return nll.detach(), dlogits.to(logits.dtype)


def assert_loss_exact(vocabulary: int, dtype: torch.dtype, device: str = "cpu") -> None:
    """Check logits (17, V) of about +-5 with some ignored targets."""
    from relation.kernels.cross_entropy import cross_entropy as kernel

    generator = torch.Generator().manual_seed(vocabulary)
    logits = (5 * torch.randn(17, vocabulary, generator=generator)).to(device, dtype)
    targets = torch.randint(vocabulary, (17, 2), generator=generator).to(device)[:, 1]
    targets[::5], targets[1] = IGNORED, vocabulary - 1
    with poisoned_memory():
        ours = kernel(logits, targets, IGNORED)
    truth, yardstick = cross_entropy(logits.double(), targets), cross_entropy(logits, targets)
    for name, *three in zip(("nll", "dlogits"), ours, truth, yardstick, strict=True):
        assert_close(name, *three, SLACK[dtype])
    assert all(map(torch.equal, ours, kernel(logits, targets, IGNORED)))


def test_the_interpreter_reproduces_the_definitions():
    run_interpreted(__file__)


@pytest.mark.skipif(not INTERPRETED, reason="run by the test above")
class TestInterpreted:
    @pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
    @pytest.mark.parametrize("by_row", [False, True])
    @pytest.mark.parametrize("shape", SHAPES[::3])
    def test_rotation_both_ways_at_ragged_shapes_and_strides(self, shape, by_row, dtype):
        from relation.kernels.rotation import rotate

        B, H, T, D = shape
        states = draw(B, H, T, D, count=1)[0].to(dtype)
        by_token = states.transpose(1, 2).contiguous().transpose(1, 2)
        cos, sin = tables(B, T, D, by_row)
        for x in (states, by_token, states.mT.contiguous().mT):
            for back in (False, True):
                found = rotate(x, cos, sin, back)
                assert_turned(found, x, cos, -sin if back else sin)
                assert found.transpose(1, 2).is_contiguous()

    def test_tables_of_one_row_and_of_one_position(self):
        from relation.kernels.rotation import rotate

        x = draw(3, 2, 5, 48, count=1)[0].float()
        cos, sin = tables(1, 5, 48, True)
        assert_turned(rotate(x, cos, sin), x, cos, sin)
        assert_turned(rotate(x, cos[0, :1], sin[0, :1]), x, cos[0, :1], sin[0, :1])
        with pytest.raises(RuntimeError, match="expanded size"):
            rotate(x[:, :, :4], cos, sin)

    @pytest.mark.parametrize("vocabulary", [2, 300])
    def test_the_loss_of_every_vocabulary(self, vocabulary):
        assert_loss_exact(vocabulary, torch.float32)

    def test_torch_compile_plans_with_the_losses_shapes_and_dtypes(self):
        from relation.kernels.cross_entropy import cross_entropy as kernel

        given = torch.randn(3, 7).half(), torch.tensor([0, 6, IGNORED]), IGNORED
        torch.library.opcheck(kernel, given, test_utils="test_faketensor")

    def test_a_loss_that_is_no_number_is_not_hidden(self):
        """Logits that overflow, and targets outside the vocabulary."""
        from relation.kernels.cross_entropy import cross_entropy as kernel

        logits = torch.tensor([[0.0, torch.inf], [0.0, torch.nan], [3e38, -3e38]])
        nll, _ = kernel(logits, torch.tensor([0, 0, 0]), IGNORED)
        assert nll[:2].isnan().all() and nll[2] == 0
        targets = torch.tensor([28, 29, 40, -1, IGNORED])
        nll, _ = kernel(torch.zeros(5, 29), targets, IGNORED)
        assert nll.isnan().tolist() == [False, True, True, True, False]


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float64, *SLACK])
@pytest.mark.parametrize("shape", SHAPES)
def test_rotation_and_its_gradient_on_a_gpu(shape, dtype):
    B, _, T, D = shape
    x, dy = draw(*shape, count=2).to("cuda", dtype)
    cos, sin = tables(B, T, D, True, "cuda")
    y, dx = differentiate(lambda x: apply_rope(x, cos, sin), (x,), dy)
    assert_turned(y, x, cos, sin)
    assert_turned(dx, dy, cos, -sin)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", SLACK)
@pytest.mark.parametrize("vocabulary", [2, 29, 4096, 5000, 32768])
def test_the_loss_of_every_vocabulary_on_a_gpu(vocabulary, dtype):
    assert_loss_exact(vocabulary, dtype, "cuda")
