"""Launches of one token that overlap: a kernel loads its weights while the one before still runs.

Hopper and later start a chained kernel early (programmatic dependent launch). What it loads before
it waits must be older than the chain: weights, RoPE's tables, and states and lengths of the tokens
before. It waits in every program, so that a kernel that has ended vouches for all before it, and
writes nothing until then. A chain starts behind a launch that is not chained.
"""

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait
from triton.runtime import driver

from relation.kernels.common import interpreted

_OLDEST = 90  # compute capability, times ten


def can_chain() -> bool:
    """Whether kernels on the current device can start before the one before has ended."""
    return not interpreted() and driver.active.get_current_target().arch >= _OLDEST


def options(chained: bool) -> dict[str, bool]:
    """The keywords of a launch: whether the kernel waits, and what tells the driver."""
    if chained and can_chain():
        return {"CHAINED": True, "launch_pdl": True}
    return {"CHAINED": False}


@triton.jit
def wait_for_chain(CHAINED: tl.constexpr):
    """Wait for the kernel before, and let the next one begin; nothing is written before this."""
    if CHAINED:
        gdc_wait()
        gdc_launch_dependents()
