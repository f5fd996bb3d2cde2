"""A training run from specification to record: resumable, one logged row an update.

One process trains it, or several that torchrun started (`relation.train.parallel`).
"""

import math
import shutil
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import NamedTuple

import torch

from relation.data.mask import DocumentMask
from relation.data.tokens import data_rows, open_prepared
from relation.data.windows import OrderHash, TrainingWindows, UpdatePlan, plan_updates
from relation.errors import RunError, StoppedError
from relation.machine.devices import describe, deterministic_algorithms, to_device
from relation.machine.progress import Progress
from relation.nn import Decoder, Execution
from relation.nn.decoder import shared_weights_hash
from relation.spec import RunSpec
from relation.store.files import make_folder, sha256_of
from relation.store.layouts import LOG, PROBES, RUN
from relation.store.locks import held
from relation.store.parquet import read_origin, write_parquet
from relation.store.stamp import UNKNOWN, Stamp, origin
from relation.train.checkpoint import (
    Progressed,
    StateWriter,
    load_state,
    newest_state,
    newest_whole_state,
    save_model,
    snapshot,
    sweep,
)
from relation.train.convert import start_trained
from relation.train.evaluate import validation_nll
from relation.train.folder import LOCK, resume_key
from relation.train.guards import asked_to_stop, check_all_learn, check_writable, writing
from relation.train.optimizer import build_optimizer
from relation.train.parallel import SummedGradients, World
from relation.train.probes import PeakMemory, Probe, begin, due
from relation.train.readback import Reading, Readings
from relation.train.schedule import wsd
from relation.train.shards import gathered, part, shard
from relation.train.step import UpdateStep
from relation.train.watch import Watch

RECORD, LOG_FILE, CHECKPOINT = "record.parquet", "log.parquet", "model.safetensors"
PROBES_FILE = "probes.parquet"


class _Started(NamedTuple):
    """An update that the device was given: its plan, rate, windows, and the order hash after it."""

    plan: UpdatePlan
    learning_rate: float
    ids: list[int]
    order_hash: str


