"""Whole training steps of the MHA backbone beside a plainly written decoder and their floor.

The plain decoder is the ordinary way to write and train that model; it shares no code with
`relation.nn` or `relation.train.step`, and computes the same. The floor is the step's unavoidable
work, part by part: matrix products, attention, and the memory traffic of everything between them. A
step that ran these and nothing else, one after the other, would take the floor's time.

On a GPU the backbone's passes are CUDA graphs, as in training; the plain decoder's and the floor's
are not, so where kernels are short, the host's launches are in their time.
"""

import math
from collections.abc import Callable, Iterable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from relation.bench.peers import Benchmark, Side
from relation.bench.steps import Setup
from relation.nn import Decoder
from relation.variants import ModelConfig
from relation.verify.inputs import DTYPES

PRODUCTS, ATTENTION, TRAFFIC = "products", "attention", "traffic"
_COPIED_AT_ONCE = 2**28
Batches = Iterable[tuple[Tensor, Tensor]]
MakeMixer = Callable[[ModelConfig, int], nn.Module]


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

    On a CPU, and where it is not `forced`, whatever kernel PyTorch chooses.
    """

    def __init__(self, d_model: int, heads: int, forced: bool = True):
        super().__init__()
        self.heads, self.forced = heads, forced
        # Query, key, value and output.
        self.w1, self.w2, self.wi, self.wo = (
            nn.Linear(d_model, d_model, bias=False) for _ in range(4)
        )

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        B, T, d = x.shape
        q, k, v = (
            linear(x).view(B, T, self.heads, d // self.heads).transpose(1, 2)
            for linear in (self.w1, self.w2, self.wi)
        )
        q, k = ((p * cos + _rotate_half(p) * sin).type_as(p) for p in (q, k))
        if self.forced and x.device.type == "cuda":
            with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
                y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.wo(y.transpose(1, 2).reshape(B, T, d))


def plain_attention(config: ModelConfig, layer_index: int) -> nn.Module:
    """A layer's attention with PyTorch's FlashAttention."""
    return PlainAttention(config.d_model, config.heads)


class PlainBlock(nn.Module):
    """One pre-norm layer: a token mixer, then SwiGLU. Attention alone is given RoPE's tables."""

    def __init__(self, config: ModelConfig, mixer: nn.Module):
        super().__init__()
        d, d_ff = config.d_model, config.d_ff
        self.mixer_norm = nn.RMSNorm(d, eps=config.norm_eps)
        self.mixer = mixer
        self.ffn_norm = nn.RMSNorm(d, eps=config.norm_eps)
        widths = {"gate": (d, d_ff), "up": (d, d_ff), "down": (d_ff, d)}
        self.ffn = nn.ModuleDict({k: nn.Linear(*w, bias=False) for k, w in widths.items()})

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        h = self.mixer_norm(x)
        rope = (cos, sin) if isinstance(self.mixer, PlainAttention) else ()
        x = x + self.mixer(h, *rope)
        h, ffn = self.ffn_norm(x), self.ffn
        return x + ffn["down"](F.silu(ffn["gate"](h)) * ffn["up"](h))


class PlainDecoder(nn.Module):
    """The backbone with the weights of a model, for sequences of `length` tokens.

    mixer: makes a layer's token mixer. Parameters are called as that model's.
    """

    def __init__(self, model: Decoder, length: int, mixer: MakeMixer = plain_attention):
        super().__init__()
        config = model.config
        self.embedding = nn.Embedding(config.vocab_size, config.d_model)
        self.blocks = nn.ModuleList(
            PlainBlock(config, mixer(config, index)) for index in range(config.layers)
        )
        self.norm = nn.RMSNorm(config.d_model, eps=config.norm_eps)
        self.load_state_dict(model.state_dict())
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


class PlainStep:
    """Updates of a plain decoder, called as `relation.train.step.UpdateStep` is.

    The model is built at the first call, for the length of its sequences; mixer: makes a layer's
    token mixer. Every target counts: a micro-batch's loss is the mean over it. Its kernels are
    launched one by one, as torch.compile does by default; the project's step replays CUDA graphs.
    """

    def __init__(self, setup: Setup, mixer: MakeMixer = plain_attention):
        self.setup, self.device, self.mixer = setup, setup.device, mixer
        self.model: PlainDecoder | None = None

    def _build(self, length: int) -> None:
        source = Decoder(self.setup.model)
        source.initialise(seed=0)
        self.model = PlainDecoder(source, length, self.mixer).to(self.device)
        settings = self.setup.optimizer
        parameters = list(self.model.parameters())
        decayed = [p for p in parameters if p.ndim >= 2]
        if not settings["decay_embedding"]:
            decayed = [p for p in decayed if p is not self.model.embedding.weight]
        others = [p for p in parameters if all(p is not d for d in decayed)]
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
        self, batches: Batches, tokens: int, learning_rate: float
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


def projections(config: ModelConfig) -> dict[tuple[int, int], int]:
    """(width out, width in) of a step's projections, and how often each occurs.

    Those that read the same input are one: Q, K and V; gate and up.
    """
    d, d_ff = config.d_model, config.d_ff
    counts: dict[tuple[int, int], int] = {(config.vocab_size, d): 1}
    for shape in ((3 * d, d), (d, d), (2 * d_ff, d), (d, d_ff)):
        counts[shape] = counts.get(shape, 0) + config.layers
    return counts


