"""Backends of the operators: their errors are those of the dtype; the fastest is the default."""

import importlib.util
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from equations import differentiate, draw
from torch import Tensor

from relation import ops
from relation.ops import backends

DEFINITION = {kind: next(iter(forms)) for kind, forms in ops.BACKENDS.items()}
CPU = torch.device("cpu")
PLAIN = [
    (kind, name)
    for kind, forms in ops.BACKENDS.items()
    for name, backend in forms.items()
    if backend.why_unavailable(CPU) is None
]
LAM = torch.tensor(0.5)

# These round scores and flow to the inputs' dtype; the others round only their results.
ROUND_INSIDE = ("reference", "materialised", "flash")


def operator_of(kind: str, name: str, **options) -> Callable[..., Tensor]:
    """A function that returns Y of a backend, from p1, p2, info and the operator's other inputs."""
    call = partial(ops.BACKENDS[kind][name].call, **options)
    return (lambda *inputs: call(*inputs)[0]) if kind == "linear" else call


def inputs_of(kind: str, p1: Tensor, p2: Tensor, info: Tensor, g: Tensor) -> tuple[Tensor, ...]:
    """The states, plus lambda for Full Relation or g for Linear Relation."""
    lam = (LAM.to(p1.device),)
    extra = {"mha": (), "full": lam, "calibrated": lam, "linear": (g,)}[kind]
    return (p1, p2, info, *extra)


@pytest.mark.parametrize(
    ("dtype", "autocast"),
    [(torch.float32, False), (torch.float32, True), (torch.float16, False),
     (torch.bfloat16, False), (torch.bfloat16, True)],
)  # fmt: skip
@pytest.mark.parametrize("shape", [(1, 2, 70, 48), (1, 1, 1, 60)])
@pytest.mark.parametrize(("kind", "name"), PLAIN)
def test_errors_of_y_and_every_gradient_are_those_of_the_dtype(kind, name, shape, dtype, autocast):
    *states, g, dy = draw(*shape, count=5)
    p1, p2, info, dy = (x.to(dtype) for x in (*states, dy))
    inputs = inputs_of(kind, p1, p2, info, -g.abs().float() / 10)
    if dtype == torch.float32 and autocast and (kind, name) == ("mha", "flash"):
        pytest.skip("PyTorch's own attention casts its inputs under autocast")
    # A training step calls backward outside the autocast.
    forward = torch.autocast("cpu", torch.bfloat16, enabled=autocast)(operator_of(kind, name))
    y, *gradients = differentiate(forward, inputs, dy)
    definition = operator_of(kind, DEFINITION[kind])
    true_y, *truths = differentiate(definition, (x.double() for x in inputs), dy.double())
    assert y.dtype == dtype
    # The result is rounded once; sums of T + D terms are in FP32.
    sums, roundoff = 8 * sum(shape[2:]) * 2**-23, torch.finfo(dtype).eps / 2
    largest = info.abs().max().item()
    bound = roundoff * true_y.abs() + sums * largest
    if name in ROUND_INSIDE:
        # Scores and flow are rounded too. U is in the exponent, and a row of flow sums to 1.
        U = (p1.double() @ p2.double().mT).abs().max().item() / shape[3] ** 0.5
        bound += roundoff * (4 * U + 2) * largest
    assert ((y.double() - true_y).abs() <= bound).all()
    for x, gradient, truth in zip(inputs, gradients, truths, strict=True):
        assert gradient.dtype == x.dtype
        error = (gradient.double() - truth).abs()
        # A first token's gradients cancel to 0, but their terms are as large as the inputs.
        own_sums = sums * max(truth.abs().max().item(), 1)
        if name in ROUND_INSIDE:
            # U, flow, dL/dF, dL/dU and the gradient are rounded separately. U is near 1.
            assert error.norm() <= 5 * roundoff * truth.norm() + own_sums
        else:
            assert (error <= torch.finfo(x.dtype).eps / 2 * truth.abs() + own_sums).all()


ROWS = {
    "mha": (ops.causal_attention, ops.attention_step),
    "full": (ops.full_relation, ops.tiled_relation, ops.full_relation_step),
}


