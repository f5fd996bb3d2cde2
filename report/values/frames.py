"""Loading a campaign's records, with what is missing and why."""

import math
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import pandas as pd
import pyarrow as pa

from relation.errors import InputError
from relation.pipeline import gaps
from relation.pipeline.campaign import Campaign
from relation.pipeline.gather import ReadingRecords, load_readings
from relation.pipeline.jobs import Record
from relation.pipeline.ledger import Ledger
from relation.pipeline.provenance import PROVENANCE, provenance_row
from relation.pipeline.results import Results
from relation.store import layouts
from relation.store.parquet import read_origin, read_parquet
from relation.variants import PAIRED
from report.values.efficiency import smoothed_loss, token_crossing
from report.values.page import campaign_page

# Frames here are small and selected from thousands of times, which costs Arrow more than Python.
pd.set_option("mode.string_storage", "python")

# The layout of each kind of record, and the columns that its place among the results adds. Kinds of
# the same after "further" or "converted" are those of runs beyond the matrix.
_LAYOUTS = {
    "models": (layouts.MODELS, "source"),
    "run": (layouts.RUN, "device", "processes", "source"),
    "log": (layouts.LOG, "scale", "variant", "seed", "source"),
    "probes": (layouts.PROBES, "alike", "source"),
    "diagnostics": (layouts.FLOW, "source"),
    "curves": (layouts.FLOW_CURVES, "source"),
    "maps": (layouts.FLOW_MAPS, "source"),
    "throughput": (layouts.THROUGHPUT, "source"),
    "complexity": (layouts.COMPLEXITY, "scale", "source"),
    "decode": (layouts.DECODE, "scale", "source"),
    "verification": (layouts.VERIFICATION, "source"),
    "gradients": (layouts.GRADIENTS, "source"),
    "recall": (layouts.RECALL, "source"),
    "copying": (layouts.COPYING, "source"),
    "lengths": (layouts.LENGTHS, "source"),
    "self_use": (layouts.SELF_USE, "source"),
}


def _layout(kind: str) -> tuple[pa.Schema, list[str]]:
    layout, *added = _LAYOUTS[kind.rpartition(" ")[2]]
    return layout, added


def _frame(kind: str, parts: Sequence[pd.DataFrame] = ()) -> pd.DataFrame:
    """The rows of one kind of record; without any an empty frame with its columns."""
    if parts:
        return pd.concat(parts, ignore_index=True)
    layout, added = _layout(kind)
    return pd.DataFrame(columns=[*layout.names, *added])


def _of(kind: str) -> dict[str, Any]:
    """The options of the field that holds one kind of record."""
    return {"default_factory": partial(_frame, kind), "metadata": {"kind": kind}}


_Made = TypeVar("_Made")
_MEASURES = ("target", "crossing_tokens", "reduction", "own_reduction", "end_gap")


def _efficiency_frame(rows: Iterable[dict] = ()) -> pd.DataFrame:
    frame = pd.DataFrame(rows, columns=["scale", "seed", *_MEASURES])
    return frame.astype(dict.fromkeys(_MEASURES, float))


