"""Multi-query associative recall: one mixer, trained at every width and rate, and how it answers.

The measure of Zoology (Arora et al. 2023) on the paper's blocks: two layers, one model for all
lengths and numbers of pairs. At each width a rate is chosen on the first seed, by its answers to
sequences that no result counts; the other seeds train at that rate alone.
"""

import hashlib
import math
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from relation.data.windows import IGNORED
from relation.machine.devices import claim, describe, to_device
from relation.machine.progress import Progress
from relation.nn import Decoder, Execution
from relation.probes.recall.peers import is_peer, peer_mixer, why_no_peer
from relation.probes.recall.sequences import Sequences, Uniform, mixed_sequences
from relation.spec import RecallSpec
from relation.store.layouts import RECALL
from relation.store.parquet import write_parquet
from relation.store.stamp import UNKNOWN, Stamp, origin
from relation.train.guards import check_all_learn
from relation.train.optimizer import build_optimizer
from relation.train.probes import PeakMemory
from relation.train.schedule import wsd
from relation.train.step import UpdateStep, autocast
from relation.variants import model_config

# What the stream of uniform numbers is keyed by, beside a seed where there is one.
_TRAINING, _VALIDATION, _TEST = 0, 1, 2
PASS, UNAVAILABLE = "PASS", "UNAVAILABLE"


@dataclass(frozen=True)
class Answers:
    """A model's answers to some sequences: whether each is right, and their NLL (nat/query).

    right: (N, tasks, T) bool, False where nothing is asked; None instead of an NLL not finite.
    """

    right: np.ndarray
    nll: float | None

    def accuracy(self, sequences: Sequences) -> float:
        """Share of right answers, averaged over the tasks, which weigh alike."""
        asked = (sequences.distances > 0).sum(axis=(0, 2))
        return float((self.right.sum(axis=(0, 2)) / asked).mean())


def draw(spec: RecallSpec, rows: int, *key: int) -> Sequences:
    """So many sequences of every task of a specification, (rows, tasks, T)."""
    return mixed_sequences(Uniform(*key), rows, spec.tasks, spec.vocabulary, spec.gap_power)


def build_model(spec: RecallSpec, width: int, seed: int) -> Decoder:
    """A model of a specification, with the initial weights of a seed."""
    config = model_config(next(m for m in spec.models if m["d_model"] == width))
    model = Decoder(config, Execution(**spec.backends, compiled=spec.compile))
    model.initialise(seed)
    if is_peer(spec.mixer):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            for block in model.blocks:
                block.mixer = peer_mixer(spec.mixer, width, config.heads)
    return model


@torch.no_grad()
def answer(
    model: torch.nn.Module, sequences: Sequences, rows: int, device: torch.device, precision: str
) -> Answers:
    """What a model answers: at each query its likeliest token.

    model: has `states` of tokens (B, T) and `logits` of states, as `Decoder`. rows: of the
    sequences at a time.
    """
    right = np.zeros(sequences.targets.shape, bool)
    total = torch.zeros((), dtype=torch.float64, device=device)
    for first in range(0, len(right), rows):
        part = slice(first, first + rows)
        inputs, targets = (_batch(a[part], device) for a in sequences[:2])
        asked = targets != IGNORED
        with autocast(device, precision):
            states = model.states(inputs)[asked]
        logits = model.logits(states.float())  # BF16's would tie
        wanted = targets[asked]
        total += torch.nn.functional.cross_entropy(logits, wanted, reduction="sum")
        asked_here = asked.cpu().numpy().reshape(right[part].shape)
        right[part][asked_here] = (logits.argmax(-1) == wanted).cpu().numpy()
    nll = total.item() / int((sequences.targets != IGNORED).sum())
    return Answers(right, nll if math.isfinite(nll) else None)


def _batch(array: np.ndarray, device: torch.device) -> Tensor:
    """Sequences (rows, tasks, T) as a batch (rows x tasks, T) of int64 on a device."""
    return to_device(array, device).flatten(0, 1).long()


