"""Records: one Parquet file per kind, in which every row has a key and an origin.

A job writes small files (`write`), `collect` joins those of a campaign, and `publish` merges the
joined rows into results/published/<campaign>/. columns.csv lists the columns of every kind; a line
without a type includes a group. Older files may lack columns whose type has a "?": null is read.
"""

import csv
import errno
import json
import os
import platform
import subprocess
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from filelock import FileLock, Timeout

from relation.errors import InputError, RunError

PROJECT = Path(__file__).parents[1]
# Relative, as config.yaml and corpora/ are, because commands run in the project's folder.
RESULTS = Path("results")
PUBLISHED = RESULTS / "published"
RUN_KEY = ["campaign", "scale", "variation", "variant", "seed"]
# The files of each kind that a campaign's jobs write, below its folder.
FILES = {
    "data": "data/*/data.parquet",
    "runs": "runs/*/*/*/*/run.parquet",
    "losses": "runs/*/*/*/*/losses.parquet",
    "probes": "runs/*/*/*/*/probes.parquet",
    "flow": "flow/*/*/*/*/flow.parquet",
    "curves": "flow/*/*/*/*/curves.parquet",
    "maps": "flow/*/*/*/*/maps.parquet",
    "lengths": "length/*/*/*/*/lengths.parquet",
    "recall": "recall/*.parquet",
    "steps": "bench/[!cd]*/*.parquet",  # every benchmark but the two below
    "complexity": "bench/complexity/*.parquet",
    "decode": "bench/decode/*.parquet",
    "checks": "check/operators.parquet",
    "gradients": "check/gradients.parquet",
}
# Kinds of finished studies, still cited: repeated random tokens, and NLL without Self.
CITED = ["copying", "self_use"]
# Rows that agree in these columns come from one job and are replaced together.
UNITS = dict.fromkeys([*FILES, *CITED], RUN_KEY) | {
    "data": ["campaign", "corpus", "vocabulary"],
    "recall": ["campaign", "variation", "mixer"],
    "steps": ["campaign", "variation", "benchmark", "scale"],
    "complexity": ["campaign", "variation", "scale"],
    "decode": ["campaign", "variation", "scale"],
    "checks": ["campaign", "variation"],
    "gradients": ["campaign", "variation"],
}
_TYPES = {
    "text": pa.string(),
    "int": pa.int64(),
    "real": pa.float64(),
    "single": pa.float32(),
    "bool": pa.bool_(),
    "bytes": pa.binary(),
    "texts": pa.list_(pa.string()),
    "reals": pa.list_(pa.float64()),
    "singles": pa.list_(pa.float32()),
}


def _kinds() -> tuple[dict[str, pa.Schema], set[str]]:
    groups: dict[str, list[pa.Field]] = {}
    newer = set()
    with Path(__file__).with_name("columns.csv").open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            columns = groups.setdefault(row["kind"], [])
            if row["type"]:
                about = {"unit": row["unit"], "description": row["meaning"]}
                arrow_type = _TYPES[row["type"].removesuffix("?")]
                columns.append(pa.field(row["column"], arrow_type, metadata=about))
                if row["type"].endswith("?"):
                    newer.add(row["column"])
            else:
                columns += groups[row["column"]]
    return {kind: pa.schema(groups[kind] + groups["origin"]) for kind in UNITS}, newer


# The columns of each kind, with unit and meaning in a field's metadata; columns older files lack.
KINDS, NEWER = _kinds()
PACKAGES = ("torch", "triton", "numpy", "pyarrow", "tokenizers", "datasets")


