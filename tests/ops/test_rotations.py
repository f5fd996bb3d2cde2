"""Givens mixing and RoPE against their rotation matrices in float64."""

import math
from functools import partial

import pytest
import torch
from equations import assert_close, differentiate, draw
from interpreter import INTERPRETED, run_interpreted

from relation import ops
from relation.ops.rope import apply_rope, rope_angles


@pytest.mark.parametrize(
    ("layer", "pairs"),
    [(0, [(1, 2), (3, 4), (5, 6)]), (1, [(2, 3), (4, 5), (6, 1)]), (4, [(1, 2), (3, 4), (5, 6)])],
)
def test_givens_rotates_the_papers_pairs(layer, pairs):
    theta = draw(3, count=1)[0].requires_grad_()
    rotation = torch.eye(6, dtype=torch.float64)
    for angle, (a, b) in zip(theta.tolist(), pairs, strict=True):
        rotation[a - 1, a - 1] = rotation[b - 1, b - 1] = math.cos(angle)
        rotation[a - 1, b - 1], rotation[b - 1, a - 1] = -math.sin(angle), math.sin(angle)
    assert_close(rotation @ rotation.T, torch.eye(6, dtype=torch.float64), 1)
    info = draw(2, 6, 5, 4, count=1)[0].requires_grad_()
    mixed = ops.givens_mix(info, theta, layer)
    assert_close(mixed, torch.einsum("hk,bktd->bhtd", rotation, info), 2)
    assert_close(ops.givens_mix(mixed, -theta, layer), info, 4)
    assert torch.equal(ops.givens_mix(info, torch.zeros(3), layer), info)
    assert torch.autograd.gradcheck(lambda *x: ops.givens_mix(*x, layer), (info, theta))


@pytest.mark.parametrize("layer", [0, 1])
def test_two_heads_are_one_pair(layer):
    """On odd layers the pair is (2, 1): head 2 is a, head 1 is b."""
    info, theta = draw(1, 2, 3, 4, count=1)[0], torch.tensor([math.pi / 2], dtype=torch.float64)
    first, second = info.unbind(1)
    expected = torch.stack((-second, first) if layer == 0 else (second, -first), dim=1)
    assert_close(ops.givens_mix(info, theta, layer), expected, 2)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("angles", [torch.float32, torch.bfloat16])
def test_givens_rounds_once(dtype, angles):
    info, theta = draw(2, 4, 5, 6, count=1)[0].to(dtype), draw(2, count=1)[0].to(angles)
    mixed = ops.givens_mix(info, theta, 1)
    truth = ops.givens_mix(info.double(), theta.double(), 1)
    assert mixed.dtype == dtype
    roundoff = torch.finfo(dtype).eps / 2
    wide = max(torch.finfo(torch.float64).eps, min(roundoff, 2**-24))
    bound = roundoff * truth.abs() + 8 * wide * info.double().abs().max()
    assert ((mixed.double() - truth).abs() <= bound).all()


