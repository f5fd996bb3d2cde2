"""Flows with known answers, and the metrics of Appendix B.4 as the paper words them, in NumPy."""

import math
from collections import defaultdict

import numpy as np

FLOOR = 1e-20
SINKS = (1, 2, 4, 8, 16, 32)


def random_flow(*shape: int, seed: int = 0) -> np.ndarray:
    """Causal rows that sum to 1, (..., T, T); some rows keep everything on the diagonal."""
    generator = np.random.default_rng(seed)
    weight = np.tril(generator.exponential(size=shape) ** 3)
    alone = generator.random(shape[:-1]) < 0.1
    weight[alone] = np.eye(shape[-1])[np.nonzero(alone)[-1]]
    return weight / weight.sum(-1, keepdims=True)


def uniform_flow(length: int) -> np.ndarray:
    return np.tril(np.ones((length, length))) / np.arange(1, length + 1)[:, None]


def first_token_flow(length: int) -> np.ndarray:
    """All mass on the first token: rank one."""
    return np.eye(length)[[0] * length]


FLOWS = {
    "one token": np.ones((1, 1)),
    "identity": np.eye(12),
    "uniform": uniform_flow(33),
    "rank one": first_token_flow(20),
    "random": random_flow(37, 37),
    "short random": random_flow(3, 3, seed=1),
}


def defined_conditional(flow: np.ndarray, counts) -> float:
    """Mean over all rows of the mass pi^E on the pairs that `counts(i, j)` takes."""
    total = 0.0
    for i in range(len(flow)):
        g = math.fsum(flow[i, j] for j in range(i))
        # A row without historical mass contributes zero and is counted.
        total += math.fsum(flow[i, j] / g for j in range(i) if counts(i, j)) if g > 0 else 0.0
    return total / len(flow)


def defined_flow_metrics(flow: np.ndarray) -> dict[str, float]:
    """Self, Exchange, distance and sink metrics of one (T, T) flow."""
    T = len(flow)
    found: dict[str, float] = defaultdict(float)
    found["self_flow"] = math.fsum(flow[i, i] for i in range(T)) / T
    found["exchange_flow"] = math.fsum(flow[i, j] for i in range(T) for j in range(i)) / T
    for name, part in (("eighth", 8), ("quarter", 4), ("half", 2)):
        found[f"beyond_{name}"] = defined_conditional(flow, lambda i, j, d=T // part: i - j > d)
    for k in SINKS:
        found[f"sink_{k}"] = defined_conditional(flow, lambda i, j, k=k: j < k)
    return dict(found)


def defined_rank_metrics(sigma) -> dict[str, float]:
    """The spectrum metrics of descending singular values, clamps as printed, in float64."""
    sigma = [float(s) for s in sigma]
    total = max(math.fsum(sigma), FLOOR)
    p = [max(s / total, FLOOR) for s in sigma]
    squares = [s * s for s in sigma]
    E = max(math.fsum(squares), FLOOR)
    return {
        "effective_rank": math.exp(-math.fsum(q * math.log(q) for q in p)),
        "stable_rank": E / max(squares[0], FLOOR),
        "top_singular_energy": squares[0] / E,
        "dims_90": defined_dims(squares, E, 0.90),
        "dims_95": defined_dims(squares, E, 0.95),
    }


def defined_dims(squares: list[float], E: float, eta: float) -> int:
    """min {r : the first r squares hold eta of E}; all where rounding leaves the sum short."""
    held = (r for r in range(1, len(squares) + 1) if math.fsum(squares[:r]) / E >= eta)
    return next(held, len(squares))