@contextmanager
def atomic(path: Path) -> Iterator[Path]:
    """Yield a temporary path next to `path`; on success it replaces `path`, else it is removed.

    After a crash `path` is the complete old or new file. Raises RunError if the disk is full.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        yield temporary
        with temporary.open("rb") as file:
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise
        raise RunError(
            f"{path} was not written ({os.strerror(error.errno)}); free disk space and repeat"
        ) from None
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def held(path: Path, job: str) -> Iterator[None]:
    """Hold the lock file `path`. Raises RunError if another process holds it.

    A killed process leaves no lock behind.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        # A process that checks the lock also holds it briefly, so retry for 0.2 s.
        with FileLock(path).acquire(timeout=0.2, poll_interval=0.01):
            yield
    except Timeout:
        why = f"{job} is already running in another process; wait for it or stop it"
        raise RunError(why) from None


def is_held(path: Path) -> bool:
    """Whether a process holds the lock file `path`."""
    if not path.exists():
        return False
    with suppress(RunError), held(path, ""):
        return False
    return True


@cache
def commit() -> str:
    """The git commit, with "+changes" if files that determine results differ from it.

    These are the files of relation/ and kernels/, and the tracked ones of config/: a campaign of
    your own is in each record's specification. "unknown" without git.
    """

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(PROJECT), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    try:
        changed = git("status", "-s", "--", "relation", "kernels")
        changed += git("status", "-s", "-uno", "--", "config")
        return git("rev-parse", "HEAD") + ("+changes" if changed else "")
    except (FileNotFoundError, subprocess.CalledProcessError):
        return "unknown"