@pytest.mark.parametrize("heads", [2, 4, 8])
@pytest.mark.parametrize("layer", [0, 1])
@pytest.mark.parametrize("T", [1, 3])
def test_gradients_of_givens_are_derivatives(heads, layer, T):
    info = draw(2, heads, T, 2, count=1)[0].requires_grad_()
    theta = draw(heads // 2, count=1)[0].requires_grad_()
    assert torch.autograd.gradcheck(lambda *x: ops.givens_mix(*x, layer), (info, theta))
    dy = draw(2, heads, T, 2, count=2)[1]
    both = torch.autograd.grad(ops.givens_mix(info, theta, layer), (info, theta), dy)
    alone = (
        *torch.autograd.grad(ops.givens_mix(info, theta.detach(), layer), info, dy),
        *torch.autograd.grad(ops.givens_mix(info.detach(), theta, layer), theta, dy),
    )
    assert all(map(torch.equal, alone, both))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("angles", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("layer", [0, 1])
def test_error_of_givens_gradients_is_that_of_the_dtype(dtype, angles, layer):
    info, dy = draw(2, 4, 70, 6, count=2).to(dtype)
    theta = draw(2, count=1)[0].to(angles)
    mix = partial(ops.givens_mix, layer_index=layer)
    mixed, dinfo, dtheta = differentiate(mix, (info, theta), dy)
    truth = differentiate(mix, (info.double(), theta.double()), dy.double())
    assert (dinfo.dtype, dtheta.dtype) == (dtype, angles)
    roundoff, of_angles = torch.finfo(dtype).eps / 2, torch.finfo(angles).eps / 2
    wide = 2**-53 if torch.float64 in (dtype, angles) else 2**-24
    largest = max(x.double().abs().max().item() for x in (info, dy))
    error = (dinfo.double() - truth[1]).abs()
    assert (error <= roundoff * truth[1].abs() + 8 * wide * largest).all()
    # The backward multiplies dy by the rounded mixed heads. Each product has a rounding of its own,
    # evenly spread up to roundoff: twice the root of their squares is more than four deviations.
    products = (dy.double().norm() * mixed.double().norm()).item()
    bound = 2 * roundoff * products / dy.numel() ** 0.5 + 8 * wide * products
    assert ((dtheta.double() - truth[2]).abs() <= of_angles * truth[2].abs() + bound).all()


@pytest.mark.parametrize("layer", [0, 1])
def test_givens_compiles_into_one_graph(layer):
    info, theta = draw(2, 4, 5, 6, count=1)[0], draw(2, count=1)[0]
    dy = draw(2, 4, 5, 6, count=2)[1]
    mix = partial(ops.givens_mix, layer_index=layer)
    compiled = torch.compile(mix, backend="eager", fullgraph=True)
    expected = differentiate(mix, (info, theta), dy)
    for _ in range(2):
        assert all(map(torch.equal, differentiate(compiled, (info, theta), dy), expected))


def test_rope_rotates_channel_c_with_channel_c_plus_half():
    x = draw(1, 2, 50, 60, count=1)[0]
    pairs = torch.complex(*x.chunk(2, dim=-1))
    frequency = 1e4 ** (-torch.arange(30, dtype=torch.float64) / 30)
    angle = torch.arange(7, 57, dtype=torch.float64)[:, None] * frequency
    expected = torch.view_as_real(pairs * torch.polar(torch.ones_like(angle), angle)).unbind(-1)
    # The angles are FP32: positions below 64 times a frequency with two roundings.
    tolerance = {"rtol": 0, "atol": 64 * 2**-22 * x.abs().max().item()}
    turned = ops.rope(x, offset=7)
    torch.testing.assert_close(turned, torch.cat(expected, -1), **tolerance)
    torch.testing.assert_close(turned.norm(dim=-1), x.norm(dim=-1), rtol=2**-20, atol=0)
    assert torch.equal(ops.rope(x)[:, :, 7:], ops.rope(x[:, :, 7:], offset=7))
    assert torch.equal(ops.rope(x)[:, :, 0], x[:, :, 0])


def test_rope_scores_depend_on_relative_position_alone():
    q, k = draw(1, 2, 20, 48, count=2)
    here, there = (ops.rope(q, offset=o) @ ops.rope(k, offset=o).mT for o in (0, 40))
    longest = q.norm(dim=-1).max().item() * k.norm(dim=-1).max().item()
    torch.testing.assert_close(here, there, rtol=0, atol=64 * 2**-22 * longest)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_rope_rounds_once(dtype):
    x = draw(1, 1, 20, 48, count=1)[0].to(dtype)
    turned, truth = ops.rope(x), ops.rope(x.double())
    assert turned.dtype == dtype
    bound = torch.finfo(dtype).eps / 2 * truth.abs() + 4 * 2**-24 * x.double().abs().max()
    assert ((turned.double() - truth).abs() <= bound).all()


def test_gradients_of_rope_are_derivatives():
    x, dy = draw(2, 3, 5, 8)[:2]
    x = x.double().requires_grad_()
    assert torch.autograd.gradcheck(lambda x: ops.rope(x, offset=3), (x,))
    # As kernels store it, and as a copy: the same values.
    by_token = x.detach().transpose(1, 2).contiguous().transpose(1, 2).requires_grad_()
    gradients = [torch.autograd.grad(ops.rope(v), v, dy.double())[0] for v in (x, by_token)]
    torch.testing.assert_close(*gradients, rtol=0, atol=0)


@pytest.mark.skipif(INTERPRETED, reason="is the interpreter")
def test_the_rotation_and_mixing_kernels_are_the_definition():
    run_interpreted(__file__)


def tables(B: int, T: int, D: int, by_row: bool, device="cpu") -> tuple[torch.Tensor, torch.Tensor]:
    """RoPE's tables; by row, every row of the batch has places of its own."""
    cos, sin = rope_angles(T + B, D, 1e4, 3, torch.device(device))
    if not by_row:
        return cos[:T], sin[:T]
    return tuple(torch.stack([t[b : b + T] for b in range(B)]) for t in (cos, sin))


def turned_and_bound(
    x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """The definition in FP64 from the same tables, and how far one rounding may lie off it."""
    first, second = x.double().chunk(2, dim=-1)
    cos, sin = (t.double().unsqueeze(-3) for t in (cos, sin))
    truth = x.double() * cos + torch.cat((-second, first), dim=-1) * sin
    roundoff = torch.finfo(x.dtype).eps / 2
    return truth, roundoff * truth.abs() + 4 * 2**-24 * x.double().abs().max()


MIXED_SHAPES = [(2, 4, 5, 48), (1, 2, 1, 2), (1, 6, 70, 20), (1, 4, 3, 1030)]
SHAPES = [(2, 3, 5, 48), (1, 2, 70, 64), (2, 5, 33, 80), (1, 1, 1, 2)]


@pytest.mark.skipif(not INTERPRETED, reason="runs in the interpreter")
class TestInterpreted:
    @pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
    @pytest.mark.parametrize("by_row", [False, True])
    @pytest.mark.parametrize("shape", SHAPES)
    def test_both_ways_at_ragged_shapes_and_strides(self, shape, by_row, dtype):
        from relation.kernels.rotation import rotate

        B, H, T, D = shape
        states = draw(B, H, T, D, count=1)[0].to(dtype)
        by_token = states.transpose(1, 2).contiguous().transpose(1, 2)
        cos, sin = tables(B, T, D, by_row)
        for x in (states, by_token, states.mT.contiguous().mT):
            for back in (False, True):
                truth, bound = turned_and_bound(x, cos, -sin if back else sin)
                found = rotate(x, cos, sin, back)
                assert (found.dtype, found.shape) == (dtype, truth.shape)
                assert found.transpose(1, 2).is_contiguous()
                assert ((found.double() - truth).abs() <= bound).all()

    @pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
    @pytest.mark.parametrize("shape", MIXED_SHAPES)
    @pytest.mark.parametrize("shift", [0, 1])
    def test_mixing_at_ragged_shapes_and_strides(self, shape, shift, dtype):
        from relation.kernels.mixing import mix, mix_backward

        info, dy = draw(*shape, count=2).to(dtype)
        theta = draw(shape[1] // 2, count=1)[0].float()
        by_token = info.transpose(1, 2).contiguous().transpose(1, 2)
        for x in (info, by_token, info.mT.contiguous().mT):
            for given in (dy, dy.mT.contiguous().mT):
                mixed = mix(x, theta, shift)
                found = mixed, *mix_backward(given, mixed, theta, shift)
                assert_mixed(x, theta, dy, shift, found)


def assert_mixed(info, theta, dy, shift: int, found) -> None:
    """Mixed heads and both gradients against the definition in FP64; one rounding each."""
    mix = partial(ops.givens_mix, layer_index=shift)
    truth = differentiate(mix, (info.double(), theta.double()), dy.double())
    assert [x.dtype for x in found] == [info.dtype, info.dtype, theta.dtype]
    roundoff = torch.finfo(info.dtype).eps / 2
    for ours, exact, given in zip(found[:2], truth, (info, dy), strict=False):
        bound = roundoff * exact.abs() + 8 * 2**-24 * given.double().abs().max()
        assert ((ours.double() - exact).abs() <= bound).all()
    # As `test_error_of_givens_gradients_is_that_of_the_dtype` derives it.
    products = (dy.double().norm() * truth[0].norm()).item()
    bound = 2 * roundoff * products / dy.numel() ** 0.5 + 8 * 2**-24 * products
    assert ((found[2].double() - truth[2]).abs() <= bound).all()


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("shape", [*MIXED_SHAPES, (1, 8, 64, 512)])
@pytest.mark.parametrize("layer", [0, 1])
def test_givens_and_its_gradients_on_a_gpu(shape, layer, dtype):
    info, dy = draw(*shape, count=2).to("cuda", dtype)
    theta = draw(shape[1] // 2, count=1)[0].to("cuda", torch.float32)
    mix = partial(ops.givens_mix, layer_index=layer)
    found = differentiate(mix, (info, theta), dy)
    assert_mixed(info, theta, dy, layer, found)
    again = differentiate(mix, (info, theta), dy)
    assert all(map(torch.equal, found, again))


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("shape", SHAPES)
def test_rope_and_its_gradient_on_a_gpu(shape, dtype):
    B, H, T, D = shape
    x, dy = draw(B, H, T, D, count=2).to("cuda", dtype)
    cos, sin = tables(B, T, D, True, "cuda")
    y, dx = differentiate(lambda x: apply_rope(x, cos, sin), (x,), dy)
    for found, given, sine in ((y, x, sin), (dx, dy, -sin)):
        truth, bound = turned_and_bound(given, cos, sine)
        assert found.dtype == dtype
        assert ((found.double() - truth).abs() <= bound).all()
