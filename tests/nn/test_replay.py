"""Decoding by the kernels of one token: the forward's logits, and the plain path's texts.

Without a GPU the kernels run in Triton's interpreter, in a process of their own, and nothing is
captured; tests marked gpu run CUDA graphs.
"""

from dataclasses import replace

import pytest
import torch
from interpreter import INTERPRETED, run_interpreted
from models import greedy

from relation.errors import InputError, RunError
from relation.nn import Decoder, Execution, ModelConfig
from relation.nn.generate import (
    Places,
    Prepared,
    Sampling,
    continuations,
    generate_batch,
    generate_tokens,
    why_plain,
)

TINY = {"d_model": 32, "heads": 2, "d_ff": 20, "vocab_size": 53}
GREEDY = Sampling(temperature=0)
MODELS = [
    ("mha", {}),
    ("full", {"givens_first_pairing": "B"}),
    ("exchange-only", {}),
    ("no-count", {}),
    ("no-givens", {"embedding_multiplier": 3.0}),
    ("linear", {}),
    ("hybrid", {"retention_input": "residual"}),
]
PROMPTS = ([5, 2, 7, 1], [3], [9, 9, 4, 1, 0, 2, 8])


def stirred(variant: str, device: str = "cpu", **changes) -> Decoder:
    """An FP32 model whose every parameter has left its initial value."""
    config = ModelConfig.for_variant(variant, 4, **{**TINY, "init_std": 0.4, **changes})
    # Two layers: the interpreter takes a tenth of a second for a token of each.
    config = replace(config, layout=config.layout[-2:])
    model = Decoder(config, Execution(full="tiled", linear="chunked"))
    model.initialise(42)
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for p in model.parameters():
            p += 0.1 * torch.randn(p.shape, generator=generator)
    return model.to(device)


@torch.no_grad()
def check_logits(variant: str, device: str, dtype=torch.float32, **changes) -> None:
    """Logits of prompts and of what follows are the forward's, within twice the model's error.

    Each row's by itself; in 16 bits, where the errors of two roundings of one row may lie apart,
    all rows of a step together.
    """
    model, lengths = stirred(variant, device, **changes), [len(p) for p in PROMPTS]
    padded = torch.zeros(3, 7, dtype=torch.int64, device=device)
    for row, prompt in zip(padded, PROMPTS, strict=True):
        row[: len(prompt)] = torch.tensor(prompt)
    news = torch.tensor([[1, 50], [2, 51], [3, 52]], device=device)
    truth = Decoder(model.config).double().to(device)
    truth.load_state_dict(model.state_dict())
    slack = 1e-5 if dtype == torch.float32 else 1e-3

    def check(found, yardstick, step: int) -> None:
        texts = [torch.cat((padded[r, :n], news[r, :step])) for r, n in enumerate(lengths)]
        expected = torch.stack([truth(text[None])[0, -1] for text in texts])
        error, models = (x.double() - expected for x in (found, yardstick))
        dim = -1 if dtype == torch.float32 else (0, 1)
        for size in (lambda x: x.square().mean(dim).sqrt(), lambda x: x.abs().amax(dim)):
            assert (size(error) <= 2 * size(models) + slack * size(expected)).all()

    prepared, plain, state = Prepared(model, dtype), model.decode_state(), model.decode_state()
    with torch.autocast(device, dtype, enabled=dtype != torch.float32):
        for each in (plain, state):
            model.read(padded, each, lengths)
    for cache in state.layers:
        cache.tensors = tuple(x.contiguous() for x in cache.tensors)
    counts = torch.tensor(lengths, dtype=torch.int32, device=device)
    tables = model.rope_tables(16, torch.device(device))
    for step in range(2):
        places = Places(counts + step, torch.ones_like(counts), tables)
        found = prepared.token(news[:, step], state, places)
        with torch.autocast(device, dtype, enabled=dtype != torch.float32):
            yardstick = model.decode(news[:, step : step + 1], plain)[:, -1]
        check(found, yardstick, step + 1)


