"""Packed documents that see themselves alone: trained, evaluated and diagnosed as if apart."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import refusal
from test_config import changed, config
from tokenizers import Tokenizer, models
from training import (
    UPDATE,
    assert_same_run,
    at_update,
    die,
    run_spec,
    small_model,
    train_together,
    write_corpus,
)

from relation import ops
from relation.bench.steps import Setup, build_step
from relation.data.mask import DocumentMask
from relation.data.splits import END_OF_TEXT
from relation.data.windows import IGNORED, TrainingWindows, plan_updates, validation_windows
from relation.errors import InputError
from relation.flow.diagnose import diagnose, diagnose_file
from relation.flow.layers import read_layers
from relation.flow.probe import FlowProbe
from relation.nn import Decoder, Execution
from relation.pipeline.campaign import Campaign, resolve
from relation.sections import WITHOUT_DOCUMENTS
from relation.spec import RunSpec
from relation.store.layouts import FLOW, LOG, PROBES, RUN
from relation.store.parquet import read_origin, read_parquet
from relation.train import run as engine
from relation.train.checkpoint import load_model
from relation.train.probes import ValidationProbe
from relation.train.step import UpdateStep
from relation.variants import ModelConfig

END = 0  # a row without a window is all zeros, so this is the hardest id
MASK = DocumentMask(END)
CPU = torch.device("cpu")
SMOKE = "campaigns.smoke"
Batch = tuple[torch.Tensor, torch.Tensor]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A prepared corpus whose documents have some 61 tokens, in windows of 16."""
    folder = write_corpus(tmp_path_factory.mktemp("masked") / "data")
    save_tokenizer(folder, {END_OF_TEXT: END})
    return folder


def save_tokenizer(folder: Path, vocabulary: dict) -> None:
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token=next(iter(vocabulary))))
    tokenizer.save(str(folder / "tokenizer.json"))


def masked(**changes) -> RunSpec:
    model = small_model("full", init_std=0.1)
    return run_spec(model=model, document_mask="documents", **changes)


