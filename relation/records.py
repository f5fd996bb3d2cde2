"""Records: one Parquet a kind, each row with its key and its origin.

A job writes small files (`write`), `collect` joins those of a campaign, and `publish` copies the
joined rows into results/published/<campaign>/. `load` reads a campaign's folder.
"""

import errno
import json
import os
import platform
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
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
RESULTS = PROJECT / "results"
PACKAGES = ("torch", "triton", "numpy", "pyarrow", "tokenizers", "datasets")

_TEXT, _INT, _REAL, _SINGLE = pa.string(), pa.int64(), pa.float64(), pa.float32()
_REALS = pa.list_(_REAL)

# A column: name, Arrow type, unit, meaning.
_ORIGIN = [
    ("hash", _TEXT, "", "of the specification that the job was planned with"),
    ("commit", _TEXT, "", "of the code; +changes where tracked files differed"),
    ("device", _TEXT, "", "that the job ran on"),
    ("versions", _TEXT, "", "JSON: Python and packages"),
    ("created", _TEXT, "", "ISO 8601, UTC"),
]
_CAMPAIGN = [
    ("campaign", _TEXT, "", ""),
    ("variation", _TEXT, "", "named change of configuration keys; null where it is of all"),
]
_KEY = [
    ("campaign", _TEXT, "", ""),
    ("scale", _TEXT, "", "10M, 30M, 100M, ..."),
    ("variation", _TEXT, "", "named change of configuration keys; base where there is none"),
    ("variant", _TEXT, "", "model family: mha, full, ..."),
    ("seed", _INT, "", ""),
]
_OUTCOME = [
    ("status", _TEXT, "", "PASS, OOM, KILLED, UNAVAILABLE, WRONG or FAILED"),
    ("reason", _TEXT, "", "one line; null where the status is PASS"),
]
_CONDITIONS = [
    ("driver", _TEXT, "", "of the GPU; null on a CPU"),
    ("sm_clock", _REAL, "MHz", "median while it was timed; null on a CPU"),
    ("sm_clock_least", _REAL, "MHz", ""),
    ("sm_clock_limit", _REAL, "MHz", "the highest that the GPU has"),
    ("temperature", _REAL, "C", "highest reading"),
    ("power", _REAL, "W", "highest reading"),
    ("disturbed", _TEXT, "", "what else ran or throttled; null where nothing did"),
]
_ERRORS = [
    ("measure", _TEXT, "", "RMS, largest or scale"),
    ("error", _REAL, "", "off FP64; of a scale |<g, t> / <t, t> - 1|"),
    ("yardstick", _REAL, "", "the same of the reference in that precision"),
    ("allowed", _REAL, "", "what the error may be at most"),
    ("draws", _INT, "", "of random inputs"),
]
_DIAGNOSED = [*_KEY, ("layer", _INT, "", "from 0")]