def check_texts(variant: str, device: str, count: int, **changes) -> None:
    """Greedy texts of a batch, a stop token among them, are the full forward's."""
    model = stirred(variant, device, **changes)
    assert why_plain(model, torch.device(device), torch.float32) is None
    texts = [greedy(model, prompt, count) for prompt in PROMPTS]
    assert generate_batch(model, PROMPTS, count, GREEDY) == texts
    stop = texts[1][count // 2]
    cut = [text[: text.index(stop)] if stop in text else text for text in texts]
    # Capacity for four tokens: the state grows several times.
    state = model.decode_state(capacity=4)
    steps = list(continuations(model, PROMPTS, count, GREEDY, stop, state))
    found = [[step[b] for step in steps if step[b] is not None] for b in range(3)]
    assert found == cut
    # A row that has ended has not read its stop token.
    whole = [len(prompt) + len(text) for prompt, text in zip(PROMPTS, cut, strict=True)]
    read = [n - (len(text) == count) for n, text in zip(whole, cut, strict=True)]
    expected = state.lengths.tolist() if state.lengths is not None else [state.length] * 3
    assert expected == read


def check_going_on(device: str) -> None:
    """The state after a text goes on where it ended, and a drawn text is its row's."""
    model = stirred("hybrid", device)
    whole = greedy(model, [5, 2], 6)
    state = model.decode_state()
    first = list(generate_tokens(model, [5, 2], 3, GREEDY, state=state))
    assert state.length == 2 + 3 - 1
    assert first + list(generate_tokens(model, first[-1:], 3, GREEDY, state=state)) == whole
    sampling = Sampling(temperature=2, top_k=20, top_p=0.9, seed=3)
    both = generate_batch(model, PROMPTS[:2], 4, sampling)
    assert both[0] == list(generate_tokens(model, PROMPTS[0], 4, sampling))
    assert both == generate_batch(model, PROMPTS, 4, sampling)[:2]
    with torch.no_grad():
        model.norm.weight[0] = torch.nan
    with pytest.raises(RunError, match="finite"):
        list(generate_tokens(model, [1], 3, GREEDY))


@pytest.mark.skipif(INTERPRETED, reason="it would start itself")
def test_the_interpreter_decodes_the_forward():
    run_interpreted(__file__)


@pytest.mark.skipif(not INTERPRETED, reason="runs in Triton's interpreter")
class TestInterpreted:
    @pytest.mark.parametrize(("variant", "changes"), MODELS[::2])
    def test_logits_are_the_forwards(self, variant, changes):
        check_logits(variant, "cpu", **changes)

    def test_texts_are_the_forwards(self):
        check_texts("hybrid", "cpu", 6)

    def test_a_text_goes_on(self):
        check_going_on("cpu")


@pytest.mark.gpu
class TestOnGpu:
    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
    @pytest.mark.parametrize(("variant", "changes"), MODELS)
    def test_logits_are_the_forwards(self, variant, changes, dtype):
        check_logits(variant, "cuda", dtype, **changes)

    @pytest.mark.parametrize(("variant", "changes"), MODELS)
    def test_texts_are_the_forwards(self, variant, changes):
        check_texts(variant, "cuda", 40, **changes)

    def test_a_text_goes_on(self):
        check_going_on("cuda")

    @pytest.mark.parametrize("variant", ["mha", "full", "linear"])
    @pytest.mark.parametrize("rows", [1, 20])
    def test_kernels_that_overlap_change_no_bit(self, variant, rows, monkeypatch):
        from relation.kernels.decoding import chain

        model = stirred(variant, "cuda", d_model=512, heads=8, d_ff=1024, init_std=0.02)
        prompts = [[row + 1] * 300 for row in range(rows)]

        def run() -> tuple[list, list[torch.Tensor]]:
            state = model.decode_state()
            with torch.autocast("cuda", torch.bfloat16):
                given = model, prompts, 200, Sampling(), None, state
                steps = list(continuations(*given))
            read = 300 + 200 - 1
            return steps, [x[:, :, :read].clone() for c in state.layers for x in c.tensors]

        texts, states = run()
        monkeypatch.setattr(chain, "can_chain", lambda: False)
        plain_texts, plain_states = run()
        assert texts == plain_texts
        assert all(torch.equal(*pair) for pair in zip(states, plain_states, strict=True))


def test_a_model_without_kernels_is_named():
    cpu = torch.device("cpu")
    assert "Raw-X" in why_plain(stirred("raw-x"), cpu, torch.float32)
    assert "head width is 8" in why_plain(stirred("full", heads=4), cpu, torch.float32)
    with pytest.raises(InputError, match="Raw-X"):
        Prepared(stirred("raw-x"), torch.float32)