class _Run:
    """One run in progress: the model with its optimiser, its data, and what it has logged."""

    def __init__(
        self,
        spec: RunSpec,
        data: Path,
        resume: Path,
        device: torch.device,
        world: World,
        writer: StateWriter,
        probes: Sequence[Probe],
        start: Path | None,
    ):
        self.spec, self.resume, self.device, self.world = spec, resume, device, world
        self.writer, self.probes, self.peak_memory = writer, probes, PeakMemory(device)
        rows = data_rows(data)
        self.data_origin = read_origin(data / "data.parquet")
        self.unigram_entropy = rows["validation"]["unigram_entropy"]
        tokens = {split: open_prepared(data, split, row["sha256"]) for split, row in rows.items()}
        self.windows = TrainingWindows(tokens["train"], spec.context, spec.seed)
        self.validation = tokens["validation"]
        self.plans = plan_updates(
            spec.budget_tokens, spec.tokens_per_update, spec.context, spec.last_update
        )
        self.planned_tokens = sum(plan.tokens for plan in self.plans)
        self.mask = DocumentMask.of(spec.document_mask, data)
        # Of all updates, so that every process and every start has the same graph.
        documents = self.mask and self.mask.of_updates(self.windows, self.plans, spec.micro)

        self.execution = Execution(**spec.backends, compiled=spec.compile)
        self.execution.check(spec.model_config(), device)
        self.model = Decoder(spec.model_config(), self.execution)
        self.model.initialise(spec.seed, spec.init_key or "")
        if start is not None:
            self.model.to(device)
            with self.peak_memory.left_out():
                start_trained(self.model, start, spec, self.windows, self.mask)
        init_hash = shared_weights_hash(self.model)
        self.sharded = spec.shard and world.size > 1
        if self.sharded:
            shard(self.model, device, world.size, spec.compile)
        else:
            self.model.to(device)
        self.optimizer = build_optimizer(
            self.model,
            spec.learning_rate,
            tuple(spec.betas),
            spec.adam_eps,
            spec.weight_decay,
            spec.decay_embedding,
            bool(spec.decay_vectors),
        )
        self.summed = None
        if world.size > 1:
            copied = [] if self.sharded else list(self.model.parameters())
            self.summed = SummedGradients(world, copied, device, self._signalled)
        self.step = UpdateStep(
            self.model,
            self.optimizer,
            device,
            spec.precision,
            spec.compile and not self.sharded,
            spec.gradient_clip,
            self.summed,
            documents,
        )
        self.progressed = self._resumed() or Progressed(
            0, "", init_hash, 0.0, {n: [] for n in LOG.names}, []
        )
        if probes and world.leads:
            begin(probes, self.progressed, spec.name)
        self.order = OrderHash(
            rows["train"]["sha256"], spec.context, self.progressed.order_hash or None
        )
        if self.progressed.processes[-1:] != [world.size]:
            self.progressed.processes.append(world.size)
        self.readings: Readings[_Started] = Readings(
            device, (lambda: world.check_peers(self.asked())) if world.size > 1 else None
        )
        # Updates; known to all processes before they are reached.
        self.stop_after: int | None = None
        self.save_after: int | None = None

    def _resumed(self) -> Progressed | None:
        """Go on from the newest whole resume state; None where there is none."""
        with writing(self.spec.name, self.resume, self.kept):
            name = self.world.from_lead("state", lambda: _name_of(newest_whole_state(self.resume)))
        if name is None:
            return None
        progressed = load_state(self.resume / name, self.model, self.optimizer)
        if self.world.leads:
            print(f"{self.spec.name} goes on at update {progressed.update + 1}", file=sys.stderr)
        return progressed

    def kept(self) -> str:
        """The last good state, for messages."""
        self.writer.settle()
        return str(newest_state(self.resume) or "none saved yet")

    def _batches(self, plan: UpdatePlan, ids):
        """This process's micro-batches of an update, (micro, T) each, on the device."""
        spec = self.spec
        # FSDP adds up every micro-batch's gradients: none may be missing in one process.
        for number in self.world.share(-(-len(ids) // spec.micro), equally=self.sharded):
            first = number * spec.micro
            tokens = min(plan.tokens - first * spec.context, spec.micro * spec.context)
            arrays = self.windows.batch(ids[first : first + spec.micro], tokens, spec.micro)
            yield tuple(to_device(array, self.device) for array in arrays)

    def _start(self, plan: UpdatePlan) -> None:
        """Give the device one update; on a GPU nothing here waits for what it computes."""
        spec, before = self.spec, plan.index * self.spec.tokens_per_update
        factor = wsd(
            before,
            before + plan.tokens,
            spec.budget_tokens,
            spec.warmup_tokens,
            spec.plateau_fraction,
        )
        ids = self.windows.window_ids(plan.first, plan.windows)
        rate = spec.learning_rate * factor
        loss, norm = self.step(self._batches(plan, ids), plan.tokens, rate)
        self.order.update(ids, plan.tokens)
        started = _Started(plan, rate, ids.tolist(), self.order.value)
        signals = loss.new_zeros(2) if self.summed is None else self.summed.signals
        for reading in self.readings.put(started, torch.stack((loss, norm, *signals))):
            self._finish(reading)

    def _finish(self, reading: Reading[_Started]) -> None:
        """Check a finished update and log it. Raises RunError for a loss or norm not finite."""
        (plan, rate, ids, order_hash), (loss, norm, stop, save), seconds = reading
        if not (math.isfinite(loss) and math.isfinite(norm)):
            raise RunError(
                f"{self.spec.name}: loss {loss} and gradient norm {norm} at update "
                f"{plan.index + 1} (windows {', '.join(map(str, ids))}: positions {plan.first} to "
                f"{plan.first + plan.windows - 1} of the order of seed {self.spec.seed}); last "
                f"good state: {self.kept()}; lower learning_rate or look at those windows"
            )
        if stop and self.stop_after is None:
            # Each process reads this at its own time; all have then started so many, and no more.
            self.stop_after = plan.index + 1 + self.readings.late
        if save and self.save_after is None:
            self.save_after = plan.index + 1 + self.readings.late
        row = {
            "update": plan.index + 1,
            "tokens": plan.index * self.spec.tokens_per_update + plan.tokens,
            "update_tokens": plan.tokens,
            "loss": loss,
            "learning_rate": rate,
            "gradient_norm": norm,
            "tokens_per_second": plan.tokens / seconds,
        }
        progressed = self.progressed
        for name, value in row.items():
            progressed.log[name].append(value)
        progressed.update = plan.index + 1
        progressed.order_hash = order_hash
        progressed.seconds += seconds
        self._follow(row)

    def _follow(self, row: dict) -> None:
        """Hand a finished, checked update's row to those who follow the run."""
        if self.world.leads:
            self.watch.add(row)
            self.progress.advance(row["update_tokens"], f"loss {row['loss']:.3f}")

    def save(self) -> None:
        """Write a resume state of all started updates; one with broken weights is never written.

        Only the first process does, which the others of a sharded model give their parts. Raises
        RunError where a parameter is not finite or the disk takes no more.
        """
        for reading in self.readings.drain():
            self._finish(reading)
        self.save_after = None
        if not (self.world.leads or self.sharded):
            return
        broken = [n for n, p in self.model.named_parameters() if not part(p).isfinite().all()]
        if broken:
            raise RunError(
                f"{self.spec.name}: {broken[0]} is not finite after update "
                f"{self.progressed.update}; last good state: {self.kept()}; lower learning_rate"
            )
        taken = snapshot(self.model, self.optimizer, self.progressed, keep=self.world.leads)
        if taken is not None:
            with writing(self.spec.name, self.resume, self.kept):
                self.writer.write(taken)
        self.readings.restart()
        self.saved, self.saved_update = time.monotonic(), self.progressed.update

    def _look(self, before: int, tokens: int) -> None:
        """Let the probes that are due since `before` see the model after `tokens` tokens.

        What that takes is neither in the updates' times nor in the run's peak memory.
        """
        probes = due(self.probes, before, tokens, self.planned_tokens)
        if not (probes and (self.world.leads or self.sharded)):
            return
        for reading in self.readings.drain():
            self._finish(reading)
        with self.peak_memory.left_out(), self._whole_model() as model:
            rows = [] if model is None else [row for p in probes for row in p.look(model)]
            del model
        taken = {"update": self.progressed.update, "tokens": tokens}
        self.progressed.probes += [{**taken, **row} for row in rows]
        self.readings.restart()

    @contextmanager
    def _whole_model(self) -> Iterator[Decoder | None]:
        """The model for the first process to look at: of a sharded one a copy, which all gather.

        None in the other processes. A copy is not in the run's peak memory.
        """
        if not self.sharded:
            yield self.model if self.world.leads else None
            return
        with self.peak_memory.left_out():
            yield gathered(self.model, self.execution, wanted=self.world.leads)

    def _written(self) -> None:
        with writing(self.spec.name, self.resume, self.kept):
            self.writer.wait()

    def _signalled(self) -> tuple[bool, bool]:
        """What this process tells the others: it was asked to stop; it leads, and would save."""
        due = self.sharded and self.world.leads and self._due(self.starting)
        return self.asked(), due

    def _saves(self, started: int) -> bool:
        """Whether this process takes part in saving, `started` updates into the run."""
        if self.sharded:
            return started == self.save_after
        return self.world.leads and self._due(started)

    def _due(self, started: int) -> bool:
        """Whether it is time to save, `started` updates into the run."""
        spec = self.spec
        tokens = (started - self.saved_update) * spec.tokens_per_update
        enough = spec.checkpoint_tokens is not None and tokens >= spec.checkpoint_tokens
        return enough or time.monotonic() - self.saved > spec.checkpoint_seconds

    def train(self) -> None:
        """All updates that are left, saving resume state by time, by tokens and when stopped."""
        spec, done = self.spec, self.progressed.update
        consumed = sum(plan.tokens for plan in self.plans[:done])
        self.saved, self.saved_update = time.monotonic(), done
        self.readings.restart()
        with asked_to_stop() as self.asked, self._progress(consumed) as self.progress:
            if done == 0:
                self._look(-1, 0)
            for plan in self.plans[done:]:
                self.starting = plan.index + 1
                self._start(plan)
                if plan.index == done:
                    check_all_learn(self.model, self.optimizer, spec.name, self.world.largest)
                before = plan.index * spec.tokens_per_update
                self._look(before, before + plan.tokens)
                if self.world.size == 1 and self.asked():
                    self.stop_after = plan.index + 1
                if plan.index + 1 == self.stop_after:
                    self.save()
                    # torchrun ends all once one has ended: the first must have written before.
                    self.world.from_lead("stopped", self._written)
                    raise StoppedError(
                        f"{spec.name}: stopped after update {plan.index + 1} of "
                        f"{len(self.plans)}; run the same command to go on"
                    )
                with writing(spec.name, self.resume, self.kept):
                    self.writer.check()
                if self._saves(plan.index + 1):
                    self.save()
            for reading in self.readings.drain():
                self._finish(reading)
            self._written()
        if not self.sharded:
            self.world.check_same(self.model)

    def _progress(self, consumed: int):
        if not self.world.leads:
            return nullcontext()
        return Progress(self.spec.name, self.planned_tokens, "tokens", consumed)

    def record(self, nll: float, count: int) -> dict:
        """The run's row, of a validation NLL over `count` tokens."""
        spec, progressed = self.spec, self.progressed
        trained = progressed.log["tokens"][-1]
        return {
            "scale": spec.scale,
            "variant": spec.variant,
            "seed": spec.seed,
            "parameters": self.model.parameter_count(),
            "final_nll": nll,
            "validation_tokens": count,
            "unigram_entropy": self.unigram_entropy,
            "budget_tokens": spec.budget_tokens,
            "trained_tokens": trained,
            "updates": progressed.update,
            "epochs": (self.plans[-1].first + self.plans[-1].windows) / self.windows.count,
            "order_hash": progressed.order_hash,
            "init_hash": progressed.init_hash,
            "seconds": progressed.seconds,
            "tokens_per_second": trained / progressed.seconds,
            "peak_memory_gib": self.peak_memory.gib(),
        }

    def write(self, output: Path, stamp: Stamp) -> None:
        """Evaluate on the whole validation split, and write the run's files: the first process.

        record.parquet, log.parquet and model.safetensors.
        """
        spec, progressed = self.spec, self.progressed
        with self._whole_model() as model:
            if model is None:
                return
            given = model, self.validation, spec.context, spec.micro, self.device, spec.precision
            evaluated = validation_nll(*given, self.mask)
            with writing(spec.name, output, self.kept):
                save_model(model, output / CHECKPOINT, {"config_hash": spec.config_hash})
                checkpoint_sha256 = sha256_of(output / CHECKPOINT)
            del model, given
        row = self.record(*evaluated)
        written = origin(
            spec.campaign,
            spec.config_hash,
            "training",
            describe(self.device),
            stamp,
            seed=spec.seed,
            order_hash=row["order_hash"],
            spec=spec.identity(),
            backends=spec.backends,
            deterministic=spec.deterministic,
            processes=progressed.processes,
            data_origin=self.data_origin,
            checkpoint_sha256=checkpoint_sha256,
        )
        if self.sharded:
            written["sharded"] = True
        with writing(spec.name, output, self.kept):
            write_parquet(output / LOG_FILE, LOG, progressed.log, written)
            if self.probes:
                key = {"scale": spec.scale, "variant": spec.variant, "seed": spec.seed}
                rows = [{**key, **found} for found in self.progressed.probes]
                about = {**written, **self.progressed.probed_by}
                write_parquet(output / PROBES_FILE, PROBES, rows, about)
            write_parquet(output / RECORD, RUN, [row], written)
            shutil.rmtree(self.resume)


def _writes_aside(device: torch.device) -> bool:
    # On a CPU a thread that writes would only take turns with the one that trains.
    return device.type == "cuda"


def _name_of(path: Path | None) -> str | None:
    return None if path is None else path.name


def train(
    spec: RunSpec,
    data: Path,
    output: Path,
    resume_root: Path,
    events: Path | None = None,
    probes: Sequence[Probe] = (),
    sharing: int = 1,
    stamp: Stamp = UNKNOWN,
    start: Path | None = None,
) -> None:
    """Train one run and write record.parquet, log.parquet and model.safetensors into `output`.

    data: a prepared corpus; resume_root: where resume states of killed runs lie; events: the folder
    of TensorBoard's curves, where they are wanted; probes: what looks at the model meanwhile, whose
    rows probes.parquet there takes; sharing: how many such runs may share a GPU; stamp: no state of
    other code, by its hash, is used; start: the checkpoint from which a run with `spec.start` goes
    on. On a CPU, and on a GPU where the run is deterministic, the
    result is the same to the last bit however often the run was stopped, if the number of processes
    stays the same. Raises RunError for a non-finite loss, a
    stop signal or files that cannot be written, InputError for unusable inputs.
    """
    world = World(spec.name)
    with world.one_voice(), deterministic_algorithms(spec.deterministic), ExitStack() as stack:
        world.check_enough(spec.accumulation)
        token_hashes = {split: row["sha256"] for split, row in data_rows(data).items()}
        resume = resume_root / resume_key(spec, token_hashes, stamp.code_hash)
        check_writable(output)
        with writing(spec.name, resume, lambda: str(newest_state(resume) or "none")):
            if world.leads:
                make_folder(resume)
                stack.enter_context(held(resume / LOCK, spec.name))
                sweep(resume)
            world.check_shared(resume)
        device = stack.enter_context(world.device(spec.device, sharing))
        writer = stack.enter_context(StateWriter(resume, aside=_writes_aside(device)))
        run = _Run(spec, data, resume, device, world, writer, probes, start)
        if world.leads:
            run.watch = stack.enter_context(Watch(resume, spec, run.progressed.log, events))
        run.train()
        run.write(output, stamp)
