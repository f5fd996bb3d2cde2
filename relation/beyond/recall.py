"""Multi-query associative recall (Arora et al. 2023, Zoology) on the paper's blocks.

A sequence of T tokens begins with N pairs, a key and its value each. Every key is asked for once
more behind them, at every other position at most, and its value is the target there; no other
position has one. Keys are 1 to V/2 - 1, values V/2 to V - 1, and 0 fills the rest.

A model has two layers and learns all lengths and numbers of pairs at once. At each width a rate is
chosen on the first seed, by its answers to sequences that no result counts; the other seeds train
at that rate alone.
"""

import math
import time
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from relation import records
from relation.data.windows import IGNORED
from relation.jobs import Recall
from relation.machine import Progress, claim, describe, to_device
from relation.nn import Decoder, Execution
from relation.train.step import UpdateStep, autocast, build_optimizer, check_all_learn, wsd
from relation.variants import ModelConfig, parameter_count

FILLER = 0
# Keys of the streams of uniform numbers; training's has the seed too.
_TRAINING, _VALIDATION, _TEST = 0, 1, 2


class Sequences(NamedTuple):
    """inputs and targets, IGNORED but at queries, (N, tasks, T) int32 each."""

    inputs: np.ndarray
    targets: np.ndarray


def distinct(generator: np.random.Generator, rows: int, choices: int, count: int) -> np.ndarray:
    """(rows, count) int32 numbers below `choices`: in each row a uniform draw without return.

    What equals an earlier number of its row is drawn again. A number once held stays held, at that
    place or an earlier one, so this refuses what drawing one by one would refuse.
    """
    numbers = (generator.random((rows, count)) * choices).astype(np.int32)
    pending = np.arange(rows)
    while len(pending):
        redrawn = numbers[pending]
        order = np.argsort(redrawn, axis=1, kind="stable")
        equal = np.diff(np.take_along_axis(redrawn, order, axis=1), axis=1) == 0
        repeated = np.zeros(redrawn.shape, bool)
        np.put_along_axis(repeated, order[:, 1:], equal, axis=1)
        redrawn[repeated] = generator.random(int(repeated.sum())) * choices
        numbers[pending] = redrawn
        pending = pending[repeated.any(axis=1)]
    return numbers


def query_slots(
    generator: np.random.Generator, rows: int, slots: int, count: int, power: float
) -> np.ndarray:
    """(rows, count) int64 distinct slots, drawn one by one: slot s weighs (s + 1)^(power - 1).

    Of exponential times with these weights as rates the earliest are such a draw. So queries follow
    the power law of the gaps between repeats in text; a power of 1 makes them uniform.
    """
    rates = np.arange(1, slots + 1) ** (power - 1.0)
    times = -np.log1p(-generator.random((rows, slots))) / rates
    return np.argsort(times, axis=1, kind="stable")[:, :count]


