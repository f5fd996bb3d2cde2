"""Generation: the distribution drawn from, greedy equality, and streamed text."""

import math
from collections import Counter
from collections.abc import Iterator
from itertools import islice

import pytest
import torch
from models import greedy
from tokenizers import Tokenizer
from torch import Tensor

from relation.data.tokenizer import train_tokenizer
from relation.errors import InputError, RunError
from relation.nn import Decoder, ModelConfig
from relation.nn.generate import (
    BLOCK,
    Sampling,
    generate_batch,
    generate_tokens,
    next_token_probabilities,
    stream_text,
)
from relation.variants import VARIANTS

GREEDY = Sampling(temperature=0)
TINY = {"layers": 4, "d_model": 16, "heads": 2, "d_ff": 20, "vocab_size": 53}


def build(variant: str) -> Decoder:
    """A model with strong weights, in float64 so that no rounding decides between two tokens."""
    model = Decoder(ModelConfig.for_variant(variant, **TINY, init_std=1.0))
    model.initialise(42)
    return model.double()


def probabilities(logits: list[float], **sampling) -> list[float]:
    """The distribution of one row of logits."""
    return next_token_probabilities(torch.tensor(logits), Sampling(**sampling)).tolist()


LOGITS = [math.log(p) for p in (0.1, 0.4, 0.05, 0.3, 0.15)]


@pytest.mark.parametrize(
    ("sampling", "expected"),
    [
        ({}, [0.1, 0.4, 0.05, 0.3, 0.15]),
        ({"temperature": 0}, [0, 1, 0, 0, 0]),
        ({"temperature": 0, "top_k": 3, "top_p": 0.9}, [0, 1, 0, 0, 0]),
        ({"top_k": 1}, [0, 1, 0, 0, 0]),
        ({"top_k": 2}, [0, 4 / 7, 0, 3 / 7, 0]),
        ({"top_k": 99}, [0.1, 0.4, 0.05, 0.3, 0.15]),
        ({"top_p": 1e-9}, [0, 1, 0, 0, 0]),
        ({"top_p": 0.39}, [0, 1, 0, 0, 0]),
        ({"top_p": 0.41}, [0, 4 / 7, 0, 3 / 7, 0]),
        ({"top_p": 0.8}, [0, 0.4 / 0.85, 0, 0.3 / 0.85, 0.15 / 0.85]),
        # After top_k two tokens hold 4/7 and 3/7: the first alone reaches one half.
        ({"top_k": 2, "top_p": 0.5}, [0, 1, 0, 0, 0]),
        ({"temperature": 0.5}, [p / 0.285 for p in (0.01, 0.16, 0.0025, 0.09, 0.0225)]),
        # Temperature comes before top_p: squared, the first token holds 0.16 / 0.285 = 0.56.
        ({"temperature": 0.5, "top_p": 0.5}, [0, 1, 0, 0, 0]),
        ({"temperature": 1e300}, [0.2] * 5),
        ({"temperature": 5e-324}, [0, 1, 0, 0, 0]),
    ],
)
def test_the_distribution_is_what_the_options_say(sampling, expected):
    # The logits are FP32: a probability carries their rounding, twice at temperature 1/2.
    assert probabilities(LOGITS, **sampling) == pytest.approx(expected, rel=1e-6)


def test_equal_logits_keep_the_lower_ids():
    assert probabilities([0.0] * 4, top_k=2) == [0.5, 0.5, 0, 0]
    assert probabilities([0.0, 1.0, 1.0, 0.0], temperature=0) == [0, 1, 0, 0]


def test_every_row_has_its_own_distribution():
    rows = torch.randn(3, 4, 50, generator=torch.Generator().manual_seed(0)) * 4
    together = next_token_probabilities(rows, Sampling(0.7, 20, 0.9))
    assert together.dtype == torch.float64
    for row, found in zip(rows.flatten(0, 1), together.flatten(0, 1), strict=True):
        assert torch.equal(found, next_token_probabilities(row, Sampling(0.7, 20, 0.9)))
        assert found.sum().item() == pytest.approx(1)
        kept = found > 0
        assert 1 <= kept.sum() <= 20
        assert row[kept].min() >= row[~kept].max()


