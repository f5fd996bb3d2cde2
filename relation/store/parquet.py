"""Parquet as the pipeline's record: typed columns with units, origin metadata, atomic writes."""

import base64
import json
from collections.abc import Container, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from relation.errors import InputError
from relation.store.files import atomic_path
from relation.store.seal import KEY, UNSEALED, is_sealed, seal

_BYTES_AT_A_TIME = 1 << 20
_ORIGIN_KEY = b"relation.origin"
_ORIGIN_KEYS = {"campaign", "config_hash", "commit", "versions"}  # what every reader rests on


@dataclass(frozen=True)
class Column:
    """One column: its name, Arrow type, unit and meaning."""

    name: str
    type: pa.DataType
    unit: str = ""
    description: str = ""


def schema(*columns: Column) -> pa.Schema:
    """An Arrow schema whose fields carry `unit` and `description` metadata."""
    return pa.schema(
        [
            pa.field(c.name, c.type, metadata={"unit": c.unit, "description": c.description})
            for c in columns
        ]
    )


def write_parquet(
    path: Path,
    layout: pa.Schema,
    rows: Sequence[Mapping[str, Any]] | Mapping[str, Sequence[Any]],
    origin: Mapping[str, Any],
) -> None:
    """Write rows (a list of mappings, or a mapping of columns) with their origin, atomically.

    Raises InputError where a column is missing or unknown: a record never loses a value silently.
    """
    names = set(layout.names)
    keys = [set(rows)] if isinstance(rows, Mapping) else [set(row) for row in rows]
    for given in keys:
        if given != names:
            odd = sorted(given ^ names)
            raise InputError(f"{path}: rows and schema differ in {', '.join(odd)}")
    metadata = {_ORIGIN_KEY: json.dumps(dict(origin), sort_keys=True), KEY: UNSEALED}
    layout = layout.with_metadata(metadata)
    if isinstance(rows, Mapping):
        table = pa.table(dict(rows), schema=layout)
    else:
        table = pa.Table.from_pylist([dict(row) for row in rows], schema=layout)
    with atomic_path(path) as temporary:
        # In one piece: by itself pyarrow makes two writes a column, slow on a network's disk.
        with temporary.open("wb", buffering=_BYTES_AT_A_TIME) as file:
            pq.write_table(table, file, write_page_checksum=True, **_smallest(layout))
        seal(temporary)


def _smallest(layout: pa.Schema) -> dict[str, Any]:
    """Encodings by type: three tenths less than Parquet's own choice on the shipped records."""
    encodings, words = {}, []
    for field in layout:
        if pa.types.is_integer(field.type):
            encodings[field.name] = "DELTA_BINARY_PACKED"
        elif pa.types.is_floating(field.type):
            encodings[field.name] = "BYTE_STREAM_SPLIT"
        elif pa.types.is_list(field.type) and pa.types.is_floating(field.type.value_type):
            encodings[f"{field.name}.list.element"] = "BYTE_STREAM_SPLIT"
        else:
            words.append(field.name)
    return {
        "compression": "zstd",
        "compression_level": 19,
        "column_encoding": encodings or None,
        "use_dictionary": words,
    }


@contextmanager
def _told_in_one_line(path: Path) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError:
        raise InputError(f"{path} is missing; run snakemake to make it") from None
    except (pa.ArrowException, OSError, ValueError) as error:
        detail = (str(error).splitlines() or [type(error).__name__])[0]
        raise InputError(
            f"{path} is not readable Parquet ({detail}); delete it and run snakemake again"
        ) from None


def read_parquet(path: Path, layout: pa.Schema | None = None) -> pa.Table:
    """Read a record. Raises InputError where it is missing, damaged or of another schema.

    Of a record from before there were seals only the pages are checked, not its metadata.
    """
    with _told_in_one_line(path):
        is_sealed(path)
        # Not pq.read_table: it imports pyarrow.dataset and pandas, a quarter second in every job.
        with pq.ParquetFile(path, page_checksum_verification=True) as file:
            table = file.read()
    if layout is not None and not _same_columns(table.schema, layout):
        missing = sorted(set(layout.names) - set(table.schema.names))
        what = f"lacks {', '.join(missing)}" if missing else "has other columns, types or units"
        raise InputError(
            f"{path} {what}: it comes from another version; delete it and run snakemake again"
        )
    return table


def pack_parquet(
    source: Path, target: Path, *, compress: bool = True, coarse: Container[str] = ()
) -> None:
    """Write a copy of a record with the same columns, values and origin in fewer bytes, sealed.

    compress: not where the copy goes into an archive, which compresses many records together
    better. coarse: columns of floats whose values keep five significant digits alone.

    A table's origin is written twice, beside its Arrow schema and in it; here it is in the schema
    alone. There are no statistics, which nobody asks of some thousand rows. Raises InputError as
    `read_parquet` does.
    """
    table = read_parquet(source)
    origin = {_ORIGIN_KEY: json.dumps(read_origin(source), sort_keys=True)}
    for index, field in enumerate(table.schema):
        if field.name in coarse:
            values = [x if x is None else float(f"{x:.4e}") for x in table[index].to_pylist()]
            table = table.set_column(index, field, pa.array(values, field.type))
    schema = table.schema.with_metadata(origin).serialize().to_pybytes()
    metadata = {"ARROW:schema": base64.b64encode(schema), KEY: UNSEALED}
    layout = table.schema.remove_metadata()
    how = {"store_schema": False, "write_statistics": False, "write_page_checksum": True}
    how |= _smallest(layout)
    if not compress:
        how |= {"compression": "none", "compression_level": None}
    with atomic_path(target) as temporary:
        with pq.ParquetWriter(temporary, layout, **how) as writer:
            writer.write_table(table.replace_schema_metadata(None))
            writer.add_key_value_metadata(metadata)
        seal(temporary)


def is_checkable(path: Path) -> bool:
    """Whether a record can be checked whole. Raises InputError where it is missing or damaged."""
    with _told_in_one_line(path):
        pq.read_schema(path)
        return is_sealed(path)


def _same_columns(found: pa.Schema, layout: pa.Schema) -> bool:
    """Whether names, types and units agree; descriptions may change without harm."""
    units = [[(field.metadata or {}).get(b"unit") for field in s] for s in (found, layout)]
    return found.equals(layout) and units[0] == units[1]


def read_origin(path: Path) -> dict:
    """The origin metadata of a record. Raises InputError where there is none, or it is damaged."""
    with _told_in_one_line(path):
        is_sealed(path)
        metadata = pq.read_schema(path).metadata or {}
    if _ORIGIN_KEY not in metadata:
        raise InputError(f"{path} carries no origin; it was not written by this project")
    try:
        origin = json.loads(metadata[_ORIGIN_KEY])
    except (ValueError, RecursionError):
        origin = None
    if not isinstance(origin, dict) or not origin.keys() >= _ORIGIN_KEYS:
        raise InputError(f"{path} has a damaged origin; delete it and run snakemake again")
    return origin
