"""The plain decoder that training steps are compared with, and their floor."""

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from benchmarks import CPU, CUDA, OPTIMIZER
from conftest import campaign
from torch import Tensor

from relation.bench import decoder
from relation.bench.decoder import (
    FloorStep,
    MakeMixer,
    PlainDecoder,
    PlainStep,
    plain_attention,
    projections,
    traffic_bytes,
)
from relation.bench.layers import full_layer, linear_layer
from relation.bench.run import run
from relation.bench.sides import step_groups
from relation.bench.steps import Setup, build_step
from relation.nn import Decoder, Execution
from relation.pipeline.inventory import count_parameters
from relation.store.layouts import BENCH
from relation.store.parquet import read_parquet
from relation.train.loss import summed_nll
from relation.variants import VARIANTS, ModelConfig

CONFIG = ModelConfig.for_variant(
    "mha", layers=3, d_model=24, heads=4, d_ff=40, vocab_size=61, init_std=0.2
)
FLASH = Execution(mha="flash")
Batches = list[tuple[Tensor, Tensor]]


def batches(count: int) -> Batches:
    tokens = torch.randint(61, (count, 2, 18), generator=torch.Generator().manual_seed(1))
    return [(part[:, :-1], part[:, 1:]) for part in tokens]


@pytest.mark.parametrize(
    ("variant", "mixer"),
    [("mha", plain_attention), ("full", full_layer), ("linear", linear_layer)],
)
def test_the_plain_decoder_is_the_same_model(variant: str, mixer: MakeMixer) -> None:
    """In float64, from the same weights: loss and every gradient."""
    config = replace(CONFIG, layout=VARIANTS[variant].pattern * CONFIG.layers)
    ours = Decoder(config)
    ours.initialise(42)
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for p in ours.parameters():
            p += 0.3 * torch.randn(p.shape, generator=generator)
    ours.double()
    plain = PlainDecoder(ours, 17, mixer).double()
    assert sum(p.numel() for p in plain.parameters()) == ours.parameter_count()
    ((inputs, targets),) = batches(1)
    truth, loss = summed_nll(ours, inputs, targets) / targets.numel(), plain(inputs, targets)
    truth.backward()
    loss.backward()
    # RoPE's angles are FP32 in both, but not rounded alike: eight roundings a position.
    close = {"rtol": 8 * 17 * 2**-23, "atol": 8 * 17 * 2**-23}
    torch.testing.assert_close(loss.float(), truth.float(), **close)
    for name, parameter in ours.named_parameters():
        assert parameter.grad.any()
        # A layer of other models holds lambda as a vector.
        found = plain.get_parameter(name).grad.reshape(parameter.shape)
        torch.testing.assert_close(found, parameter.grad, **close)


@pytest.mark.parametrize("decay_embedding", [True, False])
@pytest.mark.parametrize("micro_batches", [1, 3])
def test_the_plain_step_trains_as_the_projects_does(
    micro_batches: int, decay_embedding: bool
) -> None:
    settings = OPTIMIZER | {"decay_embedding": decay_embedding}
    setup = Setup(CONFIG, FLASH, settings, "fp32", False, CPU)
    ours, plain = build_step(setup), PlainStep(setup)
    split = batches(micro_batches)
    tokens = sum(targets.numel() for _, targets in split)
    curves = [
        torch.stack([torch.stack(step(split, tokens, rate)) for rate in (1e-2, 5e-3, 5e-3)])
        for step in (ours, plain)
    ]
    assert (curves[0][:, 0].diff() < 0).all()
    # FP32 sums of up to 61 terms, in another order, over three updates.
    torch.testing.assert_close(curves[1], curves[0], rtol=64 * 2**-23, atol=0)


def test_bf16_steps_agree_within_its_rounding() -> None:
    setup = Setup(CONFIG, FLASH, OPTIMIZER, "bf16", False, CPU)
    ours, plain = (step(batches(1), 34, 1e-2) for step in (build_step(setup), PlainStep(setup)))
    torch.testing.assert_close(plain, ours, rtol=2**-8, atol=0)


def test_projections_hold_every_matrix_of_the_model() -> None:
    for group in step_groups(decoder.BENCHMARKS["cuda"].steps, campaign("paper").systems):
        _, model = group.sides["plain"]
        matrices = sum(o * i * count for (o, i), count in projections(model).items())
        norms = (2 * model.layers + 1) * model.d_model
        assert matrices + norms == count_parameters(model)


