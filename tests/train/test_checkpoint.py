"""Checkpoints of a trained model are read back exactly, or refused in one line."""

import json
from dataclasses import asdict
from pathlib import Path

import pytest
import torch
from conftest import refusal
from safetensors.torch import save_file
from training import CPU, small_model

from relation.nn import Decoder, Execution
from relation.train.checkpoint import load_model, matrices_hash, save_model


def toy(variant: str = "full", **changes) -> Decoder:
    return Decoder(small_model(variant, **changes), seed=42)


@pytest.mark.parametrize("variant", ["mha-null", "raw-x", "full-qknorm-gate", "hybrid"])
def test_a_checkpoint_reads_back_as_the_model_it_was(tmp_path: Path, variant: str) -> None:
    model = toy(variant, rope_base=1e3)
    path, other = tmp_path / "new" / "model.safetensors", tmp_path / "other"
    save_model(model, path, {"hash": "0"})
    other.touch()
    assert path.stat().st_mode == other.stat().st_mode, "as readable as any new file"
    again = load_model(path, CPU, Execution(mha="flash", full="tiled", linear="chunked"))
    assert again.config == model.config
    for (name, saved), (same, loaded) in zip(
        model.named_parameters(), again.named_parameters(), strict=True
    ):
        assert name == same and torch.equal(saved, loaded)
    # The reader chooses the backends. Their results differ only by FP32's rounding.
    tokens = torch.arange(30).reshape(2, 15)
    torch.testing.assert_close(again(tokens), model(tokens), rtol=1e-4, atol=1e-5)


@torch.no_grad()
def test_the_hash_of_a_pairs_initial_weights_covers_each_matrix() -> None:
    model = toy("full")
    known = matrices_hash(model)
    assert matrices_hash(toy("mha")) == known
    for parameter in model.parameters():
        kept = parameter.clone()
        parameter.view(-1)[-1:] += 1
        assert (matrices_hash(model) != known) == (parameter.ndim == 2)
        parameter.copy_(kept)


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


@pytest.mark.parametrize("kind", FOREIGN)
def test_a_foreign_checkpoint_is_refused(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "model.safetensors"
    save_file({n: p.detach() for n, p in toy().named_parameters()}, path, metadata=FOREIGN[kind])
    assert str(path) in refusal(lambda: load_model(path, CPU))


def test_a_checkpoint_of_other_bits_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    save_model(toy(), path, {})
    content = bytearray(path.read_bytes())
    content[-2] ^= 1
    path.write_bytes(content)
    assert "weights are not those that were written" in refusal(lambda: load_model(path, CPU))


@pytest.mark.parametrize("length", [None, 0, 100, 4000, -1])
def test_a_missing_or_truncated_checkpoint_is_refused(tmp_path: Path, length: int | None) -> None:
    path = tmp_path / "model.safetensors"
    if length is not None:
        save_model(toy(), path, {})
        path.write_bytes(path.read_bytes()[:length])
    message = refusal(lambda: load_model(path, CPU))
    assert str(path) in message and ("is missing" in message) == (length is None)