KINDS: dict[str, list[tuple[str, pa.DataType, str, str]]] = {
    "data": [
        ("campaign", _TEXT, "", ""),
        ("corpus", _TEXT, "", "its name in the configuration"),
        ("vocabulary", _INT, "entries", ""),
        ("split", _TEXT, "", "train or validation"),
        ("tokens", _INT, "tokens", "end-of-text tokens included"),
        ("documents", _INT, "documents", ""),
        ("characters", _INT, "characters", ""),
        ("unigram_entropy", _REAL, "nat/token", "of the split's predicted tokens"),
        ("sha256", _TEXT, "", "of the token file"),
        ("fingerprint", _TEXT, "", "of the corpus's texts"),
        *_ORIGIN,
    ],
    "models": [
        *_CAMPAIGN,
        ("scale", _TEXT, "", ""),
        ("variant", _TEXT, "", ""),
        ("parameters", _INT, "parameters", "tied matrix once"),
        ("layers", _INT, "", ""),
        ("layout", _TEXT, "", "one letter a layer: A MHA, F Full, L Linear"),
        ("d_model", _INT, "channels", ""),
        ("heads", _INT, "", ""),
        ("head_dim", _INT, "channels", ""),
        ("d_ff", _INT, "channels", ""),
        ("vocab", _INT, "entries", ""),
        ("context", _INT, "tokens", ""),
        ("micro", _INT, "sequences", ""),
        ("accumulation", _INT, "micro-batches", ""),
        ("budget_tokens", _INT, "tokens", ""),
        ("data_title", _TEXT, "", ""),
        *_ORIGIN,
    ],
    "runs": [
        *_KEY,
        ("parameters", _INT, "parameters", ""),
        ("layout", _TEXT, "", "one letter a layer: A MHA, F Full, L Linear"),
        ("d_model", _INT, "channels", ""),
        ("heads", _INT, "", ""),
        ("d_ff", _INT, "channels", ""),
        ("vocabulary", _INT, "entries", ""),
        ("context", _INT, "tokens", ""),
        ("micro", _INT, "sequences", ""),
        ("accumulation", _INT, "micro-batches", ""),
        ("learning_rate", _REAL, "", "peak"),
        ("corpus", _TEXT, "", "title"),
        ("corpus_fingerprint", _TEXT, "", "of the texts"),
        ("budget_tokens", _INT, "tokens", ""),
        ("trained_tokens", _INT, "tokens", ""),
        ("updates", _INT, "updates", "the partial one included"),
        ("epochs", _REAL, "", "passes over the training windows"),
        ("final_nll", _REAL, "nat/token", "full validation split, final weights"),
        ("validation_tokens", _INT, "tokens", ""),
        ("validation_characters", _INT, "characters", "null in rows of 2026-11-27 and before"),
        ("unigram_entropy", _REAL, "nat/token", "of the validation split"),
        ("order_hash", _TEXT, "", "of the windows consumed, in order"),
        ("init_hash", _TEXT, "", "of the initial matrices that paired variants share"),
        ("seconds", _REAL, "s", "wall time of all updates"),
        ("tokens_per_second", _REAL, "tok/s", "trained tokens over those seconds"),
        ("median_tokens_per_second", _REAL, "tok/s", "median over updates; null where not kept"),
        ("peak_memory_gib", _REAL, "GiB", "allocated on the GPU; null on a CPU"),
        ("processes", _INT, "", "that trained it; null where it changed or is not known"),
        ("backend", _TEXT, "", "of the operators, in the order A, F, L of the layout"),
        ("precision", _TEXT, "", "bf16 or fp32"),
        ("specification", _TEXT, "", "JSON of what determines the result"),
        ("former_hash", _TEXT, "", "configuration hash before 2026-11-27; else null"),
        *_ORIGIN,
    ],
    "losses": [
        *_KEY,
        ("update", _INT, "", "from 1"),
        ("tokens", _INT, "tokens", "consumed so far"),
        ("loss", _SINGLE, "nat/token", "mean over the update's tokens, before it"),
        ("gradient_norm", _SINGLE, "", "global L2, before clipping; null where not kept"),
        *_ORIGIN,
    ],
    "probes": [
        *_KEY,
        ("update", _INT, "", "after which it was taken; 0: initial weights"),
        ("tokens", _INT, "tokens", "consumed by then"),
        ("layer", _INT, "", "from 0; null for what is the whole model's"),
        ("part", _INT, "", "of an angle, its head pair from 0; else null"),
        ("metric", _TEXT, "", "validation_nll, lambda, theta, or one of flow"),
        ("value", _SINGLE, "", "nat/token, radians for theta; of flow the mean over heads"),
        *_ORIGIN,
    ],
    "flow": [
        *_DIAGNOSED,
        ("head", _INT, "", "from 0"),
        ("sequence", _INT, "", "from 0; null for the mean over sequences, by count"),
        ("length", _INT, "tokens", "null for the mean over sequences"),
        ("count", _INT, "", "rows of the flow, or matrices, that the value averages"),
        ("metric", _TEXT, "", ""),
        ("value", _SINGLE, "", "fraction of flow, rank or energy, as the metric says"),
        *_ORIGIN,
    ],
    "curves": [
        *_DIAGNOSED,
        ("curve", _TEXT, "", "self by position, distance: mass by i - j, sigma: singular values"),
        ("length", _INT, "tokens", ""),
        ("values", pa.list_(_SINGLE), "", "means over heads and sequences, 11 bits"),
        *_ORIGIN,
    ],
    "maps": [
        *_DIAGNOSED,
        ("head", _INT, "", "from 0"),
        ("length", _INT, "tokens", "of the first sequence, which is shown"),
        ("side", _INT, "blocks", "rows and columns of the map"),
        ("codes", pa.binary(), "", "side x side bytes: flow between blocks, in codes"),
        *_ORIGIN,
    ],
    "lengths": [
        *_KEY,
        ("reading", _TEXT, "", "whole, frozen, removed (count correction) or apart"),
        ("first", _INT, "tokens", "position of the first predicted token"),
        ("count", _INT, "tokens", "predicted, over all windows"),
        ("nll", _REAL, "nat/token", "mean from that position to the next row's"),
        *_ORIGIN,
    ],
    "recall": [
        *_CAMPAIGN,
        ("mixer", _TEXT, "", "mha, full, linear, hybrid, or a peer: gla, kda"),
        ("layout", _TEXT, "", "one letter a layer; empty for a peer"),
        *_OUTCOME,
        ("width", _INT, "channels", "d of the model"),
        ("parameters", _INT, "parameters", ""),
        ("learning_rate", _REAL, "", ""),
        ("seed", _INT, "", "of the weights and the training sequences"),
        ("chosen", pa.bool_(), "", "whether the rate is the one chosen at this width"),
        ("validation_accuracy", _REAL, "", "what the rate is chosen by, mean over tasks"),
        ("validation_nll", _REAL, "nat/query", "null where it is not finite"),
        ("seconds", _REAL, "s", "of the training and its answers, compilation included"),
        ("length", _INT, "tokens", "T of the task's sequences"),
        ("pairs", _INT, "", "of a key and its value in a sequence"),
        ("distance", _INT, "tokens", "from a query to its key: this to twice this, less 1"),
        ("queries", _INT, "", "at such a distance"),
        ("right", _INT, "", "of them, those whose likeliest token is the value"),
        *_ORIGIN,
    ],
    "steps": [
        *_CAMPAIGN,
        ("benchmark", _TEXT, "", "fixed, matched, linear-steady or linear-long"),
        ("scale", _TEXT, "", ""),
        ("side", _TEXT, "", "what was measured, by its name in the benchmark"),
        ("variant", _TEXT, "", ""),
        ("backend", _TEXT, "", ""),
        ("context", _INT, "tokens", ""),
        ("micro", _INT, "sequences", ""),
        ("accumulation", _INT, "micro-batches", ""),
        ("position", _INT, "", "index in the paper's order"),
        *_OUTCOME,
        ("tokens_per_second", _REAL, "tok/s", "complete updates, median of the rounds"),
        ("tokens_per_second_low", _REAL, "tok/s", "95% interval; null below six rounds"),
        ("tokens_per_second_high", _REAL, "tok/s", ""),
        ("raw_tokens_per_second", _REAL, "tok/s", "from the first update, with compilation"),
        ("allocated_gib", _REAL, "GiB", "peak allocated; null where it is not counted"),
        ("reserved_gib", _REAL, "GiB", "peak reserved"),
        ("measured_updates", _INT, "updates", "of all rounds"),
        ("samples", _REALS, "tok/s", "every round, in order"),
        ("alone", pa.bool_(), "", "measured apart: together they did not fit"),
        ("kernels", pa.list_(_TEXT), "", "of attention or Relation, as a profile saw them"),
        ("tokens", _TEXT, "", "corpus, or random"),
        *_CONDITIONS,
        *_ORIGIN,
    ],
    "complexity": [
        *_CAMPAIGN,
        ("scale", _TEXT, "", ""),
        ("operator", _TEXT, "", ""),
        ("context", _INT, "tokens", ""),
        *_OUTCOME,
        ("seconds", _REAL, "s", "median, forward and backward of one layer's operator"),
        ("seconds_low", _REAL, "s", "95% interval; null below six rounds"),
        ("seconds_high", _REAL, "s", ""),
        ("decode_reason", _TEXT, "", "of rows before decode had its own benchmark, as the next"),
        ("decode_seconds", _REAL, "s", "median, one token of the model after T - 1, batch 1"),
        ("decode_seconds_low", _REAL, "s", ""),
        ("decode_seconds_high", _REAL, "s", ""),
        ("decode_state_bytes", _INT, "bytes", "that one layer keeps for the next token"),
        *_CONDITIONS,
        *_ORIGIN,
    ],
    "decode": [
        *_CAMPAIGN,
        ("scale", _TEXT, "", ""),
        ("model", _TEXT, "", "mha, full, linear, hybrid, or llama, the peer"),
        ("layout", _TEXT, "", "one letter a layer: A MHA, F Full, L Linear"),
        ("measure", _TEXT, "", "token, prompt, forward or agreement"),
        ("context", _INT, "tokens", "that each row has read or, of prompt and forward, reads"),
        ("batch", _INT, "sequences", ""),
        ("precision", _TEXT, "", "bf16 or fp32"),
        *_OUTCOME,
        ("seconds", _REAL, "s", "median of a token, a prompt or a forward of the batch"),
        ("seconds_low", _REAL, "s", "95% interval"),
        ("seconds_high", _REAL, "s", ""),
        ("tokens_per_second", _REAL, "tok/s", "over all rows"),
        ("state_bytes", _INT, "bytes", "of the decode state"),
        ("compared_tokens", _INT, "tokens", "whose logits agreement compares"),
        ("logit_error", _REAL, "", "RMS of decoding's logits off FP64's, over theirs"),
        ("forward_error", _REAL, "", "the same of the forward pass in that precision"),
        ("greedy_differs", _INT, "tokens", "where decoding's likeliest is not the forward's"),
        ("forward_differs", _INT, "tokens", "where the forward's likeliest is not FP64's"),
        ("samples", _REALS, "s", "every round, in order"),
        *_ORIGIN,
    ],
    "checks": [
        *_CAMPAIGN,
        ("check", _TEXT, "", "exactness, identity, mixing, recurrence or history"),
        ("name", _TEXT, "", "Y, the state C or a gradient; the identity"),
        ("operator", _TEXT, "", "what was checked: a backend, or the definition"),
        ("scale", _TEXT, "", "whose head width and context it is"),
        ("heads", _INT, "", ""),
        ("length", _INT, "tokens", ""),
        ("width", _INT, "channels", "of a head"),
        ("precision", _TEXT, "", "bf16, fp32 or fp64"),
        *_ERRORS,
        *_ORIGIN,
    ],
    "gradients": [
        *_CAMPAIGN,
        ("variant", _TEXT, "", ""),
        ("scale", _TEXT, "", "whose widths the model has"),
        ("parameter", _TEXT, "", "whose gradient it is"),
        ("elements", _INT, "", "numbers of the parameter"),
        ("update", _TEXT, "", "launched by the host, or replayed from CUDA graphs"),
        *_ERRORS,
        ("layout", _TEXT, "", "one letter a layer: A MHA, F Full, L Linear"),
        ("width", _INT, "channels", "of a head"),
        ("length", _INT, "tokens", ""),
        ("micro", _INT, "sequences", ""),
        ("accumulation", _INT, "micro-batches", ""),
        ("backends", pa.list_(_TEXT), "", "of the checked step, by operator"),
        ("precision", _TEXT, "", "bf16 or fp32"),
        ("compiled", pa.bool_(), "", "whether the checked step is; else eager"),
        *_ORIGIN,
    ],
}

