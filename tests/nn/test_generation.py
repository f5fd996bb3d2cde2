"""Generation: the sampling distribution, greedy equality, and streamed text.

Without a GPU the kernels for one token run in Triton's interpreter, in a separate process, without
CUDA graphs. Tests marked gpu run CUDA graphs.
"""

import math
from dataclasses import replace
from itertools import islice

import peft
import pytest
import torch
from conftest import refusal
from equations import assert_close
from interpreter import INTERPRETED, run_interpreted
from models import TOKENS, greedy, stirred

from relation.errors import RunError
from relation.nn import Decoder, Execution, ModelConfig, replay, sampling
from relation.nn.generate import BLOCK, continuations, generate_batch, generate_tokens
from relation.nn.replay import Places, Prepared, why_plain
from relation.nn.sampling import Sampling, draw, next_token_probabilities

GREEDY = Sampling(temperature=0)
PROMPTS = ([5, 2, 7, 1], [3], [9, 9, 4, 1, 0, 2, 8])
LOGITS = [math.log(p) for p in (0.1, 0.4, 0.05, 0.3, 0.15)]


@pytest.mark.parametrize(
    ("sampling", "expected"),
    [
        ({}, [0.1, 0.4, 0.05, 0.3, 0.15]),
        ({"temperature": 0, "top_k": 3, "top_p": 0.9}, [0, 1, 0, 0, 0]),
        ({"top_k": 2}, [0, 4 / 7, 0, 3 / 7, 0]),
        ({"top_k": 99}, [0.1, 0.4, 0.05, 0.3, 0.15]),
        ({"top_p": 1e-9}, [0, 1, 0, 0, 0]),
        ({"top_p": 0.41}, [0, 4 / 7, 0, 3 / 7, 0]),
        # After top_k two tokens have 4/7 and 3/7. The first alone reaches one half.
        ({"top_k": 2, "top_p": 0.5}, [0, 1, 0, 0, 0]),
        ({"temperature": 0.5}, [p / 0.285 for p in (0.01, 0.16, 0.0025, 0.09, 0.0225)]),
        # Temperature comes before top_p: squared, the first token has 0.16 / 0.285 = 0.56.
        ({"temperature": 0.5, "top_p": 0.5}, [0, 1, 0, 0, 0]),
        ({"temperature": 1e300}, [0.2] * 5),
        ({"temperature": 5e-324}, [0, 1, 0, 0, 0]),
    ],
)
def test_the_distribution_is_what_the_options_say(sampling, expected):
    actual = next_token_probabilities(torch.tensor(LOGITS), Sampling(**sampling))
    # The logits are FP32. A probability has their rounding error, doubled at temperature 1/2.
    assert actual.tolist() == pytest.approx(expected, rel=1e-6)
    points = (torch.arange(1000, dtype=torch.float64) + 0.5) / 1000
    ids = draw(torch.tensor(LOGITS).expand(1000, -1), points, Sampling(**sampling))
    assert (ids.bincount(minlength=5) / 1000).tolist() == pytest.approx(expected, abs=2e-3)
    equal = next_token_probabilities(torch.zeros(4), Sampling(top_k=2))
    assert equal.tolist() == [0.5, 0.5, 0, 0], "equal ones keep the lower ids"


@pytest.mark.parametrize(
    "values", [{"temperature": -0.1}, {"temperature": math.inf}, {"top_k": 0}, {"top_p": 0.0},
               {"top_p": math.nan}, {"seed": -1}, {"seed": 2**63}, {"top_k": 2.5},
               {"temperature": None}],
)  # fmt: skip
def test_sampling_that_means_nothing_is_refused(values):
    assert next(iter(values)) in refusal(lambda: Sampling(**values))


