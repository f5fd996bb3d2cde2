"""Where results lie: results/<campaign>/, or results/published/<campaign>/ for shipped records.

A published record whose configuration hash is the campaign's counts as done: its job never enters
the DAG, and its Parquet is read in place. The campaign's own record wins over a published one,
unless it is the very file that was shipped; `published: false` ignores published records.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from relation.data.sources import corpus_fingerprint
from relation.errors import InputError
from relation.pipeline.campaign import Campaign, resolve
from relation.spec import DataSpec, RecallSpec, RunSpec, Spec, SystemsSpec
from relation.store.bundle import unpack
from relation.store.files import beside, sha256_of
from relation.store.parquet import read_origin, read_parquet

CHECKSUMS = "SHA256SUMS"
# The records of the further pairs, which are shipped in one archive and read as files.
FURTHER = "further.tar.xz"
MODELS_FILE, VERIFICATION_FILE = Path("models.parquet"), Path("verification.parquet")
GRADIENTS_FILE = Path("gradients.parquet")
# Words beside a campaign's records, shown with what is missing of them.
OMISSIONS = "omissions.txt"
RUN_FILES = ("record.parquet", "log.parquet", "probes.parquet")
CHECKPOINT = "model.safetensors"
# The runs of readings, a folder each, and what is gathered of them: a file a kind.
READINGS, READING_KINDS = Path("readings"), ("runs", "losses", "probes", "diagnoses")
# Snakemake makes the one when every record is there; a report with gaps must not pass for it.
REPORT, SO_FAR = "report", "so-far"


@dataclass(frozen=True)
class Rule:
    """A kind of job.

    stage: whose code it rests on; writes: its files by name, as patterns below the campaign's
    folder; log: the same of its log, below logs/ and without its ending.
    """

    stage: str
    writes: dict[str, str]
    log: str


def _of_run(place: str) -> dict[str, str]:
    files = zip(("run", "log", "probes", "model"), (*RUN_FILES, CHECKPOINT), strict=True)
    return {name: f"{place}/{file}" for name, file in files}


def _of_checkpoint(place: str) -> dict[str, str]:
    return {
        "diagnostics": f"{place}.parquet",
        "curves": f"{place}-curves.parquet",
        "maps": f"{place}-maps.parquet",
    }


_RUN, _READING = "{scale}/{variant}/{seed}", "{reading}/{variant}/{seed}"
_PREPARED = {
    "data": "data.parquet",
    "tokenizer": "tokenizer.json",
    "train": "train.bin",
    "validation": "validation.bin",
}
RULES = {
    "prepare": Rule(
        "data",
        {name: f"data/{{dataset}}/{file}" for name, file in _PREPARED.items()},
        "prepare/{dataset}",
    ),
    "inventory": Rule("models", {"models": f"{MODELS_FILE}"}, "inventory"),
    "train": Rule("training", _of_run(f"runs/{_RUN}"), "train/{scale}-{variant}-{seed}"),
    "diagnose": Rule(
        "diagnostics",
        _of_checkpoint(f"diagnostics/{_RUN}"),
        "diagnose/{scale}-{variant}-{seed}",
    ),
    "examine": Rule(
        "examination",
        {name: f"beyond/{_RUN}/{name}.parquet" for name in ("copying", "lengths", "self_use")},
        "examine/{scale}-{variant}-{seed}",
    ),
    "train_reading": Rule(
        "training", _of_run(f"{READINGS}/{_READING}"), "train/{reading}-{variant}-{seed}"
    ),
    "diagnose_reading": Rule(
        "diagnostics",
        _of_checkpoint(f"{READINGS}/{_READING}/diagnostics"),
        "diagnose/{reading}-{variant}-{seed}",
    ),
    "collect": Rule(
        "readings", {kind: f"{READINGS}/{kind}.parquet" for kind in READING_KINDS}, "collect"
    ),
    "measure": Rule(
        "systems",
        {"systems": "systems/{benchmark}/{scale}.parquet"},
        "measure/{benchmark}-{scale}",
    ),
    "recall": Rule("recall", {"recall": "recall/{mixer}.parquet"}, "recall/{mixer}"),
    "verify": Rule("verification", {"verification": f"{VERIFICATION_FILE}"}, "verify"),
    "verify_gradients": Rule("gradients", {"gradients": f"{GRADIENTS_FILE}"}, "verify-gradients"),
}


def run_path(run: RunSpec) -> Path:
    """The folder of a run below its campaign's: runs/<scale>/<variant>/<seed>.

    Of a reading's run: readings/<reading>/<variant>/<seed>.
    """
    rule = RULES["train_reading" if run.reading else "train"]
    return Path(rule.writes["run"].format(**vars(run))).parent


def diagnostics_path(run: RunSpec) -> Path:
    """The diagnostics of a run's checkpoint, below the campaign's folder."""
    rule = RULES["diagnose_reading" if run.reading else "diagnose"]
    return Path(rule.writes["diagnostics"].format(**vars(run)))


def examination_paths(run: RunSpec) -> dict[str, Path]:
    """The records of a checkpoint's examination by name, below the campaign's folder."""
    writes = RULES["examine"].writes.items()
    return {name: Path(file.format(**vars(run))) for name, file in writes}


def with_pictures(diagnostics: Path) -> tuple[Path, Path, Path]:
    """The three records of a checkpoint's diagnostics: metrics, curves and flow maps."""
    return diagnostics, beside(diagnostics, "curves"), beside(diagnostics, "maps")


