"""Where results lie: results/<campaign>/, or results/published/<campaign>/ for shipped records.

A published record whose configuration hash is the campaign's counts as done: its job never enters
the DAG, and its Parquet is read in place.
"""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from relation.config import Campaign
from relation.parquet import read_origin
from relation.spec import DataSpec, RunSpec, Spec, SystemsSpec


def run_path(run: RunSpec) -> Path:
    """The folder of a run below its campaign's: runs/<scale>/<variant>/<seed>."""
    return Path("runs", run.scale, run.variant, str(run.seed))


def diagnostics_path(run: RunSpec) -> Path:
    """The diagnostics of a run's checkpoint, below the campaign's folder."""
    return Path("diagnostics", run.scale, run.variant, f"{run.seed}.parquet")


def systems_path(spec: SystemsSpec) -> Path:
    """A systems benchmark, below the campaign's folder."""
    return Path("systems", spec.benchmark, f"{spec.scale}.parquet")


@dataclass(frozen=True)
class Results:
    """The files of one campaign below `root`, the folder results/."""

    campaign: Campaign
    root: Path = Path("results")

    @property
    def folder(self) -> Path:
        return self.root / self.campaign.name

    @property
    def published_folder(self) -> Path:
        return self.root / "published" / self.campaign.name

    def data(self, data: DataSpec) -> Path:
        """The folder of a prepared corpus."""
        return self.folder / "data" / data.name

    @property
    def models(self) -> Path:
        return self.folder / "models.parquet"

    @property
    def started_with(self) -> Path:
        """The configuration that the running workflow was started with."""
        return self.folder / "campaign.json"

    @property
    def report(self) -> Path:
        """The folder of the cells, figures and pages."""
        return self.folder / "report"

    def _published(self, relative: Path, spec: Spec) -> bool:
        path = self.published_folder / relative
        return path.exists() and read_origin(path)["config_hash"] == spec.config_hash

    @cached_property
    def _published_runs(self) -> frozenset[str]:
        return frozenset(
            run.name
            for run in self.campaign.runs
            if self._published(run_path(run) / "record.parquet", run)
        )

    def is_published(self, run: RunSpec) -> bool:
        """Whether a shipped record of this very configuration stands for the run."""
        return run.name in self._published_runs

    def run(self, run: RunSpec) -> Path:
        """The folder with a run's record.parquet and log.parquet."""
        base = self.published_folder if self.is_published(run) else self.folder
        return base / run_path(run)

    def diagnostics(self, run: RunSpec) -> Path | None:
        """A run's diagnostics; None for a published run that was published without them.

        Its checkpoint is not shipped, so they cannot be made without training it again.
        """
        relative = diagnostics_path(run)
        if self._published(relative, self.campaign.diagnostics_spec(run)):
            return self.published_folder / relative
        return None if self.is_published(run) else self.folder / relative

    def systems(self, spec: SystemsSpec) -> Path:
        """The Parquet of a systems benchmark."""
        relative = systems_path(spec)
        base = self.published_folder if self._published(relative, spec) else self.folder
        return base / relative

    def trained_here(self) -> tuple[RunSpec, ...]:
        """The runs that are trained in this campaign's own folder."""
        return tuple(run for run in self.campaign.runs if not self.is_published(run))

    def record_files(self) -> list[Path]:
        """Every Parquet that the report reads, in a fixed order."""
        files = [self.models]
        for run in self.campaign.runs:
            files += [self.run(run) / "record.parquet", self.run(run) / "log.parquet"]
        for run in self.campaign.paired_runs:
            diagnostics = self.diagnostics(run)
            if diagnostics is not None:
                files.append(diagnostics)
        files += [self.systems(spec) for spec in self.campaign.systems]
        return files
