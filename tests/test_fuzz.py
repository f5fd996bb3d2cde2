"""Readers of files that anybody may have written: refused in one line, or read."""

import copy
import json
from pathlib import Path

import pytest
import yaml
from conftest import ROOT
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from relation.errors import InputError, RelationError
from relation.pipeline.campaign import resolve
from relation.pipeline.config import load_config
from relation.store.layouts import LOG
from relation.store.parquet import read_origin, read_parquet, write_parquet
from relation.train.folder import parse_line, read_folder

CONFIG = (ROOT / "config.yaml").read_text(encoding="utf-8")
FUZZ = settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=9), inner),
    max_leaves=20,
)


def paths(value: object, so_far: tuple = ()) -> list[tuple]:
    """Where something stands in a configuration."""
    found = [so_far] if so_far else []
    items = value.items() if isinstance(value, dict) else ()
    items = enumerate(value) if isinstance(value, list) else items
    for key, inner in items:
        found += paths(inner, (*so_far, key))
    return found


PARSED = yaml.safe_load(CONFIG)
PATHS = paths(PARSED)


def one_line(action) -> None:
    """Nothing but success or an error in one line comes of it."""
    try:
        action()
    except RelationError as error:
        assert str(error)


@FUZZ
@given(place=st.sampled_from(PATHS), value=VALUES)
def test_a_configuration_with_anything_anywhere(place: tuple, value: object) -> None:
    config = copy.deepcopy(PARSED)
    inside = config
    for key in place[:-1]:
        inside = inside[key]
    inside[place[-1]] = value
    one_line(lambda: resolve(config, campaign="tiny"))


@FUZZ
@given(position=st.integers(0, len(CONFIG.encode()) - 1), noise=st.binary(min_size=1, max_size=9))
def test_a_configuration_with_noise_in_its_bytes(tmp_path, position, noise) -> None:
    whole = CONFIG.encode()
    path = tmp_path / "config.yaml"
    path.write_bytes(whole[:position] + noise + whole[position + len(noise) :])
    one_line(lambda: resolve(load_config(path), campaign="tiny"))


@FUZZ
@given(content=st.binary(max_size=300) | st.text(max_size=300).map(str.encode))
def test_a_configuration_of_noise(tmp_path: Path, content: bytes) -> None:
    for name in ("config.yaml", "config.json"):
        path = tmp_path / name
        path.write_bytes(content)
        one_line(lambda path=path: resolve(load_config(path)))


@pytest.fixture(scope="module")
def record(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("record") / "log.parquet"
    rows = [
        {n: i if n in ("update", "tokens", "update_tokens") else i / 7 for n in LOG.names}
        for i in range(200)
    ]
    origin = {"campaign": "c", "config_hash": "0", "commit": "x", "versions": {}}
    write_parquet(path, LOG, rows, origin)
    return path.read_bytes()


@FUZZ
@given(data=st.data())
def test_a_record_with_a_changed_byte_is_refused(tmp_path, record, data) -> None:
    position = data.draw(st.integers(0, len(record) - 1))
    content = bytearray(record)
    content[position] ^= data.draw(st.integers(1, 255))
    path = tmp_path / "log.parquet"
    path.write_bytes(content)
    for read in (read_origin, read_parquet):
        with pytest.raises(InputError):
            read(path)


@FUZZ
@given(length=st.integers(0, 3000))
def test_a_record_cut_anywhere_is_refused(tmp_path, record, length) -> None:
    path = tmp_path / "log.parquet"
    path.write_bytes(record[: min(length, len(record) - 1)])
    with pytest.raises(InputError):
        read_parquet(path, LOG)
    with pytest.raises(InputError):
        read_origin(path)


@FUZZ
@given(value=VALUES, noise=st.binary(max_size=40))
def test_live_logs_of_anything(tmp_path: Path, value: object, noise: bytes) -> None:
    for name in ("run.json", "metrics.jsonl"):
        (tmp_path / name).write_bytes(json.dumps(value).encode() + b"\n" + noise)
    one_line(lambda: read_folder(tmp_path))
    assert parse_line(noise) is None
