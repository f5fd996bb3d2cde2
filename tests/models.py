"""Tiny models of every variant, for the tests of models, layers, decoding and transformers."""

import torch

from relation.nn import Decoder, ModelConfig

FULL_LIKE = ("full", "exchange-only", "raw-x", "no-count", "no-givens", "single-head")
PAPER = ("mha", *FULL_LIKE, "linear", "hybrid")
TINY = {"layers": 4, "d_model": 24, "heads": 4, "d_ff": 20, "vocab_size": 29}
TOKENS = torch.randint(29, (2, 11), generator=torch.Generator().manual_seed(1))


def build(variant: str, seed: int = 42, **changes) -> Decoder:
    """A tiny model with initial weights."""
    return Decoder(ModelConfig.for_variant(variant, **{**TINY, **changes}), seed=seed)


def stirred(variant: str, **changes) -> Decoder:
    """A float64 model whose every parameter, angles and norms too, has left its initial value."""
    model = build(variant, **changes).double()
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for p in model.parameters():
            p += 0.3 * torch.randn(p.shape, generator=generator, dtype=p.dtype)
    return model


@torch.no_grad()
def greedy(model: Decoder, prompt: list[int], count: int) -> list[int]:
    """The likeliest continuation, by one full forward a token."""
    tokens = list(prompt)
    for _ in range(count):
        device = model.embedding.weight.device
        tokens.append(model(torch.tensor([tokens], device=device))[0, -1].argmax().item())
    return tokens[len(prompt) :]
