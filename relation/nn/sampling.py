"""Draw the next token: its distribution, and the uniform number that picks one token per row."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, fields

import torch
from torch import Tensor

from relation.errors import InputError
from relation.kernels import why_unavailable
from relation.nn.model import keyed_generator
from relation.variants import check_type

DRAWS = 256  # uniform numbers are drawn for this many tokens at a time


@dataclass(frozen=True)
class Sampling:
    """How to draw the next token. Raises InputError for values out of range.

    temperature divides the logits; 0 takes the likeliest token. top_k keeps the k likeliest tokens
    (None: all). Then top_p keeps the fewest likeliest tokens that together have this probability.
    """

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float = 1.0
    seed: int = 0

    def __post_init__(self):
        for option in fields(self):
            check_type(option.name, getattr(self, option.name), option.type)
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
        """Whether top_k and top_p exclude no token, or the likeliest token is taken."""
        return self.temperature == 0 or (self.top_k is None and self.top_p == 1)

    def temperature_on(self, device: torch.device) -> Tensor | None:
        """The temperature for the kernel, (1,) FP64; None: take the likeliest token."""
        if self.temperature == 0:
            return None
        return torch.full((1,), self.temperature, dtype=torch.float64, device=device)


def next_token_probabilities(logits: Tensor, sampling: Sampling) -> Tensor:
    """Return the distribution of the next token, (..., V) FP64, from logits (..., V).

    Tokens that temperature, top_k or top_p exclude have probability 0. Among equal logits, the
    lower id counts as likelier.
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
        likelier = p.cumsum(dim=-1) - p  # total probability of all likelier tokens
        p = p.masked_fill(likelier >= sampling.top_p, 0)
        p /= p.sum(dim=-1, keepdim=True)
    return torch.zeros_like(p).scatter(-1, ids, p)


def kernel_draws(logits: Tensor, sampling: Sampling) -> bool:
    """Whether a kernel can draw from these logits (B, V): FP32, contiguous, `sampling.whole`."""
    fits = logits.dtype == torch.float32 and logits.is_contiguous()
    return sampling.whole and fits and why_unavailable(logits.device) is None


def draw(logits: Tensor, uniforms: Tensor, sampling: Sampling) -> Tensor:
    """Draw a token per row, (B,) int64, from logits (B, V); -1 for a row with non-finite logits.

    uniforms: (B,) FP64 in [0, 1), the points at which the cumulative distributions are cut.
    """
    if kernel_draws(logits, sampling):
        # Imported here because it needs Triton.
        from relation.kernels import decoding

        ids = torch.empty(len(logits), dtype=torch.int64, device=logits.device)
        temperature = sampling.temperature_on(logits.device)
        decoding.draw(logits, temperature, uniforms.reshape(1, -1), ids)
        return ids
    if sampling.temperature == 0:
        ids = logits.argmax(dim=-1)
    else:
        cumulative = next_token_probabilities(logits, sampling).cumsum(dim=-1)
        ids = (cumulative <= uniforms[:, None] * cumulative[:, -1:]).sum(dim=-1)
    # Not `where`: it copies a number from the host, which a CUDA graph cannot capture.
    return ids.masked_fill(~logits.isfinite().all(dim=-1), -1)


def uniform_numbers(seed: int, rows: int) -> Iterator[Tensor]:
    """Yield (DRAWS, B) FP64 numbers in [0, 1), again and again, for DRAWS tokens each.

    Row b's numbers depend only on the seed and on b. They are drawn on the CPU, so every device
    draws the same text from the same logits.
    """
    generators = [keyed_generator(f"{seed}/{row}") for row in range(rows)]
    while True:
        numbers = [torch.rand(DRAWS, generator=g, dtype=torch.float64) for g in generators]
        yield torch.stack(numbers, dim=1)
