"""The records of the readings: one Parquet a kind, gathered from a folder a run.

A run's own records lie in results/<campaign>/readings/<reading>/<variant>/<seed>/. What is shipped,
and what the report reads, are the four files that `collect` makes of them.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pandas as pd

from relation.errors import InputError
from relation.flow.pooled import over_sequences
from relation.pipeline.campaign import Campaign
from relation.pipeline.jobs import DAMAGED, DONE
from relation.pipeline.ledger import Ledger
from relation.pipeline.origin import stamp
from relation.pipeline.places import READING_KINDS, READINGS
from relation.pipeline.results import Results
from relation.spec import RunSpec, canonical_hash
from relation.store.layouts import (
    FLOW,
    LOG,
    PROBES,
    READING_DIAGNOSES,
    READING_LOSSES,
    READING_PROBES,
    READING_RUNS,
    RUN,
)
from relation.store.parquet import read_origin, read_parquet, write_parquet
from relation.store.stamp import origin

LAYOUTS = {
    "runs": READING_RUNS,
    "losses": READING_LOSSES,
    "probes": READING_PROBES,
    "diagnoses": READING_DIAGNOSES,
}
# Of a run's origin, what each of its rows carries: the files gather runs of several campaigns.
_ORIGIN = ("config_hash", "code_hash", "golden_hash", "commit", "device", "created")


# Compared by identity: frames have no truth of their own, and what is computed of them is cached.
@dataclass(frozen=True, eq=False)
class ReadingRecords:
    """What is there of a campaign's readings.

    described: every reading, in the configuration's order, as `Reading.described` gives it; runs,
    losses, probes, diagnoses: the rows of the four schemas, those of a run that readings share
    under the name of each; planned: how many runs the campaign asks for; there: how many of them
    have records; absent: the names of the others, as reading/variant/seed; sources: the files.
    """

    described: tuple[dict, ...]
    runs: pd.DataFrame
    losses: pd.DataFrame
    probes: pd.DataFrame
    diagnoses: pd.DataFrame
    planned: int
    there: int
    absent: tuple[str, ...]
    sources: tuple[str, ...]


def _own(ledger: Ledger, run: RunSpec) -> dict[str, pd.DataFrame] | None:
    """One run's rows by kind from its own folder; None where a record is missing or another's.

    Raises InputError for one that is damaged.
    """
    trained, diagnosed = ledger.train(run), ledger.diagnose(run)
    for job in (trained, diagnosed):
        state = ledger.recorded(job)
        if state.name == DAMAGED:
            raise InputError(state.reason)
        if job.shipped or state.name != DONE:
            return None
    files, flow = trained.paths, diagnosed.paths[0]
    origin_of_run = read_origin(files[0])
    key = {"reading": run.reading, "variant": run.variant, "seed": run.seed}
    record, log, probes = (
        read_parquet(path, layout).to_pandas()
        for path, layout in zip(files, (RUN, LOG, PROBES), strict=True)
    )
    about = {name: origin_of_run.get(name) for name in _ORIGIN}
    about["corpus_sha256"] = origin_of_run["data_origin"].get("corpus_sha256")
    about["torch"] = origin_of_run["versions"].get("torch")
    about["backend"] = origin_of_run["backends"]["mha" if run.variant == "mha" else "full"]
    return {
        "runs": record.assign(**key, **about),
        "losses": log.assign(**key),
        "probes": probes.assign(**key),
        "diagnoses": over_sequences(read_parquet(flow, FLOW).to_pandas()).assign(**key),
    }


def _shipped(results: Results) -> dict[str, pd.DataFrame]:
    """The shipped rows by kind; none where nothing is shipped or it is not to count."""
    return {
        kind: read_parquet(path, LAYOUTS[kind]).to_pandas()
        for kind, path in results.shipped_readings().items()
    }


def _by_run(rows: pd.DataFrame) -> dict[tuple[str, str, int], pd.DataFrame]:
    """Rows by reading, variant and seed."""
    return dict(iter(rows.groupby(["reading", "variant", "seed"], sort=False)))


def _key(run: RunSpec) -> tuple[str, str, int]:
    return run.reading, run.variant, run.seed


def any_own(results: Results) -> bool:
    """Whether some run of a reading has all its records in the campaign's own folder."""
    ledger = Ledger(results)
    return any(_own(ledger, run) is not None for run in results.campaign.reading_runs)