@pytest.mark.parametrize(
    "values",
    [
        {"temperature": -0.1},
        {"temperature": math.nan},
        {"temperature": math.inf},
        {"top_k": 0},
        {"top_p": 0.0},
        {"top_p": 1.1},
        {"top_p": math.nan},
        {"seed": -1},
        {"seed": 2**63},
    ],
)
def test_sampling_that_means_nothing_is_refused(values):
    with pytest.raises(InputError, match=next(iter(values))):
        Sampling(**values)


class Fixed(Decoder):
    """Decodes to the same logits whatever it reads."""

    def __init__(self, logits: list[float]):
        super().__init__(ModelConfig(len(logits), 4, 2, 2, "A"))
        self.row = torch.tensor(logits)

    def read(self, tokens: Tensor, state, lengths=None) -> Tensor:
        return self.row[None]

    def decode(self, tokens: Tensor, state) -> Tensor:
        return self.row[None, None]


@pytest.mark.parametrize(
    "sampling", [{}, {"temperature": 0.5}, {"temperature": 1.5, "top_k": 3}, {"top_p": 0.8}]
)
def test_tokens_are_drawn_as_often_as_they_are_likely(sampling):
    draws = 4000
    drawn = Counter(generate_tokens(Fixed(LOGITS), [0], draws, Sampling(**sampling)))
    expected = {i: draws * p for i, p in enumerate(probabilities(LOGITS, **sampling)) if p}
    assert drawn.keys() == expected.keys()
    chi2 = sum((drawn[i] - mean) ** 2 / mean for i, mean in expected.items())
    # Mean k - 1, variance 2 (k - 1): five standard deviations.
    freedom = len(expected) - 1
    assert chi2 < freedom + 5 * (2 * freedom) ** 0.5


def test_a_seed_fixes_the_tokens():
    model = build("full")

    def drawn(seed: int, count: int = 30) -> list[int]:
        return list(generate_tokens(model, [3, 1], count, Sampling(seed=seed)))

    assert drawn(5) == drawn(5)
    assert drawn(5)[:10] == drawn(5, 10)
    assert len({tuple(drawn(seed)) for seed in range(5)}) == 5


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_greedy_continuation_is_the_full_forwards(variant):
    model = build(variant)
    expected = greedy(model, [5, 2, 7, 1], 40)
    assert len(set(expected)) > 5
    state = model.decode_state()
    assert list(generate_tokens(model, [5, 2, 7, 1], 40, GREEDY, state=state)) == expected
    assert state.length == 4 + 40 - 1


def test_a_long_text_after_a_state_is_read_in_blocks():
    model = build("hybrid")
    text = torch.randint(53, (2 * BLOCK + 3,), generator=torch.Generator().manual_seed(0)).tolist()
    sizes, read = [], model.read
    model.read = lambda tokens, *rest: sizes.append(tokens.shape[1]) or read(tokens, *rest)
    state = model.decode_state()
    list(generate_tokens(model, text, 1, GREEDY, state=state))
    found = list(generate_tokens(model, text, 3, GREEDY, state=state))
    assert found == greedy(model, text + text, 3)
    assert sizes == [2 * BLOCK + 3, BLOCK, BLOCK, 3]


PROMPTS = ([5, 2, 7, 1], [3], [9, 9, 4, 1, 0, 2, 8])


@pytest.mark.parametrize("variant", ["mha", "full", "exchange-only", "linear", "hybrid"])
def test_a_batch_continues_each_prompt_as_if_alone(variant):
    model = build(variant)
    texts = [greedy(model, prompt, 12) for prompt in PROMPTS]
    assert generate_batch(model, PROMPTS, 12, GREEDY) == texts
    stop = texts[1][5]
    cut = [text[: text.index(stop)] if stop in text else text for text in texts]
    assert generate_batch(model, PROMPTS, 12, GREEDY, stop) == cut