def questions(sequences: Sequences) -> tuple[np.ndarray, np.ndarray]:
    """Sequences (N, tasks, T) with Q queries a row as `AtQueries` reads them, and targets (N, Q).

    It reads (N, tasks x T + Q): a row's sequences, then the places of its queries in them.
    """
    inputs, targets = (part.reshape(len(part), -1) for part in sequences[:2])
    places = np.nonzero(targets != IGNORED)[1].reshape(len(inputs), -1)
    asked = np.concatenate([inputs, places.astype(inputs.dtype)], axis=1)
    return asked, np.take_along_axis(targets, places, axis=1)


class AtQueries(torch.nn.Module):
    """A decoder whose states are those at queries, for a training step to form the loss of.

    At the paper's shapes one position in 22 has a target: the others need no logits. tasks, length:
    of the sequences, as `questions` gives them.
    """

    def __init__(self, decoder: Decoder, tasks: int, length: int):
        super().__init__()
        self.decoder, self.embedding = decoder, decoder.embedding
        self.tokens, self.length = tasks * length, length

    def states(self, asked: Tensor, documents: None = None) -> Tensor:
        """(N, Q, d) of questions (N, tasks x T + Q)."""
        tokens, places = asked[:, : self.tokens], asked[:, self.tokens :]
        states = self.decoder.states(tokens.reshape(-1, self.length), documents)
        states = states.view(len(asked), self.tokens, -1)
        return states.gather(1, places[..., None].expand(-1, -1, states.shape[2]))

    def logits(self, states: Tensor) -> Tensor:
        return self.decoder.logits(states)


def _octaves(sequences: Sequences, answers: Answers, tasks: list[list[int]]) -> Iterator[dict]:
    """The answers counted by task and by distance, in octaves named by their least."""
    for number, (length, pairs) in enumerate(tasks):
        distances = sequences.distances[:, number]
        asked = distances > 0
        octaves = 1 << np.floor(np.log2(distances[asked])).astype(np.int64)
        right = answers.right[:, number][asked]
        for octave in np.unique(octaves):
            here = octaves == octave
            yield {
                "length": length,
                "pairs": pairs,
                "distance": int(octave),
                "queries": int(here.sum()),
                "right": int(right[here].sum()),
            }


class _Trainer:
    """Trains models of one shape one after the other: they share compiled code and CUDA graphs."""

    def __init__(self, spec: RecallSpec, width: int, device: torch.device):
        self.spec, self.width, self.device = spec, width, device
        self.model = build_model(spec, width, spec.seeds[0]).to(device)
        self.step: UpdateStep | None = None

    def train(self, seed: int, rate: float, data: Sequences) -> None:
        """Train from a seed's initial weights. Raises RunError where a parameter never learns."""
        spec, device = self.spec, self.device
        # In place: the graphs hold these tensors.
        self.model.load_state_dict(build_model(spec, self.width, seed).state_dict())
        rest = {name: value for name, value in spec.optimizer.items() if name != "gradient_clip"}
        optimizer = build_optimizer(self.model, rate, **rest)
        if self.step is None:
            clip = spec.optimizer["gradient_clip"]
            asked = AtQueries(self.model, *data.inputs.shape[1:])
            self.step = UpdateStep(asked, optimizer, device, spec.precision, spec.compile, clip)
        self.step.optimizer = optimizer
        queries = spec.sequences * sum(pairs for _, pairs in spec.tasks)
        for update in range(spec.updates):
            part = slice(update * spec.sequences, (update + 1) * spec.sequences)
            asked = questions(Sequences(*(a[part] for a in data)))
            batch = tuple(to_device(a, device).long() for a in asked)
            schedule = (spec.updates, spec.warmup_updates, spec.plateau_fraction)
            self.step([batch], queries, rate * wsd(update, update + 1, *schedule))
        check_all_learn(self.model, optimizer, f"recall {spec.mixer}, width {self.width}")


