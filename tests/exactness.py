"""How exact a kernel must be beside its operator's definition in float64.

A kernel's error is at most twice that of the definition in the inputs' dtype, and a little more.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import equations
import torch

from relation import kernels
from relation.ops import full_relation

SLACK = {torch.bfloat16: 1e-3, torch.float16: 1e-3, torch.float32: 1e-5}
RESULTS = ("Y", "dp1", "dp2", "dinfo", "dlam")
Inputs = tuple[torch.Tensor, ...]


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
    # As torch.use_deterministic_algorithms does, which imports the whole compiler.
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
    """Bytes that a call has on the GPU at once beyond what was there, as it asked for them.

    The allocator's own count can have up to a MiB more for each of its blocks.
    """
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_stats()["requested_bytes.all.current"]
    call()
    return torch.cuda.memory_stats()["requested_bytes.all.peak"] - before


def compare(inputs: Inputs, **options) -> tuple[Inputs, Inputs, Inputs]:
    """FlashRelation's results, the definition's in float64, and its in the inputs' dtype."""
    with poisoned_memory():
        ours = differentiate(kernels.flash_relation, inputs, **options)
    exact = differentiate(full_relation, tuple(x.double() for x in inputs), **options)
    return ours, exact, differentiate(full_relation, inputs, **options)


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
