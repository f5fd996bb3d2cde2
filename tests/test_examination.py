"""Beyond the paper's measures: on models built by hand, whose answer is known."""

import math
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from test_config import config
from tokenizers import Tokenizer, models
from torch import Tensor, nn

from relation.cli.examined import print_examination
from relation.data.splits import END_OF_TEXT
from relation.nn import Decoder, Execution, ModelConfig
from relation.ops import full_relation
from relation.ops.tiled import tiled_relation
from relation.pipeline.campaign import resolve
from relation.probes.copying import copying_rows, distances, read_flow, repeated_blocks
from relation.probes.examine import LAYOUTS, examination_of
from relation.probes.length import (
    count_frozen,
    document_windows,
    frozen_count,
    length_rows,
    longest_windows,
)
from relation.probes.parts import PARTS, parts_of, without
from relation.probes.self_use import (
    first_windows,
    frequency_bands,
    position_bands,
    repeats,
    use_rows,
)
from relation.spec import ExaminationSpec, RunSpec
from relation.store.parquet import write_parquet
from relation.train.step import autocast

V, END, T = 40, 3, 32


def decoder(layout: str, **rest) -> Decoder:
    """A small model of these layers with random weights, no angle of which is 0."""
    config = ModelConfig(vocab_size=V, d_model=16, heads=2, d_ff=16, layout=layout, **rest)
    model = Decoder(config, Execution(full="tiled", linear="chunked")).eval()
    model.initialise(seed=1)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("theta"):
                parameter.fill_(0.7)
            elif parameter.ndim >= 2:
                parameter.mul_(12)  # enough that every part shows
    return model


def uniform(model: Decoder) -> Decoder:
    """The same with scores of zero: MHA's flow is then uniform over what it sees."""
    with torch.no_grad():
        for block in model.blocks:
            block.mixer.w1.weight.zero_()
    return model


class LookupMixer(nn.Module):
    """An induction head: all flow to the token after the earlier occurrence, else to itself."""

    def flow(self, x: Tensor, rope, documents=None) -> Tensor:
        tokens = x.argmax(-1)
        before = nn.functional.pad(tokens[:, :-1], (1, 0), value=-1)
        follows = (tokens[:, :, None] == before[:, None, :]).tril()
        own = torch.eye(x.shape[1], dtype=torch.bool) & ~follows.any(-1, keepdim=True)
        return (follows | own).float()[:, None]

    def forward(self, x: Tensor, residual, rope, cache, documents) -> Tensor:
        return self.flow(x, rope)[:, 0] @ x


