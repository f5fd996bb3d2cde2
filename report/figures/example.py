"""A worked example of one head: invented evidence, and what either operator makes of it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

LAM = 0.5  # as a layer starts with
TAU = 2.0  # as in all formal experiments


@dataclass(frozen=True)
class Example:
    """Matrices (T, T) in float64; entries above the diagonal are 0, in ``relation`` -inf.

    evidence: U. attention: Softmax(U). relation: R of Section 3.1. flow: Softmax(R).
    """

    evidence: np.ndarray
    attention: np.ndarray
    relation: np.ndarray
    flow: np.ndarray


def _softmax(rows: np.ndarray) -> np.ndarray:
    weights = np.exp(rows - rows.max(axis=1, keepdims=True))
    return weights / weights.sum(axis=1, keepdims=True)


def _sigmoid(values: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-values))


def worked_example(tokens: int, seed: int = 5) -> Example:
    """Evidence drawn by a fixed seed; relation and flow by the paper's equations 2 and 3."""
    evidence = np.random.default_rng(seed).normal(0.3, 1.6, (tokens, tokens))
    past = np.tri(tokens, k=-1, dtype=bool)
    present = np.eye(tokens, dtype=bool)
    count = np.log(np.arange(1, tokens + 1))[:, None]
    exchange = evidence * _sigmoid(evidence) - LAM * count
    relation = np.where(past, exchange, np.where(present, _sigmoid(evidence / TAU), -np.inf))
    return Example(
        evidence=np.tril(evidence),
        attention=_softmax(np.where(past | present, evidence, -np.inf)),
        relation=relation,
        flow=_softmax(relation),
    )
