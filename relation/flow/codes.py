"""Flow maps as bytes: a pooled flow's entries on a logarithmic scale, 63 for 1.

So few levels that thousands of maps stay small once compressed. Free of PyTorch: the diagnostics
write them, the figures read them.
"""

import numpy as np

SIDE = 64  # blocks a side of a map, fewer where the flow has fewer tokens
DECADES = 5.0  # an entry below 10^-5 is 0
TOP = 63


def encode(pooled: np.ndarray) -> np.ndarray:
    """Entries in [0, 1] as bytes of the same shape, uint8: to within 10% where 10^-5 or more."""
    with np.errstate(divide="ignore"):
        codes = np.rint(TOP + (TOP - 1) / DECADES * np.log10(pooled))
    return np.clip(codes, 0, TOP).astype(np.uint8)


def decode(codes: np.ndarray) -> np.ndarray:
    """The entries that `encode` was given, FP64, up to its rounding; 0 for what was below."""
    exponents = (codes.astype(np.float64) - TOP) * DECADES / (TOP - 1)
    return np.where(codes > 0, 10.0**exponents, 0.0)