class Lookup(nn.Module):
    """A model of one such head on one-hot states: it says what it looked up."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(V, V, _weight=torch.eye(V))
        block = nn.Module()
        block.mixer = LookupMixer()
        self.blocks = nn.ModuleList([block])

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        return 100 * self.blocks[0].mixer(x, x, None, None, None)


def copied(model: nn.Module) -> dict[tuple, float]:
    rows = copying_rows(model, T, V, END, sequences=2)
    return {(r["distance"], r["layer"], r["metric"]): r["value"] for r in rows}


def test_a_block_stands_twice_and_no_token_of_it_does() -> None:
    assert distances(T, V) == [8, 16]
    assert distances(1024, 300) == [8, 16, 32, 64, 128, 256], "no more than there are ids"
    tokens = repeated_blocks(50, 16, V, END)
    assert torch.equal(tokens[:, :16], tokens[:, 16:])
    assert all(len(set(row[:16].tolist())) == 16 for row in tokens)
    assert END not in tokens and set(tokens.flatten().tolist()) == set(range(V)) - {END}


def test_induction_scores_of_known_flows() -> None:
    d = 8
    steps = torch.arange(1.0, 2 * d + 1, dtype=torch.float64)
    same = (torch.ones(2 * d, 2 * d, dtype=torch.float64).tril() / steps[:, None])[None, None]
    expected = (1 / steps[d:-1]).mean()
    assert all(torch.allclose(score, expected) for score in read_flow(same, d))
    pure = torch.eye(2 * d)[None, None]
    assert read_flow(pure, d) == (torch.zeros(1), torch.ones(1))


def test_a_lookup_copies_and_a_uniform_flow_does_not() -> None:
    found = copied(Lookup())
    for d in (8, 16):
        assert found[d, 0, "induction"] == 1 and found[d, 0, "self"] == 0
        assert found[d, None, "repeat_accuracy"] == 1 and found[d, None, "first_accuracy"] == 0
        assert found[d, None, "repeat_nll"] < 1e-6 < found[d, None, "first_nll"]
    found = copied(uniform(decoder("A")))
    for d in (8, 16):
        by_chance = np.mean([1 / (t + 1) for t in range(d, 2 * d - 1)])
        assert found[d, 0, "induction"] == pytest.approx(by_chance, rel=1e-5)
        assert found[d, None, "repeat_accuracy"] < 0.3


def test_layers_without_a_flow_have_no_score() -> None:
    assert {layer for _, layer, metric in copied(decoder("LF")) if metric == "induction"} == {1}


def test_windows_lie_within_a_document() -> None:
    """The first of each, then the second of each; ids count up, so that a seam would show."""
    tokens = np.concatenate([[END, *range(10, 22)], [END, *range(30, 34)], [END, *range(50, 59)]])
    windows = document_windows(tokens, END, 4, count=10)
    assert windows[:, 0].tolist() == [END, END, END, 13, 53, 17]
    assert all((np.diff(row[1:]) == 1).all() for row in windows)
    assert len(document_windows(tokens, END, 4, count=2)) == 2
    found, contexts = longest_windows(tokens, END, 3, 8, count=9)
    assert contexts == 4 and found.shape == (1, 13), "no document holds 24 tokens"
    none, contexts = longest_windows(tokens, END, 50, 8, count=9)
    assert len(none) == 0 and contexts == 1


def long_text(n: int = 3, contexts: int = 4) -> Tensor:
    generator = torch.Generator().manual_seed(5)
    return torch.randint(V, (n, contexts * 8 + 1), generator=generator)


def lengths(model: Decoder) -> dict[str, np.ndarray]:
    found: dict[str, list[float]] = {}
    for row in length_rows(model, long_text(), 8):
        assert row["count"] == 3 * 2 and row["first"] == 2 * len(found.get(row["reading"], []))
        found.setdefault(row["reading"], []).append(row["nll"])
    return {reading: np.array(nll) for reading, nll in found.items()}


def test_a_model_that_ignores_its_context_is_the_same_at_every_length() -> None:
    model = decoder("AF")
    with torch.no_grad():
        model.embedding.weight.zero_()
    for nll in lengths(model).values():
        assert nll == pytest.approx(math.log(V))
    assert len(nll) == 16
    model = decoder("AF")
    with torch.no_grad():
        for block in model.blocks:
            block.mixer.wo.weight.zero_()
    found = lengths(model)
    assert found.keys() == {"whole", "apart", "frozen", "removed"}
    for nll in found.values():
        assert nll == pytest.approx(found["whole"], rel=1e-5)


def test_the_count_correction_beyond_the_context() -> None:
    """Its readings differ from the context's end on, and only where a layer corrects at all."""
    assert lengths(decoder("A")).keys() == {"whole", "apart"}
    assert lengths(decoder("F", count_calibration=False)).keys() == {"whole", "apart"}
    model = decoder("FF")
    found = lengths(model)
    within = slice(0, 4)
    assert found["frozen"][within] == pytest.approx(found["whole"][within], rel=1e-5)
    assert found["apart"][within] == pytest.approx(found["whole"][within], rel=1e-5)
    assert np.abs(found["removed"] - found["whole"])[within].max() > 1e-3
    assert np.abs(found["frozen"] - found["whole"])[4:].max() > 1e-3
    with torch.no_grad():
        for block in model.blocks:
            block.mixer.lam.zero_()
    null = lengths(model)
    for reading in ("frozen", "removed"):
        assert null[reading] == pytest.approx(null["whole"], rel=1e-5)


def corrected(p1: Tensor, p2: Tensor, info: Tensor, lam: float, own: bool) -> Tensor:
    """Y by the definition, with log min(i, 8) in its correction."""
    T = p1.shape[2]
    U = p1 @ p2.mT / math.sqrt(p1.shape[3])
    i = torch.arange(1, T + 1, dtype=p1.dtype, device=p1.device).clamp(max=8)
    R = nn.functional.silu(U) - lam * i.log()[:, None]
    itself = torch.eye(T, dtype=torch.bool, device=p1.device)
    later = torch.ones(T, T, device=p1.device).triu(1).bool()
    R = torch.where(itself, torch.sigmoid(U / 2), R).masked_fill(later, -math.inf)
    flow = R.softmax(-1)
    return (flow if own else flow.tril(-1)) @ info


