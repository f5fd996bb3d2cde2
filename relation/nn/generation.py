"""Generation: continuing prompts token by token from a model's decode state."""

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from relation.errors import InputError, RunError
from relation.kernels.checks import projection_dtype
from relation.nn import Decoder, DecodeState
from relation.nn.prepared import Prepared, why_plain
from relation.nn.replay import Replay, replayed
from relation.nn.sampling import CHUNK, Sampling, Uniforms, draw
from relation.ops import causal_attention, expanded_linear_relation, full_relation

if TYPE_CHECKING:
    from tokenizers import Tokenizer

# A prompt is read whole by the model's backends, on a GPU by what is prepared for decoding. Where a
# backend forms all T x T scores, the model reads the first WHOLE tokens; the rest, and what follows
# tokens that a state has read, come in blocks, so that scores take memory linear in their number.
BLOCK, WHOLE = 256, 1024
_SQUARE = (causal_attention, full_relation, expanded_linear_relation)


def generate_tokens(
    model: Decoder,
    prompt: Sequence[int],
    count: int,
    sampling: Sampling,
    stop: int | None = None,
    state: DecodeState | None = None,
) -> Iterator[int]:
    """Yield up to `count` token ids that continue the prompt's ids, as soon as they are drawn.

    Ends before the token `stop`, which is not yielded. `state` is the decode state to go on from,
    an empty one by default; it takes the prompt and each token that another one follows. On a GPU
    a token is one CUDA graph, launched before the last one is read, and the state is up to date
    when the iterator has ended; where `why_plain` has a reason, and on a CPU, a token is
    `model.decode`. Under autocast either computes in its dtype. The numbers that tokens are drawn
    with come from the CPU: for one seed, devices differ only where the rounding of their logits
    decides. Raises InputError for an empty prompt, an id outside the vocabulary or a count below 1,
    RunError for logits that are not finite.
    """
    _check(model, [prompt], count)
    if state is None:
        state = model.decode_state()
    steps = _continuations(model, [prompt], count, sampling, stop, state)
    return (row[0] for row in steps)


def generate_batch(
    model: Decoder,
    prompts: Sequence[Sequence[int]],
    count: int,
    sampling: Sampling,
    stop: int | None = None,
) -> list[list[int]]:
    """Up to `count` token ids that continue each prompt's ids, in one batch.

    Prompts may differ in length. What row b draws depends on the seed and on b, not on the other
    rows, but for the rounding of the prompts' products. Everything else is as `generate_tokens`;
    raises InputError for no prompts, or an empty one among them, too.
    """
    if not prompts:
        raise InputError("there is no prompt in the batch; give one at least")
    _check(model, prompts, count)
    texts: list[list[int]] = [[] for _ in prompts]
    for ids in _continuations(model, prompts, count, sampling, stop, model.decode_state()):
        for text, token in zip(texts, ids, strict=True):
            if token is not None:
                text.append(token)
    return texts


def _check(model: Decoder, prompts: Sequence[Sequence[int]], count: int) -> None:
    vocabulary = model.config.vocab_size
    for row, prompt in enumerate(prompts):
        which = "the prompt" if len(prompts) == 1 else f"prompt {row}"
        if not prompt:
            raise InputError(f"{which} is empty; give at least one token to continue")
        if not 0 <= min(prompt) <= max(prompt) < vocabulary:
            raise InputError(
                f"{which} has token ids from {min(prompt)} to {max(prompt)} and the model knows "
                f"0 to {vocabulary - 1}; use the tokenizer that it was trained with"
            )
    if count < 1:
        raise InputError(f"{count} tokens were asked for; ask for at least 1")


def _continuations(
    model: Decoder,
    prompts: Sequence[Sequence[int]],
    count: int,
    sampling: Sampling,
    stop: int | None,
    state: DecodeState,
) -> Iterator[list[int | None]]:
    """Yield each row's next id, None where it has ended, until all have."""
    weight = model.embedding.weight
    dtype, prepared = projection_dtype(weight), None
    if why_plain(model, weight.device, dtype) is None:
        prepared = Prepared(model, dtype)
    logits = _read(model, prepared, prompts, state)
    if prepared is not None:
        replay = Replay(prepared, state, logits, sampling, stop)
        steps = replayed(replay, count)
    else:
        steps = _plain(model, logits, sampling, count, state)
    live = [True] * len(prompts)
    for ids in steps:
        if any(alive and token < 0 for alive, token in zip(live, ids, strict=True)):
            raise RunError(
                f"the logits after {state.length} tokens are not finite; the weights are broken or "
                "the precision is too low"
            )
        live = [alive and token != stop for alive, token in zip(live, ids, strict=True)]
        if not any(live):
            return
        yield [token if alive else None for alive, token in zip(live, ids, strict=True)]


def _read(
    model: Decoder, prepared: Prepared | None, prompts: Sequence[Sequence[int]], state: DecodeState
) -> Tensor:
    """Logits (B, V) after the prompts, which `state` takes in."""
    lengths = [len(prompt) for prompt in prompts]
    padded = torch.zeros(len(prompts), max(lengths), dtype=torch.int64)
    for row, prompt in zip(padded, prompts, strict=True):
        row[: len(prompt)] = torch.tensor(prompt)
    return read_prompts(model, prepared, padded.to(model.embedding.weight.device), state, lengths)


def read_prompts(
    model: Decoder,
    prepared: Prepared | None,
    tokens: Tensor,
    state: DecodeState,
    lengths: Sequence[int] | None = None,
) -> Tensor:
    """Logits (B, V) after tokens (B, n), which `state` takes in; as `Decoder.read`.

    prepared: the model as prepared for decoding, None where `why_plain` has a reason.
    """
    square = any(block.mixer.call in _SQUARE for block in model.blocks)
    whole = model if square or state.length or prepared is None else prepared
    if len(tokens) > 1:
        return whole.read(tokens, state, lengths)
    first = 0 if state.length else min(WHOLE, tokens.shape[1]) if square else tokens.shape[1]
    if first:
        logits = whole.read(tokens[:, :first], state)
    for block in tokens[:, first:].split(BLOCK, dim=1):
        if block.shape[1]:
            logits = model.read(block, state)
    return logits


def _plain(
    model: Decoder, logits: Tensor, sampling: Sampling, count: int, state: DecodeState
) -> Iterator[list[int]]:
    """Yield the ids (B,) of each of `count` tokens, read one by one by `model.decode`."""
    uniforms = Uniforms(sampling.seed, len(logits))
    for drawn in range(count):
        if drawn % CHUNK == 0:
            numbers = uniforms.next().to(logits.device)
        ids = draw(logits, numbers[drawn % CHUNK], sampling)
        yield ids.tolist()
        if drawn + 1 < count:
            logits = model.decode(ids[:, None], state)[:, -1]


def stream_text(tokenizer: "Tokenizer", tokens: Iterable[int]) -> Iterator[str]:
    """Yield the text of byte-level BPE tokens piece by piece, only whole characters.

    A character of several bytes may span tokens: it is held back until it is complete. Bytes that
    never become a character come out as U+FFFD. The pieces joined are the decoded whole.
    """
    from tokenizers.decoders import DecodeStream  # not one of the library's packages

    stream = DecodeStream(skip_special_tokens=False)
    ids, told = [], 0
    for token in tokens:
        ids.append(token)
        piece = stream.step(tokenizer, token)
        if piece:
            told += len(piece)
            yield piece
    rest = tokenizer.decode(ids, skip_special_tokens=False)[told:]
    if rest:
        yield rest
