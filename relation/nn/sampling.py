"""Drawing the next token: its distribution, and one cut of it a row that every device repeats."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from relation.errors import InputError
from relation.kernels import decoding
from relation.nn.model import keyed_generator

CHUNK = 256  # uniform numbers are drawn for so many tokens at a time


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
        for name, fits, give in (
            ("temperature", 0 <= self.temperature < math.inf, "0 (the likeliest token) or more"),
            ("top_k", self.top_k is None or self.top_k >= 1, "at least 1 token"),
            ("top_p", 0 < self.top_p <= 1, "a probability above 0, at most 1"),
            ("seed", 0 <= self.seed < 2**63, "a whole number from 0 to 2^63 - 1"),
        ):
            if not fits:
                raise InputError(f"{name} is {getattr(self, name)}; give {give}")

    @property
    def whole(self) -> bool:
        """Whether no token is left out, or it is the likeliest."""
        return self.temperature == 0 or (self.top_k is None and self.top_p == 1)


def next_token_probabilities(logits: Tensor, sampling: Sampling) -> Tensor:
    """The distribution that the next token is drawn from, (..., V), FP64, of logits (..., V).

    Tokens that temperature, top_k and top_p leave out have probability 0; of equal logits the
    lower id comes first.
    """
    wide = logits.double()
    if sampling.temperature == 0:
        return torch.zeros_like(wide).scatter(-1, wide.argmax(dim=-1, keepdim=True), 1)
    if sampling.whole:
        return ((wide - wide.amax(dim=-1, keepdim=True)) / sampling.temperature).softmax(dim=-1)
    ranked, ids = wide.sort(dim=-1, descending=True, stable=True)  # stable: the lower id first
    p = ((ranked - ranked[..., :1]) / sampling.temperature).softmax(dim=-1)
    if sampling.top_k is not None:
        p[..., sampling.top_k :] = 0
        p /= p.sum(dim=-1, keepdim=True)
    if sampling.top_p < 1:
        likelier = p.cumsum(dim=-1) - p  # the probability of all tokens before each
        p = p.masked_fill(likelier >= sampling.top_p, 0)
        p /= p.sum(dim=-1, keepdim=True)
    return torch.zeros_like(p).scatter(-1, ids, p)


def kernel_draws(logits: Tensor, sampling: Sampling) -> bool:
    """Whether a kernel draws of these logits (B, V): of FP32 ones, where no token is left out."""
    fits = logits.dtype == torch.float32 and logits.is_contiguous()
    return sampling.whole and fits and decoding.why_unavailable(logits.device) is None


def kernel_temperature(device: torch.device, sampling: Sampling) -> Tensor | None:
    """The kernel's temperature, (1,) FP64; None for the likeliest token."""
    if sampling.temperature == 0:
        return None
    return torch.full((1,), sampling.temperature, dtype=torch.float64, device=device)


def draw(logits: Tensor, uniforms: Tensor, sampling: Sampling) -> Tensor:
    """A token of each row, (B,) int64, of logits (B, V); -1 where a row's are not all finite.

    uniforms: (B,) FP64 in [0, 1), where the row's cumulative distribution is cut.
    """
    if kernel_draws(logits, sampling):
        ids = torch.empty(len(logits), dtype=torch.int64, device=logits.device)
        temperature = kernel_temperature(logits.device, sampling)
        decoding.draw(logits, temperature, uniforms.reshape(1, -1), ids)
        return ids
    if sampling.temperature == 0:
        ids = logits.argmax(dim=-1)
    else:
        cumulative = next_token_probabilities(logits, sampling).cumsum(dim=-1)
        ids = (cumulative <= uniforms[:, None] * cumulative[:, -1:]).sum(dim=-1)
    # Not `where`, which copies a number from the host: no CUDA graph can hold that.
    return ids.masked_fill(~logits.isfinite().all(dim=-1), -1)


def uniform_numbers(seed: int, rows: int) -> Iterator[Tensor]:
    """Yield the numbers of CHUNK tokens after CHUNK tokens, (CHUNK, B) FP64 in [0, 1).

    Row b's depend on the seed and on b alone. They are drawn on the CPU, so that every device draws
    the same text from the same logits.
    """
    generators = [keyed_generator(f"{seed}/{row}") for row in range(rows)]
    while True:
        numbers = [torch.rand(CHUNK, generator=g, dtype=torch.float64) for g in generators]
        yield torch.stack(numbers, dim=1)
