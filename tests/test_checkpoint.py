"""Checkpoints of a trained model: read back exactly, or refused in one line."""

import json
from dataclasses import asdict
from pathlib import Path

import pytest
import torch
from conftest import refusal
from safetensors.torch import save_file

from relation.nn import Decoder, Execution
from relation.train.checkpoint import load_model, save_model
from relation.variants import VARIANTS, ModelConfig

CPU = torch.device("cpu")


def toy(variant: str = "full", **changes) -> Decoder:
    backbone = {"layers": 4, "d_model": 16, "heads": 2, "d_ff": 24, "vocab_size": 61} | changes
    model = Decoder(ModelConfig.for_variant(variant, **backbone))
    model.initialise(42)
    return model


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_checkpoint_reads_back_as_the_model_it_was(tmp_path: Path, variant: str) -> None:
    model = toy(variant, retention_a_range=(2.0, 3.0))
    path = tmp_path / "new" / "model.safetensors"
    save_model(model, path, {"config_hash": "0"})
    execution = Execution(mha="flash", full="tiled", linear="chunked")
    again = load_model(path, CPU, execution)
    assert again.config == model.config
    for (name, saved), (other, loaded) in zip(
        model.named_parameters(), again.named_parameters(), strict=True
    ):
        assert name == other
        assert torch.equal(saved, loaded)
    # The backends are the reader's choice; they compute the same up to FP32's rounding.
    tokens = torch.arange(30).reshape(2, 15)
    torch.testing.assert_close(again(tokens), model(tokens), rtol=1e-4, atol=1e-5)


def test_a_checkpoint_is_as_readable_as_any_new_file(tmp_path: Path) -> None:
    path, other = tmp_path / "model.safetensors", tmp_path / "other"
    save_model(toy(), path, {})
    other.touch()
    assert path.stat().st_mode == other.stat().st_mode


def test_a_checkpoint_is_replaced_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "model.safetensors"
    save_model(toy(), path, {})
    before = path.read_bytes()

    def full_disk(tensors: dict, file: Path, **options) -> None:
        Path(file).write_bytes(b"half")
        raise OSError("no space left on device")

    monkeypatch.setattr("relation.train.checkpoint.save_file", full_disk)
    with pytest.raises(OSError, match="no space"):
        save_model(toy("mha"), path, {})
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


FULL = asdict(toy().config)
FOREIGN = {
    "no metadata": None,
    "another writer's": {"format": "pt"},
    "not JSON": {"model": "{"},
    "another version's": {"model": json.dumps(FULL | {"width": 3})},
    "an impossible model": {"model": json.dumps(FULL | {"heads": 3})},
    "another geometry": {"model": json.dumps(FULL | {"d_ff": 40})},
    "another layout": {"model": json.dumps(FULL | {"layout": "AAAA"})},
}


def refused(path: Path) -> str:
    """The one line that a checkpoint is refused with; it names the file."""
    message = refusal(lambda: load_model(path, CPU))
    assert str(path) in message
    return message


@pytest.mark.parametrize("kind", FOREIGN)
def test_a_foreign_checkpoint_is_refused(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "model.safetensors"
    tensors = {name: p.detach() for name, p in toy().named_parameters()}
    save_file(tensors, path, metadata=FOREIGN[kind])
    assert len(refused(path)) < 400


@pytest.mark.parametrize("length", [None, 0, 7, 100, 4000, -1])
def test_a_missing_or_truncated_checkpoint_is_refused(tmp_path: Path, length: int | None) -> None:
    path = tmp_path / "model.safetensors"
    if length is not None:
        save_model(toy(), path, {})
        path.write_bytes(path.read_bytes()[:length])
    assert ("is missing" in refused(path)) == (length is None)


def test_noise_is_no_checkpoint(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(b"noise" * 99)
    refused(path)