@dataclass(frozen=True, kw_only=True)
class CampaignRecords:
    """Tidy frames of one campaign.

    models: a row a scale and variant; runs: a row a finished run (with device, source and how
    many processes trained it, NaN where that changed or is not recorded); logs: a row an
    update; efficiency: a row a pair (target nat/token, crossing_tokens, reduction; what the
    same measure gives MHA against itself, own_reduction, and Relation's last loss above the
    target, end_gap); flow: a row a metric of a head; throughput, complexity and decode: a row
    a measurement; verification: a row a checked quantity; gradients: a row a measure of a checked
    gradient; recall: a row a training, task and octave of distance; missing: a row a planned
    thing that is not there (kind, scale, variant, seed, status, reason); provenance: a row a
    record that is there; page: what the report says about the campaign; curves, maps and probes:
    rows of FLOW_CURVES, FLOW_MAPS and PROBES, the latter with `alike`, whether they were taken as
    the present configuration takes them; converted_probes: those of the runs that go on from MHA's
    weights, converted or as MHA;
    copying, lengths and self_use: rows of COPYING, LENGTHS and SELF_USE; readings: those that the
    report shows, None where there are none.
    """

    models: pd.DataFrame = field(**_of("models"))
    runs: pd.DataFrame = field(**_of("run"))
    logs: pd.DataFrame = field(**_of("log"))
    flow: pd.DataFrame = field(**_of("diagnostics"))
    curves: pd.DataFrame = field(**_of("curves"))
    maps: pd.DataFrame = field(**_of("maps"))
    probes: pd.DataFrame = field(**_of("probes"))
    throughput: pd.DataFrame = field(**_of("throughput"))
    complexity: pd.DataFrame = field(**_of("complexity"))
    decode: pd.DataFrame = field(**_of("decode"))
    verification: pd.DataFrame = field(**_of("verification"))
    gradients: pd.DataFrame = field(**_of("gradients"))
    recall: pd.DataFrame = field(**_of("recall"))
    copying: pd.DataFrame = field(**_of("copying"))
    lengths: pd.DataFrame = field(**_of("lengths"))
    self_use: pd.DataFrame = field(**_of("self_use"))
    further_runs: pd.DataFrame = field(**_of("further run"))
    further_probes: pd.DataFrame = field(**_of("further probes"))
    converted_probes: pd.DataFrame = field(**_of("converted probes"))
    efficiency: pd.DataFrame = field(default_factory=_efficiency_frame)
    further_efficiency: pd.DataFrame = field(default_factory=_efficiency_frame)
    missing: pd.DataFrame
    provenance: pd.DataFrame
    page: dict
    readings: ReadingRecords | None = None
    _made: dict[tuple[Hashable, ...], Any] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    def made(self, make: Callable[..., _Made], *of: Hashable) -> _Made:
        """What a function makes of the records and of `of`, such as a table's values; made once."""
        key = (make, *of)
        if key not in self._made:
            self._made[key] = make(self, *of)
        return self._made[key]


def _check_alike(hashes: Mapping[str, str], what: str, which: str) -> None:
    """Raise InputError unless all hashes are the same; what: the names' things, and their fault."""
    if len(set(hashes.values())) > 1:
        listed = ", ".join(f"{name} {digest[:12]}" for name, digest in hashes.items())
        raise InputError(
            f"{what} ({listed}): they cannot be compared; delete the older {which} and run "
            "snakemake again"
        )


def check_order(runs: pd.DataFrame) -> None:
    """Raise InputError unless all runs of one scale and seed read the same windows in one order."""
    for (scale, seed), group in runs.groupby(["scale", "seed"]):
        hashes = dict(zip(group["variant"], group["order_hash"], strict=True))
        _check_alike(hashes, f"runs of {scale} seed {seed} read different data", "ones")


def check_sequences(origins: Mapping[str, dict]) -> None:
    """Raise InputError unless all checkpoints of a scale were diagnosed on the same sequences.

    origins: those of the diagnostics, by the name of the run.
    """
    hashes: dict[str, dict[str, str]] = {}
    for name, origin in origins.items():
        hashes.setdefault(name.partition("/")[0], {})[name] = origin["sequences_hash"]
    for scale, found in hashes.items():
        what = f"checkpoints of {scale} were diagnosed on different sequences"
        _check_alike(found, what, "diagnostics")


def _efficiency(runs: pd.DataFrame, logs: pd.DataFrame, window: float) -> pd.DataFrame:
    rows = []
    by_run = dict(iter(logs.groupby(["scale", "seed", "variant"])))
    budgets = runs.set_index(["scale", "seed", "variant"])["budget_tokens"].sort_index()
    for pair in dict.fromkeys(key[:2] for key in budgets.index):
        keys = [(*pair, variant) for variant in PAIRED]
        if not all(key in by_run and key in budgets.index for key in keys):
            continue
        budget = int(budgets[keys[0]])
        columns = [
            [log[name].to_numpy() for name in ("tokens", "update_tokens", "loss")]
            for log in (by_run[key].sort_values("update") for key in keys)
        ]
        mha, full = (smoothed_loss(*given, window * budget) for given in columns)
        own, tokens = (given[0] for given in columns)
        crossing = token_crossing(mha[-1], tokens, full, budget)
        rows.append(
            {
                **dict(zip(("scale", "seed"), pair, strict=True)),
                "target": crossing.target,
                "crossing_tokens": crossing.tokens,
                "reduction": crossing.reduction,
                "own_reduction": token_crossing(mha[-1], own, mha, budget).reduction,
                "end_gap": full[-1] - mha[-1],
            }
        )
    return _efficiency_frame(rows)