def check_frozen(call, own: bool, dtype: torch.dtype, device: str, length: int) -> None:
    """A frozen count is no further off FP64 than twice the definition in the inputs' precision."""
    generator = torch.Generator().manual_seed(0)
    drawn = torch.randn(3, 2, 2, length, 16, generator=generator, dtype=torch.float64)
    given = drawn.to(device, dtype)
    truth = corrected(*given.double(), 0.9, own)
    narrow = dtype if dtype == torch.float64 else torch.float32
    yardstick = (corrected(*given.to(narrow), 0.9, own) - truth).abs().max()
    rounding = (truth.to(dtype) - truth).abs().max()
    lam = torch.tensor(0.9, dtype=narrow, device=device)
    y = frozen_count(call, 8)(*given, lam, 2.0, transport_self=own)
    assert y.dtype == dtype
    relative = 1e-12 if dtype == torch.float64 else 1e-5
    assert (y - truth).abs().max() <= 2 * (yardstick + rounding) + relative * truth.abs().max()


@pytest.mark.parametrize("own", [True, False])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("call", [full_relation, tiled_relation])
def test_a_frozen_count_is_that_of_the_definition(call, dtype: torch.dtype, own: bool) -> None:
    check_frozen(call, own, dtype, "cpu", 30)


@pytest.mark.gpu
@pytest.mark.parametrize("own", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_frozen_count_on_a_gpu(dtype: torch.dtype, own: bool) -> None:
    from relation.kernels import flash_relation

    check_frozen(flash_relation, own, dtype, "cuda", 1000)


def test_a_frozen_count_ends_with_its_reading() -> None:
    mixer = decoder("F").blocks[0].mixer
    before = mixer.call
    with count_frozen([mixer], 8):
        assert mixer.call is not before
    assert mixer.call is before


def test_tokens_are_sorted_as_said() -> None:
    tokens = np.repeat([7, 2, 9, 4, 5], [25, 25, 25, 20, 5])
    bands = frequency_bands(tokens, 12)
    assert bands[[2, 7, 9, 4, 5]].tolist() == [0, 1, 2, 3, 3]
    assert position_bands(16).tolist() == [0] * 2 + [1] * 2 + [2] * 4 + [3] * 8
    assert repeats(torch.tensor([[5, 1, 5, 5, 2, 1]])).tolist() == [[0, 0, 1, 1, 0, 1]]
    assert first_windows(np.arange(11), 3, 8)[:, 0].tolist() == [0, 3, 6]


def used(model: Decoder, windows: Tensor) -> dict[tuple, float]:
    bands = frequency_bands(windows.flatten().numpy(), V)
    rows = use_rows(model, windows, bands)
    return {(r["layer"], r["metric"], r["group"], r["band"]): r["value"] for r in rows}


def test_self_flow_by_token() -> None:
    windows = first_windows(np.arange(16 * 6 + 1) % 20, 16, 6)
    found = used(uniform(decoder("A")), windows)
    share = 1 / np.arange(1, 17)
    for band, part in enumerate((slice(0, 2), slice(2, 4), slice(4, 8), slice(8, 16))):
        expected = share[part].mean()
        assert found[0, "self_flow", "position", band] == pytest.approx(expected, rel=1e-5)
    assert (0, "self_flow", "occurrence", 1) not in found, "20 ids in a row repeat in no window"


@pytest.mark.parametrize("letter", "AFL")
def test_self_and_exchange_are_the_whole_of_a_layer(letter: str) -> None:
    """What is left without the one is what is lost without the other; and all comes back."""
    model = decoder(letter).double()
    mixer, norm = model.blocks[0].mixer, model.blocks[0].mixer_norm
    x = torch.randn(2, 12, 16, dtype=torch.float64)
    rope = tuple(t.double() for t in model.rope_tables(12, x.device))
    given = (norm(x), x, rope, None, None)

    @torch.no_grad()
    def output(part: str) -> Tensor:
        with without(mixer, part):
            return mixer(*given)

    with torch.no_grad():
        whole = mixer(*given)
        parts = [output(part) for part in ("self", "exchange")]
        assert (sum(parts) - whole).abs().max() < 1e-12
        # A token without history keeps all of Exchange's place.
        assert parts[0][:, 0].abs().max() < 1e-12
        assert torch.equal(mixer(*given), whole)


def test_a_part_that_does_nothing_costs_nothing_and_a_planted_one_does() -> None:
    windows = first_windows(np.random.default_rng(0).integers(0, V, 16 * 8 + 1), 16, 8)

    def rises(model: Decoder) -> dict[tuple, float]:
        found = used(model, windows)
        base = found[None, "nll", None, None]
        lacking = {k: v for k, v in found.items() if k[1] == "nll" and k[0] is not None}
        return {(layer, part): value - base for (layer, _, part, _), value in lacking.items()}

    model = decoder("FAL")
    with torch.no_grad():
        model.blocks[1].mixer.wo.weight.zero_()
    found = rises(model)
    assert {part for layer, part in found if layer == 0} == set(PARTS)
    assert {part for layer, part in found if layer == 1} == {"self", "exchange"}
    assert parts_of(model.blocks[2].mixer) == ("self", "exchange", "mixing")
    for (layer, part), rise in found.items():
        assert (rise == 0) if layer == 1 else (abs(rise) > 1e-4), (layer, part)
    assert rises(decoder("F", transport_self=False))[0, "self"] == 0
    neutral = decoder("F")
    with torch.no_grad():
        neutral.blocks[0].mixer.lam.zero_()
        neutral.blocks[0].mixer.theta.zero_()
    found = rises(neutral)
    assert found[0, "count"] == found[0, "mixing"] == 0 != found[0, "self"]


def corpus_of(folder: Path, documents: int, length: int, vocabulary: int) -> Path:
    """A prepared corpus of random documents of one length, as far as an examination reads it."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.add_special_tokens([END_OF_TEXT])
    tokenizer.save(str(folder / "tokenizer.json"))
    ids = np.random.default_rng(0).integers(1, vocabulary, (documents, length))
    ids[:, 0] = tokenizer.token_to_id(END_OF_TEXT)
    ids.astype("<u2").tofile(folder / "validation.bin")
    return folder


def examined(run: RunSpec, data: Path, device: str, **asked: int) -> tuple[dict, dict]:
    model = Decoder(run.model_config(), Execution(**run.backends)).to(device).eval()
    model.initialise(seed=1)
    spec = ExaminationSpec(run_hash=run.config_hash, device=device, **asked)
    with autocast(torch.device(device), run.precision):
        return examination_of(model, spec, run, data)


@pytest.mark.parametrize("documents, length, contexts", [(3, 200, 4), (40, 20, 0)])
def test_an_examination_fills_its_records(tmp_path: Path, documents, length, contexts) -> None:
    run = resolve(config(), campaign="tiny").run("30M", "hybrid", 42)
    data = corpus_of(tmp_path, documents, length, 300)
    found, details = examined(run, data, "cpu", sequences=1, windows=2, contexts=8)
    for name, rows in found.items():
        names = set(LAYOUTS[name].names) - {"scale", "variant", "seed"}
        assert all(row.keys() == names for row in rows), name
        assert all(math.isfinite(row.get("value", row.get("nll"))) for row in rows), name
    assert details == {"contexts": contexts, "long_windows": 2 * bool(contexts)}
    assert bool(found["lengths"]) == bool(contexts) and found["copying"] and found["self_use"]


@pytest.mark.parametrize("variant, length", [("hybrid", 200), ("mha", 20)])
def test_an_examination_is_printed_in_short_with_its_records(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], variant: str, length: int
) -> None:
    run = resolve(config(), campaign="tiny").run("30M", variant, 42)
    data = corpus_of(tmp_path, 40 if length < 64 else 3, length, 300)
    found, _ = examined(run, data, "cpu", sequences=1, windows=2, contexts=8)
    paths = {name: tmp_path / f"{name}.parquet" for name in found}
    for name, rows in found.items():
        key = {"scale": run.scale, "variant": run.variant, "seed": run.seed}
        write_parquet(paths[name], LAYOUTS[name], [{**key, **row} for row in rows], {})
    print_examination(paths)
    lines = capsys.readouterr().out.splitlines()
    assert lines[-3:] == [str(path) for path in paths.values()]
    labels = [line.split() for line in lines]
    parts = ["layer", "count", "exchange", "mixing", "self"] if variant == "hybrid" else None
    assert (parts or ["layer", "exchange", "self"]) in labels
    (repeated,) = (
        row["value"]
        for row in found["copying"]
        if (row["distance"], row["metric"]) == (8, "repeat_nll")
    )
    assert [f"{repeated:.4f}"] == [row[2] for row in labels if row[:1] == ["8"]]
    assert (["reading", "first", "last"] in labels) == bool(found["lengths"])


@pytest.mark.gpu
@pytest.mark.parametrize("variant", ["mha", "full", "hybrid"])
def test_a_pair_at_30m_takes_less_than_three_minutes(tmp_path: Path, variant: str) -> None:
    """A model of half a pair in half that time, on one GPU; `pytest -s` prints the peak."""
    paper = resolve(config(), campaign="paper")
    run = paper.run("30M", variant, 42)
    data = corpus_of(tmp_path, 16, 8 * run.context + 1, 4096)
    began = time.monotonic()
    asked = {name: paper.examination[name] for name in ("sequences", "windows", "contexts")}
    _, details = examined(run, data, "cuda", **asked)
    seconds, peak = time.monotonic() - began, torch.cuda.max_memory_allocated() / 2**30
    print(f"{run.name}: {seconds:.0f} s, {peak:.1f} GiB")
    assert details == {"contexts": 8, "long_windows": 16} and seconds < 90
