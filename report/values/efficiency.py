"""Matched-train-loss token efficiency (Section 6, Appendix B.4)."""

from dataclasses import dataclass

import numpy as np

from relation.errors import InputError


@dataclass(frozen=True)
class Crossing:
    """When Relation first reaches the loss that MHA ends at.

    target: MHA's final smoothed loss, nat/token; tokens: Relation's tokens at the crossing, or
    None where it never gets there; reduction: 1 - tokens / budget, or None.
    """

    target: float
    tokens: float | None
    reduction: float | None


def smoothed_loss(
    tokens: np.ndarray, update_tokens: np.ndarray, loss: np.ndarray, window: float
) -> np.ndarray:
    """Trailing mean of the loss over `window` tokens at every logged point.

    tokens: (N,) consumed after each update, ascending; update_tokens: (N,) of each update; loss:
    (N,) nat/token. Each update weighs as many tokens as it has inside the window, so a partial
    update, or one that the window's edge cuts, counts for its part. Before `window` tokens have
    been seen the mean is over all of them. Returns (N,).
    """
    if not window > 0:
        raise InputError(f"the smoothing window is {window} tokens; it must be positive")
    edges = np.concatenate(([0.0], np.cumsum(update_tokens, dtype=np.float64)))
    integral = np.concatenate(([0.0], np.cumsum(loss * update_tokens)))
    end = np.asarray(tokens, dtype=np.float64)
    start = np.maximum(end - window, 0.0)
    # The integral of a piecewise constant loss is piecewise linear in tokens.
    return (np.interp(end, edges, integral) - np.interp(start, edges, integral)) / (end - start)


def token_crossing(
    mha_target: float, tokens: np.ndarray, smoothed: np.ndarray, budget: int
) -> Crossing:
    """The earliest crossing of Relation's smoothed loss (N,) below MHA's final one.

    Linear interpolation between adjacent logged points; several crossings give the first.
    """
    reached = np.flatnonzero(smoothed <= mha_target)
    if not len(reached):
        return Crossing(mha_target, None, None)
    k = int(reached[0])
    if k == 0:
        crossing = float(tokens[0])
    else:
        fall = smoothed[k - 1] - smoothed[k]
        part = (smoothed[k - 1] - mha_target) / fall
        crossing = float(tokens[k - 1] + part * (tokens[k] - tokens[k - 1]))
    return Crossing(mha_target, crossing, 1 - crossing / budget)