def origin(hash: str, device: str) -> dict[str, str]:
    """The origin columns for rows made now."""
    versions = {"python": platform.python_version()}
    for package in PACKAGES:
        with suppress(metadata.PackageNotFoundError):
            versions[package] = metadata.version(package)
    return {
        "hash": hash,
        "commit": commit(),
        "device": device,
        "versions": json.dumps(versions, sort_keys=True),
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def key(job: Any, kind: str = "runs") -> dict[str, Any]:
    """The key columns of a job's rows of one kind."""
    return {name: getattr(job, name) for name in UNITS[kind]}


def write(
    path: Path,
    kind: str,
    rows: pd.DataFrame | Sequence[Mapping[str, Any]],
    shared: Mapping[str, Any] | None = None,
) -> None:
    """Write rows of a kind atomically, and add the `shared` columns (key and origin) to each.

    Raises InputError if a column is missing or unknown, ArrowException for a wrong type.
    """
    layout, is_frame, shared = KINDS[kind], isinstance(rows, pd.DataFrame), shared or {}
    rows = rows.assign(**shared) if is_frame else [{**row, **shared} for row in rows]
    for names in [rows.columns] if is_frame else rows:
        if odd := sorted(set(names) ^ set(layout.names)):
            raise InputError(f"{path}: {kind} rows lack columns or have others: {', '.join(odd)}")
    if is_frame:
        table = pa.Table.from_pandas(rows, layout, preserve_index=False)
    else:
        table = pa.Table.from_pylist(rows, layout)
    encodings = {}  # for small files: floats split by byte, the rest as dictionaries
    for name, arrow_type in zip(layout.names, layout.types, strict=True):
        if pa.types.is_floating(arrow_type):
            encodings[name] = "BYTE_STREAM_SPLIT"
        elif pa.types.is_list(arrow_type) and pa.types.is_floating(arrow_type.value_type):
            encodings[f"{name}.list.element"] = "BYTE_STREAM_SPLIT"
    with atomic(path) as temporary, temporary.open("wb") as file:
        pq.write_table(
            table.replace_schema_metadata(None),
            file,
            compression="zstd",
            compression_level=19,
            column_encoding=encodings or None,
            use_dictionary=[name for name in layout.names if name not in encodings],
            write_statistics=False,
            write_page_checksum=True,
        )


def read(path: Path, kind: str, names: Sequence[str] | None = None) -> pd.DataFrame:
    """Read columns of a file (all by default), with the checksum of every page verified.

    Columns of NEWER may be missing, and are then null. Raises InputError if the file is missing,
    damaged or lacks another column.
    """
    try:
        with pq.ParquetFile(path, page_checksum_verification=True) as file:
            stored = set(file.schema_arrow.names)
            lacking = sorted(set(KINDS[kind].names) - stored - NEWER)
            if not lacking:
                schema = pa.schema(KINDS[kind].field(n) for n in names or KINDS[kind].names)
                table = file.read([name for name in schema.names if name in stored])
                for field in (field for field in schema if field.name not in stored):
                    table = table.append_column(field, pa.nulls(len(table), field.type))
                frame = table.select(schema.names).cast(schema).to_pandas()
    except FileNotFoundError:
        raise InputError(f"{path} is missing; run snakemake to make it") from None
    except (pa.ArrowException, OSError, ValueError) as error:
        detail = (str(error).splitlines() or [type(error).__name__])[0]
        why = f"{path} is damaged ({detail}); restore it, or delete it and run snakemake"
        raise InputError(why) from None
    if lacking:
        why = f"{path} lacks {', '.join(lacking)}: another version wrote it"
        raise InputError(f"{why}; delete it and run snakemake")
    return frame


def without_rows(kind: str) -> pd.DataFrame:
    """A frame with a kind's columns."""
    return KINDS[kind].empty_table().to_pandas()


def is_made(path: Path, hash: str) -> bool:
    """Whether a job's file, one of FILES, exists and all its rows have this hash."""
    kind = next(kind for kind, pattern in FILES.items() if path.match(pattern))
    return path.exists() and set(read(path, kind, ["hash"])["hash"]) <= {hash}


def _stored(folder: Path, kind: str) -> pd.DataFrame:
    """A kind's rows in a campaign's folder; none if the file is missing."""
    path = folder / f"{kind}.parquet"
    return read(path, kind) if path.exists() else without_rows(kind)


def load(folder: Path) -> dict[str, pd.DataFrame]:
    """A campaign's rows by kind; a kind without a file gives a frame without rows."""
    frames = {kind: _stored(folder, kind) for kind in KINDS}
    check_pairs(frames["runs"])
    return frames


def check_pairs(runs: pd.DataFrame) -> None:
    """Raise InputError if MHA and Full of a seed differ in data or initial weights.

    Initial weights may differ if the specification has an `init_key`, or if the models differ in
    more than their layout. Diverged runs are not compared, because they read less data.
    """
    pairs = runs[runs["variant"].isin(["mha", "full"]) & runs["final_nll"].notna()]
    specs = pairs["specification"].fillna("{}").map(json.loads)
    models = specs.map(lambda s: json.dumps(s.get("model", {}) | {"layout": ""}, sort_keys=True))
    alike = pairs.assign(model=models)[~specs.map(lambda spec: "init_key" in spec).astype(bool)]
    key = ["campaign", "scale", "variation", "seed"]
    for column, label, groups in (
        ("order_hash", "data", pairs.groupby(key)),
        ("init_hash", "initial weights", alike.groupby([*key, "model"])),
    ):
        for names, group in groups:
            if group[column].nunique(dropna=False) > 1:
                hashes = ", ".join(group["variant"] + " " + group[column].fillna("none").str[:12])
                raise InputError(
                    f"mha and full of {'/'.join(names[:3])} seed {names[3]} had different {label} "
                    f"({hashes}); delete the older run and repeat it"
                )


def collect(folder: Path, planned: Mapping[str, str], hashes: Collection[str] = ()) -> None:
    """Join the files of a campaign's jobs into one Parquet file per kind, in `folder`.

    planned: the hash of each planned file by its path below `folder`; missing files are skipped.
    hashes: published rows with these hashes are added, unless the campaign has made them itself.
    Raises InputError for a record of another specification.
    """
    shipped = PUBLISHED / folder.name
    for kind, pattern in FILES.items():
        frames = []
        for name, hash in planned.items():
            if not (Path(name).match(pattern) and (folder / name).exists()):
                continue
            rows = read(folder / name, kind)
            if others := set(rows["hash"]) - {hash}:
                raise InputError(
                    f"{folder / name} was made as {others.pop()}, now planned is {hash}; give the "
                    "choices that it was made with, or delete it and run snakemake with these"
                )
            frames.append(rows)
        if hashes:
            made_hashes = {hash for rows in frames for hash in rows["hash"]}
            rows = _stored(shipped, kind)
            frames.append(rows[rows["hash"].isin(set(hashes) - made_hashes)])
        write(folder / f"{kind}.parquet", kind, _joined(kind, frames))


def _joined(kind: str, frames: Sequence[pd.DataFrame]) -> pd.DataFrame:
    """Concatenate frames of one kind, without empty ones, whose columns have no type."""
    frames = [frame for frame in frames if len(frame)]
    return pd.concat(frames, ignore_index=True) if frames else without_rows(kind)


@cache
def published_hashes(kind: str, campaign: str) -> frozenset[str]:
    """The hashes of a campaign's published rows of a kind. These jobs are done."""
    path = PUBLISHED / campaign / f"{kind}.parquet"
    return frozenset(read(path, kind, ["hash"])["hash"] if path.exists() else ())


def merge(
    kind: str, old: pd.DataFrame, new: pd.DataFrame
) -> tuple[pd.DataFrame, dict[str, list[str]]]:
    """Merge new rows of a kind into old ones; also name the jobs added, replaced and refused.

    A job's new rows replace its old rows if their hash is equal. Otherwise the old rows stay.
    """
    key = UNITS[kind]
    old_rows, new_rows = (frame[[*key, "hash", "created"]].fillna("") for frame in (old, new))
    # One line per new job. Columns with _before come from its published rows, if there are any.
    before, after = old_rows.drop_duplicates(key), new_rows.drop_duplicates(key)
    jobs = after.merge(before, "left", key, suffixes=("", "_before"), indicator=True)
    published, differs = jobs["_merge"] == "both", jobs["hash"] != jobs["hash_before"]
    refused = published & differs
    replaced = published & ~differs & (jobs["created"] != jobs["created_before"])
    names = jobs[key].astype(str).agg("/".join, axis=1) if len(jobs) else jobs["hash"]
    changes = {"added": ~published, "replaced": replaced, "refused": refused}
    accepted = pd.MultiIndex.from_frame(jobs.loc[~refused, key])
    is_replaced = pd.MultiIndex.from_frame(old_rows[key]).isin(accepted)
    is_accepted = pd.MultiIndex.from_frame(new_rows[key]).isin(accepted)
    merged = _joined(kind, [old[~is_replaced], new[is_accepted]])
    return merged, {change: [*names[mask]] for change, mask in changes.items()}


def _of_lowest_seed(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows of the lowest seed of each scale, variation and variant."""
    groups = rows.groupby(["scale", "variation", "variant"])
    return rows[rows["seed"] == groups["seed"].transform("min")]


def publish(campaign: str) -> list[str]:
    """Merge a campaign's collected rows into results/published/<campaign>/; list the changes.

    Flow maps: of the lowest seed of each scale, variation and variant. Safe to repeat.
    """
    source, target = RESULTS / campaign, PUBLISHED / campaign
    merged, lines = {}, []
    with held(source / "work" / "publish.lock", f"publish of {campaign}"):
        for kind in FILES:
            new = read(source / f"{kind}.parquet", kind)
            if new.empty:
                continue
            if kind == "maps":
                new = _of_lowest_seed(new)
            rows, changes = merge(kind, _stored(target, kind), new)
            if kind == "maps":
                rows = _of_lowest_seed(rows)
            merged[kind] = rows
            lines.append(f"{kind}: " + ", ".join(f"{len(jobs)} {w}" for w, jobs in changes.items()))
            lines += [f"  {job} stays: another specification" for job in changes["refused"]]
        if "runs" in merged:
            check_pairs(merged["runs"])
        for kind, rows in merged.items():
            write(target / f"{kind}.parquet", kind, rows)
        published_hashes.cache_clear()
    return lines
