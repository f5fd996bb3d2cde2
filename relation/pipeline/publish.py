"""Publishing: copy complete records, with checksums, to where a fresh clone finds them.

The checksums cover many files, which no system call replaces at once. So everything is written
into a hidden folder first. Until that folder is whole, nothing shipped changes; then its files are
moved, and after a crash the next call moves the rest.
"""

import shutil
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import pandas as pd

from relation.errors import InputError
from relation.pipeline.campaign import Campaign
from relation.pipeline.gather import any_own, gather_to_ship, write_gathered
from relation.pipeline.jobs import DAMAGED, DONE, UNREPORTED, Record
from relation.pipeline.ledger import Ledger
from relation.pipeline.places import MODELS_FILE, OMISSIONS, READINGS, RUN_FILES
from relation.pipeline.results import Results
from relation.pipeline.shipped import ARCHIVE, CHECKSUMS, is_packed
from relation.store.bundle import pack
from relation.store.files import make_folder, move, sha256_of, sync, write_text
from relation.store.locks import held
from relation.store.parquet import pack_parquet

_, _LOG, _ = RUN_FILES


def publish(campaign: Campaign, results: Results) -> list[Path]:
    """Copy every complete record of this configuration to results/published/<campaign>.

    A run counts when its record, log and probes are there and carry the campaign's configuration
    hash; so do its diagnostics, each systems benchmark, the verification and the check of
    gradients; the inventory of models goes with them. Of readings, a file a kind gathers the runs
    that are there and those shipped before. What is of single runs goes into one archive too, which
    stands for its files in a clone. The speeds of a log's single updates keep five digits; every
    other value is copied as it is. Checkpoints and the logs of jobs are not copied. The checksums
    cover a text on what is left out too, where one lies there. Returns the files copied. Raises
    InputError where nothing is complete or a record is damaged, a shipped one that is not made here
    too, and RunError where another process publishes; nothing shipped has changed then. After a
    crash the next call first moves what the crashed one had written whole.
    """
    with held(results.own_folder / "work" / "publish.lock", f"publish of {campaign.name}"):
        return _publish(campaign, results)


def _publish(campaign: Campaign, results: Results) -> list[Path]:
    place = results.shipped.place
    _finish(place)
    results = replace(results)  # without what it remembers of the shipped files from before
    rows = gather_to_ship(results) if any_own(results) else None
    records = list(_complete(Ledger(replace(results, campaign=campaign, published=False))))
    if rows is None and all(record.target.name == MODELS_FILE.name for record in records):
        raise InputError(f"campaign {campaign.name} has no complete record to publish")
    partial = place.with_name(f".{place.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)  # of a killed process
    try:
        copied = _stage(results, rows, records, partial)
        move(partial, _staged(place))
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    _finish(place)
    return [place / name for name in copied]


def _complete(ledger: Ledger) -> Iterator[Record]:
    """The records to be copied one by one. Raises InputError where one is damaged."""
    for job in ledger.jobs:
        state = ledger.recorded(job)
        if state.name == DAMAGED:
            raise InputError(state.reason)
        if job.rule not in UNREPORTED and state.name == DONE:
            yield from job.records


def _stage(
    results: Results, rows: Mapping[str, pd.DataFrame] | None, records: list[Record], folder: Path
) -> list[Path]:
    """Write below `folder` what is to be shipped; returns the records' paths below it.

    rows: of the readings, None where no run of theirs is here. What was shipped before and is not
    made here stays, so its checksums are written too.
    """
    copied = write_gathered(results, rows, folder / READINGS) if rows is not None else []
    for record in records:
        copied.append(_copy(record.path, folder, record.path.relative_to(results.folder)))
    shipped, names = results.shipped, [path.relative_to(folder) for path in copied]
    # Git does not track what is packed: files that another commit's archive left are none of these.
    before = {*map(Path, shipped.checksums), Path(OMISSIONS), Path(ARCHIVE)}
    listed = {name: shipped.folder / name for name in before if (shipped.folder / name).exists()}
    for name in listed.keys() - {*names, Path(OMISSIONS), Path(ARCHIVE)}:
        shipped.check(name)  # a new checksum would make a damaged file pass for whole
    listed |= dict(zip(names, copied, strict=True))
    if packed := [name for name in listed if is_packed(name)]:
        for name in packed:
            if listed[name] != folder / name:
                listed[name] = _copy(listed[name], folder, name)
        pack(folder, [folder / name for name in packed], folder / ARCHIVE)
        listed[Path(ARCHIVE)] = folder / ARCHIVE
    lines = [f"{sha256_of(path)}  {name.as_posix()}\n" for name, path in sorted(listed.items())]
    write_text(folder / CHECKSUMS, "".join(lines))
    return names


def _copy(source: Path, folder: Path, name: Path) -> Path:
    # A log's speeds are of single updates: more digits are noise, and were a third of its bytes.
    coarse = {"tokens_per_second"} if name.name == _LOG else ()
    pack_parquet(source, folder / name, compress=not is_packed(name), coarse=coarse)
    return folder / name


def _staged(place: Path) -> Path:
    """What a call has written whole, and may not have moved to `place` yet."""
    return place.with_name(f".{place.name}.staged")


def _finish(place: Path) -> None:
    """Move what is staged, if anything is, to `place`; a second time changes nothing more."""
    staged = _staged(place)
    if not staged.exists():
        return
    files = (path for path in staged.rglob("*") if path.is_file())
    # The checksums last: until they fit, every reader refuses a half-finished move.
    for path in sorted(files, key=lambda path: path.name == CHECKSUMS):
        target = place / path.relative_to(staged)
        make_folder(target.parent)
        move(path, target)
    shutil.rmtree(staged)
    # A loss of power must not bring it back: its files would go over later ones.
    sync(staged.parent)
