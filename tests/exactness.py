"""How exact a kernel must be, compared with its operator's definition in float64.

Its error may be twice the error of the definition in the inputs' dtype, plus a small slack.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import equations
import torch

from relation import kernels
from relation.ops import full_flow, full_relation

SLACK = {torch.bfloat16: 1e-3, torch.float16: 1e-3, torch.float32: 1e-5}
RESULTS = ("Y", "dp1", "dp2", "dinfo", "dlam")
Inputs = tuple[torch.Tensor, ...]


def draw(seed: int, shape: tuple[int, ...], dtype=torch.float32, device="cpu", lam=0.5) -> Inputs:
    """Return p1, p2, info, dY (B, H, T, D), stored as (B, T, H, D) as in a model, and lam."""
    B, H, T, D = shape
    generator = torch.Generator().manual_seed(seed)
    heads = torch.randn(4, B, T, H, D, generator=generator).transpose(2, 3)
    return (*heads.to(device, dtype), torch.tensor(lam, device=device))


def sharing(inputs: Inputs, heads: int) -> Inputs:
    """Keep only `heads` heads of p2 and info."""
    p1, p2, info, *others = inputs
    return (p1, p2[:, :heads], info[:, :heads], *others)


@contextmanager
def poisoned_memory() -> Iterator[None]:
    """Fill uninitialised memory with NaN."""
    # torch.use_deterministic_algorithms does the same, but imports the whole compiler.
    torch.set_deterministic_debug_mode("error")
    try:
        yield
    finally:
        torch.set_deterministic_debug_mode("default")


def differentiate(operator, inputs: Inputs, **options) -> Inputs:
    """Y and the gradients of p1, p2, info and lam."""
    p1, p2, info, dy, lam = inputs
    return equations.differentiate(operator, (p1, p2, info, lam), dy, **options)


def peak_bytes(call: Callable[[], object]) -> int:
    """Return the peak of the bytes that a call requests on the GPU, without earlier tensors.

    The allocator's own count can be larger by up to a MiB per block.
    """
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_stats()["requested_bytes.all.current"]
    call()
    return torch.cuda.memory_stats()["requested_bytes.all.peak"] - before


def compare(inputs: Inputs, **options) -> tuple[Inputs, Inputs, Inputs]:
    """Results of FlashRelation, and of the definition in float64 and in the inputs' dtype."""
    with poisoned_memory():
        ours = differentiate(kernels.flash_relation, inputs, **options)
    exact = differentiate(full_relation, tuple(x.double() for x in inputs), **options)
    return ours, exact, differentiate(full_relation, inputs, **options)


def assert_close(name: str, ours, truth, yardstick, slack: float) -> None:
    """Check RMS and maximum error: at most 2 x the yardstick's error + slack x the truth's size."""
    for measure in (lambda x: x.square().mean().sqrt(), lambda x: x.abs().max()):
        error, allowed = measure(ours.double() - truth), 2 * measure(yardstick.double() - truth)
        allowed += slack * measure(truth)
        assert error <= allowed, f"{name}: {error:.3e} > {allowed:.3e}, {tuple(ours.shape)}"


def assert_exact(inputs: Inputs, slack: float | None = None, **options) -> None:
    """Check Y and the gradients of p1, p2, info. dlam, one number, must only be finite."""
    slack = SLACK[inputs[0].dtype] if slack is None else slack
    *results, dlam = zip(RESULTS, *compare(inputs, **options), strict=True)
    for name, *three in results:
        assert_close(name, *three, slack)
    assert dlam[1].isfinite()


def with_wide_scores(p1, p2, info, lam, tau: float = 2.0) -> torch.Tensor:
    """The definition with scores in FP32: 16 bits round only the flow, information and Y."""
    flow = full_flow(p1.float(), p2.float(), lam, tau)
    return flow.to(info.dtype) @ info


def assert_close_to_wide_scores(inputs: Inputs, operator=kernels.flash_relation) -> None:
    """Check 16-bit results by the errors of `with_wide_scores`, x 1.25, without a slack.

    This finds a tau that is 5% off, which `assert_exact` does not. Only the RMS error is
    compared, so `inputs` must be large. An H200's shipped checks are at 0.99 to 1.08 of it.
    """
    with poisoned_memory():
        ours = differentiate(operator, inputs)
    exact = differentiate(full_relation, tuple(x.double() for x in inputs))
    yardstick = differentiate(with_wide_scores, inputs)
    for name, *three in list(zip(RESULTS, ours, yardstick, exact, strict=True))[:-1]:
        result, reference, truth = (x.double() for x in three)
        ratio = (result - truth).norm() / (reference - truth).norm()
        assert ratio <= 1.25, f"{name}: {ratio:.3f} of the definition's error, {tuple(truth.shape)}"


def assert_dlam_exact(shape, dtype=torch.float32, device="cpu", **options) -> None:
    """Check dlam over 16 seeds."""
    runs = [compare(draw(seed, shape, dtype, device), **options) for seed in range(16)]
    three = (torch.stack([results[k][-1].double() for results in runs]) for k in range(3))
    assert_close("dlam", *three, SLACK[dtype])
