"""A page's worth of each training run: results, settings, environment, log, how to run it again."""

import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from statistics import median
from typing import Any

from relation.pipeline.places import run_path
from relation.pipeline.provenance import command_for
from relation.pipeline.results import Results
from relation.spec import RunSpec
from relation.store.layouts import LOG, RUN
from relation.store.parquet import read_origin, read_parquet
from relation.variants import PAIRED, VARIANTS
from report.render.printed import MISSING
from report.render.templating import grouped
from report.values.gaps import by_job

Facts = tuple[tuple[str, str], ...]

# Lines of a log that a page repeats, and updates that its table lists; the files hold them all.
LOG_LINES = 200
LOGGED_UPDATES = 40

GROUPS = {
    "Schedule": (
        "budget_tokens", "warmup_tokens", "tokens_per_update", "context", "micro", "accumulation",
        "last_update",
    ),
    "Optimiser": (
        "learning_rate", "plateau_fraction", "betas", "adam_eps", "weight_decay",
        "decay_embedding", "gradient_clip",
    ),
}  # fmt: skip


@dataclass(frozen=True)
class Run:
    """One run of the whole matrix, or of a pair beyond it, which has no page.

    ``gap`` is empty, or says what became of it ("not run", "failed", "oom"), and ``reason``
    why, and ``command`` makes its record; where there is one the rest is filled: ``record`` holds
    the row of record.parquet, ``processes`` how many trained it, in order of change, ``rate`` the
    median tok/s of its updates, by all of them together, ``first_seconds`` what the first of them
    took, compilation included, ``settings`` the resolved configuration by group, ``texts`` the
    corpus's title and the SHA-256 of its texts where they are local ones, ``updates`` a sample of
    the log's rows, ``text`` the end of the text log, None where that is not at hand, ``stale``
    whether another configuration made the record, so that the run is to be trained again.
    """

    scale: str
    variant: str
    seed: int
    gap: str = ""
    reason: str = ""
    command: str = ""
    source: str = ""
    record: Mapping[str, Any] | None = None
    processes: tuple[int, ...] = ()
    rate: float | None = None
    first_seconds: float | None = None
    settings: tuple[tuple[str, Facts], ...] = ()
    environment: Facts = ()
    texts: tuple[str, str] | None = None
    updates: tuple[Mapping[str, Any], ...] = ()
    text: str | None = None
    stale: bool = False

    @property
    def name(self) -> str:
        return f"{self.scale}/{self.variant}/{self.seed}"

    @property
    def title(self) -> str:
        return VARIANTS[self.variant].title

    @property
    def page(self) -> str:
        """Its page and, below figures/, its picture, without the ending."""
        return page_of_run(self.scale, self.variant, self.seed)

    @property
    def partner(self) -> str | None:
        """The other variant of its pair."""
        others = [variant for variant in PAIRED if variant != self.variant]
        return others[0] if self.variant in PAIRED else None


@dataclass(frozen=True)
class Pair:
    """A pair beyond the matrix, which runs.html shows in one row."""

    mha: Run
    full: Run

    @property
    def row(self) -> str:
        """The id of its row."""
        return pair_anchor(self.mha.scale, self.mha.seed)

    @property
    def difference(self) -> float | None:
        """The final NLL of Relation less MHA's; None where one of them has no record."""
        if self.mha.record is None or self.full.record is None:
            return None
        return self.full.record["final_nll"] - self.mha.record["final_nll"]


def page_of_run(scale: str, variant: str, seed: int) -> str:
    """The page of a run of the matrix, without the ending."""
    return f"runs/{scale}-{variant}-{seed}"


def pair_anchor(scale: str, seed: int) -> str:
    """The id, in runs.html, of the row of a further pair."""
    return f"further-{scale}-{seed}"


def pairs_by_scale(runs: Iterable[Run]) -> list[list[Pair]]:
    """The pairs that further runs make up: a list a scale, by seed."""
    found = grouped(runs, attrgetter("scale", "seed")).values()
    pairs = [Pair(**{run.variant: run for run in both}) for both in found]
    scales = grouped(pairs, lambda pair: pair.mha.scale).values()
    return [sorted(own, key=lambda pair: pair.mha.seed) for own in scales]