def greedy_texts(model: Decoder, count: int) -> tuple[list, int, list]:
    """The full forward's continuations, a token of one of them, and all without it and its rest."""
    texts = [greedy(model, prompt, count) for prompt in PROMPTS]
    stop = texts[1][(count - 1) // 2]
    return texts, stop, [text[: text.index(stop)] if stop in text else text for text in texts]


@pytest.mark.parametrize("variant", ["mha", "exchange-only", "raw-x", "hybrid"])
def test_a_batch_continues_each_prompt_as_if_alone(variant):
    model = stirred(variant)
    texts, stop, cut = greedy_texts(model, 12)
    assert generate_batch(model, PROMPTS, 12, GREEDY) == texts
    assert generate_batch(model, PROMPTS, 12, GREEDY, stop) == cut


def test_a_drawn_text_depends_on_its_seed_and_row_alone():
    model, sampling = stirred("mha"), Sampling(temperature=3, seed=4)
    both = generate_batch(model, PROMPTS[:2], 30, sampling)
    assert both[0] == list(generate_tokens(model, PROMPTS[0], 30, sampling))
    assert both == generate_batch(model, PROMPTS, 30, sampling)[:2]
    same = generate_batch(model, [PROMPTS[1]] * 2, 30, sampling)
    assert same[0] != same[1]
    assert same != generate_batch(model, [PROMPTS[1]] * 2, 30, replace(sampling, seed=5))


def test_generation_goes_on_from_a_state_and_takes_memory_as_tokens_come():
    """Continue with one token, and with a text longer than a block."""
    model = stirred("hybrid")
    whole = greedy(model, [5, 2], 20)
    state = model.decode_state()
    first = list(generate_tokens(model, [5, 2], 8, GREEDY, state=state))
    assert first + list(generate_tokens(model, first[-1:], 12, GREEDY, state=state)) == whole
    text = torch.randint(29, (BLOCK + 3,), generator=torch.Generator().manual_seed(0)).tolist()
    actual = list(generate_tokens(model, text, 3, GREEDY, state=state))
    assert actual == greedy(model, [5, 2, *whole[:-1], *text], 3)
    assert list(islice(generate_tokens(model, [5, 2], 10**15, GREEDY), 5)) == whole[:5]
    state = model.decode_state()
    lengths = [state.length for _ in generate_tokens(model, [1, 2, 3], 4, GREEDY, state=state)]
    assert lengths == [3, 4, 5, 6]


@pytest.mark.parametrize(
    ("prompt", "count", "match"),
    [([], 3, "prompt has 0"), ([29], 3, "29"), ([4, -1], 3, "-1"), ([4], 2.0, "give int"),
     ([4], 0, "0 tokens were"), ([1.5], 3, "give their ids in int64")],
)  # fmt: skip
def test_what_cannot_be_continued_is_refused_at_once(prompt, count, match):
    model = stirred("full")
    assert match in refusal(lambda: generate_tokens(model, prompt, count, GREEDY))
    assert "stop is [3, 4]; give int" in refusal(
        lambda: generate_tokens(model, [1], 3, GREEDY, [3, 4])
    )
    for second, message in (([], "prompt has 0"), ([2.5], "float32; give their ids")):
        assert message in refusal(lambda x=second: generate_batch(model, [[1], x], 3, GREEDY))


def test_broken_weights_are_told():
    model = stirred("full")
    with torch.no_grad():
        model.norm.weight[0] = torch.nan
    broken = generate_tokens(model, [1], 3, GREEDY)
    assert "finite" in refusal(lambda: next(broken), RunError)


MODELS = [
    ("mha", {"kv_heads": 1}),
    ("full", {}),
    ("exchange-only", {"d_model": 64, "heads": 4, "kv_heads": 2}),
    ("no-count", {}),
    ("no-givens", {"embedding_multiplier": 3.0}),
    ("linear", {}),
    ("hybrid", {"tau": 0.7, "norm_eps": 0.01}),
]


def prepared_model(variant: str, device: str = "cpu", **changes) -> Decoder:
    """An FP32 model in which every parameter differs from its initial value."""
    sizes = {"d_model": 32, "heads": 2, "d_ff": 20, "vocab_size": 53, "init_std": 0.4}
    config = ModelConfig.for_variant(variant, 4, **{**sizes, **changes})
    # Only two layers, because the interpreter takes 0.1 s per token and layer.
    config = replace(config, layout=config.layout[-2:])
    model = Decoder(config, Execution("reference", "tiled", "chunked"), seed=42)
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for p in model.parameters():
            p += 0.1 * torch.randn(p.shape, generator=generator)
    return model.to(device)


@torch.no_grad()
def check_logits(variant: str, device: str, dtype=torch.float32, **changes) -> None:
    """Check logits of tokens after prompts: at most twice the error of the model's own decoding.

    FP32 is checked row by row. In 16 bits two roundings of one row can differ much, so all rows of
    a step are checked together.
    """
    model, lengths = prepared_model(variant, device, **changes), [len(p) for p in PROMPTS]
    rows = [torch.tensor(prompt, device=device) for prompt in PROMPTS]
    padded = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)
    # Tokens for which no softmax depends on a single rounding.
    news = torch.tensor([[3, 51], [35, 0], [5, 46]], device=device)
    truth = Decoder(model.config).double().to(device)
    truth.load_state_dict(model.state_dict())
    dim, slack = (-1, 1e-5) if dtype == torch.float32 else ((0, 1), 1e-3)
    prepared, plain, state = Prepared(model, dtype), model.decode_state(), model.decode_state()
    cast = torch.autocast(device, dtype, enabled=dtype != torch.float32)
    for each in (plain, state):
        with cast:
            model.read(padded, each, lengths)
    for cache in state.layers:
        cache.tensors = tuple(x.contiguous() for x in cache.tensors)
    counts = torch.tensor(lengths, dtype=torch.int32, device=device)
    tables = model.rope_tables(torch.arange(16, device=device))
    for step in range(2):
        places = Places(counts + step, torch.ones_like(counts), tables)
        actual = prepared.token(news[:, step], state, places)
        with cast:
            yardstick = model.decode(news[:, step : step + 1], plain)[:, -1]
        texts = [torch.cat((row, news[r, : step + 1])) for r, row in enumerate(rows)]
        expected = torch.stack([truth(text[None])[0, -1] for text in texts])
        error, models = (x.double() - expected for x in (actual, yardstick))
        for size in (lambda x: x.square().mean(dim).sqrt(), lambda x: x.abs().amax(dim)):
            assert (size(error) <= 2 * size(models) + slack * size(expected)).all()


