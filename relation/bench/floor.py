"""The floor of a training step of the MHA backbone: its unavoidable work, part by part.

Matrix products, attention, and the memory traffic of everything between them. A step that ran
these and nothing else, one after the other, would take the floor's time.
"""

import math
from collections.abc import Callable, Iterable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from relation.bench.steps import Setup
from relation.variants import ModelConfig

PRODUCTS, ATTENTION, TRAFFIC = "products", "attention", "traffic"
_COPIED_AT_ONCE = 2**28


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


def _parameters(config: ModelConfig) -> int:
    matrices = sum(o * i * count for (o, i), count in projections(config).items())
    return matrices + (2 * config.layers + 1) * config.d_model


class FloorStep:
    """Runs parts of the floor of an update; called as an update is.

    `parts` are of PRODUCTS, ATTENTION and TRAFFIC. Buffers are made at the first call, for the
    shape of its micro-batch. The loss it returns is zero.
    """

    def __init__(self, parts: Iterable[str], setup: Setup):
        self.parts, self.config, self.device = tuple(parts), setup.model, setup.device
        self.dtype = torch.bfloat16 if setup.precision == "bf16" else torch.float32
        self._calls: list[Callable[[], None]] | None = None

    def _products(self, tokens: int) -> list[Callable[[], None]]:
        generator = torch.Generator(self.device).manual_seed(0)

        def drawn(rows: int, columns: int) -> Tensor:
            return torch.randn(
                rows, columns, dtype=self.dtype, device=self.device, generator=generator
            )

        calls: list[Callable[[], None]] = []
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
        config = self.config
        generator = torch.Generator(self.device).manual_seed(1)
        size = batch, length, config.heads, config.head_dim
        q, k, v, dy = (
            torch.randn(size, dtype=self.dtype, device=self.device, generator=generator)
            .transpose(1, 2)
            .requires_grad_()
            for _ in range(4)
        )
        on_gpu = self.device.type == "cuda"
        backends = [SDPBackend.FLASH_ATTENTION, *([] if on_gpu else [SDPBackend.MATH])]

        def call() -> None:
            with sdpa_kernel(backends):
                y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            torch.autograd.grad(y, (q, k, v), dy)

        return config.layers * [call]

    def _traffic(self, tokens: int) -> list[Callable[[], None]]:
        moved = traffic_bytes(self.config, _parameters(self.config), tokens, self.dtype.itemsize)
        # A copy reads what it writes.
        whole, rest = divmod(moved // 2, _COPIED_AT_ONCE)
        size = (min(moved // 2, _COPIED_AT_ONCE),)
        source = torch.randint(256, size, dtype=torch.uint8, device=self.device)
        target = torch.empty_like(source)
        return [partial(target[:n].copy_, source[:n]) for n in whole * [_COPIED_AT_ONCE] + [rest]]

    def _build(self, shape: torch.Size) -> list[Callable[[], None]]:
        tokens = math.prod(shape)
        made = {
            PRODUCTS: partial(self._products, tokens),
            ATTENTION: partial(self._attention, *shape),
            TRAFFIC: partial(self._traffic, tokens),
        }
        return [call for part in self.parts for call in made[part]()]

    def __call__(
        self, batches: Iterable[tuple[Tensor, Tensor]], tokens: int, learning_rate: float
    ) -> tuple[Tensor, Tensor]:
        for inputs, _ in batches:
            if self._calls is None:
                self._calls = self._build(inputs.shape)
            for call in self._calls:
                call()
        return torch.zeros(()), torch.zeros(())
