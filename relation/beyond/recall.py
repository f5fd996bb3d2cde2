"""Multi-query associative recall (Arora et al. 2023, Zoology) with the paper's blocks.

A sequence of T tokens begins with N pairs of a key and its value. After the pairs, each key comes
once more as a query, at an even position. The target at a query is the value of its key; other
positions have no target. Keys are 1 to V/2 - 1, values V/2 to V - 1, and 0 fills the rest.

A model has two layers and learns all tasks, each a T and an N, at once. At each width, the first
seed trains at every learning rate, and the best rate is chosen on validation sequences. The other
seeds train at that rate alone. The results count test sequences.
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
# Keys of the random streams; the key of training also has the seed.
_TRAINING, _VALIDATION, _TEST = 0, 1, 2


class Sequences(NamedTuple):
    """Inputs and targets, (N, tasks, T) int32 each. Targets are IGNORED except at queries."""

    inputs: np.ndarray
    targets: np.ndarray


def distinct(generator: np.random.Generator, rows: int, choices: int, count: int) -> np.ndarray:
    """Draw (rows, count) int32 numbers below `choices`, uniform and distinct in each row.

    A number that equals an earlier one of its row is drawn again, until none does. A value in a row
    stays in it, so this rejects exactly what drawing one by one would reject.
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
    """Draw (rows, count) int64 distinct slots one by one; slot s has weight (s + 1)^(power - 1).

    Draw an exponential time for every slot, with its weight as rate; take the earliest `count`.
    Queries then follow the power law of gaps between repeats in text; a power of 1 is uniform.
    """
    rates = np.arange(1, slots + 1) ** (power - 1.0)
    times = -np.log1p(-generator.random((rows, slots))) / rates
    return np.argsort(times, axis=1, kind="stable")[:, :count]


def draw(recall: Recall, rows: int, *key: int) -> Sequences:
    """Draw `rows` sequences of every task, padded with fillers to the longest task's length.

    key: fixes the random stream. The models are causal, so the padding changes no answer.
    """
    generator, half = np.random.default_rng(key), recall.vocabulary // 2
    shape = (rows, len(recall.tasks), max(length for length, _ in recall.tasks))
    sequences = Sequences(np.full(shape, FILLER, np.int32), np.full(shape, IGNORED, np.int32))
    for task, (length, pairs) in enumerate(recall.tasks):
        inputs = sequences.inputs[:, task, :length]
        targets = sequences.targets[:, task, :length]
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
    """Answer each query with the model's likeliest token.

    model: has `states` of tokens (B, T) and `logits` of states, as `Decoder`. rows: sequences of
    each task at a time. Returns the number of right answers to each task, (tasks,) int64, and the
    mean NLL in nat/query, or None if it is not finite.
    """
    number, tasks, _ = sequences.targets.shape
    right = torch.zeros(tasks, dtype=torch.int64, device=device)
    total = torch.zeros((), dtype=torch.float64, device=device)
    for first in range(0, number, rows):
        part = slice(first, first + rows)
        # (rows, tasks, T) to (rows x tasks, T)
        inputs, targets = (to_device(a[part], device).flatten(0, 1).long() for a in sequences)
        is_query = targets != IGNORED
        with autocast(device, precision):
            states = model.states(inputs)[is_query]
        logits = model.logits(states.float())  # in BF16, logits would tie
        labels = targets[is_query]
        total += F.cross_entropy(logits, labels, reduction="sum")
        is_right = is_query.masked_scatter(is_query, logits.argmax(-1) == labels)
        right += is_right.sum(1).view(-1, tasks).sum(0)
    nll = total.item() / int((sequences.targets != IGNORED).sum())
    return right.cpu().numpy(), nll if math.isfinite(nll) else None


def _trainer(
    recall: Recall, config: ModelConfig, device: torch.device
) -> Callable[[int, float, Sequences], Decoder]:
    """Return a function that trains a model from a seed's initial weights, at a rate, on sequences.

    All trainings share one model with its compiled code and CUDA graphs. Raises InputError if the
    device cannot run a backend. The returned function raises RunError if a parameter never learns.
    """
    model = Decoder(config, Execution(**recall.backends, compiled=recall.compile), device=device)
    options = dict(recall.optimizer)
    clip = options.pop("gradient_clip")
    optimizer = build_optimizer(model, 0.0, **options)
    step = UpdateStep(model, optimizer, device, recall.precision, recall.compile, clip)
    schedule = (recall.updates, recall.warmup_updates, recall.plateau_fraction)
    queries = recall.sequences * sum(pairs for _, pairs in recall.tasks)

    def train(seed: int, rate: float, data: Sequences) -> Decoder:
        # Load in place, because the CUDA graphs use these tensors.
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
    """Yield a row per training and task, without the columns of campaign and origin."""
    validation = draw(recall, recall.tested, _VALIDATION)
    test = draw(recall, recall.tested, _TEST)
    queries = (validation.targets != IGNORED).sum(axis=(0, 2))  # (tasks,)
    options = (recall.sequences, device, recall.precision)
    # All rates and widths train on the same data of a seed.
    data_of = cache(lambda seed: draw(recall, recall.updates * recall.sequences, _TRAINING, seed))

    def training_rows(train: Callable, width: int, seed: int, rate: float) -> list[dict]:
        """Train once and return the rows, one per task."""
        began = time.perf_counter()
        model = train(seed, rate, data_of(seed))
        right, nll = answer(model, validation, *options)
        right_in_test, _ = answer(model, test, *options)
        accuracy = float((right / queries).mean())  # tasks have equal weight
        progress.advance(1, f"width {width}, rate {rate:.2g}, seed {seed}: {accuracy:.1%} right")
        columns = {
            "mixer": recall.mixer,
            "layout": model.config.layout,
            "width": width,
            "parameters": parameter_count(model.config),
            "learning_rate": rate,
            "seed": seed,
            "validation_accuracy": accuracy,
            "validation_nll": nll,
            "seconds": time.perf_counter() - began,
        }
        counts = zip(recall.tasks, queries.tolist(), right_in_test.tolist(), strict=True)
        return [
            columns | {"length": T, "pairs": N, "distance": None, "queries": asked, "right": hits}
            for (T, N), asked, hits in counts
        ]

    def merit(rows: list[dict]) -> tuple[float, float]:
        nll = rows[0]["validation_nll"]
        return rows[0]["validation_accuracy"], -math.inf if nll is None else -nll

    for config in recall.models:
        train, width = _trainer(recall, config, device), config.d_model
        first, *others = recall.seeds
        by_rate = {rate: training_rows(train, width, first, rate) for rate in recall.learning_rates}
        chosen = max(by_rate, key=lambda rate: merit(by_rate[rate]))
        for rate, rows in by_rate.items():
            yield from (row | {"chosen": rate == chosen} for row in rows)
        for seed in others:
            yield from (row | {"chosen": True} for row in training_rows(train, width, seed, chosen))
        if recall.compile:  # each width compiles its own code
            torch.compiler.reset()


def run(recall: Recall, out: Path, runs_per_gpu: int = 1) -> None:
    """Train a specification's models and write the record `out`. Raises as `_trainer` does."""
    total = len(recall.models) * (len(recall.learning_rates) + len(recall.seeds) - 1)
    with claim(recall.device, runs_per_gpu) as device:
        with Progress(f"recall {recall.mixer}", total, "trainings") as progress:
            rows = list(rows_of(recall, device, progress))
        shared = records.key(recall, "recall") | records.origin(recall.hash, describe(device))
        records.write(out, "recall", rows, shared)
