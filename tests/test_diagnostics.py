"""The diagnostics of a checkpoint: rows, curves and maps of its own flows, on fixed sequences."""

import hashlib
import weakref
from collections import defaultdict
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from flows import defined_flow_metrics, defined_rank_metrics
from training import campaign

from relation.cli import main
from relation.errors import InputError
from relation.flow import diagnose as measure
from relation.flow import layers, maps, metrics
from relation.flow.codes import decode, encode
from relation.nn import Decoder, ModelConfig
from relation.pipeline.places import with_pictures
from relation.spec import DiagnosticsSpec
from relation.store.layouts import FLOW, FLOW_CURVES, FLOW_MAPS
from relation.store.parquet import read_origin, read_parquet
from relation.train.checkpoint import save_model

TOKENS = np.random.default_rng(5).integers(31, size=3 * 24 + 1)


def saved_model(folder: Path, variant: str, layers: int = 2) -> Decoder:
    """A tiny model with strong weights: two heads, saved with the tokens beside it."""
    model = Decoder(ModelConfig.for_variant(variant, layers, 16, 2, 16, 31, init_std=0.5))
    model.initialise(42)
    save_model(model, folder / "model.safetensors", {})
    TOKENS.astype("<u2").tofile(folder / "validation.bin")
    return model


def diagnosed(folder: Path, variant: str, **spec) -> tuple[Path, Decoder]:
    """Diagnose a tiny model of two layers, windows of 24 tokens."""
    model = saved_model(folder, variant)
    output = folder / f"{variant}.parquet"
    run = replace(campaign().paired_runs[0], scale="10M", variant=variant, seed=42, context=24)
    spec = DiagnosticsSpec(run_hash=run.config_hash, device="cpu", **({"window": 24} | spec))
    measure.diagnose(spec, run, folder / "model.safetensors", folder, output)
    return output, model


@pytest.mark.parametrize("variant", ["mha", "full"])
def test_rows_of_a_checkpoint(tmp_path, variant):
    path, model = diagnosed(tmp_path, variant, sequences=3, flow_length=24, rank_length=12)
    rows = read_parquet(path, FLOW).to_pylist()
    assert {(r["scale"], r["variant"], r["seed"]) for r in rows} == {("10M", variant, 42)}
    assert {(r["length"], r["count"]) for r in rows} == {(24, 24), (12, 1)}
    found = {
        (r["length"], r["metric"], r["layer"], r["head"], r["sequence"]): r["value"] for r in rows
    }
    assert len(found) == len(rows) == (11 + 5) * 2 * 2 * 3

    windows = torch.from_numpy(TOKENS[:72].reshape(3, 24))
    aggregate: dict[tuple, list[float]] = defaultdict(list)
    with torch.no_grad():
        for length in (24, 12):
            for layer, flows in enumerate(model.flows(windows[:, :length])):
                for sequence, head in np.ndindex(3, 2):
                    flow = flows[sequence, head].double().numpy()
                    if length == 24:
                        expected = defined_flow_metrics(flow)
                    else:
                        expected = defined_rank_metrics(np.linalg.svd(flow, compute_uv=False))
                    for metric, value in expected.items():
                        row = found[length, metric, layer, head, sequence]
                        assert row == pytest.approx(value, rel=1e-3, abs=1e-6), metric
                        aggregate[metric, layer].append(row)
    for layer in range(2):
        own, exchange = (np.mean(aggregate[m, layer]) for m in ("self_flow", "exchange_flow"))
        assert own + exchange == pytest.approx(1)