def draw(recall: Recall, rows: int, *key: int) -> Sequences:
    """So many sequences of every task of a specification, padded to the longest with fillers.

    key: fixes the stream of uniform numbers. Attention is causal, so the padding changes no answer.
    """
    generator, half = np.random.default_rng(key), recall.vocabulary // 2
    shape = (rows, len(recall.tasks), max(length for length, _ in recall.tasks))
    sequences = Sequences(*(np.full(shape, filler, np.int32) for filler in (FILLER, IGNORED)))
    for task, (length, pairs) in enumerate(recall.tasks):
        inputs, targets = (part[:, task, :length] for part in sequences)
        start = 2 * pairs
        keys = 1 + distinct(generator, rows, half - 1, pairs)
        values = half + distinct(generator, rows, half, pairs)
        slots = query_slots(generator, rows, (length - start) // 2, pairs, recall.gap_power)
        queries = start + 2 * slots  # positions of the queries, (rows, pairs)
        inputs[:, 0:start:2], inputs[:, 1:start:2] = keys, values
        np.put_along_axis(inputs, queries, keys, axis=1)
        np.put_along_axis(targets, queries, values, axis=1)
    return sequences


@torch.no_grad()
def answer(
    model: nn.Module, sequences: Sequences, rows: int, device: torch.device, precision: str
) -> tuple[np.ndarray, float | None]:
    """What a model answers, at each query its likeliest token.

    model: has `states` of tokens (B, T) and `logits` of states, as `Decoder`. rows: of the
    sequences at a time. Returns whether each answer is right, (N, tasks, T) bool, False where
    nothing is asked, and the NLL in nat/query, None where it is not finite.
    """
    right = np.zeros(sequences.targets.shape, bool)
    total = torch.zeros((), dtype=torch.float64, device=device)
    for first in range(0, len(right), rows):
        part = slice(first, first + rows)
        # (rows, tasks, T) to (rows x tasks, T)
        inputs, targets = (to_device(a[part], device).flatten(0, 1).long() for a in sequences)
        is_query = targets != IGNORED
        with autocast(device, precision):
            states = model.states(inputs)[is_query]
        logits = model.logits(states.float())  # BF16's would tie
        labels = targets[is_query]
        total += F.cross_entropy(logits, labels, reduction="sum")
        query_places = is_query.cpu().numpy().reshape(right[part].shape)
        right[part][query_places] = (logits.argmax(-1) == labels).cpu().numpy()
    nll = total.item() / int((sequences.targets != IGNORED).sum())
    return right, nll if math.isfinite(nll) else None


def _trainer(
    recall: Recall, config: ModelConfig, device: torch.device
) -> Callable[[int, float, Sequences], Decoder]:
    """What trains a model from a seed's initial weights, at a rate, on sequences.

    Trainings share one model, with its compiled code and CUDA graphs. Raises InputError where the
    device cannot run a backend, RunError where a parameter never learns.
    """
    model = Decoder(config, Execution(**recall.backends, compiled=recall.compile), device=device)
    options = dict(recall.optimizer)
    clip = options.pop("gradient_clip")
    optimizer = build_optimizer(model, 0.0, **options)
    step = UpdateStep(model, optimizer, device, recall.precision, recall.compile, clip)
    schedule = (recall.updates, recall.warmup_updates, recall.plateau_fraction)
    queries = recall.sequences * sum(pairs for _, pairs in recall.tasks)

    def train(seed: int, rate: float, data: Sequences) -> Decoder:
        # In place: the graphs hold these tensors.
        model.load_state_dict(Decoder(config, seed=seed).state_dict())
        step.optimizer = build_optimizer(model, rate, **options)
        for update in range(recall.updates):
            part = slice(update * recall.sequences, (update + 1) * recall.sequences)
            # (sequences, tasks, T) to (sequences x tasks, T)
            batch = (to_device(a[part], device).flatten(0, 1).long() for a in data)
            step([tuple(batch)], queries, rate * wsd(update, update + 1, *schedule))
        check_all_learn(model, step.optimizer, f"recall {recall.mixer}, width {config.d_model}")
        return model

    return train


def rows_of(recall: Recall, device: torch.device, progress: Progress) -> Iterator[dict]:
    """A row a training and task, without campaign and origin."""
    validation, test = (draw(recall, recall.tested, key) for key in (_VALIDATION, _TEST))
    queries = (validation.targets != IGNORED).sum(axis=(0, 2))  # (tasks,)
    options = (recall.sequences, device, recall.precision)
    # The same at every rate and width.
    data_of = cache(lambda seed: draw(recall, recall.updates * recall.sequences, _TRAINING, seed))

    def training_rows(train: Callable, width: int, seed: int, rate: float) -> list[dict]:
        """The rows of one training."""
        began = time.perf_counter()
        model = train(seed, rate, data_of(seed))
        (right, nll), (tested, _) = (answer(model, data, *options) for data in (validation, test))
        accuracy = float((right.sum(axis=(0, 2)) / queries).mean())  # tasks weigh alike
        progress.advance(1, f"width {width}, rate {rate:.2g}, seed {seed}: {accuracy:.1%} right")
        columns = {
            "mixer": recall.mixer,
            "layout": model.config.layout,
            "status": "PASS",
            "reason": None,
            "width": width,
            "parameters": parameter_count(model.config),
            "learning_rate": rate,
            "seed": seed,
            "validation_accuracy": accuracy,
            "validation_nll": nll,
            "seconds": time.perf_counter() - began,
        }
        rights = tested.sum(axis=(0, 2)).tolist()
        return [
            columns
            | {"length": n, "pairs": pairs, "distance": None, "queries": asked, "right": right}
            for (n, pairs), asked, right in zip(recall.tasks, queries.tolist(), rights, strict=True)
        ]

    def merit(rate: float) -> tuple[float, float]:
        nll = by_rate[rate][0]["validation_nll"]
        return by_rate[rate][0]["validation_accuracy"], -math.inf if nll is None else -nll

    for config in recall.models:
        train, width = _trainer(recall, config, device), config.d_model
        first, *others = recall.seeds
        by_rate = {rate: training_rows(train, width, first, rate) for rate in recall.learning_rates}
        chosen = max(by_rate, key=merit)
        for rate, rows in by_rate.items():
            yield from (row | {"chosen": rate == chosen} for row in rows)
        for seed in others:
            yield from (row | {"chosen": True} for row in training_rows(train, width, seed, chosen))
        if recall.compile:  # no width lends another compiled code
            torch.compiler.reset()


def run(recall: Recall, out: Path, runs_per_gpu: int = 1) -> None:
    """Train a specification's models and write the record `out`. Raises as `_trainer` does."""
    total = len(recall.models) * (len(recall.learning_rates) + len(recall.seeds) - 1)
    with claim(recall.device, runs_per_gpu) as device:
        with Progress(f"recall {recall.mixer}", total, "trainings") as progress:
            rows = list(rows_of(recall, device, progress))
        shared = records.key(recall, "recall") | records.origin(recall.hash, describe(device))
        records.write(out, "recall", rows, shared)
