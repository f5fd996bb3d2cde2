"""One benchmark from a campaign's geometry to Parquet."""

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch

from relation.bench import decoder, flash, layers, linear
from relation.bench.peers import Benchmark, Systems
from relation.bench.rounds import Part, session
from relation.bench.sides import (
    FORWARD,
    FORWARD_BACKWARD,
    LONG,
    STEP,
    Case,
    long_groups,
    operator_part,
    step_groups,
    steps_part,
)
from relation.bench.timing import HOST
from relation.errors import InputError
from relation.machine.devices import describe
from relation.spec import canonical_hash
from relation.store.layouts import BENCH
from relation.store.stamp import UNKNOWN, Stamp
from relation.verify.inputs import DTYPES

# What `bench NAME` compares, by name and kind of device.
BENCHMARKS: dict[str, Mapping[str, Benchmark]] = {
    "flash": flash.BENCHMARKS,
    "linear": linear.BENCHMARKS,
    "decoder": decoder.BENCHMARKS,
    "layers": layers.BENCHMARKS,
    "layers-eager": layers.EAGER_BENCHMARKS,
}
MEASURES = {
    "forward": (FORWARD,),
    "backward": (FORWARD_BACKWARD,),
    "host": (FORWARD + HOST, FORWARD_BACKWARD + HOST),
    "step": (STEP,),
    "long": (LONG,),
}
_REPEATS_A_STEP_ROUND = 5


@dataclass(frozen=True)
class Comparison:
    """The rows of one run with what a reader needs beside them.

    conditions: of each part, as `Conditions.columns` gives them, with its name as "moment"; told:
    what the benchmark tells of each shape.
    """

    title: str
    subject: str
    rows: list[dict]
    conditions: list[dict]
    told: list[str]


def choose(what: str, wanted: Sequence[str] | None, known: Iterable[str]) -> list[str]:
    """Those of `known` that are wanted, None for all. Raises InputError for an unknown one."""
    known = list(known)
    for name in wanted or ():
        if name not in known:
            raise InputError(f"unknown {what} {name!r}; choose among {', '.join(known)}")
    return [name for name in known if wanted is None or name in wanted]


def _restricted(benchmark: Benchmark, peers: Sequence[str] | None) -> Benchmark:
    """The benchmark with the chosen peers and, whatever is chosen, its subject."""
    names = {benchmark.subject, *choose("peer", peers, benchmark.names)}
    kept = {
        systems: tuple(side for side in sides if side.name in names)
        for systems, sides in benchmark.steps.items()
    }
    return replace(
        benchmark,
        peers=tuple(peer for peer in benchmark.peers if peer.name in names),
        steps={systems: sides for systems, sides in kept.items() if len(sides) > 1},
    )


def _measures_of(benchmark: Benchmark, device_kind: str) -> list[str]:
    """What a benchmark measures, by the names that a choice takes.

    On a CPU a call's own time is the host's.
    """
    operator = ["forward", "backward"] if benchmark.peers else []
    operator += ["host"] if operator and device_kind == "cuda" else []
    step = ["step"] if benchmark.steps else []
    return operator + step + (["long"] if benchmark.long else [])


def _check_output(path: Path) -> None:
    """Raise InputError where the results could not be written, before anything is measured."""
    if path.is_dir():
        raise InputError(f"output {path} is a folder; name a Parquet file")
    folder = next(p for p in path.absolute().parents if os.path.exists(p))
    if not (folder.is_dir() and os.access(folder, os.W_OK | os.X_OK)):
        raise InputError(f"output {path}: {folder} is no folder to write in; choose another")


def run(
    name: str,
    systems: Systems,
    settings: Mapping,
    device_kind: str,
    output: Path,
    measures: Sequence[str] | None = None,
    peers: Sequence[str] | None = None,
    repeats: int = 50,
    stamp: Stamp = UNKNOWN,
) -> Comparison:
    """Measure one benchmark at a campaign's geometry and write its Parquet.

    systems: the campaign's benchmarks; settings: its configuration, which the origin has a hash of.
    device_kind: "cuda" or "cpu"; measures: of "forward", "backward" (forward and backward
    together), "host" (how long either keeps the host, on a GPU), "step" and "long" (steps at ever
    longer contexts) those that the benchmark has, None for all; peers: names, None for all, the
    subject always among them. An operator is timed in `repeats` rounds, a training step in a fifth
    of them, three updates each. The file is written anew after every part, so that an interrupted
    run leaves what it measured. Raises InputError for unknown names, repeats < 1, an output that
    cannot be written, and where there is no GPU.
    """
    whole = BENCHMARKS[choose("benchmark", [name], BENCHMARKS)[0]][device_kind]
    chosen = choose("measure", measures, _measures_of(whole, device_kind))
    only = [measure for name in chosen for measure in MEASURES[name]]
    if repeats < 1:
        raise InputError(f"repeats is {repeats}; give at least 1")
    _check_output(output)
    benchmark = _restricted(whole, peers)
    if device_kind == "cuda" and not torch.cuda.is_available():
        raise InputError(
            f"bench {name} measures on a CUDA GPU and PyTorch sees none here; "
            "--device cpu compares plain PyTorch at small shapes"
        )
    on_operator = [measure for measure in only if measure not in (STEP, LONG)]
    shapes = benchmark.shapes(systems) if on_operator else []
    steps = [[group] for group in step_groups(benchmark.steps, systems)] if STEP in only else []
    sweep = long_groups(benchmark.long, systems) if LONG in only else []
    if not (shapes or steps or sweep):
        raise InputError(
            f"nothing to compare: no training step of {benchmark.subject} has one of the chosen "
            "peers and scales; choose others"
        )
    precision, step_rounds = systems[0].precision, -(-repeats // _REPEATS_A_STEP_ROUND)

    def parts_of(device: torch.device) -> list[Part]:
        given = {"precision": precision, "device": describe(device), "subject": benchmark.subject}
        case = partial(Case, name, **given)
        return [
            *(operator_part(benchmark, case(s), on_operator, repeats, device) for s in shapes),
            *(steps_part(groups, case, step_rounds, device) for groups in steps),
            *(steps_part(groups, case, step_rounds, device, LONG) for groups in sweep),
        ]

    config_hash = canonical_hash([name, settings, benchmark.names, only, repeats])
    with session(device_kind, f"bench {name}", parts_of) as (shared, parts):
        title = f"{benchmark.title}: {describe(shared.device)}, {precision}"
        told = []
        if benchmark.tells is not None:
            given = DTYPES[precision], shared.device
            told = [f"{s.scale}, width {s.width}: {benchmark.tells(s, *given)}" for s in shapes]
        found = Comparison(title, benchmark.subject, [], [], told)
        for part in parts:
            found.rows.extend(part.rows(shared.compare(part)))
            found.conditions.append({"moment": part.moment, **shared.conditions.columns()})
            given = output, BENCH, found.rows, systems[0].campaign, config_hash, "bench"
            more = {"benchmark": name, "repeats": repeats, "conditions": found.conditions}
            more |= {"stamp": stamp}
            shared.record(*given, **more)
    return found
