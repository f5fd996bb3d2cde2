"""How far the results of Full Relation lie from its definition in FP64."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from relation.ops import full_relation
from relation.variants import ModelConfig
from relation.verify.inputs import Inputs, Shape, draw

RESULTS = ("Y", "dp1", "dp2", "dinfo", "dlam")
_SLACK = {
    torch.bfloat16: 1e-3,
    torch.float16: 1e-3,
    torch.float32: 1e-5,
    torch.float64: 1e-12,
}
# lam's gradient is one number a draw: fewer of them are no statistics.
_DRAWS = 16


@contextmanager
def _poisoned_memory() -> Iterator[None]:
    """Uninitialised memory holds NaN, else it could hold what an earlier launch got right."""
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before)


def _definition(inputs: Inputs, dtype: torch.dtype) -> tuple[Tensor, ...]:
    """Results of the definition in `dtype`, lam at least in FP32."""
    p1, p2, info = (inputs[name].detach().to(dtype) for name in ("p1", "p2", "info"))
    lam = inputs["lam"].detach().to(torch.promote_types(dtype, torch.float32))
    leaves = [x.requires_grad_() for x in (p1, p2, info, lam)]
    y = full_relation(*leaves, ModelConfig.tau)
    return y.detach(), *torch.autograd.grad(y, leaves, inputs["dy"].to(dtype))


def _sizes(results: tuple[Tensor, ...]) -> Tensor:
    """Mean square and largest magnitude of each result, (5, 2) in FP64."""
    wide = [x.double() for x in results]
    return torch.stack([torch.stack((x.square().mean(), x.abs().max())) for x in wide])


@dataclass(frozen=True)
class Deviation:
    """How far one result lies off the definition in FP64, and how far it may.

    measure: "RMS" or "largest", over all draws; yardstick: the same of the definition in the
    operator's own `dtype`; truth: the size of the definition in FP64, by the same measure.
    """

    result: str
    measure: str
    error: float
    yardstick: float
    truth: float
    dtype: torch.dtype

    @property
    def allowed(self) -> float:
        """Twice the yardstick plus 1e-3 (FP32: 1e-5, FP64: 1e-12) of the truth's size."""
        return 2 * self.yardstick + _SLACK[self.dtype] * self.truth


def deviations(
    operator: Callable[[Inputs], tuple[Tensor, ...]],
    shape: Shape,
    dtype: torch.dtype,
    device: torch.device,
    draws: int = _DRAWS,
) -> list[Deviation]:
    """Both errors of each of RESULTS, in the order RMS of all, largest of all.

    operator: as `why_wrong` takes it.
    """
    generator = torch.Generator(device).manual_seed(1)
    drawn = []
    for _ in range(draws):
        inputs = draw(shape, dtype, device, generator)
        with _poisoned_memory():
            ours = operator(inputs)
        truth, yardstick = (_definition(inputs, d) for d in (torch.float64, dtype))
        errors = [
            _sizes(tuple(x.double() - t for x, t in zip(found, truth, strict=True)))
            for found in (ours, yardstick)
        ]
        drawn.append(torch.stack((*errors, _sizes(truth))))
    squares, largest = torch.stack(drawn).unbind(-1)  # each (draws, 3, 5)
    found = []
    for measure, values in (("RMS", squares.mean(0).sqrt()), ("largest", largest.amax(0))):
        for name, *sizes in zip(RESULTS, *values.tolist(), strict=True):
            found.append(Deviation(name, measure, *sizes, dtype))
    return found


def why_wrong(
    operator: Callable[[Inputs], tuple[Tensor, ...]],
    shape: Shape,
    dtype: torch.dtype,
    device: torch.device,
) -> str | None:
    """One line on the first result that is not the definition's (Section 3.1), or None.

    operator: takes inputs as `draw` makes them, (1, H, T, D) in `dtype`, and gives
    Y and the gradients of p1, p2, info and lam. Their `deviations` over 16 draws are checked at the
    shape's T and at T - 1, where the last tiles are masked.
    """
    for length in dict.fromkeys((shape.length, max(1, shape.length - 1))):
        at = replace(shape, batch=1, length=length)
        for off in deviations(operator, at, dtype, device):
            if not off.error <= off.allowed:
                return (
                    f"the {off.measure} error of {off.result} is {off.error:.2e} at T {length}, "
                    f"where {off.allowed:.2e} is allowed"
                )
    return None