def check_texts(variant: str, device: str, count: int, **changes) -> None:
    """Check that greedy texts of a batch, also with a stop token, equal the full forward's."""
    model = prepared_model(variant, device, **changes)
    assert why_plain(model, torch.float32) is None
    texts, stop, cut = greedy_texts(model, count)
    assert generate_batch(model, PROMPTS, count, GREEDY) == texts
    # With capacity for four tokens, the state grows several times.
    state = model.decode_state(capacity=4)
    steps = list(continuations(model, PROMPTS, count, GREEDY, stop, state))
    actual = [[step[b] for step in steps if step[b] is not None] for b in range(3)]
    assert actual == cut
    # A row that has ended did not read its stop token.
    whole = [len(prompt) + len(text) for prompt, text in zip(PROMPTS, cut, strict=True)]
    read = [n - (len(text) == count) for n, text in zip(whole, cut, strict=True)]
    expected = state.lengths.tolist() if state.lengths is not None else [state.length] * 3
    assert expected == read and state.length == max(read)
    drawn = Sampling(temperature=2, top_k=20, top_p=0.9, seed=3)
    both = generate_batch(model, PROMPTS[:2], 4, drawn)
    assert both[0] == list(generate_tokens(model, PROMPTS[0], 4, drawn))


def check_chunks(monkeypatch, device: str = "cpu") -> None:
    """Check that random numbers are always new; here all ids are equally likely."""
    for module in (replay, sampling):
        monkeypatch.setattr(module, "DRAWS", 2)
    tokens = generate_tokens(prepared_model("mha", device), [1], 6, Sampling(temperature=1e300))
    first, *others = zip(tokens, tokens, strict=True)
    assert all(pair != first for pair in others)


def test_a_long_text_repeats_no_random_numbers(monkeypatch):
    check_chunks(monkeypatch)


def test_the_interpreter_decodes_the_forward():
    run_interpreted(__file__)


