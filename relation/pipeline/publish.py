"""Publishing: copy complete records, with checksums, to where a fresh clone finds them."""

from dataclasses import replace
from pathlib import Path

from relation.errors import InputError
from relation.pipeline.campaign import Campaign
from relation.pipeline.gather import any_own, gather_to_ship, write_gathered
from relation.pipeline.jobs import DAMAGED, DONE, UNREPORTED
from relation.pipeline.ledger import Ledger
from relation.pipeline.places import MODELS_FILE, OMISSIONS, READINGS
from relation.pipeline.results import Results
from relation.pipeline.shipped import ARCHIVE, CHECKSUMS, PACKED
from relation.store.bundle import pack
from relation.store.files import sha256_of, write_text
from relation.store.parquet import pack_parquet


def publish(campaign: Campaign, results: Results) -> list[Path]:
    """Copy every complete record of this configuration to results/published/<campaign>.

    A run counts when its record, log and probes are there and carry the campaign's configuration
    hash; so do its diagnostics, each systems benchmark, the verification and the check of
    gradients; the inventory of models goes with them. Of readings, a file a kind gathers the runs
    that are there and those shipped before. What is of single runs goes into one archive too, which
    stands for its files in a clone. Checkpoints and the logs of jobs are not copied. The checksums
    cover a text on what is left out too, where one lies there. Returns the files copied. Raises
    InputError where nothing is complete.
    """
    copied: list[Path] = []
    if any_own(results):  # first, as it may refuse runs before anything is copied
        rows = gather_to_ship(results)
        copied += write_gathered(results, rows, results.shipped.folder / READINGS)
    ledger = Ledger(replace(results, campaign=campaign, published=False))
    for job in ledger.jobs:
        state = ledger.recorded(job)
        if state.name == DAMAGED:
            raise InputError(state.reason)
        if job.rule in UNREPORTED or state.name != DONE:
            continue
        for record in job.records:
            target = results.shipped.folder / record.path.relative_to(results.folder)
            pack_parquet(record.path, target)
            copied.append(target)
    if not any(path.name != MODELS_FILE.name for path in copied):
        raise InputError(f"campaign {campaign.name} has no complete record to publish")
    folder = results.shipped.folder
    # Git does not track what is packed: files that another commit's archive left are none of these.
    listed = {*copied, *filter(Path.exists, results.shipped.files())}
    if packed := [path for path in listed if path.relative_to(folder).parts[0] in PACKED]:
        pack(folder, packed, folder / ARCHIVE)
    listed |= {path for name in (OMISSIONS, ARCHIVE) for path in folder.glob(name)}
    lines = [
        f"{sha256_of(path)}  {path.relative_to(folder).as_posix()}\n" for path in sorted(listed)
    ]
    write_text(folder / CHECKSUMS, "".join(lines))
    return copied
