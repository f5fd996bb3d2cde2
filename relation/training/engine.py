"""A training run from specification to record: resumable, one logged row an update."""

import math
import shutil
import signal
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import torch
from filelock import FileLock, Timeout

from relation.code import code_hash
from relation.data.tokens import open_prepared
from relation.data.windows import OrderHash, TrainingWindows, UpdatePlan, plan_updates
from relation.devices import claim, describe
from relation.errors import RunError
from relation.model import Decoder, Execution
from relation.model.decoder import shared_weights_hash
from relation.origin import origin
from relation.parquet import read_origin, read_parquet, write_parquet
from relation.progress import Progress
from relation.schemas import DATA, LOG, RUN
from relation.spec import RunSpec, canonical_hash
from relation.training.checkpoint import (
    Progressed,
    load_state,
    newest_state,
    save_model,
    save_state,
)
from relation.training.evaluate import validation_nll
from relation.training.optimizer import build_optimizer
from relation.training.schedule import wsd
from relation.training.step import UpdateStep

RECORD, LOG_FILE, CHECKPOINT = "record.parquet", "log.parquet", "model.safetensors"


def resume_key(spec: RunSpec, token_hashes: dict[str, str]) -> str:
    """The name of a run's resume folder: state of other data, settings or code is never used.

    token_hashes: SHA-256 of the token file by split.
    """
    execution = [spec.device, spec.compile, spec.backends]
    return canonical_hash([spec.config_hash, token_hashes, code_hash("training"), execution])


def data_rows(data: Path) -> dict[str, dict]:
    """The record of a prepared corpus by split."""
    return {row["split"]: row for row in read_parquet(data / "data.parquet", DATA).to_pylist()}


@contextmanager
def _asked_to_stop():
    """Yield a function that tells whether SIGTERM or SIGINT came; the handlers are restored."""
    received: list[int] = []
    handled = (signal.SIGTERM, signal.SIGINT)
    before = [signal.signal(s, lambda number, frame: received.append(number)) for s in handled]
    try:
        yield lambda: bool(received)
    finally:
        for number, handler in zip(handled, before, strict=True):
            signal.signal(number, handler)


