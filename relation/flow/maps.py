"""Entries of flow maps as bytes, which compress: how a diagnosis writes and a figure reads them.

Free of PyTorch, as the report is. A byte is 63 for an entry of 1, and 1 to 62 span the five decades
below it, so that an entry of 10^-5 or more is kept to within 10%. Less is 0.
"""

import numpy as np

TOP, DECADES = 63, 5.0
_STEPS = (TOP - 1) / DECADES  # a decade


def encode(entries: np.ndarray) -> np.ndarray:
    """Entries in [0, 1] as bytes of the same shape, uint8."""
    with np.errstate(divide="ignore"):
        codes = np.rint(TOP + _STEPS * np.log10(entries))
    return np.clip(codes, 0, TOP).astype(np.uint8)


def decode(codes: np.ndarray) -> np.ndarray:
    """The entries that `encode` made bytes of, FP64."""
    return np.where(codes > 0, 10.0 ** ((codes.astype(float) - TOP) / _STEPS), 0.0)
