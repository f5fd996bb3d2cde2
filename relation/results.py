"""Where results lie: results/<campaign>/, or results/published/<campaign>/ for shipped records.

A published record whose configuration hash is the campaign's counts as done: its job never enters
the DAG, and its Parquet is read in place.
"""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from relation.config import Campaign
from relation.data.sources import corpus_fingerprint
from relation.errors import InputError
from relation.files import beside, sha256_of
from relation.parquet import read_origin
from relation.spec import DataSpec, RunSpec, Spec, SystemsSpec

CHECKSUMS = "SHA256SUMS"
MODELS_FILE, VERIFICATION_FILE = Path("models.parquet"), Path("verification.parquet")
# Words beside a campaign's records, shown with what is missing of them.
OMISSIONS = "omissions.txt"
RUN_FILES = ("record.parquet", "log.parquet", "probes.parquet")


def run_path(run: RunSpec) -> Path:
    """The folder of a run below its campaign's: runs/<scale>/<variant>/<seed>."""
    return Path("runs", run.scale, run.variant, str(run.seed))


def diagnostics_path(run: RunSpec) -> Path:
    """The diagnostics of a run's checkpoint, below the campaign's folder."""
    return Path("diagnostics", run.scale, run.variant, f"{run.seed}.parquet")


def with_pictures(diagnostics: Path) -> tuple[Path, Path, Path]:
    """The three records of a checkpoint's diagnostics: metrics, curves and flow maps."""
    return diagnostics, beside(diagnostics, "curves"), beside(diagnostics, "maps")


def systems_path(spec: SystemsSpec) -> Path:
    """A systems benchmark, below the campaign's folder."""
    return Path("systems", spec.benchmark, f"{spec.scale}.parquet")


@dataclass(frozen=True)
class Results:
    """The files of one campaign below `root`, the folder results/.

    `shipped_only`: those that were published, read and rendered where they lie, and no others.
    """

    campaign: Campaign
    root: Path = Path("results")
    shipped_only: bool = False

    @property
    def folder(self) -> Path:
        return self.published_folder if self.shipped_only else self.own_folder

    @property
    def own_folder(self) -> Path:
        """Where the campaign's jobs write."""
        return self.root / self.campaign.name

    @property
    def published_folder(self) -> Path:
        return self.root / "published" / self.campaign.name

    def data(self, data: DataSpec) -> Path:
        """The folder of a prepared corpus."""
        return self.folder / "data" / data.name

    @property
    def models(self) -> Path:
        return self.folder / MODELS_FILE

    @property
    def verification(self) -> Path:
        """The check of the campaign's FlashRelation against its definition."""
        shipped = self._published(self.campaign.verification, VERIFICATION_FILE)
        return (self.published_folder if shipped else self.folder) / VERIFICATION_FILE

    @property
    def started_with(self) -> Path:
        """The configuration that the running workflow was started with."""
        return self.folder / "campaign.json"

    @property
    def report(self) -> Path:
        """The folder of the cells, figures and pages."""
        return self.folder / "report"

    @cached_property
    def _checksums(self) -> dict[str, str]:
        """SHA-256 of every published file, by its path below the published folder."""
        path = self.published_folder / CHECKSUMS
        if not path.exists():
            return {}
        try:
            lines = path.read_text(encoding="utf-8").splitlines()
            return {name: digest for digest, name in (line.split("  ", 1) for line in lines)}
        except ValueError:
            raise InputError(f"{path} is damaged; restore it or publish again") from None

    def _published(self, spec: Spec, *relatives: Path) -> bool:
        """Whether shipped files of this very configuration are there, whole and unchanged."""
        if self.shipped_only:
            return False  # they are the campaign's own here, whatever configuration made them
        paths = [self.published_folder / relative for relative in relatives]
        if not all(path.exists() for path in paths):
            return False
        for path, relative in zip(paths, relatives, strict=True):
            if self._checksums.get(relative.as_posix()) != sha256_of(path):
                raise InputError(
                    f"{path} is not the file that {CHECKSUMS} lists; restore it or publish again"
                )
        return all(read_origin(path)["config_hash"] == spec.config_hash for path in paths)

    def check_shipped(self) -> None:
        """Raise InputError unless the published files are those that the checksums list."""
        folder = self.published_folder
        if not self._checksums:
            raise InputError(
                f"{folder} holds no {CHECKSUMS}; `python -m relation publish --campaign "
                f"{self.campaign.name}` ships records"
            )
        for name, digest in self._checksums.items():
            path = folder / name
            if not path.is_file() or sha256_of(path) != digest:
                raise InputError(
                    f"{path} is not the file that {CHECKSUMS} lists; restore it or publish again"
                )

    def shipped_files(self) -> list[Path]:
        """Every published file, in the order of the checksums."""
        return [self.published_folder / name for name in self._checksums]

    @cached_property
    def _published_runs(self) -> frozenset[str]:
        return frozenset(
            run.name
            for run in self.campaign.runs
            if self._published(run, *(run_path(run) / file for file in RUN_FILES))
            and self._same_corpus(run)
        )

    def _same_corpus(self, run: RunSpec) -> bool:
        """Whether a published run read the local corpus that is given now, where one is."""
        given = corpus_fingerprint(self.campaign.data[run.data].path)
        if given is None:
            return True
        origin = read_origin(self.published_folder / run_path(run) / "record.parquet")
        return origin["data_origin"]["corpus_sha256"] == given

    def is_published(self, run: RunSpec) -> bool:
        """Whether a shipped record of this very configuration stands for the run."""
        return run.name in self._published_runs

    def run(self, run: RunSpec) -> Path:
        """The folder with a run's RUN_FILES."""
        base = self.published_folder if self.is_published(run) else self.folder
        return base / run_path(run)

    def diagnostics(self, run: RunSpec) -> Path | None:
        """A run's diagnostics; None for a published run that was published without them.

        Its checkpoint is not shipped, so they cannot be made without training it again.
        """
        relative = diagnostics_path(run)
        if not self.is_published(run):
            return self.folder / relative
        shipped = self._published(self.campaign.diagnostics_spec(run), *with_pictures(relative))
        return self.published_folder / relative if shipped else None

    def systems(self, spec: SystemsSpec) -> Path:
        """The Parquet of a systems benchmark."""
        relative = systems_path(spec)
        base = self.published_folder if self._published(spec, relative) else self.folder
        return base / relative

    def record_files(self) -> list[Path]:
        """Every Parquet that the report reads, in a fixed order."""
        files = [self.models]
        for run in self.campaign.runs:
            files += [self.run(run) / file for file in RUN_FILES]
        for run in self.campaign.paired_runs:
            diagnostics = self.diagnostics(run)
            if diagnostics is not None:
                files += with_pictures(diagnostics)
        files += [self.systems(spec) for spec in self.campaign.systems]
        files.append(self.verification)
        return files
