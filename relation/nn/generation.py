"""Generation: continuing a prompt token by token from a model's decode state."""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from relation.errors import InputError, RunError
from relation.nn import Decoder, DecodeState

if TYPE_CHECKING:
    from tokenizers import Tokenizer

# A prompt is read in blocks, so that its scores take memory linear in its length.
BLOCK = 256


@dataclass(frozen=True)
class Sampling:
    """How the next token is drawn. Raises InputError for values that mean nothing.

    temperature divides the logits, 0 takes the likeliest token; top_k keeps the k likeliest, None
    all; top_p keeps the fewest likeliest tokens whose probability, after top_k, reaches it.
    """

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float = 1.0
    seed: int = 0

    def __post_init__(self):
        if not 0 <= self.temperature < math.inf:
            raise InputError(
                f"temperature is {self.temperature}; give 0 (the likeliest token) or more"
            )
        if self.top_k is not None and self.top_k < 1:
            raise InputError(f"top_k is {self.top_k}; give at least 1 token")
        if not 0 < self.top_p <= 1:
            raise InputError(f"top_p is {self.top_p}; give a probability above 0, at most 1")
        if not 0 <= self.seed < 2**63:
            raise InputError(f"seed is {self.seed}; give a whole number from 0 to 2^63 - 1")


def next_token_probabilities(logits: Tensor, sampling: Sampling) -> Tensor:
    """The distribution that the next token is drawn from, (..., V), FP64, of logits (..., V).

    Tokens that temperature, top_k and top_p leave out have probability 0; of equal logits the
    lower id comes first.
    """
    ranked, ids = logits.double().sort(dim=-1, descending=True, stable=True)
    if sampling.temperature == 0:
        kept = torch.zeros_like(ranked)
        kept[..., 0] = 1
    else:
        kept = ((ranked - ranked[..., :1]) / sampling.temperature).softmax(dim=-1)
        if sampling.top_k is not None:
            kept[..., sampling.top_k :] = 0
            kept /= kept.sum(dim=-1, keepdim=True)
        if sampling.top_p < 1:
            likelier = kept.cumsum(dim=-1) - kept
            kept = kept.masked_fill(likelier >= sampling.top_p, 0)
            kept /= kept.sum(dim=-1, keepdim=True)
    return torch.zeros_like(kept).scatter(-1, ids, kept)


def generate_tokens(
    model: Decoder,
    prompt: list[int],
    count: int,
    sampling: Sampling,
    stop: int | None = None,
    state: DecodeState | None = None,
) -> Iterator[int]:
    """Yield up to `count` token ids that continue the prompt's ids, each as soon as it is drawn.

    Ends before the token `stop`, which is not yielded. `state` is the decode state to go on from,
    an empty one by default; it takes the prompt and each token that another one follows. Tokens are
    drawn on the CPU: for one seed, devices differ only where the rounding of their logits decides.
    Raises InputError for an empty prompt, an id outside the vocabulary or a count below 1, RunError
    for logits that are not finite.
    """
    vocabulary = model.config.vocab_size
    if not prompt:
        raise InputError("the prompt is empty; give at least one token to continue")
    if not 0 <= min(prompt) <= max(prompt) < vocabulary:
        raise InputError(
            f"the prompt has token ids from {min(prompt)} to {max(prompt)} and the model knows "
            f"0 to {vocabulary - 1}; use the tokenizer that it was trained with"
        )
    if count < 1:
        raise InputError(f"{count} tokens were asked for; ask for at least 1")
    if state is None:
        state = model.decode_state()
    return _continuation(model, prompt, count, sampling, stop, state)


def _continuation(
    model: Decoder,
    prompt: list[int],
    count: int,
    sampling: Sampling,
    stop: int | None,
    state: DecodeState,
) -> Iterator[int]:
    generator = torch.Generator().manual_seed(sampling.seed)
    device = model.embedding.weight.device
    for block in torch.tensor([prompt], device=device).split(BLOCK, dim=1):
        logits = model.decode(block, state)
    for drawn in range(1, count + 1):
        last = logits[0, -1].cpu()
        if not last.isfinite().all():
            raise RunError(
                f"the logits after {state.length} tokens are not finite; the weights are broken or "
                "the precision is too low"
            )
        probabilities = next_token_probabilities(last, sampling)
        token = torch.multinomial(probabilities, 1, generator=generator).item()
        if token == stop:
            return
        yield token
        if drawn < count:
            logits = model.decode(torch.tensor([[token]], device=device), state)


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
