"""Relation as a layer for other people's models: (B, T, d) to (B, T, d), and no norm.

A layer is the mixer of the paper's decoder by itself. Its projections `w1`, `w2`, `wi`, `wo` (and
`retention_down` of Linear Relation) are `nn.Linear` modules that it calls, so that hooks, LoRA and
quantisers work; in place of attention they are Q, K, V and O.
"""

import torch
from torch import Tensor, nn

from relation.errors import InputError, check_among
from relation.kernels.checks import projection_dtype
from relation.kernels.documents import Documents
from relation.nn.cache import HistoryCache, LinearState
from relation.nn.model import FullRelationMixer, LinearRelationMixer, places_of, retention_start
from relation.nn.norms import Normed, is_bare
from relation.ops.backends import Execution
from relation.ops.rotations import rope_angles
from relation.variants import FULL, LINEAR, MIXERS, ModelConfig, check_type


class _Layer(nn.Module):
    """How both layers are called. Comes before a mixer in a class's bases."""

    _layout: str
    _cache: type[HistoryCache | LinearState]
    _options: tuple[str, ...] = ("tau", "givens", "rope_base", "qk_norm", "output_gate")

    def __init__(
        self,
        d_model: int | None = None,  # as the next, refused in one line
        heads: int | None = None,
        kv_heads: int | None = None,
        *,
        layer_index: int = 0,
        backend: str | None = None,
        **options,
    ):
        check_type("layer_index", layer_index, int)
        for name in options:
            names = ("d_model", "heads", "kv_heads", "layer_index", "backend", *self._options)
            check_among(name, names, f"{type(self).__name__} has no option {name!r}")
        sizes = dict(d_model=d_model, heads=heads, kv_heads=kv_heads, layout=self._layout)
        config = ModelConfig(vocab_size=1, d_ff=1, **sizes, **options)
        operator = MIXERS[self._layout]
        call = Execution(**{operator: backend}).calls(config)[operator]
        super().__init__(config, layer_index, call)
        self._config, self.rope_base = config, config.rope_base
        self._reset_own()

    def reset_parameters(self) -> None:
        """Draw every parameter as a new layer does; also after `to_empty` of the meta device."""
        for module in self.children():
            module.reset_parameters()
        self._reset_own()

    @torch.no_grad()
    def _reset_own(self) -> None:
        """Draw the parameters that are no projection's, from PyTorch's own generator."""
        for name, parameter in self.named_parameters(recurse=False):
            if name in ("theta", "lam"):
                parameter.fill_(self._config.lambda_init if name == "lam" else 0.0)
            elif name == "retention_up":
                nn.init.uniform_(parameter, -(self.head_dim**-0.5), self.head_dim**-0.5)
            else:
                parameter.copy_(retention_start(name, torch.rand_like(parameter)))

    def forward(
        self,
        x: Tensor,
        documents: Documents | None = None,
        cache: HistoryCache | LinearState | None = None,
        **others,
    ) -> Tensor:
        """The layer of x, (B, T, d) to (B, T, d), in x's dtype (under autocast in that one).

        documents: a token sees its own alone; padding is one too (`Documents.padded`). cache: while
        decoding, one of `new_cache()`, which takes x in as what follows; nothing is differentiable
        then. Before a prompt of unequal rows call its `begin`. Raises InputError for what does not
        fit or the backend does not take.
        """
        self._check(x)
        if others:
            raise InputError(
                f"{type(self).__name__} takes no {', '.join(others)}: it is causal, and takes x, "
                "documents=Documents.padded(mask) or .packed(offsets), and cache=layer.new_cache()"
            )
        if cache is not None and not isinstance(cache, self._cache):
            raise InputError(
                f"the cache is a {type(cache).__name__} and {type(self).__name__} takes a "
                f"{self._cache.__name__}; make one for each layer by its new_cache()"
            )
        if cache is not None and cache.lengths is not None and cache.length == 0:
            self._check_lengths(cache.lengths, *x.shape[:2])
        rope = rope_angles(places_of(x, documents, cache), self.head_dim, self.rope_base)
        if cache is None:
            return super().forward(Normed(x), rope, None, documents)
        with torch.no_grad():
            return super().forward(Normed(x), rope, cache)

    @staticmethod
    def _check_lengths(lengths: Tensor, batch: int, tokens: int) -> None:
        """Raise InputError unless lengths are (B,) int64, from 1 to T; a GPU's are not read."""
        fit = isinstance(lengths, Tensor) and lengths.shape == (batch,)
        fit = fit and lengths.dtype == torch.int64
        if fit and batch and lengths.device.type == "cpu" and not torch.compiler.is_compiling():
            fit = 1 <= lengths.min() <= lengths.max() <= tokens
        if not fit:
            raise InputError(
                f"the cache began with other lengths; give {batch} from 1 to {tokens}, int64"
            )

    def _check(self, x: Tensor) -> None:
        """Raise InputError unless x is (B, T, d) in a dtype that the projections multiply."""
        width = self._config.d_model
        if not isinstance(x, Tensor) or x.ndim != 3 or x.shape[2] != width:
            shape = tuple(x.shape) if isinstance(x, Tensor) else f"none: it is a {type(x).__name__}"
            raise InputError(f"x has shape {shape}; the layer takes (B, T, {width})")
        if not is_bare(self.w1) or x.dtype == self.w1.weight.dtype:
            return  # an adapter or a quantised weight takes other dtypes
        dtype = projection_dtype(self.w1.weight)
        if not x.is_floating_point() or projection_dtype(x) != dtype:
            raise InputError(f"x is {x.dtype} and the layer's weights are {dtype}; convert one")


class FullRelation(_Layer, FullRelationMixer):
    """Multi-Head Relation (Section 3.2) in place of a causal attention layer.

    d_model: d; heads: H, which divides d into even widths; kv_heads: heads of p2 and information,
    a divisor of H, each for neighbouring heads of p1 (None: H). backend: a name of
    `relation.ops.BACKENDS`; None takes the fastest that runs what the layer is given.

    Options: tau (2.0), the Self temperature; count_calibration (True): whether lambda is trained,
    from lambda_init (0.5), or 0; givens (True): whether heads of information are mixed, by angles
    that start at 0; `layer_index` (0) chooses their pairing, so give neighbouring layers of a model
    neighbouring numbers; rope_base (1e4); qk_norm and output_gate (False), as `ModelConfig`'s.

    Parameters: w1 (d, d), w2 and wi (kv_heads d_h, d), wo (d, d), which start as `nn.Linear` does,
    theta (kv_heads / 2,) in radians and lam (). Raises InputError for sizes that do not fit.
    """

    _layout, _cache = FULL, HistoryCache
    _options = (*_Layer._options, "count_calibration", "lambda_init")

    def new_cache(self, capacity: int = 256) -> HistoryCache:
        """An empty cache, O(T d); memory for `capacity` tokens is taken at the first."""
        return HistoryCache(capacity)


class LinearRelation(_Layer, LinearRelationMixer):
    """Linear Relation (Section 5.2) as a layer whose state does not grow with the text.

    Arguments and options as `FullRelation`'s, without lambda's. Parameters: w1, w2, wi, wo and
    theta as there, retention_down (d, d), retention_up (H, d_h, d_h), a_log and dt_bias (d,), which
    start as the paper's model draws them. Raises InputError for sizes that do not fit.
    """

    _layout, _cache = LINEAR, LinearState

    def new_cache(self) -> LinearState:
        """An empty cache, O(d^2 / H) however many tokens it reads."""
        return LinearState()