_RUN = ["campaign", "scale", "variation", "variant", "seed"]
# Rows with the same values here come from one job and are replaced together.
UNITS: dict[str, list[str]] = dict.fromkeys(KINDS, _RUN) | {
    "data": ["campaign", "corpus", "vocabulary"],
    "models": ["campaign", "variation"],
    "recall": ["campaign", "variation", "mixer"],
    "steps": ["campaign", "variation", "benchmark", "scale"],
    "complexity": ["campaign", "variation", "scale"],
    "decode": ["campaign", "variation", "scale"],
    "checks": ["campaign", "variation"],
    "gradients": ["campaign", "variation"],
}
# Where the jobs of a campaign write, below its folder. `models` is written once, in its place.
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
    "steps": "bench/[!cd]*/*.parquet",
    "complexity": "bench/complexity/*.parquet",
    "decode": "bench/decode/*.parquet",
    "checks": "check/operators.parquet",
    "gradients": "check/gradients.parquet",
}


def columns(kind: str) -> list[str]:
    """Names of a kind's columns, in order."""
    return [name for name, *_ in KINDS[kind]]


@cache
def schema(kind: str) -> pa.Schema:
    """A kind's Arrow schema; each field carries its unit and meaning as metadata."""
    return pa.schema(
        pa.field(name, of, metadata={"unit": unit, "description": meaning})
        for name, of, unit, meaning in KINDS[kind]
    )