def read_runs(
    planned: Iterable[RunSpec],
    results: Results,
    missing: Iterable[Mapping[str, Any]],
    kind: str = "run",
) -> list[Run]:
    """Runs of the matrix, or of pairs beyond it; those without a record with the reason.

    Args:
        planned: which.
        results: where their records lie.
        missing: the rows of missing.parquet.
        kind: what the latter call a run of these.

    Raises InputError for a damaged record.
    """
    gaps = {
        (row["scale"], row["variant"], row["seed"]): (MISSING[row["status"]], row["reason"])
        for row in by_job(missing)
        if row["kind"] == kind
    }
    everything, runs = command_for(results.campaign, results.published), []
    for spec in planned:
        key = (spec.scale, spec.variant, spec.seed)
        if key in gaps:
            target = results.own_folder / run_path(spec) / "record.parquet"
            runs.append(Run(*key, *gaps[key], f"{everything} -- {shlex.quote(target.as_posix())}"))
        else:
            runs.append(_read(spec, results))
    return runs


def _read(spec: RunSpec, results: Results) -> Run:
    folder = results.run(spec)
    path = folder / "record.parquet"
    origin = read_origin(path)
    (record,) = read_parquet(path, RUN).to_pylist()
    log = read_parquet(folder / "log.parquet", LOG).to_pylist()
    step = max(1, -(-len(log) // LOGGED_UPDATES))
    texts = tuple(origin.get("data_origin", {}).get(key) for key in ("title", "corpus_sha256"))
    return Run(
        spec.scale,
        spec.variant,
        spec.seed,
        source=path.as_posix(),
        record=record,
        stale=origin["config_hash"] != spec.config_hash,
        processes=tuple(origin.get("processes", ())),
        rate=median(row["tokens_per_second"] for row in log),
        first_seconds=log[0]["update_tokens"] / log[0]["tokens_per_second"],
        settings=_settings(origin["spec"], origin.get("processes", ())),
        environment=_environment(origin),
        texts=None if None in texts else texts,
        updates=tuple(row for i, row in enumerate(log) if i % step == 0 or i == len(log) - 1),
        # That of a shipped run was not shipped: what lies here is another attempt's.
        text=None
        if results.is_published(spec)
        else _log_text(
            results.folder / "logs" / "train" / f"{spec.scale}-{spec.variant}-{spec.seed}.log"
        ),
    )


def _settings(spec: Mapping[str, Any], processes: Sequence[int]) -> tuple[tuple[str, Facts], ...]:
    """The resolved configuration by group, with how many processes share what an update sums."""
    if list(processes) not in ([], [1]) and "accumulation" in spec:
        sharing = ", then ".join(map(str, processes))
        spec = {**spec, "accumulation": f"{spec['accumulation']}, shared by {sharing} processes"}
    grouped = {"Model": facts_of(spec["model"])}
    grouped |= {
        title: facts_of({key: spec[key] for key in keys if key in spec})
        for title, keys in GROUPS.items()
    }
    known = {"model", "scale", "variant", "seed", *sum(GROUPS.values(), ())}
    grouped["Further"] = facts_of({key: spec[key] for key in spec if key not in known})
    return tuple((title, facts) for title, facts in grouped.items() if facts)


def _environment(origin: Mapping[str, Any]) -> Facts:
    data = origin.get("data_origin", {})
    facts = {
        "device": origin["device"],
        "machine": origin["host_machine"],
        **origin["versions"],
        **{key: origin.get(key) for key in ("backends", "deterministic", "processes")},
        "corpus": data.get("title"),
        "corpus_source": data.get("source"),
        "corpus_sha256": data.get("corpus_sha256"),
        "order_hash": origin["order_hash"],
    }
    return facts_of({key: value for key, value in facts.items() if value is not None})


def facts_of(values: Mapping[str, Any]) -> Facts:
    """Names, and values as a reader sees them."""
    return tuple((name, _words(value)) for name, value in values.items())


def _words(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {_words(item)}" for key, item in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(map(_words, value))
    return str(value)


def _log_text(path: Path) -> str | None:
    """The last lines of a log; None where it is not at hand, as for shipped records."""
    if not path.exists():
        return None
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    return "\n".join(lines[-LOG_LINES:])