def traffic_bytes(config: ModelConfig, parameters: int, tokens: int, activation: int) -> int:
    """Least bytes that the element-wise rest of one update reads and writes.

    Every tensor between two products or attention calls is read once and written once, the
    residual stream and its gradient in FP32, the others in `activation` bytes a number. A layer:
    two residual sums with their norms, RoPE of two coordinates and SwiGLU, forward and backward. A
    norm's backward reads its result, not the stream, and writes the gradient in both widths.
    The ends: embedding, last norm, logits to their gradient in one pass. The update: the gradient
    norm reads FP32 gradients; AdamW reads gradients, weights and two moments, writes the last three
    and the weights in `activation` bytes.
    """
    residual, narrow = 4 * tokens * config.d_model, activation * tokens * config.d_model
    hidden, logits = activation * tokens * config.d_ff, activation * tokens * config.vocab_size
    norms = 2 * (2 * residual + 2 * narrow) + 2 * (2 * residual + 3 * narrow)
    layer = norms + 2 * 4 * narrow + 3 * hidden + 5 * hidden
    ends = 2 * residual + (2 * residual + 2 * narrow) + (2 * residual + 2 * narrow) + 2 * logits
    return config.layers * layer + ends + (4 + 16 + 12 + activation) * parameters


class FloorStep:
    """Runs parts of the floor of an update; called as an update is.

    `parts` are of PRODUCTS, ATTENTION and TRAFFIC. Buffers are made at the first call, for the
    shape of its micro-batch. The loss it returns is zero.
    """

    def __init__(self, parts: Iterable[str], setup: Setup):
        self.parts, self.config, self.device = tuple(parts), setup.model, setup.device
        self.dtype = DTYPES[setup.precision]
        self._calls: list[Callable[[], None]] | None = None

    def _drawn(self, seed: int) -> Callable[..., Tensor]:
        generator = torch.Generator(self.device).manual_seed(seed)
        return partial(torch.randn, dtype=self.dtype, device=self.device, generator=generator)

    def _products(self, tokens: int) -> list[Callable[[], None]]:
        drawn, calls = self._drawn(0), []
        for (out_width, in_width), count in projections(self.config).items():
            x, w, y = drawn(tokens, in_width), drawn(out_width, in_width), drawn(tokens, out_width)
            dx, dw = torch.empty_like(x), torch.empty_like(w)
            made = torch.empty_like(y)
            # out: the allocator and what is freed after a call take no part in it.
            calls += count * [
                partial(torch.mm, x, w.mT, out=made),
                partial(torch.mm, y, w, out=dx),
                partial(torch.mm, y.mT, x, out=dw),
            ]
        return calls

    def _attention(self, batch: int, length: int) -> list[Callable[[], None]]:
        config, drawn = self.config, self._drawn(1)
        size = batch, length, config.heads, config.head_dim
        q, k, v, dy = (drawn(size).transpose(1, 2).requires_grad_() for _ in range(4))
        on_gpu = self.device.type == "cuda"
        backends = [SDPBackend.FLASH_ATTENTION, *([] if on_gpu else [SDPBackend.MATH])]

        def call() -> None:
            with sdpa_kernel(backends):
                y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            torch.autograd.grad(y, (q, k, v), dy)

        return config.layers * [call]

    def _traffic(self, tokens: int) -> list[Callable[[], None]]:
        config = self.config
        matrices = sum(o * i * count for (o, i), count in projections(config).items())
        parameters = matrices + (2 * config.layers + 1) * config.d_model
        moved = traffic_bytes(config, parameters, tokens, self.dtype.itemsize)
        # A copy reads what it writes.
        whole, rest = divmod(moved // 2, _COPIED_AT_ONCE)
        size = (min(moved // 2, _COPIED_AT_ONCE),)
        source = torch.randint(256, size, dtype=torch.uint8, device=self.device)
        target = torch.empty_like(source)
        return [partial(target[:n].copy_, source[:n]) for n in whole * [_COPIED_AT_ONCE] + [rest]]

    def _build(self, shape: torch.Size) -> list[Callable[[], None]]:
        made = {
            PRODUCTS: partial(self._products, math.prod(shape)),
            ATTENTION: partial(self._attention, *shape),
            TRAFFIC: partial(self._traffic, math.prod(shape)),
        }
        return [call for part in self.parts for call in made[part]()]

    def __call__(
        self, batches: Batches, tokens: int, learning_rate: float
    ) -> tuple[Tensor, Tensor]:
        for inputs, _ in batches:
            if self._calls is None:
                self._calls = self._build(inputs.shape)
            for call in self._calls:
                call()
        return torch.zeros(()), torch.zeros(())


_FLOORS = {
    "floor": (PRODUCTS, ATTENTION, TRAFFIC),
    **{f"floor-{part}": (part,) for part in (PRODUCTS, ATTENTION, TRAFFIC)},
}
_MHA = {"mha": "flash"}
_BENCHMARK = Benchmark(
    title="Training steps of the MHA backbone, of a plain decoder, and their floor",
    subject="decoder",
    steps={
        "matched": (
            Side("decoder", "mha", _MHA),
            Side("plain", "mha", _MHA, build=PlainStep),
            *(Side(n, "mha", _MHA, build=partial(FloorStep, p)) for n, p in _FLOORS.items()),
        )
    },
)
# By kind of device: whole steps alone, no operator.
BENCHMARKS = {"cuda": _BENCHMARK, "cpu": _BENCHMARK}
