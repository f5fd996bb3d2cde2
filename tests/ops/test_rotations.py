"""Givens mixing and RoPE against their rotation matrices in float64."""

import math
from functools import partial

import pytest
import torch
from equations import assert_close, differentiate, draw, rope

from relation import ops


@pytest.mark.parametrize(
    ("layer", "pairs"),
    [(0, [(1, 2), (3, 4), (5, 6)]), (1, [(2, 3), (4, 5), (6, 1)]), (4, [(1, 2), (3, 4), (5, 6)]),
     (0, [(1, 2)]), (1, [(2, 1)])],
)  # fmt: skip
def test_givens_rotates_the_papers_pairs(layer, pairs):
    heads, theta = 2 * len(pairs), draw(len(pairs), count=1)[0].requires_grad_()
    rotation = torch.eye(heads, dtype=torch.float64)
    for angle, (a, b) in zip(theta.tolist(), pairs, strict=True):
        rotation[a - 1, a - 1] = rotation[b - 1, b - 1] = math.cos(angle)
        rotation[a - 1, b - 1], rotation[b - 1, a - 1] = -math.sin(angle), math.sin(angle)
    info = draw(2, heads, 5, 4, count=1)[0].requires_grad_()
    mixed = ops.givens_mix(info, theta, layer)
    assert_close(mixed, torch.einsum("hk,bktd->bhtd", rotation, info), 2)
    assert_close(ops.givens_mix(mixed, -theta, layer), info, 4)
    assert torch.equal(ops.givens_mix(info, torch.zeros(len(pairs)), layer), info)
    assert torch.autograd.gradcheck(lambda *x: ops.givens_mix(*x, layer), (info, theta))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("angles", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("layer", [0, 1])
def test_givens_and_its_gradients_err_as_their_dtypes_do(dtype, angles, layer):
    info, dy = draw(2, 4, 70, 6, count=2).to(dtype)
    theta = draw(2, count=1)[0].to(angles)
    mix = partial(ops.givens_mix, layer_index=layer)
    *actual, dtheta = differentiate(mix, (info, theta), dy)
    *truth, true_dtheta = differentiate(mix, (info.double(), theta.double()), dy.double())
    assert ([x.dtype for x in actual], dtheta.dtype) == ([dtype] * 2, angles)
    wide = 2**-53 if torch.float64 in (dtype, angles) else 2**-24
    for x, given, exact in zip(actual, (info, dy), truth, strict=True):  # rounded once
        bound = torch.finfo(dtype).eps / 2 * exact.abs() + 8 * wide * given.abs().max()
        assert ((x.double() - exact).abs() <= bound).all()
    products = (dy.double().norm() * truth[0].norm()).item()
    bound = torch.finfo(angles).eps / 2 * true_dtheta.abs() + 8 * wide * products
    assert ((dtheta.double() - true_dtheta).abs() <= bound).all()


@pytest.mark.parametrize("base", [1e4, 500.0])
def test_rope_rotates_channel_c_with_channel_c_plus_half(base):
    x = draw(1, 2, 50, 60, count=1)[0]
    pairs = torch.complex(*x.chunk(2, dim=-1))
    frequency = base ** (-torch.arange(30, dtype=torch.float64) / 30)
    angle = torch.arange(7, 57, dtype=torch.float64)[:, None] * frequency
    expected = torch.view_as_real(pairs * torch.polar(torch.ones_like(angle), angle)).unbind(-1)
    # The angles are FP32: a position below 64 times a frequency with two roundings.
    tolerance = {"rtol": 0, "atol": 64 * 2**-22 * x.abs().max().item()}
    turned = rope(x, base, offset=7)
    torch.testing.assert_close(turned, torch.cat(expected, -1), **tolerance)
    assert torch.equal(rope(x)[:, :, 7:], rope(x[:, :, 7:], offset=7))
    assert torch.equal(rope(x)[:, :, 0], x[:, :, 0])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_rope_rounds_once(dtype):
    x = draw(1, 1, 20, 48, count=1)[0].to(dtype)
    turned, truth = rope(x), rope(x.double())
    assert turned.dtype == dtype
    bound = torch.finfo(dtype).eps / 2 * truth.abs() + 4 * 2**-24 * x.double().abs().max()
    assert ((turned.double() - truth).abs() <= bound).all()


def test_gradients_of_rope_are_derivatives():
    x = draw(2, 3, 5, 8, count=1)[0].requires_grad_()
    assert torch.autograd.gradcheck(lambda x: rope(x, offset=3), (x,))
