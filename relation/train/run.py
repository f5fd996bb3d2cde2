"""One training run, from its specification to its records: read it from top to bottom.

One process trains it, or several that torchrun started. A killed run goes on from its last resume
state when the same command is given again.
"""

import json
import math
import signal
import sys
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from relation import records
from relation.data.windows import (
    Mask,
    OrderHash,
    TrainingWindows,
    Update,
    bounded_mask,
    data_rows,
    document_mask,
    first_windows,
    open_tokens,
    plan_updates,
)
from relation.errors import RunError, StoppedError
from relation.machine import (
    PeakMemory,
    Progress,
    describe,
    deterministic_algorithms,
    to_device,
)
from relation.nn import Decoder, Execution
from relation.nn.model import shared_weights_hash
from relation.train.checkpoint import (
    RunState,
    load_state,
    resume_key,
    save_model,
    snapshot,
    write_state,
)
from relation.train.distributed import SummedGradients, World
from relation.train.step import Readback, UpdateStep, build_optimizer, nll_of, wsd
from relation.variants import LINEAR, MIXERS

if TYPE_CHECKING:
    from relation.jobs import Run


def train(run: "Run", data: Path, out: Path, resume: Path) -> None:
    """Train a run and write run, losses and probes.parquet and model.safetensors into `out`.

    data: its prepared corpus; resume: the folder of resume states, where a killed run's lies until
    it is done. On a CPU, and on a GPU where the run is deterministic, the result is the same to
    the last bit however often the run was stopped, if the number of processes stays the same.
    Raises RunError for a loss that is not finite, a stop signal or a full disk, InputError for
    unusable inputs.
    """
    world = World(run.name, run.accumulation)
    with (
        world.one_message(),
        _disk_errors(run.name),
        deterministic_algorithms(run.deterministic),
        records.held(resume / f"{run.hash}.lock", run.name) if world.leads else nullcontext(),
        world.device(run.device) as device,
    ):
        _train(run, data, out, resume / f"{run.hash}.safetensors", world, device)