@contextmanager
def atomic(path: Path) -> Iterator[Path]:
    """Yield a temporary path beside `path`; on success it replaces `path`, else it is removed.

    A crash leaves the old file or the new one. Raises RunError for a full disk.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        yield temporary
        _sync(temporary)
        os.replace(temporary, path)
        _sync(path.parent)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise RunError(
            f"{path} was not written: {error.strerror}; free space, then repeat"
        ) from None
    finally:
        temporary.unlink(missing_ok=True)


def _sync(path: Path) -> None:
    """Return once a file's data, or a folder's names, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        # Some network file systems sync folders themselves and refuse the call.
        if error.errno != errno.EINVAL or not path.is_dir():
            raise
    finally:
        os.close(descriptor)


@contextmanager
def held(path: Path, what: str) -> Iterator[None]:
    """Hold the lock file `path`. Raises RunError where another process holds it.

    A killed process leaves no lock behind.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = FileLock(path)
    try:
        # A process that checks the lock also holds it briefly, so retry for 0.2 s.
        lock.acquire(timeout=0.2, poll_interval=0.01)
    except Timeout:
        raise RunError(
            f"{what} is already running in another process; wait for it or stop it"
        ) from None
    try:
        yield
    finally:
        lock.release()


@cache
def commit() -> str:
    """The commit of the code, with "+changes" where tracked files differ; "unknown" without git."""

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(PROJECT), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    try:
        return git("rev-parse", "HEAD") + ("+changes" if git("status", "-s", "-uno") else "")
    except (FileNotFoundError, subprocess.CalledProcessError):
        return "unknown"


def origin(hash: str, device: str) -> dict[str, str]:
    """The origin columns of a row that is made now."""
    versions = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return {
        "hash": hash,
        "commit": commit(),
        "device": device,
        "versions": json.dumps(versions, sort_keys=True),
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def write(
    path: Path,
    kind: str,
    rows: pd.DataFrame | Sequence[Mapping[str, Any]],
    origin: Mapping[str, str] | None = None,
) -> None:
    """Write a kind's rows atomically, each with `origin`; None where the rows carry their own.

    Raises InputError where a column is missing, unknown or not lossless in its type.
    """
    given, layout = dict(origin or {}), schema(kind)
    try:
        if isinstance(rows, pd.DataFrame):
            names, frame = set(rows.columns), rows.assign(**given)
            names |= set(given)
        else:
            rows = [{**row, **given} for row in rows]
            names = set(layout.names) if not rows else set.union(*map(set, rows))
            if any(set(row) != names for row in rows):
                raise InputError(f"{path}: rows of {kind} have different columns")
        if odd := sorted(names ^ set(layout.names)):
            raise InputError(f"{path}: rows and columns of {kind} differ in {', '.join(odd)}")
        if isinstance(rows, pd.DataFrame):
            table = pa.Table.from_pandas(frame, layout, preserve_index=False)
        else:
            table = pa.Table.from_pylist(rows, layout)
    except pa.ArrowException as error:
        raise InputError(f"{path}: {str(error).splitlines()[0]}") from None
    with atomic(path) as temporary:
        pq.write_table(table.replace_schema_metadata(None), temporary, **_encoding(layout))


def _encoding(layout: pa.Schema) -> dict[str, Any]:
    """How columns are stored: floats byte by byte, the rest in dictionaries, all in zstd."""
    split = {}
    for field in layout:
        if pa.types.is_floating(field.type):
            split[field.name] = "BYTE_STREAM_SPLIT"
        elif pa.types.is_list(field.type) and pa.types.is_floating(field.type.value_type):
            split[f"{field.name}.list.element"] = "BYTE_STREAM_SPLIT"
    return {
        "compression": "zstd",
        "compression_level": 19,
        "column_encoding": split or None,
        "use_dictionary": [n for n in layout.names if n not in split],
        "write_statistics": False,
        "write_page_checksum": True,
    }


def _table(path: Path, kind: str, names: list[str] | None = None) -> pa.Table:
    try:
        with pq.ParquetFile(path, page_checksum_verification=True) as file:
            lacking = sorted(set(columns(kind)) - set(file.schema_arrow.names))
            if lacking:
                raise InputError(
                    f"{path} lacks {', '.join(lacking)}: another version wrote it; make it again"
                )
            return file.read(names or columns(kind))
    except FileNotFoundError:
        raise InputError(f"{path} is missing; run snakemake to make it") from None
    except (pa.ArrowException, OSError) as error:
        detail = (str(error).splitlines() or [type(error).__name__])[0]
        raise InputError(
            f"{path} is damaged ({detail}); restore it, or delete it and run snakemake"
        ) from None


def read(paths: Path | Sequence[Path], kind: str) -> pd.DataFrame:
    """The rows of one kind in files, in order; without files an empty frame with its columns.

    Raises InputError, naming the file, where one is missing, damaged or lacks a column.
    """
    paths = [paths] if isinstance(paths, Path) else paths
    tables = [_table(path, kind).cast(schema(kind)) for path in paths]
    return pa.concat_tables([schema(kind).empty_table(), *tables]).to_pandas()


def load(folder: Path) -> dict[str, pd.DataFrame]:
    """A campaign's rows by kind; a kind without a file is an empty frame with its columns.

    Raises InputError as `read` does, and as `check_pairs` does.
    """
    paths = {kind: folder / f"{kind}.parquet" for kind in KINDS}
    frames = {kind: read([path] if path.exists() else [], kind) for kind, path in paths.items()}
    check_pairs(frames["runs"])
    return frames


def check_pairs(runs: pd.DataFrame) -> None:
    """Raise InputError where MHA and Full of a seed had other data or other initial weights.

    Pairs whose specification has an `init_key` draw their weights apart.
    """
    pairs = runs[runs["variant"].isin(["mha", "full"])]
    apart = pairs["specification"].str.contains('"init_key"', regex=False, na=False)
    for column, rows, what in (
        ("order_hash", pairs, "read different data"),
        ("init_hash", pairs[~apart], "started from different weights"),
    ):
        for key, group in rows.groupby(["campaign", "scale", "variation", "seed"]):
            if group[column].nunique(dropna=False) > 1:
                found = ", ".join(
                    f"{v} {h}"
                    for v, h in zip(group["variant"], group[column].str[:12], strict=True)
                )
                raise InputError(
                    f"mha and full of {'/'.join(map(str, key))} {what} ({found}); delete the older "
                    "run and repeat it"
                )


def collect(folder: Path, planned: Mapping[str, str]) -> None:
    """Join the small files of a campaign's jobs into one Parquet a kind, in `folder`.

    planned: the hash of each planned file, by its path below `folder`; files that are not there
    yet are left out. Raises InputError for a record that another specification made.
    """
    for kind, pattern in FILES.items():
        names = [name for name in planned if Path(name).match(pattern)]
        frames = []
        for path in (folder / name for name in names if (folder / name).exists()):
            rows = read(path, kind)
            found = set(rows["hash"]) - {planned[path.relative_to(folder).as_posix()]}
            if found:
                raise InputError(
                    f"{path} has the specification {found.pop()}, not the planned "
                    f"{planned[path.relative_to(folder).as_posix()]}; delete it and run snakemake"
                )
            frames.append(rows)
        if frames:
            write(folder / f"{kind}.parquet", kind, pd.concat(frames, ignore_index=True))


@cache
def published_hashes(kind: str = "runs") -> frozenset[str]:
    """The hashes of all published rows of a kind: these jobs are done."""
    paths = sorted((RESULTS / "published").glob(f"*/{kind}.parquet"))
    return frozenset(h for path in paths for h in _table(path, kind, ["hash"])["hash"].to_pylist())


def merge(kind: str, old: pd.DataFrame, new: pd.DataFrame) -> tuple[pd.DataFrame, dict[str, int]]:
    """Rows of a kind after new ones came in, and how many jobs were added, replaced or refused.

    A job's new rows replace the old ones where the hash is the same. Where it differs, the old
    rows stay.
    """
    unit = UNITS[kind]
    keys = [rows[unit].astype(str).agg("/".join, axis=1) for rows in (old, new)]
    before, after = (
        dict(zip(key, rows["hash"].fillna(""), strict=True))
        for key, rows in zip(keys, (old, new), strict=True)
    )
    refused = {key for key in after if before.get(key, after[key]) != after[key]}
    replaced = after.keys() & before.keys() - refused
    counts = {"added": len(after.keys() - before.keys()), "replaced": len(replaced)}
    kept = [old[~keys[0].isin(replaced)], new[~keys[1].isin(refused)]]
    return pd.concat([k for k in kept if len(k)], ignore_index=True), counts | {
        "refused": len(refused)
    }


def publish(campaign: str) -> list[str]:
    """Merge a campaign's collected rows into results/published/<campaign>/; returns what changed.

    Flow maps are published for the first seed of a scale and variation.
    """
    source, target = RESULTS / campaign, RESULTS / "published" / campaign
    changes = []
    with held(source / "work" / "publish.lock", f"publish of {campaign}"):
        for kind, new in load(source).items():
            if new.empty:
                continue
            path = target / f"{kind}.parquet"
            rows, counts = merge(kind, read([path] if path.exists() else [], kind), new)
            if kind == "maps":
                first = rows.groupby(["campaign", "scale", "variation"])["seed"].transform("min")
                rows = rows[rows["seed"] == first]
            write(path, kind, rows)
            changes.append(f"{kind}: " + ", ".join(f"{n} {what}" for what, n in counts.items()))
    return changes