class _Run:
    """One run in progress: the model with its optimiser, its data, and what it has logged."""

    def __init__(self, spec: RunSpec, data: Path, resume: Path, device: torch.device):
        self.spec, self.resume, self.device = spec, resume, device
        rows = data_rows(data)
        self.unigram_entropy = rows["validation"]["unigram_entropy"]
        tokens = {split: open_prepared(data, split, row["sha256"]) for split, row in rows.items()}
        self.windows = TrainingWindows(tokens["train"], spec.context, spec.seed)
        self.validation = tokens["validation"]
        self.plans = plan_updates(
            spec.budget_tokens, spec.tokens_per_update, spec.context, spec.last_update
        )

        execution = Execution(**spec.backends, compiled=spec.compile)
        execution.check(spec.model_config(), device)
        self.model = Decoder(spec.model_config(), execution)
        self.model.initialise(spec.seed)
        init_hash = shared_weights_hash(self.model)
        self.model.to(device)
        self.optimizer = build_optimizer(
            self.model,
            spec.learning_rate,
            tuple(spec.betas),
            spec.adam_eps,
            spec.weight_decay,
            spec.decay_embedding,
        )
        self.step = UpdateStep(
            self.model, self.optimizer, device, spec.precision, spec.compile, spec.gradient_clip
        )
        started = load_state(resume, self.model, self.optimizer)
        self.progressed = started or Progressed(0, "", init_hash, 0.0, {n: [] for n in LOG.names})
        self.order = OrderHash(
            rows["train"]["sha256"], spec.context, self.progressed.order_hash or None
        )
        if started:
            print(f"{spec.name} goes on at update {started.update + 1}", file=sys.stderr)

    def _batches(self, plan: UpdatePlan, ids):
        """The update's micro-batches, (micro, T) each, as CPU tensors."""
        spec = self.spec
        for first in range(0, len(ids), spec.micro):
            tokens = min(plan.tokens - first * spec.context, spec.micro * spec.context)
            part = ids[first : first + spec.micro]
            inputs, targets = self.windows.batch(part, tokens, spec.micro)
            yield torch.from_numpy(inputs), torch.from_numpy(targets)

    def update(self, plan: UpdatePlan) -> None:
        """Run one update and log it. Raises RunError where the loss or gradient is not finite."""
        spec, began = self.spec, time.perf_counter()
        before = plan.index * spec.tokens_per_update
        factor = wsd(
            before,
            before + plan.tokens,
            spec.budget_tokens,
            spec.warmup_tokens,
            spec.plateau_fraction,
        )
        ids = self.windows.window_ids(plan.first, plan.windows)
        loss, norm = self.step(self._batches(plan, ids), plan.tokens, spec.learning_rate * factor)
        loss, norm = loss.item(), norm.item()
        if not (math.isfinite(loss) and math.isfinite(norm)):
            raise RunError(
                f"{spec.name}: loss {loss} and gradient norm {norm} at update {plan.index + 1} "
                f"(windows {', '.join(map(str, ids[:4]))}, ...); last good state: "
                f"{newest_state(self.resume) or 'none saved yet'}; lower learning_rate or look at "
                "those windows"
            )
        seconds = time.perf_counter() - began
        self.order.update(ids, plan.tokens)
        row = {
            "update": plan.index + 1,
            "tokens": before + plan.tokens,
            "update_tokens": plan.tokens,
            "loss": loss,
            "learning_rate": spec.learning_rate * factor,
            "gradient_norm": norm,
            "tokens_per_second": plan.tokens / seconds,
        }
        progressed = self.progressed
        for name, value in row.items():
            progressed.log[name].append(value)
        progressed.update = plan.index + 1
        progressed.order_hash = self.order.value
        progressed.seconds += seconds

    def save(self) -> None:
        """Write a resume state; one with broken weights is never written."""
        broken = [n for n, p in self.model.named_parameters() if not p.isfinite().all()]
        if broken:
            raise RunError(
                f"{self.spec.name}: {broken[0]} is not finite after update "
                f"{self.progressed.update}; last good state: "
                f"{newest_state(self.resume) or 'none saved yet'}; lower learning_rate"
            )
        save_state(self.resume, self.model, self.optimizer, self.progressed)

    def train(self) -> None:
        """All updates that are left, saving resume state by time and when asked to stop."""
        spec, done = self.spec, self.progressed.update
        consumed = sum(plan.tokens for plan in self.plans[:done])
        budget = sum(plan.tokens for plan in self.plans)
        saved = time.monotonic()
        with (
            _asked_to_stop() as stopping,
            Progress(spec.name, budget, "tokens", consumed) as progress,
        ):
            for plan in self.plans[done:]:
                self.update(plan)
                # Before anything is printed: the terminal may have gone with the signal.
                if stopping():
                    self.save()
                    raise RunError(
                        f"{spec.name}: stopped after update {plan.index + 1} of "
                        f"{len(self.plans)}; run the same command to go on"
                    )
                if time.monotonic() - saved > spec.checkpoint_seconds:
                    self.save()
                    saved = time.monotonic()
                progress.advance(plan.tokens, f"loss {self.progressed.log['loss'][-1]:.3f}")

    def record(self) -> dict:
        """The run's row: evaluates the final checkpoint on the whole validation split."""
        spec, progressed = self.spec, self.progressed
        nll, count = validation_nll(
            self.model, self.validation, spec.context, spec.micro, self.device, spec.precision
        )
        trained = progressed.log["tokens"][-1]
        on_gpu = self.device.type == "cuda"
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
            "peak_memory_gib": torch.cuda.max_memory_allocated() / 2**30 if on_gpu else None,
        }


@contextmanager
def _held(path: Path, name: str):
    """Hold a run's lock, so that two processes never train it at once."""
    lock = FileLock(path)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        raise RunError(f"{name} is already running in another process") from None
    try:
        yield
    finally:
        lock.release()


def train(spec: RunSpec, data: Path, output: Path, resume_root: Path) -> None:
    """Train one run and write record.parquet, log.parquet and model.safetensors into `output`.

    data: a prepared corpus; resume_root: where resume states of killed runs lie. On a CPU the
    result is the same to the last bit however often the run was stopped. Raises RunError for a
    non-finite loss or a stop signal, InputError for unusable inputs.
    """
    token_hashes = {split: row["sha256"] for split, row in data_rows(data).items()}
    resume = resume_root / resume_key(spec, token_hashes)
    resume.mkdir(parents=True, exist_ok=True)
    with _held(resume / "lock", spec.name), claim(spec.device) as device:
        run = _Run(spec, data, resume, device)
        run.train()
        row = run.record()
        written = origin(
            spec.campaign,
            spec.config_hash,
            "training",
            describe(device),
            seed=spec.seed,
            order_hash=row["order_hash"],
            spec=spec.identity(),
            backends=spec.backends,
            data_origin=read_origin(data / "data.parquet"),
        )
        save_model(run.model, output / CHECKPOINT, {"config_hash": spec.config_hash})
        write_parquet(output / LOG_FILE, LOG, run.progressed.log, written)
        write_parquet(output / RECORD, RUN, [row], written)
    shutil.rmtree(resume)
