"""One training run, from its specification to its records. Read this file from top to bottom.

One process trains the run, or several processes that torchrun starts. After a kill, the same
command continues the run from its last resume state.
"""

import hashlib
import json
import math
import sys
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path
from statistics import median

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from relation import records
from relation.data.masks import Mask, bounded_mask, document_mask
from relation.data.windows import (
    TrainingWindows,
    Update,
    data_rows,
    first_windows,
    open_tokens,
    order_hash,
    plan_updates,
)
from relation.errors import DivergedError
from relation.flow.metrics import read_layers
from relation.jobs import FLOW_OPTIONS, PROBE_OPTIONS, Run
from relation.machine import Progress, describe, deterministic_algorithms, to_device
from relation.nn import Decoder, Execution
from relation.train import checkpoint
from relation.train.checkpoint import RunState
from relation.train.distributed import World, check_processes, summed_gradients
from relation.train.step import Readback, UpdateStep, build_optimizer, check_all_learn, nll_of, wsd
from relation.variants import LINEAR, backend_names, parameter_count

_REMEDY = "lower learning_rate, or train with one process and `divergence: record` to keep the run"


def train(run: Run, data: Path, out: Path, resume: Path, runs_per_gpu: int = 1) -> None:
    """Train a run; write {run,losses,probes}.parquet and model.safetensors into `out`.

    data: the folder of the prepared corpus. resume: the folder of resume states; a finished run
    deletes its state. runs_per_gpu: how many runs share a GPU. With the same number of processes,
    stopping and resuming changes no bit of the result on a CPU, or on a GPU if `run.deterministic`.
    Raises DivergedError if a value is not finite, unless `run.divergence` is "record" and one
    process trains.
    """
    world = World()
    if world.size > 1:
        check_processes(run, world.size)
    with (
        deterministic_algorithms(run.deterministic),
        records.held(resume / f"{run.hash}.lock", run.name) if world.leads else nullcontext(),
        world.device(run.device, runs_per_gpu) as device,
    ):
        _train(run, data, out, resume / f"{run.hash}.safetensors", world, device)


