"""The diagnostics of a checkpoint: rows, curves and maps of its flows on fixed sequences."""

from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import refusal
from training import CPU, small_model, small_run

from relation import records
from relation.data.masks import document_mask
from relation.data.windows import open_tokens
from relation.errors import RunError
from relation.flow import metrics
from relation.flow.diagnose import diagnose
from relation.flow.maps import decode
from relation.nn import Decoder
from relation.train.checkpoint import load_model, save_model

# A map with 64 blocks per side then has blocks of one token and of two tokens.
LENGTHS = {"flow_sequences": 3, "flow_window": 70, "flow_length": 70, "rank_length": 12}


def saved_model(folder: Path, variant: str, layers: int = 2) -> Decoder:
    """Save and return a tiny model with large weights."""
    model = Decoder(small_model(variant, layers=layers, init_std=0.5), seed=42)
    save_model(model, folder / "model.safetensors", {})
    return model


def diagnosed(folder: Path, data: Path, variant: str, **changes) -> tuple[dict, Decoder]:
    """Diagnose a tiny model; return the rows by kind, and the model."""
    model = saved_model(folder, variant)
    run = small_run(variant, **LENGTHS | changes)
    diagnose(run, data, folder / "model.safetensors", folder / "out")
    kinds = ("flow", "curves", "maps")
    return {kind: records.read(folder / "out" / f"{kind}.parquet", kind) for kind in kinds}, model


@pytest.mark.parametrize("variant", ["mha", "full"])
@torch.no_grad()
def test_rows_of_a_checkpoint(tmp_path, data, variant) -> None:
    rows, model = diagnosed(tmp_path, data, variant)
    flow = rows["flow"]
    assert set(flow["variant"]) == {variant} and set(flow["hash"]) == {
        small_run(variant, **LENGTHS).flow_hash
    }
    assert set(zip(flow["length"], flow["count"], strict=True)) == {(70, 70), (12, 1)}
    key = ["length", "metric", "layer", "head", "sequence"]
    actual = flow.set_index(key)["value"].sort_index()
    assert len(actual) == (11 + 5) * 2 * 2 * 3 and actual.index.is_unique
    curves = rows["curves"].set_index(["layer", "curve"])["values"]
    maps = rows["maps"].set_index(["layer", "head"])
    assert len(curves) == 2 * 3 and len(maps) == 2 * 2

    tokens = open_tokens(data, "validation")[:210].astype(np.int64)
    windows, starts = torch.from_numpy(tokens.reshape(3, 70)), np.arange(64) * 70 // 64
    for layer, flows in enumerate(model.flows(windows)):  # (3, 2, 70, 70)
        short = flows[..., :12, :12]
        readings = {70: metrics.read_flow(flows), 12: metrics.read_spectrum(short)}
        for length, reading in readings.items():
            for metric, values in reading.values.items():
                rows = actual[length, metric, layer].unstack("head").to_numpy()
                assert np.allclose(rows, values, rtol=1e-3, atol=1e-6), metric
        means = {
            "self": flows.diagonal(dim1=-2, dim2=-1),
            "distance": metrics.history_profiles(flows)[0],
            "sigma": metrics.singular_values(short),
        }
        for name, values in means.items():
            assert np.allclose(curves[layer, name], values.mean((0, 1)), rtol=3e-4, atol=1e-7), name
        for head in range(2):
            row = maps.loc[(layer, head)]
            codes = np.frombuffer(row["codes"], np.uint8).astype(float).reshape(64, 64)
            assert (row["length"], row["side"]) == (70, 64)
            # Mass on a block's tokens, averaged over another block's rows; maps cover 5 decades.
            mass = np.add.reduceat(flows[0, head].double().numpy(), starts, axis=1)
            mean = np.add.reduceat(mass, starts) / np.diff([*starts, 70])[:, None]
            back, shown = 10 ** ((codes - 63) * 5 / 62), mean > 1.1e-5
            assert np.allclose(decode(codes), np.where(codes > 0, back, 0), rtol=1e-12)
            assert back[shown] == pytest.approx(mean[shown], rel=0.1) and back[~shown].max() < 2e-5


def test_a_model_trained_on_separate_documents_is_diagnosed_on_them(tmp_path, data) -> None:
    rows, model = diagnosed(tmp_path, data, "full", document_mask="documents")
    tokens = torch.from_numpy(open_tokens(data, "validation")[:70].astype(np.int64))[None]
    documents = document_mask("documents", data)(tokens)
    layer = next(metrics.read_layers(model, tokens, 70, 12, documents))
    first = rows["flow"].query("layer == 0 and sequence == 0 and length == 70")
    first = first.pivot(index="metric", columns="head", values="value")
    for metric, values in layer.readings[0].values.items():
        assert first.loc[metric].to_numpy() == pytest.approx(values[0].numpy(), rel=1e-5), metric


def test_what_cannot_be_diagnosed_is_one_line(tmp_path, data) -> None:
    assert "Linear" in refusal(lambda: diagnosed(tmp_path, data, "linear"))
    assert not (tmp_path / "out").exists()
    few = {"flow_window": 200}
    assert "holds 1 windows of 200" in refusal(lambda: diagnosed(tmp_path, data, "full", **few))
    model = saved_model(tmp_path, "full")
    with torch.no_grad():
        model.blocks[1].mixer.w1.weight[0, 0] = float("nan")
    save_model(model, tmp_path / "model.safetensors", {})
    run = small_run(**LENGTHS)
    given = (run, data, tmp_path / "model.safetensors", tmp_path / "out")
    assert "layer 1 is not finite" in refusal(lambda: diagnose(*given), RunError)


@torch.no_grad()
def test_flow_stays_in_its_document_and_sinks_are_their_first_tokens(tmp_path, data) -> None:
    saved_model(tmp_path, "full")
    model = load_model(tmp_path / "model.safetensors", CPU)
    text = torch.tensor([[5, 3, 0, 4, 6, 7, 0, 2, 9, 9], [1, 2, 3, 0, 0, 4, 4, 8, 8, 8]])
    documents = document_mask("documents", data)(text)
    starts, place = documents.starts[:, None, :, None], torch.arange(10)  # (B, 1, T, 1), (T,)
    for layer in metrics.read_layers(model, text, 10, 8, documents):
        assert not layer.flow.triu(1).any() and not layer.flow.where(place < starts, 0).any()
        history = layer.flow.double().tril(-1)
        # A document's first row has no history.
        share = (history / history.sum(-1, keepdim=True)).nan_to_num()
        for k in (1, 2):
            sink = share.where(place < starts + k, 0).sum((-2, -1)) / 10
            actual = layer.readings[0].values[f"sink_{k}"]
            torch.testing.assert_close(actual, sink, rtol=1e-5, atol=0)