def gather(results: Results) -> dict[str, pd.DataFrame]:
    """The rows of every planned run that is there, by kind: its own, else shipped ones.

    Both are of this very configuration, and of the texts given now where some are.
    """
    parts: dict[str, list[pd.DataFrame]] = {kind: [] for kind in READING_KINDS}
    shipped, ledger = _shipped(results), Ledger(results)
    by_run = {kind: _by_run(rows[LAYOUTS[kind].names]) for kind, rows in shipped.items()}
    for run in results.campaign.planned_reading_runs:
        found = None if results.shipped_only else _own(ledger, run)
        for kind, rows in (found or {}).items():
            parts[kind].append(rows[LAYOUTS[kind].names])
        if found is None and run.name in results.shipped_reading_runs:
            for kind, rows in by_run.items():
                parts[kind] += [rows[_key(run)]] if _key(run) in rows else []
    return {kind: _joined(kind, rows) for kind, rows in parts.items()}


def _joined(kind: str, parts: Sequence[pd.DataFrame]) -> pd.DataFrame:
    if not parts:
        return pd.DataFrame(columns=LAYOUTS[kind].names)
    return pd.concat(parts, ignore_index=True)


def gather_to_ship(results: Results) -> dict[str, pd.DataFrame]:
    """The rows to be shipped: of every own run, and every shipped row that none of them replaces.

    So publishing never drops a shipped run, whatever is configured now. A planned run that has
    neither takes the rows that another campaign has shipped of it, from the same texts.
    """
    parts: dict[str, list[pd.DataFrame]] = {kind: [] for kind in READING_KINDS}
    shipped, ledger = _shipped(replace(results, published=True)), Ledger(results)
    for run in results.campaign.planned_reading_runs:
        for kind, rows in (_own(ledger, run) or {}).items():
            parts[kind].append(rows[LAYOUTS[kind].names])
            if shipped:
                replaced = _by_run(shipped[kind]).get(_key(run), shipped[kind].iloc[:0])
                shipped[kind] = shipped[kind].drop(replaced.index)
    found = {
        kind: _joined(kind, [*([shipped[kind]] if shipped else []), *rows])
        for kind, rows in parts.items()
    }
    lent = [found, *_lent(results, found["runs"])]
    return {kind: _joined(kind, [rows[kind] for rows in lent]) for kind in READING_KINDS}


def _lent(results: Results, runs: pd.DataFrame) -> Iterator[dict[str, pd.DataFrame]]:
    """What other campaigns have shipped of planned runs that `runs` lacks, a run at a time.

    Such a run has the same name and configuration, and texts that `runs` were made from; of several
    the newest counts. Raises InputError for a shipped file that was changed.
    """
    there = {tuple(key) for key in runs[["reading", "variant", "seed"]].to_numpy()}
    texts = set(runs["corpus_sha256"].dropna())
    absent = {
        _key(run): run.config_hash
        for run in results.campaign.planned_reading_runs
        if _key(run) not in there
    }
    files = {kind: READINGS / f"{kind}.parquet" for kind in READING_KINDS}
    newest: dict[tuple[str, str, int], dict[str, pd.DataFrame]] = {}
    places = results.shipped.place.parent.glob(f"[!.]*/{files['runs']}") if absent else ()
    for place in sorted(path.parents[1] for path in places):
        if place == results.shipped.place:
            continue
        lender, rows = replace(results.shipped, place=place), {}
        for kind, file in files.items():
            lender.check(file)
            rows[kind] = _by_run(read_parquet(place / file, LAYOUTS[kind]).to_pandas())
        for key in absent.keys() & rows["runs"].keys():
            found = {kind: by_run.get(key, _joined(kind, [])) for kind, by_run in rows.items()}
            row = found["runs"].iloc[0]
            if row["config_hash"] != absent[key] or row["corpus_sha256"] not in texts:
                continue
            if key not in newest or row["created"] > newest[key]["runs"]["created"].item():
                newest[key] = found
    yield from newest.values()