@pytest.mark.parametrize("variant", ["mha", "full"])
def test_curves_and_maps_of_a_checkpoint(tmp_path, variant):
    path, model = diagnosed(tmp_path, variant, sequences=3, flow_length=24, rank_length=12)
    _, curves_path, maps_path = with_pictures(path)
    curves = {
        (row["layer"], row["curve"]): np.array(row["values"])
        for row in read_parquet(curves_path, FLOW_CURVES).to_pylist()
    }
    pictures = {
        (row["layer"], row["head"]): row for row in read_parquet(maps_path, FLOW_MAPS).to_pylist()
    }
    assert len(curves) == 2 * 3 and len(pictures) == 2 * 2
    windows = torch.from_numpy(TOKENS[:72].reshape(3, 24))
    with torch.no_grad():
        for layer, flow in enumerate(model.flows(windows)):
            expected = {
                "self": flow.diagonal(dim1=-2, dim2=-1).mean((0, 1)),
                "distance": metrics.history_profiles(flow)[0].mean((0, 1)),
                "sigma": metrics.singular_values(flow[..., :12, :12]).mean((0, 1)),
            }
            for name, values in expected.items():
                assert np.allclose(curves[layer, name], values, rtol=3e-4, atol=1e-7), name
            for head in range(2):
                row = pictures[layer, head]
                codes = np.frombuffer(row["codes"], np.uint8).reshape(row["side"], row["side"])
                assert row["length"] == row["side"] == 24
                assert np.array_equal(codes, encode(maps.pooled(flow[0, head]).numpy()))
                assert np.allclose(decode(codes).sum(1), 1, atol=0.1)


def test_the_sequences_are_recorded_and_the_same_for_both_of_a_pair(tmp_path):
    lengths = {"sequences": 2, "flow_length": 20, "rank_length": 10}
    hashes = {
        read_origin(path)["sequences_hash"]
        for variant in ("mha", "full")
        for path in with_pictures(diagnosed(tmp_path, variant, **lengths)[0])
    }
    sequences = np.stack((TOKENS[:20], TOKENS[24:44])).astype("<i8")
    assert hashes == {hashlib.sha256(sequences.tobytes()).hexdigest()}


def test_scales_of_one_corpus_read_the_same_sequences():
    """The paper's 10M and 30M models share a corpus and a tokenizer, not a context."""
    paper = campaign("paper")
    specs = {
        scale: paper.diagnostics_spec(paper.run(scale, "full", 42))
        for scale in ("10M", "30M", "100M")
    }
    sampling = {s: replace(spec, run_hash="").identity() for s, spec in specs.items()}
    assert sampling["10M"] == sampling["30M"] != sampling["100M"]
    assert sampling["10M"]["window"] == 2048 and sampling["100M"]["window"] == 4096
    lengths = {(s["sequences"], s["flow_length"], s["rank_length"]) for s in sampling.values()}
    assert lengths == {(4, 1024, 512)}


def test_a_restriction_leaves_the_sequences_alone():
    alone, whole = campaign("paper", scales="10M"), campaign("paper")
    run = whole.run("10M", "mha", 42)
    assert alone.diagnostics_spec(run) == whole.diagnostics_spec(run)


def test_one_layers_flows_live_at_a_time(tmp_path, monkeypatch):
    """At most two: the next layer's is made before the reader lets go of the last."""
    alive, most = weakref.WeakSet(), []
    whole = Decoder.flows

    def watched(*given):
        for flow in whole(*given):
            alive.add(flow)
            most.append(len(alive))
            yield flow
            del flow

    monkeypatch.setattr(Decoder, "flows", watched)
    model = saved_model(tmp_path, "full", layers=12)
    tokens = torch.from_numpy(TOKENS[:24])[None]
    assert sum(1 for _ in layers.read_layers(model, tokens, 24, 12)) == 12
    assert len(most) == 12 and max(most) <= 2


def test_linear_checkpoints_have_no_flow_to_diagnose(tmp_path):
    with pytest.raises(InputError, match="Linear"):
        diagnosed(tmp_path, "linear", sequences=1, flow_length=24, rank_length=12)
    assert not (tmp_path / "linear.parquet").exists()


def test_a_diverged_checkpoint_is_named(tmp_path):
    model = saved_model(tmp_path, "full")
    with torch.no_grad():
        model.blocks[1].mixer.w1.weight[0, 0] = float("nan")
    with pytest.raises(InputError, match="layer 1 is not finite"):
        list(layers.read_layers(model, torch.from_numpy(TOKENS[:24])[None], 24, 12))


