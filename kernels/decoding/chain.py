"""Overlapping launches: a kernel loads its weights while the previous kernel still runs.

Hopper and later start a chained kernel early (programmatic dependent launch). Before it waits, it
may load only what is older than the chain: weights, RoPE's tables, and states and lengths of
earlier tokens. Every program waits, and writes nothing before: so when a kernel has ended, all
kernels before it have ended too. A chain starts after a launch that is not chained.
"""

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait
from triton.runtime import driver

from relation.kernels.common import interpreted

_OLDEST = 90  # compute capability, times ten


def can_chain() -> bool:
    """Return whether the current device can start a kernel before the previous one has ended."""
    return not interpreted() and driver.active.get_current_target().arch >= _OLDEST


def options(chained: bool) -> dict[str, bool]:
    """Return a launch's keywords: CHAINED for the kernel, and launch_pdl for the driver."""
    if chained and can_chain():
        return {"CHAINED": True, "launch_pdl": True}
    return {"CHAINED": False}


@triton.jit
def wait_for_chain(CHAINED: tl.constexpr):
    """Wait for the previous kernel, then let the next one start. Write nothing before this."""
    if CHAINED:
        gdc_wait()
        gdc_launch_dependents()