def _train(
    run: Run, data: Path, out: Path, state_file: Path, world: World, device: torch.device
) -> None:
    # Data: the seed alone decides which windows each update reads.
    splits = data_rows(data)
    hashes = {split: row["sha256"] for split, row in splits.items()}
    windows = TrainingWindows(open_tokens(data, "train"), run.context, run.seed)
    validation = open_tokens(data, "validation")
    budget = run.budget_tokens
    updates = plan_updates(budget, run.tokens_per_update, run.context)
    mask = document_mask(run.document_mask, data)  # of evaluations
    bounded = bounded_mask(run.document_mask, data, windows, updates, run.micro)

    # Model and optimiser: runs of a pair start from equal weights if their init_keys are equal.
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    execution = Execution(**run.backends, compiled=run.compile)
    model = Decoder(run.model, execution, seed=None, device=device)
    model.initialise(run.seed, run.init_key or "")
    init_hash = checkpoint.matrices_hash(model)
    optimizer = build_optimizer(
        model, run.learning_rate, run.betas, run.adam_eps, run.weight_decay, run.decay_embedding,
        run.decay_vectors,
    )  # fmt: skip
    reduce = summed_gradients(model) if world.size > 1 else None
    step = UpdateStep(
        model, optimizer, device, run.precision, run.compile, run.gradient_clip, bounded, reduce
    )

    # Resume: a state is used only if the same code, data, execution and probe options made it.
    executed = (run.device, run.compile, run.backends, run.deterministic)
    probed = [getattr(run, name) for name in (*PROBE_OPTIONS, *FLOW_OPTIONS)]
    key = checkpoint.resume_key(run.hash, hashes, *executed, *probed)
    if world.leads:  # delete half-written states of killed processes
        for unfinished in state_file.parent.glob(f".{state_file.name}.*.tmp"):
            unfinished.unlink()
    state = checkpoint.load_state(state_file, key, model, optimizer, world.leads)
    if state is None:
        read_nothing = hashlib.sha256(f"{hashes['train']}/{run.context}".encode()).hexdigest()
        state = RunState(init_hash, read_nothing)
    if state.update and world.leads:
        print(f"{run.name} continues at update {state.update + 1}", file=sys.stderr)
    if state.processes[-1:] != [world.size]:
        state.processes.append(world.size)
    consumed = sum(update.tokens for update in updates[: state.update])
    schedule = (budget, run.warmup_tokens, run.plateau_fraction)

    # The loop. A GPU runs a few updates behind the host, so its losses arrive late.
    readback, diverged = Readback(device), False
    bar = Progress(run.name, budget, "tokens", consumed) if world.leads else nullcontext()
    with ThreadPoolExecutor(1) as writer, bar as progress:
        writing: Future = writer.submit(lambda: None)  # the latest write of a resume state
        saved_at = time.monotonic()

        def batches(update: Update, ids: np.ndarray) -> Iterator[tuple[Tensor, ...]]:
            """Yield micro-batches r, r + size, ... of process r: inputs, targets, (micro, T)."""
            for first in range(world.rank * run.micro, len(ids), world.size * run.micro):
                tokens = min(update.tokens - first * run.context, run.micro * run.context)
                arrays = windows.batch(ids[first : first + run.micro], tokens, run.micro)
                yield tuple(to_device(array, device) for array in arrays)

        def log(readings: list[tuple[list[float], float]]) -> None:
            """Add finished updates to the state: state.update, the number of losses, counts them.

            Raises DivergedError if one is not finite.
            """
            for (loss, norm), seconds in readings:
                update = updates[state.update]
                if not (math.isfinite(loss) and math.isfinite(norm)):
                    raise DivergedError(
                        f"{run.name}: loss {loss} and gradient norm {norm} at update "
                        f"{update.index + 1}, after {update.index * run.tokens_per_update:,} "
                        f"tokens (windows {update.first} to {update.first + update.windows - 1} "
                        f"in the order of seed {run.seed}); {_REMEDY}"
                    )
                ids = windows.window_ids(update.first, update.windows)
                state.order_hash = order_hash(state.order_hash, ids, update.tokens)
                state.losses.append(loss)
                state.norms.append(norm)
                state.seconds.append(seconds)
                if progress:
                    progress.advance(update.tokens, f"loss {loss:.3f}")

        def probe(tokens: int, validates: bool, reads_flow: bool) -> None:
            """Probe the model after `tokens` tokens and add the rows to the state."""
            log(readback.drain())
            try:
                rows = list(_probes(run, model, validation, mask, validates, reads_flow))
            except DivergedError as error:  # the flow is not finite, while the loss still was
                raise DivergedError(f"{run.name}: {error}; {_REMEDY}") from None
            state.probes += [{"update": state.update, "tokens": tokens} | row for row in rows]
            readback.restart()

        def save() -> None:
            """Write a resume state; on a GPU, a thread writes it while training continues."""
            nonlocal writing
            log(readback.drain())
            # Do not save broken weights. The next update's loss stops the run, in all processes.
            if _not_finite(model) is None:
                tensors, metadata = checkpoint.snapshot(model, optimizer, state, key)
                writing.result()  # wait for the previous write, and raise its error
                writing = writer.submit(checkpoint.write_state, state_file, tensors, metadata)
                if device.type == "cpu":  # here a thread would only compete with training
                    writing.result()
            readback.restart()

        try:
            if world.leads and state.update == 0:
                probe(0, validates=True, reads_flow=True)
            for update in updates[state.update :]:
                before = update.index * run.tokens_per_update
                after = before + update.tokens
                rate = run.learning_rate * wsd(before, after, *schedule)
                ids = windows.window_ids(update.first, update.windows)
                loss, norm = step(batches(update, ids), update.tokens, rate)
                log(readback.put(loss, norm))
                if update.index == 1:
                    check_all_learn(model, optimizer, run.name)
                # Probe if one of `validations` or `probes` equal parts of the budget ends here.
                validates = after * run.validations // budget > before * run.validations // budget
                reads_flow = after * run.probes // budget > before * run.probes // budget
                if world.leads and (validates or reads_flow):
                    probe(after, validates, reads_flow)
                if world.leads and time.monotonic() - saved_at > run.checkpoint_seconds:
                    save()
                    saved_at = time.monotonic()
            log(readback.drain())
            if broken := _not_finite(model):
                why = f"parameter {broken} is not finite after the last update"
                raise DivergedError(f"{run.name}: {why}; {_REMEDY}")
        except DivergedError:
            if run.divergence == "fail" or world.size > 1:
                raise  # if one of several processes stopped early, the others would wait for it
            diverged = True
        writing.result()

    # The first process evaluates the model and writes the records.
    if not world.leads:
        return
    peak = torch.cuda.max_memory_allocated(device) / 2**30 if device.type == "cuda" else None
    nll = None
    if not diverged:
        with Progress("validation", len(validation) - 1, "tokens") as evaluated:
            nll = nll_of(
                model, validation, run.context, run.micro, device, run.precision, mask,
                evaluated.advance,
            )  # fmt: skip
    checkpoint.save_model(model, out / "model.safetensors", {"hash": run.hash})
    finished = updates[: state.update]
    epochs = (finished[-1].first + finished[-1].windows) / windows.count if finished else 0.0
    measured = {"final_nll": nll, "peak_memory_gib": peak, "epochs": epochs}
    _write(run, out, splits, finished, state, device, measured)
    state_file.unlink(missing_ok=True)


