"""Tiny models of every variant, and the equations of their mixers, for several tests."""

import torch
import torch.nn.functional as F
from equations import rope
from torch import Tensor

from relation import ops
from relation.nn import Decoder, ModelConfig

TINY = {"layers": 4, "d_model": 24, "heads": 4, "d_ff": 20, "vocab_size": 29}
TOKENS = torch.randint(29, (2, 11), generator=torch.Generator().manual_seed(1))


def build(variant: str, seed: int = 42, **changes) -> Decoder:
    """A tiny model with initial weights."""
    return Decoder(ModelConfig.for_variant(variant, **{**TINY, **changes}), seed=seed)


def stirred(variant: str, **changes) -> Decoder:
    """A float64 model. Every parameter, also angles and norms, differs from its initial value."""
    model = build(variant, **changes).double()
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for p in model.parameters():
            p += 0.3 * torch.randn(p.shape, generator=generator, dtype=p.dtype)
    return model


@torch.no_grad()
def greedy(model: Decoder, prompt: list[int], count: int) -> list[int]:
    """The likeliest continuation, by one full forward pass per token."""
    tokens = list(prompt)
    for _ in range(count):
        device = model.embedding.weight.device
        tokens.append(model(torch.tensor([tokens], device=device))[0, -1].argmax().item())
    return tokens[len(prompt) :]


def norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return x / (x.square().mean(-1, keepdim=True) + eps).sqrt() * weight


def mixed(
    w: dict[str, Tensor], n: Tensor, c: ModelConfig, letter: str, index: int
) -> tuple[Tensor, Tensor | None]:
    """Return a mixer's output and flow by Sections 3 and 5, Appendix D.1 and the arms' equations.

    w: its parameters by name; n: its input (B, T, d). Shared heads are repeated. RoPE, Givens
    mixing and the recurrence are the definitions, which tests/ops compares with the paper.
    """
    T, flow = n.shape[1], None

    def heads(y: Tensor) -> Tensor:
        return y.unflatten(-1, (-1, c.head_dim)).transpose(1, 2)

    p1, p2 = (heads(n @ w[f"w{k}.weight"].T) for k in (1, 2))
    if c.qk_norm:
        p1, p2 = (norm(p, w[f"norm{k}.weight"], c.norm_eps) for k, p in ((1, p1), (2, p2)))
    p1, p2 = rope(p1, c.rope_base), rope(p2, c.rope_base)
    info = heads(n if c.raw_information else n @ w["wi.weight"].T)
    if letter in "FL" and c.givens:
        info = ops.givens_mix(info, w["theta"], index)
    p2, info = (x.repeat_interleave(c.heads // x.shape[1], dim=1) for x in (p2, info))
    if letter == "L":
        down, up = heads(n @ w["retention_down.weight"].T), w["retention_up"]
        r = torch.einsum("hjk,bhtk->bthj", up, down).flatten(2)
        g = heads(-w["a_log"].exp() * F.softplus(r + w["dt_bias"]))
        y, _ = ops.linear_relation(p1, p2, info, g, c.tau)
    else:
        U, history = p1 @ p2.mT / c.head_dim**0.5, torch.ones(T, T).tril(-1).bool()
        log_i = torch.arange(1, T + 1).double().log()[:, None]
        E = U * torch.sigmoid(U) if letter == "F" else U
        past = E if letter == "A" else E - w.get("lam", torch.zeros(())) * log_i
        own = U if letter == "A" else torch.sigmoid(U / c.tau)
        R = past.where(history, own.where(torch.eye(T).bool(), -torch.inf))
        flow = R.exp() / (R.exp().sum(-1, keepdim=True) + c.null_logit)
        y = (flow if c.transport_self else flow * history) @ info
    y = y.transpose(1, 2).flatten(2)
    if c.output_gate:
        y = y * torch.sigmoid(n @ w["wg.weight"].T)
    return y @ w["wo.weight"].T, flow
