"""Publishing: copy complete records, with checksums, to where a fresh clone finds them."""

import shutil
from pathlib import Path

from relation.config import Campaign
from relation.errors import InputError
from relation.files import atomic_path, sha256_of, write_text
from relation.parquet import read_origin
from relation.records.multiverse import any_own, gather_to_ship, write_gathered
from relation.results import (
    CHECKSUMS,
    GRADIENTS_FILE,
    MODELS_FILE,
    OMISSIONS,
    READINGS,
    RUN_FILES,
    VERIFICATION_FILE,
    Results,
    diagnostics_path,
    run_path,
    systems_path,
    with_pictures,
)


def publish(campaign: Campaign, results: Results) -> list[Path]:
    """Copy every complete record of this configuration to results/published/<campaign>.

    A run counts when its record, log and probes are there and carry the campaign's configuration
    hash; so do its diagnostics, each systems benchmark, the verification and the check of
    gradients; the inventory of models goes with them. Of readings, a file a kind gathers the runs
    that are there and those shipped before. Checkpoints and the logs of jobs are not copied. The
    checksums cover a text on what is left out too, where one lies there. Returns the files copied.
    Raises InputError where nothing is complete.
    """
    wanted = [([MODELS_FILE], campaign.inventory_hash)]
    for run in campaign.trained_runs:
        wanted.append(([run_path(run) / file for file in RUN_FILES], run.config_hash))
    for run in campaign.paired_runs:
        files = list(with_pictures(diagnostics_path(run)))
        wanted.append((files, campaign.diagnostics_spec(run).config_hash))
    for spec in campaign.systems:
        wanted.append(([systems_path(spec)], spec.config_hash))
    wanted.append(([VERIFICATION_FILE], campaign.verification.config_hash))
    wanted.append(([GRADIENTS_FILE], campaign.gradients.config_hash))

    copied: list[Path] = []
    if any_own(results):  # first, as it may refuse runs before anything is copied
        rows = gather_to_ship(results)
        copied += write_gathered(results, rows, results.published_folder / READINGS)
    for files, config_hash in wanted:
        sources = [results.folder / file for file in files]
        if not all(source.exists() for source in sources):
            continue
        hashes = {read_origin(source)["config_hash"] for source in sources}
        if hashes != {config_hash}:
            continue
        for file, source in zip(files, sources, strict=True):
            target = results.published_folder / file
            with atomic_path(target) as temporary:
                shutil.copyfile(source, temporary)
            copied.append(target)
    if not any(path.name != MODELS_FILE.name for path in copied):
        raise InputError(f"campaign {campaign.name} has no complete record to publish")
    folder = results.published_folder
    shipped = sorted([*folder.rglob("*.parquet"), *folder.glob(OMISSIONS)])
    lines = [
        f"{sha256_of(path)}  {path.relative_to(folder).as_posix()}\n"
        for path in shipped
        if results.report.name not in path.relative_to(folder).parts[:1]
    ]
    write_text(folder / CHECKSUMS, "".join(lines))
    return copied