class _Loader:
    """Reads planned records one by one; what is not there is a gap, or an error."""

    def __init__(self, results: Results, partial: bool):
        self.campaign, self.published = results.campaign, results.published
        self.partial = partial
        self.frames: dict[str, list[pd.DataFrame]] = {}
        self.origins: list[dict] = []
        self.diagnosed: dict[str, dict] = {}
        self.provenance: dict[Path, dict] = {}
        self.missing: list[dict] = list(gaps.left_out(self.campaign))

    def take(self, record: Record) -> None:
        """Read one record. Raises InputError where it will not do and the whole was asked for."""
        if record.path is None:
            self.missing.append(gaps.unpublished(record))
            return
        try:
            origin = read_origin(record.path)
            if not self.partial and record.job.config_hash != origin["config_hash"]:
                raise InputError(
                    f"{record.path} was made with another configuration; run snakemake to make it "
                    "again"
                )
            self._keep(record, origin)
        except InputError as error:
            if not self.partial:
                raise
            self.missing.append(gaps.not_there(record, error))

    def _keep(self, record: Record, origin: dict) -> None:
        job, kind = record.job, record.kind
        if kind == "systems":
            kind = gaps.kind_of(job.variant)
        layout, added = _layout(kind)
        counts = origin.get("processes", ())
        known = {
            "source": record.path.as_posix(),
            "scale": job.scale,
            "variant": job.variant,
            "seed": job.seed,
            "device": origin["device"],
            "processes": counts[0] if len(counts) == 1 else math.nan,
            "alike": kind.endswith("probes") and record.probed_alike(origin),
        }
        rows = read_parquet(record.path, layout).to_pandas()
        rows = rows.assign(**{name: known[name] for name in added})
        self.frames.setdefault(kind, []).append(rows)
        self.origins.append(origin)
        if kind == "diagnostics":
            self.diagnosed[job.name] = origin
        # What a record rests on is listed before it.
        base = self.provenance.get(record.rests_on)
        self.provenance[record.path] = provenance_row(
            record, origin, self.campaign, base, self.published
        )

    def frame(self, kind: str) -> pd.DataFrame:
        """The rows of one kind."""
        return _frame(kind, self.frames.get(kind, ()))


def load_records(campaign: Campaign, results: Results, *, partial: bool = False) -> CampaignRecords:
    """Read every record of a campaign.

    partial: read what is there, whatever configuration made it, and name the rest in `missing`.
    Raises InputError for runs that read different data and, unless `partial`, for a missing or
    damaged file or one that another configuration made.
    """
    loader = _Loader(results, partial)
    for record in Ledger(replace(results, campaign=campaign)).records:
        loader.take(record)
    frames = {
        of.name: loader.frame(of.metadata["kind"])
        for of in fields(CampaignRecords)
        if "kind" in of.metadata
    }
    runs, further = frames["runs"], frames["further_runs"]
    check_order(runs)
    check_order(further)
    check_sequences(loader.diagnosed)
    window, further_logs = campaign.efficiency_window, loader.frame("further log")
    devices = [*runs["device"], *further["device"], *frames["throughput"]["device"]]
    return CampaignRecords(
        **frames,
        efficiency=_efficiency(runs, frames["logs"], window),
        further_efficiency=_efficiency(further, further_logs, window),
        missing=pd.DataFrame(loader.missing, columns=gaps.MISSING),
        provenance=pd.DataFrame(loader.provenance.values(), columns=PROVENANCE),
        page=campaign_page(results, devices, loader.origins),
        readings=load_readings(results.of_readings),
    )