def test_a_drawn_text_depends_on_its_seed_and_row_alone():
    model, sampling = build("mha"), Sampling(temperature=3, seed=4)
    both = generate_batch(model, PROMPTS[:2], 300, sampling)
    assert both[0] == list(generate_tokens(model, PROMPTS[0], 300, sampling))
    assert both == generate_batch(model, PROMPTS, 300, sampling)[:2]
    same = generate_batch(model, [PROMPTS[1]] * 2, 30, sampling)
    assert same[0] != same[1]


def test_generation_goes_on_from_a_state():
    model = build("hybrid")
    whole = list(generate_tokens(model, [5, 2], 20, GREEDY))
    state = model.decode_state()
    first = list(generate_tokens(model, [5, 2], 8, GREEDY, state=state))
    assert first + list(generate_tokens(model, first[-1:], 12, GREEDY, state=state)) == whole


def test_generation_ends_before_the_stop_token():
    model = build("full")
    whole = greedy(model, [5, 2], 30)
    stop = whole[12]
    assert list(generate_tokens(model, [5, 2], 30, GREEDY, stop)) == whole[: whole.index(stop)]


def test_memory_is_taken_as_tokens_come_not_for_all_that_were_asked_for():
    model = build("full")
    found = list(islice(generate_tokens(model, [5, 2], 10**15, GREEDY), 5))
    assert found == greedy(model, [5, 2], 5)


def test_tokens_come_one_at_a_time():
    model = build("mha")
    state = model.decode_state()
    lengths = [state.length for _ in generate_tokens(model, [1, 2, 3], 4, GREEDY, state=state)]
    assert lengths == [3, 4, 5, 6]


@pytest.mark.parametrize(
    ("prompt", "count", "match"),
    [([], 3, "empty"), ([53], 3, "53"), ([4, -1], 3, "-1"), ([4], 0, "0 tokens")],
)
def test_what_cannot_be_continued_is_refused_at_once(prompt, count, match):
    with pytest.raises(InputError, match=match):
        generate_tokens(build("full"), prompt, count, GREEDY)


def test_a_batch_with_an_empty_prompt_is_refused():
    for prompts, match in (([], "no prompt"), ([[1], []], "prompt 1 is empty")):
        with pytest.raises(InputError, match=match):
            generate_batch(build("full"), prompts, 3, GREEDY)


def test_broken_weights_are_told():
    model = build("full")
    with torch.no_grad():
        model.norm.weight[0] = torch.nan
    with pytest.raises(RunError, match="finite"):
        list(generate_tokens(model, [1], 3, GREEDY))


TEXT = "Naïve — 😀 café, “quoted”\n  日本語 \x00 end…"


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    """Bytes and a few merges, so that most characters beyond ASCII span tokens."""
    return train_tokenizer(["the cat sat on the mat and the dog ate the hat"] * 3, 262, "test")


def test_streamed_text_comes_in_whole_characters(tokenizer):
    ids = tokenizer.encode(TEXT).ids
    assert max(len(character.encode()) for character in TEXT) == 4
    pieces = list(stream_text(tokenizer, ids))
    assert "".join(pieces) == TEXT
    assert "�" not in "".join(pieces) and "" not in pieces


def test_streamed_text_comes_as_soon_as_it_is_complete(tokenizer):
    told: list[str] = []
    seen: list[int] = []

    def tokens() -> Iterator[int]:
        for token in tokenizer.encode(TEXT).ids:
            # Before the next token is asked for, all whole characters so far are out.
            assert "".join(told) == tokenizer.decode(seen).rstrip("�")
            seen.append(token)
            yield token

    for piece in stream_text(tokenizer, tokens()):
        told.append(piece)


def test_bytes_of_no_character_come_out_as_the_tokenizer_decodes_them(tokenizer):
    generator = torch.Generator().manual_seed(0)
    for length in (1, 2, 3, 5, 60):
        for _ in range(60):
            ids = torch.randint(262, (length,), generator=generator).tolist()
            whole = tokenizer.decode(ids, skip_special_tokens=False)
            assert "".join(stream_text(tokenizer, ids)) == whole
    cut = tokenizer.encode("é").ids[:1]
    assert list(stream_text(tokenizer, cut)) == ["�"]
    assert list(stream_text(tokenizer, [])) == []
