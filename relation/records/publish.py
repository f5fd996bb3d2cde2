"""Publishing: copy complete records, with checksums, to where a fresh clone finds them."""

import shutil
from pathlib import Path

from relation.config import Campaign
from relation.errors import InputError
from relation.files import atomic_path, sha256_of, write_text
from relation.parquet import read_origin
from relation.results import CHECKSUMS, Results, diagnostics_path, run_path, systems_path


def publish(campaign: Campaign, results: Results) -> list[Path]:
    """Copy every complete record of this configuration to results/published/<campaign>.

    A run counts when its record and log are there and carry the campaign's configuration hash;
    so do its diagnostics and each systems benchmark. Checkpoints are not copied. Returns the
    files copied. Raises InputError where nothing is complete.
    """
    wanted: list[tuple[list[Path], str]] = []
    for run in campaign.runs:
        folder = run_path(run)
        wanted.append(([folder / "record.parquet", folder / "log.parquet"], run.config_hash))
    for run in campaign.paired_runs:
        wanted.append(([diagnostics_path(run)], campaign.diagnostics_spec(run).config_hash))
    for spec in campaign.systems:
        wanted.append(([systems_path(spec)], spec.config_hash))

    copied: list[Path] = []
    for files, config_hash in wanted:
        sources = [results.folder / file for file in files]
        if not all(source.exists() for source in sources):
            continue
        if any(read_origin(source)["config_hash"] != config_hash for source in sources):
            continue
        for file, source in zip(files, sources, strict=True):
            target = results.published_folder / file
            with atomic_path(target) as temporary:
                shutil.copyfile(source, temporary)
            copied.append(target)
    if not copied:
        raise InputError(f"campaign {campaign.name} has no complete record to publish")
    folder = results.published_folder
    lines = [
        f"{sha256_of(path)}  {path.relative_to(folder).as_posix()}\n"
        for path in sorted(folder.rglob("*.parquet"))
    ]
    write_text(folder / CHECKSUMS, "".join(lines))
    return copied
