"""Encode the entries of flow maps as bytes, which compress well. Figures decode them.

Does not import PyTorch, because the report runs without it. Byte 63 is an entry of 1. Bytes 1 to 62
cover the five decades below 1, so an entry of 10^-5 or more is kept to within 10%. Byte 0 is less.
"""

import numpy as np

TOP, DECADES = 63, 5.0
_STEPS = (TOP - 1) / DECADES  # steps per decade


def encode(entries: np.ndarray) -> np.ndarray:
    """Encode entries in [0, 1] as uint8 of the same shape."""
    with np.errstate(divide="ignore"):
        codes = np.rint(TOP + _STEPS * np.log10(entries))
    return np.clip(codes, 0, TOP).astype(np.uint8)


def decode(codes: np.ndarray) -> np.ndarray:
    """Decode bytes from `encode` to entries of the same shape, FP64."""
    return np.where(codes > 0, 10.0 ** ((codes.astype(float) - TOP) / _STEPS), 0.0)
