"""The ordinary way to write and train the MHA backbone: what `bench decoder` compares with.

It shares no code with `relation.nn` or `relation.train.step`, and computes the same.
"""

from collections.abc import Iterable

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from relation.bench.steps import Setup
from relation.nn import Decoder
from relation.variants import ModelConfig


def _rotary_tables(length: int, width: int, base: float) -> tuple[Tensor, Tensor]:
    """Cosine and sine, (length, width) each, FP32."""
    frequencies = base ** (-torch.arange(0, width, 2, dtype=torch.float32) / width)
    angles = torch.outer(torch.arange(length, dtype=torch.float32), frequencies)
    angles = torch.cat((angles, angles), dim=-1)
    return angles.cos(), angles.sin()


def _rotate_half(x: Tensor) -> Tensor:
    first, second = x.chunk(2, dim=-1)
    return torch.cat((-second, first), dim=-1)


class PlainAttention(nn.Module):
    """Causal attention of (B, T, d) with RoPE: three linears in, PyTorch's FlashAttention, one out.

    On a CPU whatever kernel PyTorch chooses.
    """

    def __init__(self, d_model: int, heads: int):
        super().__init__()
        self.heads = heads
        self.query = nn.Linear(d_model, d_model, bias=False)
        self.key = nn.Linear(d_model, d_model, bias=False)
        self.value = nn.Linear(d_model, d_model, bias=False)
        self.output = nn.Linear(d_model, d_model, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        B, T, d = x.shape
        q, k, v = (
            linear(x).view(B, T, self.heads, d // self.heads).transpose(1, 2)
            for linear in (self.query, self.key, self.value)
        )
        q, k = ((p * cos + _rotate_half(p) * sin).type_as(p) for p in (q, k))
        if x.device.type == "cuda":
            with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
                y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.output(y.transpose(1, 2).reshape(B, T, d))


class PlainBlock(nn.Module):
    """One pre-norm layer: attention, then SwiGLU."""

    def __init__(self, config: ModelConfig):
        super().__init__()
        d, d_ff = config.d_model, config.d_ff
        self.attention_norm = nn.RMSNorm(d, eps=config.norm_eps)
        self.attention = PlainAttention(d, config.heads)
        self.ffn_norm = nn.RMSNorm(d, eps=config.norm_eps)
        self.gate = nn.Linear(d, d_ff, bias=False)
        self.up = nn.Linear(d, d_ff, bias=False)
        self.down = nn.Linear(d_ff, d, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        x = x + self.attention(self.attention_norm(x), cos, sin)
        h = self.ffn_norm(x)
        return x + self.down(F.silu(self.gate(h)) * self.up(h))


class PlainDecoder(nn.Module):
    """The MHA backbone of a configuration, for sequences of `length` tokens."""

    def __init__(self, config: ModelConfig, length: int):
        super().__init__()
        self.embedding = nn.Embedding(config.vocab_size, config.d_model)
        self.blocks = nn.ModuleList(PlainBlock(config) for _ in range(config.layers))
        self.norm = nn.RMSNorm(config.d_model, eps=config.norm_eps)
        self.head = nn.Linear(config.d_model, config.vocab_size, bias=False)
        self.head.weight = self.embedding.weight
        cos, sin = _rotary_tables(length, config.head_dim, config.rope_base)
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        """Mean negative log-likelihood in nats of targets (B, T) after tokens (B, T)."""
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x, self.cos, self.sin)
        logits = self.head(self.norm(x))
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


# What each parameter of a plain block is called in the project's decoder.
_NAMES = {
    "attention_norm": "mixer_norm",
    "attention.query": "mixer.w1",
    "attention.key": "mixer.w2",
    "attention.value": "mixer.wi",
    "attention.output": "mixer.wo",
    "ffn_norm": "ffn_norm",
    "gate": "ffn.gate",
    "up": "ffn.up",
    "down": "ffn.down",
}


def plain_decoder(model: Decoder, length: int) -> PlainDecoder:
    """The plain decoder with the weights of an MHA model, for sequences of `length` tokens."""
    plain = PlainDecoder(model.config, length)
    weights = model.state_dict()
    names = {"embedding": "embedding", "norm": "norm", "head": "embedding"}
    for layer in range(model.config.layers):
        here = f"blocks.{layer}."
        names |= {here + mine: here + theirs for mine, theirs in _NAMES.items()}
    plain.load_state_dict(
        {f"{mine}.weight": weights[f"{theirs}.weight"] for mine, theirs in names.items()}
    )
    return plain


class PlainStep:
    """Updates of a plain decoder, called as `relation.train.step.UpdateStep` is.

    The model is built at the first call, for the length of its sequences. Every target counts: a
    micro-batch's loss is the mean over it. Its kernels are launched one by one, as torch.compile
    does by default; the project's step replays CUDA graphs.
    """

    def __init__(self, setup: Setup):
        self.setup, self.device = setup, setup.device
        self.model: PlainDecoder | None = None

    def _build(self, length: int) -> None:
        source = Decoder(self.setup.model)
        source.initialise(seed=0)
        self.model = plain_decoder(source, length).to(self.device)
        settings = self.setup.optimizer
        decayed = [p for p in self.model.parameters() if p.ndim >= 2]
        others = [p for p in self.model.parameters() if p.ndim < 2]
        if not settings["decay_embedding"]:
            embedding = self.model.embedding.weight
            decayed = [p for p in decayed if p is not embedding]
            others.append(embedding)
        self.optimizer = torch.optim.AdamW(
            [
                {"params": decayed, "weight_decay": settings["weight_decay"]},
                {"params": others, "weight_decay": 0.0},
            ],
            lr=settings["learning_rate"],
            betas=tuple(settings["betas"]),
            eps=settings["eps"],
            fused=True,
        )
        self.loss = torch.compile(self.model) if self.setup.compile else self.model

    def __call__(
        self, batches: Iterable[tuple[Tensor, Tensor]], tokens: int, learning_rate: float
    ) -> tuple[Tensor, Tensor]:
        """One update over micro-batches of (B, T) inputs and targets: mean loss, gradient norm."""
        total, bf16 = torch.zeros((), device=self.device), self.setup.precision == "bf16"
        for inputs, targets in batches:
            inputs, targets = inputs.to(self.device), targets.to(self.device)
            if self.model is None:
                self._build(inputs.shape[1])
            with torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=bf16):
                loss = self.loss(inputs, targets) * (targets.numel() / tokens)
            loss.backward()
            total += loss.detach()
        norm = nn.utils.clip_grad_norm_(
            self.model.parameters(), self.setup.optimizer["gradient_clip"]
        )
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return total, norm