class _Recall:
    """The trainings of a specification; each gives a row a task and octave of distance."""

    def __init__(self, spec: RecallSpec, device: torch.device, progress: Progress):
        self.spec, self.device, self.progress = spec, device, progress
        self.training: dict[int, Sequences] = {}
        self.validation = draw(spec, spec.tested, _VALIDATION)
        self.test = draw(spec, spec.tested, _TEST)

    def data(self, seed: int) -> Sequences:
        """The training sequences of a seed, the same at every rate and width."""
        if seed not in self.training:
            spec = self.spec
            self.training[seed] = draw(spec, spec.updates * spec.sequences, _TRAINING, seed)
        return self.training[seed]

    def order_hash(self) -> str:
        """SHA-256 of every sequence that was drawn, in the order of the seeds."""
        digest = hashlib.sha256()
        for drawn in (*self.training.values(), self.validation, self.test):
            for part in drawn[:2]:
                digest.update(part.tobytes())
        return digest.hexdigest()

    def at_width(self, width: int) -> Iterator[dict]:
        """Every rate on the first seed, then the best on the others."""
        spec, trainer = self.spec, _Trainer(self.spec, width, self.device)
        first, *others = spec.seeds
        tried = {rate: self.trained(trainer, first, rate) for rate in spec.learning_rates}
        chosen = max(tried, key=lambda rate: _merit(tried[rate][0]))
        for rate, rows in tried.items():
            yield from (row | {"chosen": rate == chosen} for row in rows)
        for seed in others:
            rows = self.trained(trainer, seed, chosen)
            yield from (row | {"chosen": True} for row in rows)

    def trained(self, trainer: _Trainer, seed: int, rate: float) -> list[dict]:
        """The rows of one training."""
        data, began = self.data(seed), time.perf_counter()
        trainer.train(seed, rate, data)
        found = [
            answer(trainer.model, part, self.spec.sequences, self.device, self.spec.precision)
            for part in (self.validation, self.test)
        ]
        seconds = time.perf_counter() - began
        accuracy = found[0].accuracy(self.validation)
        note = f"width {trainer.width}, rate {rate:.2g}, seed {seed}: {accuracy:.1%} right"
        self.progress.advance(1, note)
        of_training = {
            **_of_spec(self.spec, self.device),
            "width": trainer.width,
            "parameters": sum(p.numel() for p in trainer.model.parameters()),
            "learning_rate": rate,
            "seed": seed,
            "validation_accuracy": accuracy,
            "validation_nll": found[0].nll,
            "seconds": seconds,
        }
        octaves = _octaves(self.test, found[1], self.spec.tasks)
        return [of_training | counted for counted in octaves]


def _merit(row: dict) -> tuple[float, float]:
    """What a rate is chosen by: the share of right answers, and among equals the NLL."""
    nll = row["validation_nll"]
    return row["validation_accuracy"], -math.inf if nll is None else -nll


def _of_spec(spec: RecallSpec, device: torch.device) -> dict[str, Any]:
    layout = "" if is_peer(spec.mixer) else spec.models[0]["layout"]
    known = {"mixer": spec.mixer, "layout": layout, "device": describe(device)}
    return known | {"status": PASS, "reason": None}


def recall(spec: RecallSpec, output: Path, sharing: int = 1, stamp: Stamp = UNKNOWN) -> None:
    """Train a specification's models and write a row a training, task and octave of distance.

    sharing: how many such jobs may share a GPU. A peer that cannot run here is one row with the
    reason. The origin has the seconds it took and the peak of memory. Raises InputError where the
    device cannot run a backend, RunError where a parameter never learns.
    """
    rates, seeds, widths = (len(v) for v in (spec.learning_rates, spec.seeds, spec.models))
    total = widths * (rates + seeds - 1)
    with claim(spec.device, sharing) as device:
        peak, began = PeakMemory(device), time.perf_counter()
        written = origin(spec.campaign, spec.config_hash, "recall", describe(device), stamp)
        reason = why_no_peer(device) if is_peer(spec.mixer) else None
        if reason is not None:
            known = _of_spec(spec, device) | {"status": UNAVAILABLE, "reason": reason}
            write_parquet(output, RECALL, [dict.fromkeys(RECALL.names) | known], written)
            return
        with Progress(f"recall {spec.mixer}", total, "trainings") as progress:
            trainings = _Recall(spec, device, progress)
            rows: list[dict] = []
            for model in spec.models:
                Execution(**spec.backends).check(model_config(model), device)
                rows += trainings.at_width(model["d_model"])
                if spec.compile:  # no width lends another compiled code
                    torch.compiler.reset()
        spent = {"seconds": time.perf_counter() - began, "peak_gib": peak.gib()}
        more = {"order_hash": trainings.order_hash(), **spent}
        write_parquet(output, RECALL, rows, written | more)