def test_the_floors_traffic_grows_with_what_it_counts() -> None:
    model = ModelConfig.for_variant("mha", layers=1, d_model=4, heads=2, d_ff=6, vocab_size=10)
    # One token in FP32, d = 4: norms 2 (4 + 5) tensors, RoPE 8, the ends 2 + 4 + 4; SwiGLU 8 of
    # d_ff, 2 of the logits; an optimiser's 36 bytes a parameter.
    tensors = (18 + 8 + 10) * 4 + 8 * 6 + 2 * 10
    assert traffic_bytes(model, 0, 1, 4) == 4 * tensors
    assert traffic_bytes(model, 7, 1, 4) == 4 * tensors + 7 * 36
    assert traffic_bytes(model, 0, 5, 4) == 5 * 4 * tensors
    # In BF16 the residual stream stays FP32: 4 + 4 tensors of a layer's norms, 2 + 2 + 2 of the
    # ends.
    assert traffic_bytes(model, 0, 1, 2) == 2 * tensors + 2 * (8 + 6) * 4


def test_the_floor_runs_its_parts_and_no_other() -> None:
    (batch,) = batches(1)
    calls = {}
    for part in ("products", "attention", "traffic"):
        step = FloorStep([part], Setup(CONFIG, FLASH, OPTIMIZER, "fp32", True, CPU))
        step([batch], 34, 1e-3)
        calls[part] = len(step._calls)
    moved = traffic_bytes(CONFIG, count_parameters(CONFIG), 34, 4) // 2
    expected = {"products": 3 * (4 * 3 + 1), "attention": 3, "traffic": math.ceil(moved / 2**28)}
    assert calls == expected
    whole = FloorStep(expected, Setup(CONFIG, FLASH, OPTIMIZER, "bf16", True, CPU))
    whole([batch], 34, 1e-3)
    assert len(whole._calls) == sum(expected.values())


def test_bench_decoder_on_a_cpu(one_process: None, tmp_path: Path) -> None:
    path = tmp_path / "decoder.parquet"
    tiny = campaign("tiny", scales="10M")
    found = run("decoder", tiny.systems, tiny.settings, "cpu", path, repeats=2)
    rows = read_parquet(path, BENCH).to_pylist()
    parts = ["floor", "floor-products", "floor-attention", "floor-traffic"]
    assert [row["peer"] for row in rows] == ["decoder", "plain", *parts]
    assert {(row["measure"], row["status"]) for row in rows} == {("step", "PASS")}
    assert found.subject == "decoder"


@pytest.mark.parametrize("name", ["layers", "layers-eager"])
def test_layers_train_in_a_plain_loop_beside_attention(
    name: str, one_process: None, tmp_path: Path
) -> None:
    path = tmp_path / "layers.parquet"
    tiny = campaign("tiny", scales="10M")
    run(name, tiny.systems, tiny.settings, "cpu", path, repeats=2)
    rows = {row["peer"]: row for row in read_parquet(path, BENCH).to_pylist()}
    attention = ["flash-attention-2", "sdpa"]
    assert list(rows) == ["full-relation", "linear-relation", *attention]
    assert {row["status"] for row in rows.values()} == {"PASS"}
    assert all(rows[peer]["ratio"] > 0 for peer in attention)


@pytest.mark.gpu
def test_compiled_steps_agree_on_a_gpu() -> None:
    model = ModelConfig.for_variant("mha", layers=2, d_model=128, heads=4, d_ff=256, vocab_size=512)
    generator = torch.Generator().manual_seed(2)
    tokens = torch.randint(512, (4, 257), generator=generator)
    split = [(tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous())]
    setup = Setup(model, FLASH, OPTIMIZER, "bf16", True, CUDA)
    ours, plain = (
        torch.stack([torch.stack(step(split, 1024, 1e-3)) for _ in range(3)])
        for step in (build_step(setup), PlainStep(setup))
    )
    # Loss and norm, eight significant bits in every product.
    torch.testing.assert_close(plain, ours, rtol=2**-6, atol=0)
    torch.testing.assert_close(plain[:, 0], ours[:, 0], rtol=1e-3, atol=0)
