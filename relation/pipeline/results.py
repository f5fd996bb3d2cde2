"""Where results lie: results/<campaign>/, or results/published/<campaign>/ for shipped records.

A published record whose configuration hash is the campaign's counts as done: its job never enters
the DAG, and its Parquet is read in place. The campaign's own record wins over a published one,
unless it is the very file that was shipped; `published: false` ignores published records.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from relation.data.sources import corpus_fingerprint
from relation.errors import InputError
from relation.pipeline.campaign import Campaign, resolve
from relation.pipeline.places import (
    MODELS_FILE,
    READING_KINDS,
    READINGS,
    RUN_FILES,
    diagnostics_path,
    examination_paths,
    run_path,
    with_pictures,
)
from relation.pipeline.shipped import Shipped
from relation.spec import DataSpec, RunSpec, Spec
from relation.store.parquet import read_origin, read_parquet

# Snakemake makes the one when every record is there; a report with gaps must not pass for it.
REPORT, SO_FAR = "report", "so-far"
# The first replication's records hold a hash of their corpus's files: the same texts' own hash.
_TEXTS_OF_FILES = {
    "be830d96b31ed42cf3724ba6f02fce99ebb7c30ca46c6709711d293a773fb5ec": (
        "f912d9ff442f84a9255df0bfc0ffcd38401dde0b0238a7a445b3d563a0333c74"
    )
}


def texts_of(origin: Mapping[str, Any]) -> str | None:
    """Fingerprint of the local texts behind a record's origin; None where it has none."""
    found = origin.get("data_origin", {}).get("corpus_sha256")
    return _TEXTS_OF_FILES.get(found, found)


