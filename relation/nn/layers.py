"""Relation as a layer for other people's models: (B, T, d) to (B, T, d), and no norm.

A layer is the mixer of the paper's decoder by itself. Its projections `w1`, `w2`, `wi`, `wo` (and
`retention_down` of Linear Relation) are `nn.Linear` modules that it calls, so that hooks, LoRA,
quantisers and FSDP work; in place of attention they are Q, K, V and O.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache

import torch
from torch import Tensor, nn

from relation.errors import InputError
from relation.kernels.documents import Documents
from relation.nn.cache import HistoryCache, LinearState
from relation.nn.execution import ByDevice
from relation.nn.mixers import FullRelationMixer, LinearRelationMixer, RopeTables
from relation.nn.norm import Normed
from relation.ops import get_backend
from relation.ops.rope import rope_angles
from relation.variants import FULL, LINEAR, MIXERS, ModelConfig


@lru_cache(maxsize=16)
def _kept_tables(length: int, width: int, base: float, device: torch.device) -> RopeTables:
    # What is made in inference mode cannot be used to train afterwards.
    with torch.inference_mode(False):
        return rope_angles(length, width, base, 0, device)


def _tables(length: int, width: int, base: float, like: Tensor) -> RopeTables:
    """RoPE's tables on a tensor's device for positions 0 .. length - 1 at least.

    Kept from call to call, but not for other types of tensor: a table that is made beside a
    FakeTensor has no data either.
    """
    if torch.compiler.is_compiling() or type(like) is not Tensor:
        return rope_angles(length, width, base, 0, like.device)
    return _kept_tables(1 << (length - 1).bit_length(), width, base, like.device)


class _Layer(nn.Module):
    """How both layers are called. Comes before a mixer in a class's bases."""

    heads: int
    head_dim: int
    rope_base: float

    def forward(
        self,
        x: Tensor,
        documents: Documents | None = None,
        cache: HistoryCache | LinearState | None = None,
        offset: int = 0,
    ) -> Tensor:
        """The layer of x, (B, T, d) to (B, T, d), in x's dtype (under autocast in that one).

        documents: a token sees its own alone and its place starts there; padding is a document
        too (`Documents.padded`). cache: while decoding, one of `new_cache()`; x then follows the
        tokens that it has read, it takes x in, and nothing is differentiable; before a prompt of
        unequal rows call its `begin`. offset: RoPE's position of the first token, 0 or more.
        Raises InputError for another shape, for documents with a cache, for states that do not
        continue it, for an offset below 0, and for what the backend does not take.
        """
        if x.ndim != 3 or x.shape[2] != self.heads * self.head_dim:
            given, width = tuple(x.shape), self.heads * self.head_dim
            raise InputError(f"x has shape {given}; the layer takes (B, T, {width})")
        if documents is not None and cache is not None:
            raise InputError("decoding takes no documents; give them or a cache, not both")
        rope = self._rope(x, documents, cache, offset)
        if cache is None:
            return super().forward(Normed(x), x, rope, None, documents)
        with torch.no_grad():
            return super().forward(Normed(x), x, rope, cache)

    def _rope(self, x: Tensor, documents, cache, offset: int) -> RopeTables:
        """RoPE's tables at the places of x's tokens, (T, d_h) or (B, T, d_h)."""
        if offset < 0:
            raise InputError(f"offset is {offset}; give the place of the first token, 0 or more")
        read = 0 if cache is None else cache.length
        first, last = offset + read, offset + read + x.shape[1]
        cos, sin = _tables(last, self.head_dim, self.rope_base, x)
        if documents is not None:
            places = documents.positions + offset
        elif read and cache.lengths is not None:
            places = cache.lengths[:, None] + torch.arange(offset, last - read, device=x.device)
        else:
            return cos[first:last], sin[first:last]
        return cos[places], sin[places]