def _train(
    run: "Run", data: Path, out: Path, state_file: Path, world: World, device: torch.device
) -> None:
    # Data: the windows of every update, fixed by the seed alone.
    rows = data_rows(data)
    windows = TrainingWindows(open_tokens(data, "train"), run.context, run.seed)
    validation = open_tokens(data, "validation")
    updates = plan_updates(run.budget_tokens, run.tokens_per_update, run.context, run.last_update)
    planned = sum(update.tokens for update in updates)
    mask = document_mask(run.document_mask, data)
    documents = bounded_mask(run.document_mask, data, windows, updates, run.micro)

    # Model and optimiser.
    peak = PeakMemory(device)
    execution = Execution(**run.backends, compiled=run.compile)
    execution.check(run.model, device)
    model = Decoder(run.model, execution)
    model.initialise(run.seed, run.init_key or "")
    init_hash = shared_weights_hash(model)
    model.to(device)
    decay = (run.weight_decay, run.decay_embedding, run.decay_vectors)
    optimizer = build_optimizer(model, run.learning_rate, run.betas, run.adam_eps, *decay)
    reduce = SummedGradients(model, device) if world.size > 1 else None
    how = (run.precision, run.compile, run.gradient_clip)
    step = UpdateStep(model, optimizer, device, *how, documents, reduce)

    # Resume.
    hashes = {split: row["sha256"] for split, row in rows.items()}
    key = resume_key(run.hash, hashes, run.device, run.compile, run.backends, run.deterministic)
    state = load_state(state_file, key, model, optimizer) or RunState(init_hash)
    if state.update and world.leads:
        print(f"{run.name} goes on at update {state.update + 1}", file=sys.stderr)
    if state.processes[-1:] != [world.size]:
        state.processes.append(world.size)
    order = OrderHash(hashes["train"], run.context, state.order_hash or None)
    consumed = sum(update.tokens for update in updates[: state.update])

    with ExitStack() as stack:
        stopped = stack.enter_context(_stop_signals(world))
        writer = _StateWriter(stack, state_file, aside=device.type == "cuda")
        progress = Progress(run.name, planned, "tokens", consumed) if world.leads else None
        stack.enter_context(progress or nullcontext())
        readback = Readback(device)

        def note(readings: Iterator[tuple[list[float], float]]) -> None:
            """Log finished updates. Raises _DivergedError for a loss or norm not finite."""
            for (loss, norm), seconds in readings:
                update = updates[state.update]
                if not (math.isfinite(loss) and math.isfinite(norm)):
                    raise _DivergedError(
                        f"{run.name}: loss {loss} and gradient norm {norm} at update "
                        f"{update.index + 1}, after {update.index * run.tokens_per_update:,} "
                        f"tokens (windows {update.first} to {update.first + update.windows - 1} of "
                        f"seed {run.seed}'s order); lower learning_rate, or set divergence: record"
                    )
                state.update += 1
                state.losses.append(loss)
                state.norms.append(norm)
                state.seconds.append(seconds)
                if progress:
                    progress.advance(update.tokens, f"loss {loss:.3f}")

        def look(before: int, tokens: int) -> None:
            """Probe the model, which has seen `tokens`, where a part of the budget has ended."""
            due = [tokens * n // planned > before * n // planned for n in _parts(run)]
            if world.leads and any(due):
                note(readback.drain())
                with peak.left_out():
                    seen = {"update": state.update, "tokens": tokens}
                    found = _probe(run, model, validation, mask, device, *due)
                    state.probes.extend({**seen, **row} for row in found)
                readback.restart()

        def save() -> None:
            note(readback.drain())
            _check_finite(model, run.name, state.update)
            state.order_hash = order.value
            if key is not None:
                writer.write(snapshot(model, optimizer, state, key))
            readback.restart()

        # The loop: windows, micro-batches, step, log.
        saved_at, saved_tokens = time.monotonic(), consumed
        try:
            if state.update == 0:
                look(-1, 0)
            for update in updates[state.update :]:
                before = update.index * run.tokens_per_update
                after = before + update.tokens
                factor = wsd(
                    before, after, run.budget_tokens, run.warmup_tokens, run.plateau_fraction
                )
                ids = windows.window_ids(update.first, update.windows)
                batches = _batches(run, windows, update, ids, world, device)
                loss, norm = step(batches, update.tokens, run.learning_rate * factor)
                order.update(ids, update.tokens)
                note(readback.put(loss, norm))
                if update.index == 0:
                    check_all_learn(model, optimizer, run.name)
                look(before, after)
                if stopped():
                    save()
                    writer.wait()
                    raise StoppedError(
                        f"{run.name}: stopped after update {state.update} of {len(updates)}; "
                        "run the same command to go on"
                    )
                long_ago = time.monotonic() - saved_at > run.checkpoint_seconds
                enough = run.checkpoint_tokens and after - saved_tokens >= run.checkpoint_tokens
                if world.leads and (long_ago or enough):
                    save()
                    saved_at, saved_tokens = time.monotonic(), after
            note(readback.drain())
            _check_finite(model, run.name, state.update)
            diverged = False
        except _DivergedError:
            if run.divergence == "fail":
                raise
            diverged = True
        writer.wait()

    # Evaluation and records, by the first process.
    world.check_same(model)
    if not world.leads:
        return
    nll = None
    if not diverged:
        with peak.left_out(), Progress("validation", len(validation) - 1, "tokens") as progress:
            how = (run.context, run.micro, device, run.precision, mask)
            nll = nll_of(model, validation, *how, progress.advance)
    _write(run, out, rows, windows, updates, model, state, order.value, nll, peak.gib(), device)
    state_file.unlink(missing_ok=True)


def _batches(
    run: "Run",
    windows: TrainingWindows,
    update: Update,
    ids: np.ndarray,
    world: World,
    device: torch.device,
) -> Iterator[tuple[Tensor, ...]]:
    """This process's micro-batches of an update: inputs and targets, (micro, T), on the device."""
    for number in range(world.rank, -(-len(ids) // run.micro), world.size):
        first = number * run.micro
        tokens = min(update.tokens - first * run.context, run.micro * run.context)
        arrays = windows.batch(ids[first : first + run.micro], tokens, run.micro)
        yield tuple(to_device(array, device) for array in arrays)


def _parts(run: "Run") -> tuple[int, int]:
    """Into how many equal parts of the budget validation and flow are probed."""
    return run.validations, run.probes


def _probe(
    run: "Run",
    model: Decoder,
    validation: np.ndarray,
    mask: Mask,
    device: torch.device,
    validates: bool,
    reads_flow: bool,
) -> Iterator[dict]:
    """Validation NLL on the split's first tokens; lambda, angles and flow metrics of each layer.

    The model stays as it is, and nothing is drawn at random.
    """
    if reads_flow:
        for layer, block in enumerate(model.blocks):
            learned = dict(block.mixer.named_parameters(recurse=False))
            if "lam" in learned:
                yield _row(layer, None, "lambda", learned["lam"])
            for part, angle in enumerate(learned.get("theta", ())):
                yield _row(layer, part, "theta", angle)
    if reads_flow and LINEAR not in run.model.layout:
        from relation.flow.metrics import read_layers

        length = max(run.flow_length, run.rank_length)
        sequences = first_windows(validation, run.flow_window, run.probe_sequences)[:, :length]
        sequences = to_device(sequences.copy(), device)
        for layer in read_layers(model, sequences, run.flow_length, run.rank_length, mask):
            for reading in layer.readings:
                for name, values in reading.values.items():
                    yield _row(layer.index, None, name, values.mean())
    if validates:
        tokens = validation[: run.validation_tokens + 1]
        nll = nll_of(model, tokens, run.context, run.micro, device, run.precision, mask)
        yield {"layer": None, "part": None, "metric": "validation_nll", "value": nll}


def _row(layer: int, part: int | None, metric: str, value: Tensor) -> dict:
    return {"layer": layer, "part": part, "metric": metric, "value": value.item()}


def _write(
    run: "Run",
    out: Path,
    rows: dict[str, dict],
    windows: TrainingWindows,
    updates: list[Update],
    model: Decoder,
    state: RunState,
    order_hash: str,
    nll: float | None,
    peak: float | None,
    device: torch.device,
) -> None:
    """Write the model and the run's records; the record of the run itself comes last."""
    save_model(model, out / "model.safetensors", {"hash": run.hash})
    done = updates[: state.update]
    consumed = np.cumsum([update.tokens for update in done]).tolist()
    trained, seconds = (consumed or [0])[-1], sum(state.seconds)
    key = {name: getattr(run, name) for name in ("campaign", "scale", "variation", "variant")}
    key["seed"] = run.seed
    config, used = run.model, [MIXERS[letter] for letter in MIXERS if letter in run.model.layout]
    fields = ("context", "micro", "accumulation", "learning_rate", "budget_tokens", "precision")
    row = key | {name: getattr(run, name) for name in fields}
    row |= {
        "parameters": model.parameter_count(),
        "layout": config.layout,
        "d_model": config.d_model,
        "heads": config.heads,
        "d_ff": config.d_ff,
        "vocabulary": config.vocab_size,
        "corpus": run.data.title,
        "corpus_fingerprint": rows["train"]["fingerprint"],
        "trained_tokens": trained,
        "updates": state.update,
        "epochs": (done[-1].first + done[-1].windows) / windows.count if done else 0.0,
        "final_nll": nll,
        "validation_tokens": rows["validation"]["tokens"] - 1,
        "validation_characters": rows["validation"]["characters"],
        "unigram_entropy": rows["validation"]["unigram_entropy"],
        "order_hash": order_hash,
        "init_hash": state.init_hash,
        "seconds": seconds,
        "tokens_per_second": trained / seconds if seconds else None,
        "median_tokens_per_second": median(
            [update.tokens / s for update, s in zip(done, state.seconds, strict=True)] or [0.0]
        ),
        "peak_memory_gib": peak,
        "processes": state.processes[0] if len(state.processes) == 1 else None,
        "backend": ", ".join(dict.fromkeys(run.backends.get(name, "automatic") for name in used)),
        "specification": json.dumps(run.specification(), sort_keys=True),
        "former_hash": None,
    }
    losses = [
        {**key, "update": update.index + 1, "tokens": tokens, "loss": loss, "gradient_norm": norm}
        for update, tokens, loss, norm in zip(
            done, consumed, state.losses, state.norms, strict=True
        )
    ]
    origin = records.origin(run.hash, describe(device))
    records.write(out / "losses.parquet", "losses", losses, origin)
    probes = [{**key, **probe} for probe in state.probes]
    records.write(out / "probes.parquet", "probes", probes, origin)
    records.write(out / "run.parquet", "runs", [row], origin)


class _DivergedError(RunError):
    """A loss, gradient norm or parameter that is not finite."""


def _check_finite(model: torch.nn.Module, run: str, update: int) -> None:
    for name, parameter in model.named_parameters():
        if not parameter.isfinite().all():
            raise _DivergedError(
                f"{run}: {name} is not finite after update {update}; lower learning_rate, or set "
                "divergence: record"
            )


def check_all_learn(model: torch.nn.Module, optimizer: torch.optim.Adam, run: str) -> None:
    """Raise RunError where a parameter has had gradients of zero alone.

    Every parameter gets a non-zero gradient in update 1. A compiler bug can drop one silently, and
    the run would still finish.
    """
    moments = [optimizer.state[p]["exp_avg"] for p in model.parameters()]
    learned = torch.stack([moment.any() for moment in moments]).tolist()
    names = [name for name, _ in model.named_parameters()]
    idle = [name for name, learns in zip(names, learned, strict=True) if not learns]
    if idle:
        raise RunError(
            f"{run}: the gradient of {', '.join(idle)} is zero, so this PyTorch "
            f"({torch.__version__}) differentiates the model wrongly; use the pinned version, or "
            "`compile: false` in config.yaml where the campaign compiles"
        )


class _StateWriter:
    """Writes resume states one at a time; aside in a thread, so that a GPU trains on meanwhile.

    An error is raised by the next `write` or `wait`. On a CPU a thread would only take turns with
    the one that trains.
    """

    def __init__(self, stack: ExitStack, path: Path, aside: bool):
        self._path, self._aside, self._writing = path, aside, None
        self._pool = stack.enter_context(ThreadPoolExecutor(1))

    def write(self, taken: tuple) -> None:
        self.wait()
        self._writing: Future | None = self._pool.submit(write_state, self._path, taken)
        if not self._aside:
            self.wait()

    def wait(self) -> None:
        writing, self._writing = self._writing, None
        if writing is not None:
            writing.result()


@contextmanager
def _stop_signals(world: World):
    """Yield a function that says whether SIGTERM or SIGINT came.

    A signal ends several processes at once: torchrun sends it to all, and they could stop at
    different updates.
    """
    received: list[int] = []
    if world.size > 1:
        yield lambda: False
        return
    handled = (signal.SIGTERM, signal.SIGINT)
    before = [signal.signal(s, lambda number, frame: received.append(number)) for s in handled]
    try:
        yield lambda: bool(received)
    finally:
        for number, handler in zip(handled, before, strict=True):
            signal.signal(number, handler)


@contextmanager
def _disk_errors(run: str) -> Iterator[None]:
    """Say in one line that a file cannot be read or written: a full disk, a folder that is gone."""
    try:
        yield
    except OSError as error:
        raise RunError(
            f"{run}: {error.filename or 'a file'}: {error.strerror or error}; the last resume "
            "state is kept: mend that and run the same command again"
        ) from error