@dataclass(frozen=True)
class Results:
    """The files of one campaign below `root`, the folder results/.

    `shipped_only`: those that were published, read and rendered where they lie, and no others;
    `published`: whether shipped records count as done; `report_name`: the report's folder;
    `shown_readings`: of another campaign, whose readings the report shows.
    """

    campaign: Campaign
    root: Path = Path("results")
    shipped_only: bool = False
    published: bool = True
    report_name: str = REPORT
    shown_readings: "Results | None" = None

    @property
    def folder(self) -> Path:
        return self.shipped.folder if self.shipped_only else self.own_folder

    @property
    def own_folder(self) -> Path:
        """Where the campaign's jobs write."""
        return self.root / self.campaign.name

    @cached_property
    def shipped(self) -> Shipped:
        """What was published of the campaign."""
        return Shipped(self.campaign, self.root / "published" / self.campaign.name)

    def data(self, data: DataSpec) -> Path:
        """The folder of a prepared corpus."""
        return self.folder / "data" / data.name

    @property
    def models(self) -> Path:
        return self.folder / MODELS_FILE

    @property
    def started_with(self) -> Path:
        """The configuration that the running workflow was started with."""
        return self.folder / "campaign.json"

    @property
    def report(self) -> Path:
        """The folder of the cells, figures and pages."""
        return self.folder / self.report_name

    @property
    def so_far(self) -> "Results":
        """The same, with the place of a report of what is there."""
        return replace(self, report_name=SO_FAR)

    def _origins(self, spec: Spec, folder: Path, relatives: Iterable[Path]) -> list[dict] | None:
        """The origins of records of this very configuration; None unless all are there and such."""
        paths = [folder / relative for relative in relatives]
        if not all(path.exists() for path in paths):
            return None
        if folder == self.shipped.folder:
            for relative in relatives:
                self.shipped.check(relative)
        origins = [read_origin(path) for path in paths]
        return origins if all(o["config_hash"] == spec.config_hash for o in origins) else None

    def _published(self, spec: Spec, *relatives: Path, texts: str | None = None) -> bool:
        """Whether shipped files of this very configuration stand for the campaign's own.

        They are there, whole and unchanged, and no files of its own win over them. texts:
        fingerprint of the local texts that they must have been made from, where some are given.
        Raises InputError for a shipped file that was changed.
        """
        if self.shipped_only or not self.published:
            return False  # shipped alone, they are the campaign's own, whatever made them
        shipped = self._origins(spec, self.shipped.folder, relatives)
        if shipped is None or texts not in (None, texts_of(shipped[0])):
            return False
        return not self._own(spec, relatives, shipped)

    def _own(self, spec: Spec, relatives: Iterable[Path], shipped: list[dict]) -> bool:
        """Whether files of the campaign's own win over the shipped ones, whose origins are given.

        They are all there, of this configuration and those texts, and not what was shipped, made
        in the same second of the same: what is shipped stays when code changes, and what was
        published with it.
        """
        try:
            own = self._origins(spec, self.own_folder, relatives)
        except InputError:
            return True  # damaged: whoever reads it says so, and nothing else is shown for it
        return own not in (None, shipped) and texts_of(own[0]) == texts_of(shipped[0])

    @cached_property
    def _corpora(self) -> dict[str, str | None]:
        return {}

    def corpus(self, data: str) -> str | None:
        """Fingerprint of the local texts given now for a corpus, read once; None without them.

        Raises InputError where they cannot be read.
        """
        if data not in self._corpora:
            self._corpora[data] = corpus_fingerprint(self.campaign.data[data].path)
        return self._corpora[data]

    @cached_property
    def _known(self) -> dict[str, bool]:
        return {}

    def is_published(self, run: RunSpec) -> bool:
        """Whether a shipped record of this very configuration stands for the run.

        Raises InputError for a shipped file that was changed.
        """
        if run.name not in self._known:
            files = (run_path(run) / file for file in RUN_FILES)
            self._known[run.name] = self._published(run, *files, texts=self.corpus(run.data))
        return self._known[run.name]

    def single(self, spec: Spec, file: Path) -> Path:
        """A record of one file: the shipped one where it stands for the campaign's own."""
        return (self.shipped.folder if self._published(spec, file) else self.folder) / file

    def run(self, run: RunSpec) -> Path:
        """The folder with a run's RUN_FILES."""
        base = self.shipped.folder if self.is_published(run) else self.folder
        return base / run_path(run)

    def diagnostics(self, run: RunSpec) -> Path | None:
        """A run's diagnostics; None for a published run that was published without them.

        They follow their run: own ones beside a shipped run are of another checkpoint. That of a
        shipped run is not shipped, so they cannot be made without training it again.
        """
        relative = diagnostics_path(run)
        if not self.is_published(run):
            return self.folder / relative
        spec = self.campaign.diagnostics_spec(run)
        shipped = self._origins(spec, self.shipped.folder, with_pictures(relative))
        return None if shipped is None else self.shipped.folder / relative

    def examination(self, run: RunSpec) -> list[Path] | None:
        """A run's examination; None where the run was published and this was not.

        As its diagnostics it follows the run.
        """
        relatives = examination_paths(run).values()
        if self.shipped_only:
            found = [self.folder / relative for relative in relatives]
            shipped = (self.folder / run_path(run)).exists()
            return found if all(path.exists() for path in found) or not shipped else None
        if not self.is_published(run):
            return [self.folder / relative for relative in relatives]
        shipped = self._origins(
            self.campaign.examination_spec(run), self.shipped.folder, [*relatives]
        )
        return None if shipped is None else [self.shipped.folder / path for path in relatives]

    @property
    def of_readings(self) -> "Results | None":
        """Whose readings the report shows: the campaign's own, another's, or none."""
        if self.campaign.readings:
            return self
        shown = self.shown_readings
        return None if shown is None else replace(shown, shipped_only=self.shipped_only)

    def shipped_readings(self) -> dict[str, Path]:
        """The shipped files of the readings by kind, whole and unchanged; empty without them."""
        if not (self.shipped_only or self.published):
            return {}
        files = {kind: READINGS / f"{kind}.parquet" for kind in READING_KINDS}
        if not all((self.shipped.folder / file).exists() for file in files.values()):
            return {}
        for file in files.values():
            self.shipped.check(file)
        return {kind: self.shipped.folder / file for kind, file in files.items()}

    @cached_property
    def shipped_reading_runs(self) -> frozenset[str]:
        """The readings' runs for which a shipped row of this configuration, and text, stands."""
        path = self.shipped_readings().get("runs")
        if path is None:
            return frozenset()
        rows = read_parquet(path).select(
            ["reading", "variant", "seed", "config_hash", "corpus_sha256"]
        )
        made = {f"{row['reading']}/{row['variant']}/{row['seed']}": row for row in rows.to_pylist()}
        return frozenset(
            run.name
            for run in self.campaign.planned_reading_runs
            if run.name in made
            and made[run.name]["config_hash"] == run.config_hash
            and self.corpus(run.data) in (None, made[run.name]["corpus_sha256"])
        )

    def own_reading_runs(self) -> list[RunSpec]:
        """The readings' runs whose own records count: not shipped, or made here all the same."""
        if self.shipped_only:
            return []
        return [
            run
            for run in self.campaign.reading_runs
            if run.name not in self.shipped_reading_runs
            or (self.own_folder / run_path(run) / "record.parquet").exists()
        ]

    def reading_files(self) -> dict[str, Path]:
        """The gathered records of the readings by kind: shipped ones where none is made here."""
        if not self.campaign.readings:
            return {}
        shipped = self.shipped_readings()
        if shipped and not self.own_reading_runs():
            return shipped
        return {kind: self.folder / READINGS / f"{kind}.parquet" for kind in READING_KINDS}


def chosen_results(config: Mapping, **overrides: Any) -> Results:
    """The results of the campaign that `config` chooses; `overrides` as in `resolve`.

    `published` says where finished work is found and changes no result: it is checked with the
    configuration, but is no part of the campaign and its settings. Raises InputError as `resolve`.
    """
    campaign = resolve(config, **overrides)
    settings = dict(campaign.settings)
    published = settings.pop("published", True) in (True, "true")
    shown = None
    if campaign.readings_from is not None:
        whole = dict.fromkeys(("scales", "seeds", "variants", "readings"))
        readings = resolve({**config, **whole, "campaign": campaign.readings_from})
        shown = Results(readings, published=published)
    return Results(replace(campaign, settings=settings), published=published, shown_readings=shown)