def _probes(
    run: Run, model: Decoder, validation: np.ndarray, mask: Mask, validates: bool, reads_flow: bool
) -> Iterator[dict]:
    """Yield lambda, angles and flow metrics by layer, and the NLL on the first validation tokens.

    Changes neither the model nor a random state. Raises DivergedError if a flow is not finite.
    """

    def row(layer: int | None, part: int | None, metric: str, value: float) -> dict:
        return {"layer": layer, "part": part, "metric": metric, "value": value}

    device = model.embedding.weight.device
    if reads_flow:
        for layer, block in enumerate(model.blocks):
            learned = dict(block.mixer.named_parameters(recurse=False))
            if "lam" in learned:
                yield row(layer, None, "lambda", learned["lam"].item())
            for part, angle in enumerate(learned.get("theta", ())):
                yield row(layer, part, "theta", angle.item())
    if reads_flow and LINEAR not in run.model.layout:
        lengths = (run.flow_length, run.rank_length)
        sequence = to_device(first_windows(validation, run.flow_window, 1, max(lengths)), device)
        for layer in read_layers(model, sequence, *lengths, mask(sequence)):
            for reading in layer.readings:
                for name, values in reading.values.items():
                    yield row(layer.index, None, name, values.mean().item())
    if validates:
        tokens = validation[: run.validation_tokens + 1]
        nll = nll_of(model, tokens, run.context, run.micro, device, run.precision, mask)
        yield row(None, None, "validation_nll", nll)


def _write(
    run: Run,
    out: Path,
    splits: dict[str, dict],
    updates: list[Update],
    state: RunState,
    device: torch.device,
    measured: dict,
) -> None:
    """Write losses.parquet, probes.parquet and, last, run.parquet.

    splits: rows of data.parquet by split; updates: the finished ones; measured: further columns.
    """
    config, seconds = run.model, sum(state.seconds)
    tokens = [update.tokens for update in updates]
    rates = [each / s for each, s in zip(tokens, state.seconds, strict=True)]
    columns = ("context", "micro", "accumulation", "learning_rate", "budget_tokens", "precision")
    row = {
        **{name: getattr(run, name) for name in columns},
        **{name: getattr(config, name) for name in ("layout", "d_model", "heads", "d_ff")},
        **measured,
        "parameters": parameter_count(config),
        "vocabulary": config.vocab_size,
        "corpus": run.data.title,
        "corpus_fingerprint": splits["train"]["fingerprint"],
        "trained_tokens": sum(tokens),
        "updates": len(updates),
        "validation_tokens": splits["validation"]["tokens"] - 1,
        "validation_characters": splits["validation"]["characters"],
        "unigram_entropy": splits["validation"]["unigram_entropy"],
        "init_hash": state.init_hash,
        "order_hash": state.order_hash,
        "seconds": seconds,
        "tokens_per_second": sum(tokens) / seconds if updates else None,
        "median_tokens_per_second": median(rates) if updates else None,
        "processes": state.processes[0] if len(state.processes) == 1 else None,
        "backend": backend_names(config, run.backends),
        "specification": json.dumps(run.specification(), sort_keys=True),
        "former_hash": None,
    }
    steps = {"update": range(1, len(updates) + 1), "tokens": np.cumsum(tokens, dtype=np.int64)}
    losses = pd.DataFrame({**steps, "loss": state.losses, "gradient_norm": state.norms})
    shared = records.key(run) | records.origin(run.hash, describe(device))
    records.write(out / "losses.parquet", "losses", losses, shared)
    records.write(out / "probes.parquet", "probes", state.probes, shared)
    records.write(out / "run.parquet", "runs", [row], shared)


def _not_finite(model: torch.nn.Module) -> str | None:
    """Return the name of the first parameter that holds a NaN or an infinity, or None."""
    return next((n for n, p in model.named_parameters() if not p.isfinite().all()), None)