@pytest.fixture(scope="module")
def trained(data: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[RunSpec, Path]:
    """A run of 4 updates and a partial one, with its looks."""
    spec, folder = masked(), tmp_path_factory.mktemp("masked-run")
    probes = (FlowProbe(sampling(spec), 2, data, 61), ValidationProbe(2, 10**9, data, spec))
    engine.train(spec, data, folder / "out", folder / "resume", probes=probes)
    return spec, folder / "out"


def sampling(spec: RunSpec):
    return replace(resolve(config(), campaign="tiny").diagnostics_spec(spec), window=16)


def document_slices(inputs: torch.Tensor) -> list[slice]:
    """Where one row's documents lie, (T,): each begins with the row or an end-of-text."""
    starts = sorted({0, *(inputs == END).nonzero().flatten().tolist()})
    return [slice(*ends) for ends in zip(starts, [*starts[1:], len(inputs)], strict=True)]


def apart(batches: list[Batch]) -> list[Batch]:
    """Every document as a micro-batch by itself, what predicts nothing left out."""
    alone = []
    for inputs, targets in batches:
        for x, y in zip(inputs, targets, strict=True):
            x, y = x[y != IGNORED], y[y != IGNORED]
            alone += [(x[None, part], y[None, part]) for part in document_slices(x) if len(x)]
    return alone


@pytest.mark.parametrize("variant", ["mha", "full", "hybrid"])
def test_packed_training_is_training_document_by_document(variant: str) -> None:
    """Losses, norms and weights of three updates in FP64, the last partial with an empty row."""
    context, micro = 24, 3
    tokens = np.random.default_rng(5).integers(0, 9, 900).astype("<u2")
    windows = TrainingWindows(tokens, context, seed=1)
    plans = plan_updates(2 * 144 + 100, 144, context, "partial")
    geometry = {"layers": 4, "d_model": 16, "heads": 2, "d_ff": 24, "vocab_size": 9}
    model = ModelConfig.for_variant(variant, **geometry, init_std=0.3)
    execution = Execution(mha="flash", full="tiled", linear="chunked")

    def run(documents, split) -> tuple[list[float], torch.Tensor]:
        decoder = Decoder(model, execution)
        decoder.initialise(3)
        decoder.double()
        optimizer = torch.optim.SGD(decoder.parameters(), lr=0.0)
        step = UpdateStep(decoder, optimizer, CPU, "fp32", False, 1.0, documents=documents)
        seen = []
        for plan in plans:
            ids = windows.window_ids(plan.first, plan.windows)
            batches = []
            for first in range(0, len(ids), micro):
                left = min(plan.tokens - first * context, micro * context)
                arrays = windows.batch(ids[first : first + micro], left, micro)
                batches.append(tuple(torch.from_numpy(array) for array in arrays))
            seen += [x.item() for x in step(split(batches), plan.tokens, 0.1)]
        return seen, torch.cat([p.detach().flatten() for p in decoder.parameters()])

    mask = MASK.of_updates(windows, plans, micro)
    seen, packed = run(mask, lambda batches: batches)
    expected, alone = run(None, apart)
    # The loss is taken in FP32, whose sums over 144 tokens round by 2^-24 a term. Logits that FP64
    # rounds otherwise move an FP32 gradient by a few 2^-24; a step is 0.1 of a norm of 1 at most.
    assert seen == pytest.approx(expected, rel=144 * 2**-24)
    torch.testing.assert_close(packed, alone, rtol=0, atol=len(plans) * 0.1 * 2**-22)
    _, unmasked = run(None, lambda batches: batches)
    assert (packed - unmasked).abs().max() > 1e-3


@pytest.mark.parametrize("micro", [1, 3, 4])
def test_no_micro_batch_has_more_documents_than_were_counted(micro: int) -> None:
    """Over epochs, a partial update and rows without a window, whose tokens begin none."""
    tokens = np.random.default_rng(6).integers(0, 7, 400).astype("<u2")
    windows = TrainingWindows(tokens, 20, seed=1)
    plans = plan_updates(1900, 240, 20, "partial")
    mask, found = MASK.of_updates(windows, plans, micro), 0
    for plan in plans:
        ids = windows.window_ids(plan.first, plan.windows)
        for first in range(0, len(ids), micro):
            left = min(plan.tokens - first * 20, micro * 20)
            arrays = windows.batch(ids[first : first + micro], left, micro)
            documents = mask(*(torch.from_numpy(array) for array in arrays))
            offsets = documents.offsets
            assert len(offsets) == mask.most + 1 and offsets[-1] == documents.starts.numel()
            assert (offsets.diff() >= 0).all()
            place = torch.arange(20) + 20 * torch.arange(micro)[:, None]
            begun = place[documents.positions == 0]
            assert begun.tolist() == offsets[: len(begun)].tolist()
            found = max(found, len(begun))
    # A window that begins with end-of-text is counted twice.
    assert mask.most - micro <= found <= mask.most


def test_a_benchmarks_window_of_eight_documents_trains_as_eight_rows() -> None:
    model = ModelConfig.for_variant("full", layers=2, d_model=16, heads=2, d_ff=24, vocab_size=31)
    adamw = {"learning_rate": 0.0, "betas": (0.9, 0.95), "eps": 1e-5, "weight_decay": 0.1}
    adamw |= {"decay_embedding": True, "gradient_clip": 1.0}
    setup = Setup(model, Execution(full="tiled"), adamw, "fp32", False, CPU, documents=8)
    rows = torch.randint(31, (2, 24, 5), generator=torch.Generator().manual_seed(1))
    packed = [part.reshape(3, 40) for part in rows]
    found = build_step(setup)([packed], rows[0].numel(), 0.0)
    expected = build_step(replace(setup, documents=1))([rows], rows[0].numel(), 0.0)
    for ours, truth in zip(found, expected, strict=True):
        assert ours.item() == pytest.approx(truth.item(), rel=120 * 2**-24)


def test_end_of_text_begins_a_document_and_is_its_last_target() -> None:
    """The last token of each row's document predicts the end-of-text that begins the next."""
    text = torch.tensor([[5, 3, END, 4, 6, 7, END, 2]])
    documents = MASK.documents(text)
    assert documents.starts.tolist() == [[0, 0, 2, 2, 2, 2, 6, 6]]


def test_a_masked_run_records_its_mask_and_evaluates_with_it(trained, data: Path) -> None:
    """The final NLL is that of the validation split's documents one by one."""
    spec, output = trained
    written = read_origin(output / "record.parquet")
    assert written["spec"]["document_mask"] == "documents"
    assert spec.config_hash != replace(spec, document_mask=None).config_hash
    (record,) = read_parquet(output / "record.parquet", RUN).to_pylist()
    model = load_model(output / "model.safetensors", CPU, Execution())
    tokens = np.fromfile(data / "validation.bin", "<u2")
    total, count = 0.0, 0
    for inputs, targets in validation_windows(tokens, spec.context):
        for x, y in apart([(torch.tensor(inputs)[None], torch.tensor(targets)[None])]):
            nll = torch.nn.functional.cross_entropy(model(x)[0], y[0], reduction="sum")
            total, count = total + nll.item(), count + y.numel()
    assert count == len(tokens) - 1 == record["validation_tokens"]
    assert record["final_nll"] == pytest.approx(total / count, rel=1e-5)
    looks = read_parquet(output / "probes.parquet", PROBES).to_pylist()
    last = [row["value"] for row in looks if row["metric"] == "validation_nll"][-1]
    assert last == pytest.approx(record["final_nll"], rel=1e-6)


def test_a_masked_run_goes_on_where_it_was_killed(trained, data, tmp_path, monkeypatch) -> None:
    spec, output = trained
    spec = replace(spec, checkpoint_tokens=2 * UPDATE)
    with monkeypatch.context() as patch:
        at_update(patch, 4, die)
        with pytest.raises(KeyboardInterrupt):
            engine.train(spec, data, tmp_path / "out", tmp_path / "resume")
    begun = at_update(monkeypatch, 0, die)
    engine.train(spec, data, tmp_path / "out", tmp_path / "resume")
    assert begun == [3, 4, 5]
    assert_same_run(tmp_path / "out", output)


def test_two_processes_train_the_same_masked_run(trained, data: Path, tmp_path: Path) -> None:
    spec, output = trained
    run = (spec, data, tmp_path / "out", tmp_path / "resume")
    codes, said = train_together(2, run, tmp_path / "said")
    assert codes == [0, 0], said
    losses = [read_parquet(p / "log.parquet", LOG)["loss"].to_pylist() for p in (run[2], output)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)


@pytest.mark.parametrize("vocabulary, said", [(None, "is missing"), ({"a": 0}, "has no <|endoft")])
def test_a_corpus_whose_tokenizer_tells_no_end_of_text_is_refused(
    tmp_path: Path, vocabulary: dict | None, said: str
) -> None:
    bare = write_corpus(tmp_path / "bare")
    if vocabulary is not None:
        save_tokenizer(bare, vocabulary)
    assert f"tokenizer.json {said}" in refusal(
        lambda: engine.train(masked(), bare, tmp_path / "out", tmp_path / "resume")
    )


@torch.no_grad()
def test_flow_stays_in_its_document_and_sinks_are_their_first_tokens(trained) -> None:
    model = load_model(trained[1] / "model.safetensors", CPU, Execution())
    text = torch.tensor([[5, 3, END, 4, 6, 7, END, 2, 9, 9], [1, 2, 3, END, END, 4, 4, 8, 8, 8]])
    rows = list(read_layers(model, text, 10, 8, MASK))
    plain = list(model.flows(text, MASK.documents(text)))
    starts = MASK.documents(text).starts
    for layer, flow in zip(rows, plain, strict=True):
        assert torch.equal(layer.flow, flow)
        found = layer.readings[0].values
        sinks = torch.zeros(2, 2, 2, dtype=torch.float64)
        for b, h, i in np.ndindex(2, 2, 10):
            start = int(starts[b, i])
            history = flow[b, h, i, start:i].double()
            assert not flow[b, h, i, :start].any() and not flow[b, h, i, i + 1 :].any()
            if i > start:
                sinks[0, b, h] += history[0] / history.sum() / 10
                sinks[1, b, h] += history[:2].sum() / history.sum() / 10
        torch.testing.assert_close(found["sink_1"], sinks[0], rtol=1e-5, atol=0)
        torch.testing.assert_close(found["sink_2"], sinks[1], rtol=1e-5, atol=0)


def test_the_last_look_the_diagnosis_and_that_of_the_file_agree(trained, data, tmp_path) -> None:
    spec, output = trained
    looks = read_parquet(output / "probes.parquet", PROBES).to_pandas()
    last = looks[looks["update"] == looks["update"].max()].set_index(["layer", "metric"])["value"]
    wanted, checkpoint = sampling(spec), output / "model.safetensors"
    diagnose(wanted, spec, checkpoint, data, tmp_path / "flow.parquet")
    rows = read_parquet(tmp_path / "flow.parquet", FLOW).to_pandas()
    given = {name: getattr(wanted, name) for name in ("sequences", "flow_length", "rank_length")}
    given |= {"window": 16, "document_mask": "documents"}
    file = diagnose_file(checkpoint, data / "validation.bin", None, "cpu", **given).flow
    assert [row["value"] for row in file] == pytest.approx(rows["value"].tolist(), rel=1e-6)
    for place, value in rows.groupby(["layer", "metric"])["value"].mean().items():
        assert last[place] == pytest.approx(value, rel=1e-6), place


def masked_readings(**changes) -> dict:
    """The tiny campaign with the mask among its readings."""
    choices = ["sd-0.02", "document-mask"]
    found = changed(("campaigns.tiny.readings.choices", choices))
    found["campaigns"]["tiny"] |= changes
    return found


def test_the_mask_is_a_reading_that_a_campaign_can_choose() -> None:
    """Its runs alone have it; those there were before keep their hashes."""
    before, after = resolve(config(), campaign="tiny"), resolve(masked_readings(), campaign="tiny")
    found = {run.config_hash: run for run in after.reading_runs}
    assert {run.config_hash for run in before.reading_runs} < found.keys()
    for run in found.values():
        own = "documents" if run.reading.endswith("document-mask") else None
        assert run.document_mask == after.diagnostics_spec(run).document_mask == own
    own = [reading for reading in after.readings if reading.choice == "document-mask"]
    assert [reading.name for reading in own] == ["unscaled-document-mask", "scaled-document-mask"]
    assert own[0].assumptions["document_mask"] == "documents" and not own[0].beside
    assert "not how documents share a window" in own[0].paper
    assert before.runs == after.runs


def test_a_campaign_may_mask_its_whole_matrix() -> None:
    given = changed((f"{SMOKE}.assumptions.document_mask", "documents"))
    before, after = (resolve(c, campaign="smoke") for c in (config(), given))
    assert {run.document_mask for run in after.runs} == {"documents"}
    assert not {r.config_hash for r in before.runs} & {r.config_hash for r in after.runs}
    assert [s.config_hash for s in before.systems] == [s.config_hash for s in after.systems]
    assert value_of(before) == "none" and value_of(after) == "documents"


def value_of(campaign: Campaign) -> str:
    (found,) = (a["value"] for a in campaign.assumptions if a["name"] == "document_mask")
    return found


def test_a_backend_that_keeps_no_documents_apart_is_refused_with_the_configuration() -> None:
    """In a campaign, not in a reading that names another one."""
    cudnn = {"backends": {"mha": "cudnn", "full": "tiled", "linear": "chunked"}, "device": "cuda"}
    runs = resolve(masked_readings(**cudnn), campaign="tiny").reading_runs
    mha = {r.document_mask: r.backends["mha"] for r in runs if r.variant == "mha"}
    assert mha == {None: "cudnn", "documents": "flash"}
    spoilt = masked_readings(**cudnn, assumptions={"document_mask": "documents"})
    said = refusal(lambda: resolve(spoilt, campaign="tiny"))
    assert said.startswith("config: scale 10M, variant mha: document_mask is documents")
    assert "'cudnn'" in said


@pytest.mark.parametrize("operator, name", ops.BACKENDS)
def test_the_refused_backends_are_those_that_take_no_documents(operator: str, name: str) -> None:
    if name in ("flash", "flex") and operator != "mha":
        pytest.skip("it needs a GPU, where its own tests hold it to its definition in documents")
    p = torch.rand(1, 2, 6, 16)
    extra = {"mha": (), "full": (torch.tensor(0.5),), "linear": (-p,)}[operator]
    call, documents = ops.BACKENDS[operator, name].call, MASK.documents(torch.ones(1, 6))
    try:
        call(p, p, p, *extra, documents=documents)
        refused = False
    except InputError as error:
        assert "documents" in str(error)
        refused = True
    assert refused == ((operator, name) in WITHOUT_DOCUMENTS)
