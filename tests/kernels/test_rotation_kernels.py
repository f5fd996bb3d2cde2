"""RoPE's kernel and its gradient against the definition in float64."""

import pytest
import torch
from equations import differentiate, draw
from exactness import SLACK
from interpreter import INTERPRETED, run_interpreted

from relation.ops.rotations import apply_rope, rope_angles

SHAPES = [(2, 3, 5, 48), (1, 2, 70, 64), (2, 5, 33, 80), (1, 1, 1, 2)]


def tables(B: int, T: int, D: int, by_row: bool, device="cpu") -> tuple[torch.Tensor, torch.Tensor]:
    """RoPE's tables. With `by_row`, every row of the batch has different positions."""
    cos, sin = rope_angles(torch.arange(3, 3 + T + B, device=device), D, 1e4)
    if not by_row:
        return cos[:T], sin[:T]
    return tuple(torch.stack([t[b : b + T] for b in range(B)]) for t in (cos, sin))


def assert_turned(found: torch.Tensor, x: torch.Tensor, cos, sin) -> None:
    """Check within one rounding of the float64 definition with the same tables."""
    first, second = x.double().chunk(2, dim=-1)
    cos, sin = (t.double().unsqueeze(-3) for t in (cos, sin))
    truth = x.double() * cos + torch.cat((-second, first), dim=-1) * sin
    bound = torch.finfo(x.dtype).eps / 2 * truth.abs() + 4 * 2**-24 * x.double().abs().max()
    assert (found.dtype, found.shape) == (x.dtype, truth.shape)
    assert ((found.double() - truth).abs() <= bound).all()


@pytest.mark.skipif(INTERPRETED, reason="is the interpreter")
def test_the_interpreter_reproduces_the_definition():
    run_interpreted(__file__)


@pytest.mark.skipif(not INTERPRETED, reason="runs in the interpreter")
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
