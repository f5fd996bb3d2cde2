"""Every bit: no flipped one in a record, a token file, a checkpoint or a state is unnoticed."""

import json
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from safetensors.torch import save_file
from sample import documents
from test_checkpoint import CPU, toy
from test_config import config
from test_records import LAYOUT, ORIGIN, ROWS

from relation.data.tokenizer import load_tokenizer, train_tokenizer
from relation.data.tokens import TOKEN_TYPE, open_prepared, open_tokens
from relation.errors import InputError
from relation.pipeline.campaign import resolve
from relation.pipeline.progress import campaign_status
from relation.pipeline.results import Results
from relation.store.files import sha256_of
from relation.store.layouts import DATA, MODELS
from relation.store.parquet import is_checkable, read_origin, read_parquet, write_parquet
from relation.train.checkpoint import (
    Progressed,
    load_model,
    newest_whole_state,
    save_model,
    snapshot,
    write_state,
)

_FLIPS = 1000  # of a file, spread evenly over its bytes and over the bits of a byte


def flipped(path: Path) -> Iterator[int]:
    """Flip one bit of a file after the other, each back before the next; yields its place."""
    whole = path.read_bytes()
    for i in range(min(_FLIPS, 8 * len(whole))):
        bit = i * 8 * len(whole) // min(_FLIPS, 8 * len(whole)) + i % 8
        place = min(bit // 8, len(whole) - 1)
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1 << bit % 8]) + whole[place + 1 :])
        yield bit
    path.write_bytes(whole)


def unnoticed(path: Path, *readers: Callable[[Path], object]) -> list[int]:
    """The bits whose flip some reader does not refuse; all of them read the whole file."""
    for reader in readers:
        reader(path)
    found = []
    for bit in flipped(path):
        for reader in readers:
            try:
                reader(path)
            except InputError as error:
                assert "\n" not in str(error) and path.name in str(error)
            else:
                found.append(bit)
    return found


@pytest.fixture
def prepared(tmp_path: Path) -> Path:
    """A prepared corpus: two token files, a tokenizer and their record."""
    tokenizer = train_tokenizer(documents(40), 300, "toy")
    tokenizer.save(str(tmp_path / "tokenizer.json"), pretty=False)
    rows = []
    for split, count in (("train", 400), ("validation", 90)):
        path = tmp_path / f"{split}.bin"
        torch.arange(count).numpy().astype(TOKEN_TYPE).tofile(path)
        counts = dict.fromkeys(("tokens", "documents", "characters"), count)
        rows.append({"split": split, **counts, "unigram_entropy": 1.0, "sha256": sha256_of(path)})
    origin = ORIGIN | {"tokenizer_sha256": sha256_of(tmp_path / "tokenizer.json")}
    write_parquet(tmp_path / "data.parquet", DATA, rows, origin)
    return tmp_path


def test_no_bit_of_a_record(tmp_path: Path) -> None:
    path = tmp_path / "record.parquet"
    write_parquet(path, LAYOUT, ROWS, ORIGIN)
    assert unnoticed(path, read_parquet, read_origin) == []


def test_no_bit_of_a_prepared_corpus(prepared: Path) -> None:
    sha256 = sha256_of(prepared / "train.bin")
    tokens = unnoticed(
        prepared / "train.bin", open_tokens, lambda path: open_prepared(prepared, "train", sha256)
    )
    assert tokens == unnoticed(prepared / "tokenizer.json", load_tokenizer) == []


@pytest.mark.parametrize("beside", ["its record", "no record"])
def test_no_bit_of_a_checkpoint(tmp_path: Path, beside: str) -> None:
    path = tmp_path / "model.safetensors"
    save_model(toy(), path, {"config_hash": "0"})
    if beside == "its record":
        origin = ORIGIN | {"checkpoint_sha256": sha256_of(path)}
        write_parquet(tmp_path / "record.parquet", LAYOUT, ROWS, origin)
    assert unnoticed(path, lambda path: load_model(path, CPU)) == []


def test_no_bit_of_a_state(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = toy()
    optimizer = torch.optim.AdamW(model.parameters())
    write_state(tmp_path, snapshot(model, optimizer, Progressed(3, "a", "b", 1.0, {}, [1])))
    path = newest_whole_state(tmp_path)
    assert path is not None
    for bit in flipped(path):
        assert newest_whole_state(tmp_path) is None, bit
    assert capsys.readouterr().err.count("fails its checksum") == _FLIPS


def test_an_older_record_is_read_and_said_to_be_unchecked(tmp_path: Path) -> None:
    campaign = resolve(config(), campaign="tiny")
    results = Results(campaign, tmp_path)
    hashes = {"config_hash": campaign.inventory_hash}
    write_parquet(results.models, MODELS, [], ORIGIN | hashes)
    assert is_checkable(results.models) and not campaign_status(campaign, results).notes

    table = pq.read_table(results.models)
    origin = {b"relation.origin": table.schema.metadata[b"relation.origin"]}
    pq.write_table(table.replace_schema_metadata(origin), results.models)
    assert read_parquet(results.models, MODELS).num_rows == 0
    assert read_origin(results.models) == ORIGIN | hashes and not is_checkable(results.models)
    (note,) = campaign_status(campaign, results).notes
    assert "1 record is from before" in note and "their metadata cannot" in note


def test_an_older_checkpoint_is_read_with_a_warning(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, model = tmp_path / "model.safetensors", toy()
    values = json.dumps({**asdict(model.config), "details": {}})
    save_file(dict(model.named_parameters()), path, metadata={"model": values})
    assert torch.equal(load_model(path, CPU).embedding.weight, model.embedding.weight)
    assert f"{path} has no checksum" in capsys.readouterr().err
    origin = ORIGIN | {"checkpoint_sha256": sha256_of(path)}
    write_parquet(tmp_path / "record.parquet", LAYOUT, ROWS, origin)
    load_model(path, CPU)
    assert not capsys.readouterr().err


def test_a_record_that_another_program_wrote_again_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "record.parquet"
    write_parquet(path, LAYOUT, ROWS, ORIGIN)
    table = pq.read_table(path)
    pq.write_table(table.set_column(2, table.schema.field(2), pa.array([4, 5])), path)
    with pytest.raises(InputError, match="checksum"):
        read_parquet(path)
