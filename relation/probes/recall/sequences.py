"""Sequences of multi-query associative recall (Arora et al. 2023, Zoology).

A sequence of T tokens begins with N pairs, a key and its value each. Every key is asked for once
more behind them, at every other position at most, and its value is the target there; no other
position has one. Keys are 1 to V/2 - 1, values V/2 to V - 1, and 0 fills the rest.
"""

from typing import NamedTuple

import numpy as np

from relation.data.windows import IGNORED

FILLER = 0


class Sequences(NamedTuple):
    """inputs and targets, (N, T) int32; distances, (N, T) int32.

    targets: IGNORED but at queries; distances: tokens from a query back to its key, 0 elsewhere.
    """

    inputs: np.ndarray
    targets: np.ndarray
    distances: np.ndarray


class Uniform:
    """Uniform numbers in [0, 1), FP64, from the raw words of a bit generator.

    NumPy guarantees that stream in every version, and not what its distributions make of it. key:
    the integers that fix the stream.
    """

    def __init__(self, *key: int):
        self._bits = np.random.PCG64(np.random.SeedSequence(key))

    def __call__(self, *shape: int) -> np.ndarray:
        words = self._bits.random_raw(int(np.prod(shape)))
        return (words >> np.uint64(11)).reshape(shape) * 2.0**-53


def distinct(uniform: Uniform, rows: int, choices: int, count: int) -> np.ndarray:
    """(rows, count) int32 numbers below `choices`: in each row a uniform draw without return.

    What equals an earlier number of its row is drawn again. A number once held stays held, at that
    place or an earlier one, so this refuses what drawing one by one would refuse.
    """
    drawn = (uniform(rows, count) * choices).astype(np.int32)
    waiting = np.arange(rows)
    while len(waiting):
        here = drawn[waiting]
        order = np.argsort(here, axis=1, kind="stable")
        equal = np.diff(np.take_along_axis(here, order, axis=1), axis=1) == 0
        again = np.zeros(here.shape, bool)
        np.put_along_axis(again, order[:, 1:], equal, axis=1)
        here[again] = uniform(int(again.sum())) * choices
        drawn[waiting] = here
        waiting = waiting[again.any(axis=1)]
    return drawn


def query_slots(uniform: Uniform, rows: int, slots: int, count: int, power: float) -> np.ndarray:
    """(rows, count) int64 distinct slots, drawn one by one: slot s weighs (s + 1)^(power - 1).

    Of exponential times with these weights as rates the earliest are such a draw. So queries follow
    the power law of the gaps between repeats in text; a power of 1 makes them uniform.
    """
    rates = np.arange(1, slots + 1) ** (power - 1.0)
    times = -np.log1p(-uniform(rows, slots)) / rates
    return np.argsort(times, axis=1, kind="stable")[:, :count]


def recall_sequences(
    uniform: Uniform, rows: int, length: int, pairs: int, vocabulary: int, power: float
) -> Sequences:
    """Sequences of T = length tokens with so many pairs.

    The slots of the queries are the even positions from 2 * pairs on: `length` is even, and at
    least 4 * pairs. vocabulary: V, even, so that V/2 - 1 keys are at least as many as pairs.
    """
    half, start = vocabulary // 2, 2 * pairs
    keys = 1 + distinct(uniform, rows, half - 1, pairs)
    values = half + distinct(uniform, rows, half, pairs)
    at = start + 2 * query_slots(uniform, rows, (length - start) // 2, pairs, power)

    inputs = np.full((rows, length), FILLER, np.int32)
    inputs[:, 0:start:2], inputs[:, 1:start:2] = keys, values
    np.put_along_axis(inputs, at, keys, axis=1)
    targets = np.full((rows, length), IGNORED, np.int32)
    np.put_along_axis(targets, at, values, axis=1)
    distances = np.zeros((rows, length), np.int32)
    places = np.arange(0, start, 2)
    np.put_along_axis(distances, at, (at - places).astype(np.int32), axis=1)
    return Sequences(inputs, targets, distances)


def mixed_sequences(
    uniform: Uniform,
    rows: int,
    tasks: list[list[int]],
    vocabulary: int,
    power: float,
) -> Sequences:
    """So many sequences of every task, a [length, pairs] each, padded to the longest with fillers.

    (rows, tasks, T) each. Attention is causal, so what pads a sequence changes no answer of it.
    """
    longest = max(length for length, _ in tasks)
    shape = (rows, len(tasks), longest)
    whole = Sequences(*(np.full(shape, rest, np.int32) for rest in (FILLER, IGNORED, 0)))
    for number, (length, pairs) in enumerate(tasks):
        drawn = recall_sequences(uniform, rows, length, pairs, vocabulary, power)
        for target, part in zip(whole, drawn, strict=True):
            target[:, number, :length] = part
    return whole
