"""One systems benchmark from specification to Parquet."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import torch

from relation.data.tokens import token_file
from relation.devices import claim_gpus, describe
from relation.geometry import model_config
from relation.model import Execution
from relation.origin import origin
from relation.parquet import write_parquet
from relation.progress import Progress
from relation.schemas import COMPLEXITY, THROUGHPUT
from relation.spec import SystemsSpec
from relation.systems.conditions import Conditions, libraries
from relation.systems.operators import DECODE, OPERATOR, OperatorJob
from relation.systems.processes import Worker
from relation.systems.rounds import Outcome, Start, measure_together, prepared_together
from relation.systems.statistics import median_columns
from relation.systems.throughput import UPDATE, StepJob
from relation.uses import uses_of

_GIB = 2**30


@contextmanager
def reserved(kind: str) -> Iterator[torch.device]:
    """A device for processes to use, "cpu" or "cuda", held alone while the context lasts if a GPU.

    This process itself takes no memory on it. Raises InputError where there is no GPU.
    """
    if kind == "cpu":
        yield torch.device("cpu")
        return
    with claim_gpus(1) as (index,):
        yield torch.device("cuda", index)


def step_job(
    spec: SystemsSpec, side: Mapping, tokens: Path | None, device: torch.device
) -> StepJob:
    """The measurement of one side; tokens: the training split, or None for random tokens."""
    backends = side["backends"]
    return StepJob(
        model=model_config(side["model"]),
        execution=Execution(**backends, compiled=spec.compile),
        optimizer=spec.optimizer,
        precision=spec.precision,
        compile=spec.compile,
        device=device,
        context=side["context"],
        micro=side["micro"],
        accumulation=side["accumulation"],
        warmup=spec.warmup_updates,
        updates=spec.measured_updates,
        tokens=tokens,
        proves=(side["variant"], backends[side["variant"]]),
    )


def _status(outcome: Outcome, measure: str) -> dict:
    failure = outcome.failures.get(measure)
    return {
        "status": "PASS" if failure is None else failure.status,
        "reason": None if failure is None else failure.reason,
    }


def _throughput_row(
    spec: SystemsSpec, side: Mapping, job: StepJob, outcome: Outcome, conditions: Mapping
) -> dict:
    seconds, facts = outcome.samples.get(UPDATE, []), outcome.facts
    rates = [job.tokens_per_update / s for s in seconds]
    none = dict.fromkeys(f"tokens_per_second{end}" for end in ("", "_low", "_high"))
    peaks = {
        name: None if facts.get(source) is None else facts[source] / _GIB
        for name, source in (("allocated_gib", "peak_bytes"), ("reserved_gib", "reserved_bytes"))
    }
    return {
        "benchmark": spec.benchmark,
        "scale": spec.scale,
        "side": side["side"],
        "variant": side["variant"],
        "backend": side["backends"][side["variant"]],
        "context": side["context"],
        "micro": side["micro"],
        "accumulation": side["accumulation"],
        "position": side["position"],
        **_status(outcome, UPDATE),
        **(median_columns("tokens_per_second", rates) if rates else none),
        "raw_tokens_per_second": facts.get("raw_tokens_per_second"),
        **peaks,
        "measured_updates": len(seconds) * spec.measured_updates,
        "samples": rates,
        "alone": outcome.alone,
        "kernels": facts.get("kernels", []),
        "tokens": "random" if job.tokens is None else "corpus",
        **conditions,
    }


def _together(spec: SystemsSpec) -> list[Sequence[Mapping]]:
    """The sides of each comparison; those of linear-long are contexts."""
    if spec.benchmark != "linear-long":
        return [spec.sides]
    return prepared_together(spec.sides, lambda side: side["context"])


def _throughput_rows(
    spec: SystemsSpec, tokens: Path | None, device: torch.device, start: Start
) -> list[dict]:
    """The rows of each comparison, one after the other, all sides of one in turns."""
    watched, rows = Conditions(device), []
    label = f"{spec.benchmark} {spec.scale}"
    with Progress(label, 2 * len(spec.sides), "measurements") as progress:
        for sides in _together(spec):
            jobs = {side["side"]: step_job(spec, side, tokens, device) for side in sides}
            outcomes = measure_together(
                jobs,
                [UPDATE],
                spec.rounds,
                watched,
                lambda name, done: progress.advance(done, name),
                # A round's first update settles what the others left.
                warm_rounds=0,
                start=start,
                at_once=jobs,
            )
            conditions = {"device": describe(device), **watched.columns()}
            rows += [
                _throughput_row(spec, side, jobs[side["side"]], outcomes[side["side"]], conditions)
                for side in sides
            ]
    return rows


def _complexity_row(operator: str, context: int, outcome: Outcome, conditions: Mapping) -> dict:
    columns = {}
    for name, measure in (("seconds", OPERATOR), ("decode_seconds", DECODE)):
        samples = outcome.samples.get(measure)
        none = dict.fromkeys((name, f"{name}_low", f"{name}_high"))
        columns |= median_columns(name, samples) if samples else none
    decode = outcome.failures.get(DECODE)
    return {
        "operator": operator,
        "context": context,
        **_status(outcome, OPERATOR),
        **columns,
        "decode_reason": None if decode is None else f"{decode.status}: {decode.reason}",
        "decode_state_bytes": outcome.facts.get("decode_state_bytes"),
        **conditions,
    }


def _complexity_rows(spec: SystemsSpec, device: torch.device, start: Start) -> list[dict]:
    """The rows of every T, one after the other, each with all operators in turns."""
    rows: list[dict] = []
    watched = Conditions(device)
    contexts = dict.fromkeys(side["context"] for side in spec.sides)
    with Progress("complexity", 2 * len(spec.sides), "measurements") as progress:
        for context in contexts:
            jobs = {
                side["side"]: OperatorJob(
                    model_config(side["model"]),
                    side["variant"],
                    side["backends"],
                    context,
                    spec.precision,
                    device,
                )
                for side in spec.sides
                if side["context"] == context
            }
            outcomes = measure_together(
                jobs,
                [OPERATOR, DECODE],
                spec.rounds,
                watched,
                lambda name, done, context=context: progress.advance(done, f"{name} T={context}"),
                start=start,
                at_once=jobs,
            )
            conditions = {"device": describe(device), **watched.columns()}
            rows += [
                _complexity_row(name, context, outcome, conditions)
                for name, outcome in outcomes.items()
            ]
    return rows


def measure(
    spec: SystemsSpec, data: Path | None, output: Path, start: Start = Worker
) -> list[dict]:
    """Run one benchmark, write its Parquet and return the rows.

    data: the folder of the prepared corpus, or None for random tokens. Whatever a side meets, out
    of memory, a kill, a missing backend, is its row's status, not a failure of the benchmark.
    Raises InputError where there is no such device.
    """
    with reserved(spec.device) as device:
        tokens = None if data is None else token_file(data, "train")
        rows_of, layout = partial(_throughput_rows, spec, tokens), THROUGHPUT
        if spec.benchmark == "complexity":
            rows_of, layout = partial(_complexity_rows, spec), COMPLEXITY
        rows = rows_of(device, start)
        written = origin(
            spec.campaign,
            spec.config_hash,
            "systems",
            describe(device),
            uses_of(spec),
            libraries=libraries(device),
        )
        write_parquet(output, layout, rows, written)
    return rows