@pytest.mark.skipif(not INTERPRETED, reason="runs in Triton's interpreter")
class TestInterpreted:
    @pytest.mark.parametrize(("variant", "changes"), MODELS[::2])
    def test_logits_are_the_forwards(self, variant, changes):
        check_logits(variant, "cpu", **changes)

    def test_texts_are_the_forwards(self):
        check_texts("hybrid", "cpu", 4)

    def test_a_long_text_repeats_no_random_numbers(self, monkeypatch):
        check_chunks(monkeypatch)


@pytest.mark.gpu
class TestOnGpu:
    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
    @pytest.mark.parametrize(("variant", "changes"), MODELS)
    def test_logits_are_the_forwards(self, variant, changes, dtype):
        check_logits(variant, "cuda", dtype, **changes)

    @pytest.mark.parametrize(("variant", "changes"), MODELS)
    def test_texts_are_the_forwards(self, variant, changes):
        for gpu in {0, torch.cuda.device_count() - 1}:
            check_texts(variant, f"cuda:{gpu}", 40, **changes)

    def test_a_long_text_repeats_no_random_numbers(self, monkeypatch):
        check_chunks(monkeypatch, "cuda")

    @pytest.mark.parametrize("variant", ["mha", "full", "linear"])
    @pytest.mark.parametrize("rows", [1, 20])
    def test_kernels_that_overlap_change_no_bit(self, variant, rows, monkeypatch):
        from relation.kernels.decoding import chain

        sizes = {"d_model": 512, "heads": 8, "d_ff": 1024, "init_std": 0.02}
        model = prepared_model(variant, "cuda", **sizes)
        prompts = [[row + 1] * 300 for row in range(rows)]

        def run() -> tuple[list, list[torch.Tensor]]:
            state = model.decode_state()
            with torch.autocast("cuda", torch.bfloat16):
                steps = list(continuations(model, prompts, 200, Sampling(), None, state))
            read = 300 + 200 - 1
            return steps, [x[:, :, :read].clone() for c in state.layers for x in c.tensors]

        texts, states = run()
        monkeypatch.setattr(chain, "can_chain", lambda: False)
        plain_texts, plain_states = run()
        assert texts == plain_texts
        assert all(torch.equal(*pair) for pair in zip(states, plain_states, strict=True))


@pytest.mark.parametrize(
    ("variant", "part"),
    [("raw-x", "Raw-X"), ("mha-qknorm", "QK-norm"), ("full-gate", "an output gate"),
     ("mha-null", "a null logit"), ("mha-self", "another mixer")],
)  # fmt: skip
def test_a_model_without_kernels_is_named(variant, part):
    assert part in why_plain(prepared_model(variant), torch.float32)
    assert part in refusal(lambda: Prepared(prepared_model(variant), torch.float32))


def test_adapters_hooks_and_biases_are_not_passed_over():
    adapter = peft.LoraConfig(target_modules=["w1"])
    model = peft.inject_adapter_in_model(adapter, prepared_model("full"))
    hooked = prepared_model("full")
    hooked.blocks[1].register_forward_hook(lambda *_: None)
    for each in (model, torch.compile(hooked)):
        assert "adapters or hooks" in why_plain(each, torch.float32)
    biased = prepared_model("full")
    biased.blocks[0].ffn.down = torch.nn.Linear(128, 64)
    assert "biases" in why_plain(biased, torch.float32)
    compiled = torch.compile(prepared_model("full"))
    assert "adapters" not in (why_plain(compiled, torch.float32) or "")


class Rounded(torch.Tensor):
    """A weight that only `F.linear` can read, as torchao's quantised weights."""

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        if function is torch.nn.functional.linear:
            return function(args[0], args[1].as_subclass(torch.Tensor).round(decimals=2))
        return super().__torch_function__(function, types, args, kwargs)


def test_quantised_weights_are_read_only_by_their_layers():
    model, expected = prepared_model("hybrid"), prepared_model("hybrid")
    for ours, theirs in zip(model.modules(), expected.modules(), strict=True):
        if isinstance(ours, torch.nn.Linear):
            ours.weight = torch.nn.Parameter(ours.weight.detach().as_subclass(Rounded))
            theirs.weight.data = theirs.weight.data.round(decimals=2)
    assert_close(model(TOKENS), expected(TOKENS), terms=64)
    assert "quantised weights" in why_plain(model, torch.float32)
