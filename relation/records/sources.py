"""The records that a campaign plans: where each lies and what it must have been made with."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from relation.config import Campaign
from relation.data.sources import corpus_fingerprint
from relation.results import (
    GRADIENTS_FILE,
    MODELS_FILE,
    RUN_FILES,
    VERIFICATION_FILE,
    Results,
    diagnostics_path,
    run_path,
    systems_path,
    with_pictures,
)
from relation.spec import DiagnosticsSpec, RunSpec

_RECORD_FILE, _, _PROBES_FILE = RUN_FILES
_KINDS = ("run", "log", "probes")


@dataclass(frozen=True)
class Source:
    """A planned record.

    kind: run, log, probes, diagnostics, curves, maps, systems, models, verification or gradients,
    and "further run" and so on of a pair beyond the matrix; path: None for diagnostics that were
    not published with their run; target: what Snakemake makes it as; job_log: of the job that makes
    it; stage: whose code makes it; config_hash: the present configuration's; variant: of a systems
    benchmark, its name; corpus: fingerprint of the local texts given now; rests_on: another record,
    planned before it, than which it is no fresher; probed: of probes, how the present configuration
    samples the run, and what else their origin would say.
    """

    kind: str
    path: Path | None
    target: Path
    job_log: Path
    stage: str
    config_hash: str
    scale: str = ""
    variant: str = ""
    seed: int | None = None
    corpus: str | None = None
    rests_on: Path | None = None
    probed: tuple[DiagnosticsSpec, Mapping[str, int]] | None = None

    def probed_alike(self, origin: Mapping[str, Any]) -> bool:
        """Whether probes of this origin were taken as the present configuration takes them."""
        sampling, looks = self.probed
        now = replace(sampling, run_hash=origin["config_hash"]).config_hash
        expected = {"probe_config_hash": now, **looks}
        return expected == {name: origin.get(name) for name in expected}


def _log_name(run: RunSpec) -> str:
    return f"{run.scale}-{run.variant}-{run.seed}.log"


def _of_run(
    campaign: Campaign, results: Results, run: RunSpec, kinds: tuple[str, ...], corpus: str | None
) -> Iterator[Source]:
    """What training leaves of a run; kinds: those of RUN_FILES."""
    looks = campaign.diagnostics
    sampling = campaign.diagnostics_spec(run, looks["probe_sequences"])
    times = {
        "probe_times": looks["probes"],
        "validation_looks": looks["validations"],
        "validation_look_tokens": looks["validation_tokens"],
    }
    for kind, file in zip(kinds, RUN_FILES, strict=True):
        yield Source(
            kind,
            results.run(run) / file,
            results.own_folder / run_path(run) / file,
            results.own_folder / "logs" / "train" / _log_name(run),
            "training",
            run.config_hash,
            scale=run.scale,
            variant=run.variant,
            seed=run.seed,
            corpus=corpus,
            rests_on=None if file == _RECORD_FILE else results.run(run) / _RECORD_FILE,
            probed=(sampling, times) if file == _PROBES_FILE else None,
        )


def planned_sources(campaign: Campaign, results: Results) -> Iterator[Source]:
    """Every record of a campaign as restricted, in a fixed order."""
    folder, logs = results.own_folder, results.own_folder / "logs"
    models = folder / MODELS_FILE
    log, inventory = logs / "inventory.log", campaign.inventory_hash
    yield Source("models", results.models, models, log, "models", inventory)
    corpora = {name: corpus_fingerprint(spec.path) for name, spec in campaign.data.items()}
    for run in campaign.runs:
        yield from _of_run(campaign, results, run, _KINDS, corpora[run.data])
        if run not in campaign.paired_runs:
            continue
        key = {"scale": run.scale, "variant": run.variant, "seed": run.seed}
        record = results.run(run) / _RECORD_FILE
        found = results.diagnostics(run)
        targets = with_pictures(folder / diagnostics_path(run))
        paths = (None,) * len(targets) if found is None else with_pictures(found)
        kinds = ("diagnostics", "curves", "maps")
        for kind, path, target in zip(kinds, paths, targets, strict=True):
            yield Source(
                kind,
                path,
                target,
                logs / "diagnose" / _log_name(run),
                "diagnostics",
                campaign.diagnostics_spec(run).config_hash,
                rests_on=record,
                **key,
            )
    for run in campaign.further_runs:
        kinds = tuple(f"further {kind}" for kind in _KINDS)
        yield from _of_run(campaign, results, run, kinds, corpora[run.data])
    for spec in campaign.systems:
        yield Source(
            "systems",
            results.systems(spec),
            folder / systems_path(spec),
            logs / "measure" / f"{spec.benchmark}-{spec.scale}.log",
            "systems",
            spec.config_hash,
            scale=spec.scale,
            variant=spec.benchmark,
        )
    yield Source(
        "verification",
        results.verification,
        folder / VERIFICATION_FILE,
        logs / "verify.log",
        "verification",
        campaign.verification.config_hash,
    )
    yield Source(
        "gradients",
        results.gradients,
        folder / GRADIENTS_FILE,
        logs / "verify-gradients.log",
        "gradients",
        campaign.gradients.config_hash,
    )