@pytest.mark.parametrize(
    ("length", "whole"), [(4 * 10 + 1, 4), (4 * 10, 3), (4 * 10 + 9, 4), (5, 0)]
)
def test_first_windows_are_whole_or_refused(length, whole):
    tokens = np.arange(length).astype("<u2")
    if whole:
        windows = measure.first_windows(tokens, 10, whole)
        assert windows.dtype == torch.int64
        assert torch.equal(windows, torch.arange(10 * whole).reshape(whole, 10))
    with pytest.raises(InputError) as refusal:
        measure.first_windows(tokens, 10, whole + 1)
    assert "\n" not in str(refusal.value) and str(whole + 1) in str(refusal.value)


SAMPLING = ("--sequences", "2", "--flow-length", "20", "--rank-length", "10", "--window", "24")


def test_any_checkpoint_is_diagnosed_by_command(tmp_path, capsys):
    """With the values of a campaign's run on the same sequences."""
    expected, _ = diagnosed(tmp_path, "full", sequences=2, flow_length=20, rank_length=10)
    given = ["diagnose", "--checkpoint", str(tmp_path / "model.safetensors"), *SAMPLING]
    output = tmp_path / "other.parquet"
    assert main([*given, "--data", str(tmp_path), "--output", str(output)]) == 0
    printed = capsys.readouterr().out.splitlines()
    found, same = (read_parquet(path, FLOW) for path in (output, expected))
    for name in ("layer", "head", "sequence", "length", "count", "metric", "value"):
        assert found[name].equals(same[name]), name
    assert found["scale"].null_count == found.num_rows
    assert all(path.exists() for path in with_pictures(output))
    origins = [read_origin(path) for path in (output, expected)]
    assert origins[0]["sequences_hash"] == origins[1]["sequences_hash"]
    assert len(origins[0]["checkpoint_sha256"]) == 64

    frame = same.to_pandas()
    frame = frame[frame["metric"] == "self_flow"]
    shares = [
        *frame.groupby("layer")["value"].mean(),
        frame["value"].mean(),
    ]
    labels = [line.split()[:2] for line in printed]
    assert labels[0] == ["layer", "Self"]
    rows = [[f"L{i}", f"{100 * v:.2f}%"] for i, v in enumerate(shares[:2])]
    assert labels[1:4] == [*rows, ["all", f"{100 * shares[2]:.2f}%"]]
    assert printed[4:] == [str(path) for path in with_pictures(output)]

    assert main([*given, "--data", str(tmp_path / "validation.bin")]) == 0
    assert capsys.readouterr().out.splitlines() == printed[:4]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("diagnose", "give SCALE/VARIANT/SEED, or --checkpoint"),
        ("diagnose 10M/full/42 --sequences 3", "--sequences: only with --checkpoint"),
        ("diagnose --checkpoint {model}", "give --checkpoint with --data"),
        ("diagnose --checkpoint {model} --data {data} --campaign tiny", "leave out --campaign"),
        ("diagnose --checkpoint {model} --data {data}", "give more validation text"),
        ("diagnose --checkpoint {model} --data {data}/none", "none/validation.bin is missing"),
        ("diagnose --checkpoint none --data {data}", "--checkpoint none is missing; name a"),
        ("diagnose --checkpoint {model} --data {data} --sequences 0", "whole number"),
        ("diagnose --checkpoint {model} --data {data} --window 9", "do not fit a window of 9"),
    ],
)
def test_what_cannot_be_diagnosed_is_told_in_one_line(tmp_path, capsys, arguments, words):
    saved_model(tmp_path, "full")
    given = arguments.format(model=tmp_path / "model.safetensors", data=tmp_path)
    assert main(given.split()) == 2
    message = capsys.readouterr().err
    assert message.count("\n") == 1
    assert words in message


def test_tokens_of_another_tokenizer_are_refused(tmp_path):
    saved_model(tmp_path, "full")
    np.full(73, 31, "<u2").tofile(tmp_path / "validation.bin")
    spec = {"sequences": 1, "window": 24, "flow_length": 24, "rank_length": 12}
    with pytest.raises(InputError, match="token 31 and the model knows 31"):
        measure.diagnose_file(tmp_path / "model.safetensors", tmp_path, None, "cpu", **spec)