@pytest.mark.parametrize(("kind", "operator"), [(k, op) for k, ops_ in ROWS.items() for op in ops_])
@pytest.mark.parametrize("autocast", [False, True])
def test_scores_past_the_range_of_fp16_are_right(kind, operator, autocast):
    """Scores are multiples of 2e4, exact in FP32. A row attends to its highest score and ties."""
    *states, dy = draw(1, 2, 20, 64, count=4)
    p1, p2 = (400 * x.sign() for x in states[:2])
    inputs = inputs_of(kind, *(x.half() for x in (p1, p2, states[2])), None)
    largest = (p1 @ p2.mT).abs().max() / 8
    assert largest > 65504
    forward = torch.autocast("cpu", torch.float16, enabled=autocast)(operator)
    results = differentiate(forward, inputs, dy.half())
    truths = differentiate(operator, (x.double() for x in inputs), dy.half().double())
    for result, truth in zip(results, truths, strict=True):
        # Flow, dL/dF, dL/dU and the result are rounded. Tiles keep L, as large as a score.
        bound = 4 * 2**-11 + largest * 2**-24
        assert (result.double() - truth).norm() <= bound * truth.norm()


BF16, FP16, FP32, FP64 = torch.bfloat16, torch.float16, torch.float32, torch.float64
KERNELS = importlib.import_module("relation.kernels.available")
# "bare" has no Triton.
CAPABILITIES = {"cuda": (9, 0), "bare": (9, 0), "ampere": (8, 0), "volta": (7, 0)}
CAPABILITIES |= {"turing": (7, 5), "pascal": (6, 1), "rocm": (9, 4)}


@pytest.mark.parametrize(
    ("device", "dtype", "width", "expected"),  # backends of mha, full, calibrated, linear
    [
        ("cuda", BF16, 48, "flash flash flex flash"),
        ("cuda", FP32, 64, "efficient flash flex flash"),
        ("cuda", FP32, 6, "reference tiled tiled chunked"),
        ("cuda", FP64, 64, "reference tiled tiled chunked"),
        ("cuda", BF16, 8, "flash tiled tiled chunked"),
        ("cuda", BF16, 384, "efficient flex flex chunked"),
        ("cuda", FP16, 16, "flash flash flex flash"),
        ("cuda", BF16, 256, "flash flex flex chunked"),
        ("cuda", FP32, 4, "efficient tiled tiled chunked"),
        ("ampere", BF16, 128, "flash flash flex flash"),
        ("bare", BF16, 48, "flash tiled tiled chunked"),
        ("volta", FP32, 16, "efficient flex flex chunked"),
        ("turing", BF16, 64, "reference tiled tiled chunked"),
        ("turing", FP16, 64, "efficient flex flex chunked"),
        ("pascal", FP32, 64, "efficient tiled tiled chunked"),
        ("rocm", BF16, 64, "flash flex flex chunked"),
        ("cpu", FP64, 8, "flash tiled tiled chunked"),
        ("mps", FP32, 64, "reference tiled tiled chunked"),
    ],
)
def test_the_default_is_the_fastest_backend_that_runs(
    monkeypatch, recwarn, device, dtype, width, expected
):
    is_gpu, find = device in CAPABILITIES, importlib.util.find_spec
    there = torch.device("cuda" if is_gpu else device)
    # The attributes that the choice reads, for a device that this machine may lack.
    x = SimpleNamespace(device=there, is_cuda=is_gpu, dtype=dtype, shape=(1, 2, 20, width))
    if device == "bare":
        lacks = lambda name: None if name == "triton" else find(name)  # noqa: E731
        monkeypatch.setattr(importlib.util, "find_spec", lacks)
        monkeypatch.setattr(KERNELS, "_has_triton", lambda: False)
    KERNELS._why_gpu_unavailable.cache_clear()
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: CAPABILITIES[device])
    monkeypatch.setattr(torch.version, "hip", "7.0" if device == "rocm" else None)
    monkeypatch.setattr(torch.backends.cuda, "is_flash_attention_available", lambda: True)
    for kind, name in zip(("mha", "full", "calibrated", "linear"), expected.split(), strict=True):
        assert backends.default_backend(kind, x) == name
        assert ops.BACKENDS[kind][name].why_unavailable(x.device) is None
        # On a GPU, one line says once why the choice is not the fastest backend of all.
        monkeypatch.setitem(ops.BACKENDS[kind], name, backends.Backend(lambda *_, **__: None))
        backends._warn.cache_clear()
        recwarn.clear()
        for _ in range(2):
            backends.Operator(kind)(x)
        assert len(recwarn) == (x.is_cuda and name != ("flex" if kind == "calibrated" else "flash"))
    takes_documents = "flash" if expected.startswith("flash") else "reference"
    assert backends.default_backend("mha", x, documents=True) == takes_documents
    assert backends.default_backend("mha", x, documents=True, null=True) == "reference"
    calls = []
    slow = backends.Backend(lambda *_, **given: calls.append(given))
    monkeypatch.setitem(ops.BACKENDS["mha"], "reference", slow)
    backends.Operator("mha")(x, documents=x, null=True)
    assert calls == [{"documents": x, "null": True}]
    KERNELS._why_gpu_unavailable.cache_clear()