def systems_path(spec: SystemsSpec) -> Path:
    """A systems benchmark, below the campaign's folder."""
    return Path(RULES["measure"].writes["systems"].format(**vars(spec)))


def recall_path(spec: RecallSpec) -> Path:
    """A mixer's associative recall, below the campaign's folder."""
    return Path(RULES["recall"].writes["recall"].format(**vars(spec)))


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
        return self.published_folder if self.shipped_only else self.own_folder

    @property
    def own_folder(self) -> Path:
        """Where the campaign's jobs write."""
        return self.root / self.campaign.name

    @cached_property
    def published_folder(self) -> Path:
        """Where shipped records lie; at the first look those of the archive are laid there, too."""
        folder, absent = self._shipped_to, [*self._absent()]
        if absent:
            unpack(folder / FURTHER, folder, absent)
        return folder

    @property
    def _shipped_to(self) -> Path:
        return self.root / "published" / self.campaign.name

    def _absent(self) -> Iterator[str]:
        """The files of the archive that are not there, or are older than it: of another version."""
        archive = self._shipped_to / FURTHER
        if not archive.exists():
            return
        made = archive.stat().st_mtime_ns
        places = {run_path(run) for run in self.campaign.planned_further}
        for name in self._checksums:
            path = self._shipped_to / name
            among = Path(name).parent in places
            if among and not (path.exists() and path.stat().st_mtime_ns >= made):
                yield name

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

    @cached_property
    def _checksums(self) -> dict[str, str]:
        """SHA-256 of every published file, by its path below the published folder."""
        path = self._shipped_to / CHECKSUMS
        if not path.exists():
            return {}
        try:
            lines = path.read_text(encoding="utf-8").splitlines()
            return {name: digest for digest, name in (line.split("  ", 1) for line in lines)}
        except ValueError:
            raise InputError(f"{path} is damaged; restore it or publish again") from None

    def _origins(self, spec: Spec, folder: Path, relatives: Iterable[Path]) -> list[dict] | None:
        """The origins of records of this very configuration; None unless all are there and such."""
        paths = [folder / relative for relative in relatives]
        if not all(path.exists() for path in paths):
            return None
        if folder == self.published_folder:
            for relative in relatives:
                self._check_listed(relative)
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
        shipped = self._origins(spec, self.published_folder, relatives)
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

    def _check_listed(self, relative: Path) -> None:
        """Raise InputError unless a published file is the one that the checksums list."""
        path = self.published_folder / relative
        if not path.is_file() or self._checksums.get(relative.as_posix()) != sha256_of(path):
            raise InputError(
                f"{path} is not the file that {CHECKSUMS} lists; restore it or publish again"
            )

    def check_shipped(self) -> None:
        """Raise InputError unless the published files are those that the checksums list."""
        folder = self.published_folder
        if not self._checksums:
            raise InputError(
                f"{folder} holds no {CHECKSUMS}; `python -m relation publish --campaign "
                f"{self.campaign.name}` ships records"
            )
        for name in self._checksums:
            self._check_listed(Path(name))

    def shipped_files(self) -> list[Path]:
        """Every published file, in the order of the checksums."""
        return [self.published_folder / name for name in self._checksums]

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
        return (self.published_folder if self._published(spec, file) else self.folder) / file

    def run(self, run: RunSpec) -> Path:
        """The folder with a run's RUN_FILES."""
        base = self.published_folder if self.is_published(run) else self.folder
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
        shipped = self._origins(spec, self.published_folder, with_pictures(relative))
        return None if shipped is None else self.published_folder / relative

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
            self.campaign.examination_spec(run), self.published_folder, [*relatives]
        )
        return None if shipped is None else [self.published_folder / path for path in relatives]

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
        if not all((self.published_folder / file).exists() for file in files.values()):
            return {}
        for file in files.values():
            self._check_listed(file)
        return {kind: self.published_folder / file for kind, file in files.items()}

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