class FullRelation(_Layer, FullRelationMixer):
    """Multi-Head Relation (Section 3.2) in place of a causal attention layer.

    d_model: d; heads: H, which divides d into even widths; kv_heads: heads of p2 and information,
    a divisor of H, each for neighbouring heads of p1 (None: H). tau: the Self temperature.
    count_calibration: whether lambda is trained, from `lambda_init`, or 0. givens: whether heads of
    information are mixed, by angles that start at 0; `layer_index` chooses their pairing, so give
    neighbouring layers of a model neighbouring numbers. rope_base: RoPE's. backend: a name of
    `relation.ops.BACKENDS`; None takes FlashRelation on CUDA (FlexAttention where heads are wider
    than 128) and the tiled form in plain PyTorch elsewhere.

    Parameters: w1 (d, d), w2 and wi (kv_heads d_h, d), wo (d, d), which start as `nn.Linear` does,
    theta (kv_heads / 2,) in radians and lam (1,). Raises InputError for sizes that do not fit.
    """

    def __init__(
        self,
        d_model: int,
        heads: int,
        kv_heads: int | None = None,
        *,
        tau: float = 2.0,
        count_calibration: bool = True,
        lambda_init: float = 0.5,
        givens: bool = True,
        layer_index: int = 0,
        rope_base: float = 1e4,
        backend: str | None = None,
    ):
        config = _alone(FULL, d_model, heads, kv_heads, tau, givens, rope_base)
        config = replace(config, count_calibration=count_calibration, lambda_init=lambda_init)
        call = _operator(config, backend)
        super().__init__(config, layer_index, call)
        self.rope_base = rope_base
        self.hold_as_vector()

    def new_cache(self, capacity: int = 256) -> HistoryCache:
        """An empty cache, O(T d); memory for `capacity` tokens is taken at the first."""
        return HistoryCache(capacity)


class LinearRelation(_Layer, LinearRelationMixer):
    """Linear Relation (Section 5.2) as a layer whose state does not grow with the text.

    Arguments as `FullRelation`'s, of which it has no lambda; backend None takes the Triton kernels
    on CUDA (chunks of matrix products where heads are wider than 128, and elsewhere).

    Parameters: w1, w2, wi, wo and theta as there, retention_down (d, d), retention_up
    (H, d_h, d_h), a_log and dt_bias (d,), which start as the paper's model draws them, but from
    PyTorch's own generator. Raises InputError for sizes that do not fit.
    """

    def __init__(
        self,
        d_model: int,
        heads: int,
        kv_heads: int | None = None,
        *,
        tau: float = 2.0,
        givens: bool = True,
        layer_index: int = 0,
        rope_base: float = 1e4,
        backend: str | None = None,
    ):
        config = _alone(LINEAR, d_model, heads, kv_heads, tau, givens, rope_base)
        call = _operator(config, backend)
        super().__init__(config, layer_index, call)
        self.rope_base = rope_base
        bound = config.head_dim**-0.5
        nn.init.uniform_(self.retention_up, -bound, bound)
        with torch.no_grad():
            self.draw_vectors(config, lambda name, shape: torch.rand(shape))

    def new_cache(self) -> LinearState:
        """An empty cache, O(d^2 / H) however many tokens it reads."""
        return LinearState()


def _operator(config: ModelConfig, backend: str | None) -> Callable[..., Tensor]:
    """The operator of a layer's configuration by a backend's name, or by its inputs' device."""
    operator = MIXERS[config.layout]
    if backend is None:
        return ByDevice().calls(config)[operator]
    return get_backend(operator, backend).call


def _alone(
    letter: str,
    d_model: int,
    heads: int,
    kv_heads: int | None,
    tau: float,
    givens: bool,
    rope_base: float,
) -> ModelConfig:
    """The configuration of a model that has this layer alone; it checks the sizes."""
    return ModelConfig(
        vocab_size=1, d_model=d_model, heads=heads, d_ff=1, layout=letter, tau=tau,
        rope_base=rope_base, givens=givens, kv_heads=kv_heads,
    )  # fmt: skip
