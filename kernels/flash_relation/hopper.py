"""Which passes run in Gluon (`hopper_tiles`) and which in Triton, and why."""

import functools

import torch
import triton

from relation.kernels.flash_relation.launches import GluonLaunch, Launches

# Gluon is experimental and its names change: the kernels are compiled and tested with these.
OLDEST_TRITON, NEWEST_TRITON = (3, 6), (3, 8)
# Where several groups of warps share tiles: with rows of all heads for more than two of their
# blocks, of up to 192 rows, a multiprocessor, and so many of each that those past its end are few.
LARGE, LONG = 65_536, 2048


def why_triton(name: str, launches: Launches, dtype: torch.dtype) -> str | None:
    """Why a pass ("forward", "p1" or "p2_info") runs in Triton, or None where it does in Gluon.

    launches: the device's entry.
    """
    if launches.gluon(name) is None:
        return f"launches.py has no gluon_{name} for this GPU, width and number of bits"
    if dtype != torch.bfloat16:
        return "the Gluon kernels take bfloat16 only"
    return _why_no_gluon()


@functools.cache
def _why_no_gluon() -> str | None:
    version = tuple(map(int, triton.__version__.split(".")[:2]))
    if OLDEST_TRITON <= version <= NEWEST_TRITON:
        return None
    oldest, newest = (".".join(map(str, v)) for v in (OLDEST_TRITON, NEWEST_TRITON))
    return (
        f"the Gluon kernels are for Triton {oldest} to {newest}, and this is {triton.__version__}"
    )


def chosen(
    name: str, launches: Launches, owned: torch.Tensor, documents: bool
) -> GluonLaunch | None:
    """How a pass that owns rows of `owned` (B, H, T, D) is launched in Gluon.

    None where it runs in Triton: `why_triton` says why.
    """
    if why_triton(name, launches, owned.dtype):
        return None
    B, H, T, _ = owned.shape
    return launches.gluon(name, large=not documents and T >= LONG and B * H * T >= LARGE)