def collect(results: Results) -> list[Path]:
    """Write the four files that the report reads, each with the rows of every run that is there.

    Raises InputError where no run is, or where runs of a pair read different windows.
    """
    return write_gathered(results, gather(results), results.folder / READINGS)


def write_gathered(results: Results, frames: dict[str, pd.DataFrame], folder: Path) -> list[Path]:
    """Write the four frames below `folder`. Raises InputError as `collect` does."""
    if frames["runs"].empty:
        raise InputError(f"campaign {results.campaign.name} has no finished run of a reading")
    check_pairs(frames["runs"])
    campaign = results.campaign
    identity = canonical_hash([run.config_hash for run in campaign.reading_runs])
    devices = "; ".join(sorted(set(frames["runs"]["device"])))
    written = origin(campaign.name, identity, "readings", devices, stamp("readings"))
    paths = []
    for kind, rows in frames.items():
        path = folder / f"{kind}.parquet"
        columns = {name: list(_values(rows[name])) for name in LAYOUTS[kind].names}
        write_parquet(path, LAYOUTS[kind], columns, written)
        paths.append(path)
    return paths


def _values(column: pd.Series) -> Iterator[Any]:
    """A column's values, None for what is missing."""
    return (None if pd.isna(value) else value for value in column)


def check_pairs(runs: pd.DataFrame) -> None:
    """Raise InputError unless all runs of a text and seed read the same windows in one order."""
    texts = ["unigram_entropy", "validation_tokens", "seed"]
    for (corpus, _, seed), group in runs.groupby(texts):
        if group["order_hash"].nunique() > 1:
            names = ", ".join(sorted(group["reading"] + "/" + group["variant"]))
            raise InputError(
                f"runs of seed {seed} on one text (unigram entropy {corpus:.6f}) read different "
                f"windows: {names}; delete the older ones and run snakemake again"
            )


def _expanded(campaign: Campaign, rows: pd.DataFrame) -> pd.DataFrame:
    """Rows with those of a shared run repeated under every reading that rests on it."""
    copies, by_run = [rows], _by_run(rows)
    for reading in campaign.readings:
        for run in reading.runs:
            if run.reading != reading.name and _key(run) in by_run:
                copies.append(by_run[_key(run)].assign(reading=reading.name))
    return pd.concat(copies, ignore_index=True)


def load_readings(results: Results | None) -> ReadingRecords | None:
    """What is there of a campaign's readings; None where it plans none or none is there."""
    if results is None or not results.campaign.readings:
        return None
    # Not the gathered files: they may be older than the runs beside them.
    campaign, frames = results.campaign, gather(results)
    if frames["runs"].empty:
        return None
    files = results.reading_files()
    if not all(path.exists() for path in files.values()):
        files = results.shipped_readings()
    planned = [run.name for run in campaign.planned_reading_runs]
    there = {
        f"{row.reading}/{row.variant}/{row.seed}" for row in frames["runs"].itertuples(index=False)
    }
    return ReadingRecords(
        described=tuple(reading.described() for reading in campaign.readings),
        **{kind: _expanded(campaign, rows) for kind, rows in frames.items()},
        planned=len(planned),
        there=len(there.intersection(planned)),
        absent=tuple(name for name in planned if name not in there),
        sources=tuple(path.as_posix() for path in files.values()),
    )
