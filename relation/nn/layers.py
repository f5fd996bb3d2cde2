"""Relation as a layer for your own model: (B, T, d) to (B, T, d), without a norm.

A layer is one mixer of the paper's decoder. Its projections `w1`, `w2`, `wi`, `wo` (and
`retention_down` in Linear Relation) are `nn.Linear` modules, and the layer calls them, so hooks,
LoRA and quantisers work. They correspond to Q, K, V and O of attention.
"""

import weakref

import torch
from torch import Tensor, nn

from relation.errors import InputError, check_among
from relation.kernels.documents import Documents
from relation.nn.cache import HistoryCache, LinearState
from relation.nn.model import FullRelationMixer, LinearRelationMixer, places_of, retention_start
from relation.nn.norms import Normed
from relation.ops.backends import Execution
from relation.ops.rotations import rope_angles
from relation.variants import FULL, LINEAR, OPERATORS, ModelConfig, check_type

_READERS = weakref.WeakKeyDictionary()  # the layer that reads a cache; caches can be pickled


class _Layer(nn.Module):
    """The constructor and `forward` of both layers. In a class's bases it comes before a mixer."""

    _layout: str
    _cache: type[HistoryCache | LinearState]
    _options: tuple[str, ...] = ("tau", "givens", "rope_base", "qk_norm", "output_gate")

    def __init__(
        self,
        d_model: int | None = None,  # if d_model or heads is missing, ModelConfig raises InputError
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
        operator = OPERATORS[self._layout]
        call = Execution(**{operator: backend}).calls(config)[operator]
        super().__init__(config, layer_index, call)
        self._config = config
        self._reset_own()

    def reset_parameters(self) -> None:
        """Draw every parameter again, as in a new layer. Call it also after `to_empty`."""
        for module in self.children():
            module.reset_parameters()
        self._reset_own()

    @torch.no_grad()
    def _reset_own(self) -> None:
        """Initialise the parameters outside the projections, by PyTorch's default generator."""
        for name, parameter in self.named_parameters(recurse=False):
            if name in ("theta", "lam"):
                parameter.fill_(self._config.lambda_init if name == "lam" else 0.0)
            elif name == "retention_up":
                nn.init.uniform_(parameter, -(self.head_dim**-0.5), self.head_dim**-0.5)
            else:  # a_log, dt_bias
                parameter.copy_(retention_start(name, torch.rand_like(parameter)))

    def forward(
        self,
        x: Tensor,
        documents: Documents | None = None,
        cache: HistoryCache | LinearState | None = None,
    ) -> Tensor:
        """Return the layer's output for x, (B, T, d), in x's dtype (under autocast in autocast's).

        documents: a token sees only its own document; `Documents.padded` handles padding. cache:
        for decoding, an object from `new_cache()`; it stores the tokens of x, and no gradients are
        computed. Before prompts of unequal lengths, call its `begin`. Raises InputError for
        arguments that do not fit, or that the backend does not take.
        """
        if x.ndim != 3 or x.shape[2] != self._config.d_model:
            raise InputError(f"x has shape {tuple(x.shape)}; give (B, T, {self._config.d_model})")
        if cache is not None and not isinstance(cache, self._cache):
            name = type(self).__name__
            raise InputError(f"the cache is a {type(cache).__name__}; {name} takes its new_cache()")
        if cache is not None and not torch.compiler.is_compiling():
            reader = _READERS.setdefault(cache, weakref.ref(self))()
            if reader is not self and reader is not None:
                raise InputError("another layer reads this cache; give each layer its own")
        if cache is not None and cache.lengths is not None and cache.length == 0:
            lengths, (batch, tokens) = cache.lengths, x.shape[:2]
            fit = lengths.shape == (batch,) and lengths.dtype == torch.int64
            if fit and lengths.device.type == "cpu" and not torch.compiler.is_compiling():
                fit = 1 <= lengths.min() <= lengths.max() <= tokens
            if not fit:
                raise InputError(f"begin() got bad lengths; give {batch} from 1 to {tokens}, int64")
        rope = rope_angles(places_of(x, documents, cache), self.head_dim, self._config.rope_base)
        if cache is None:
            return super().forward(Normed(x), rope, None, documents)
        with torch.no_grad():
            return super().forward(Normed(x), rope, cache)


class FullRelation(_Layer, FullRelationMixer):
    """Multi-Head Relation (Section 3.2), a replacement for a causal attention layer.

    d_model: d. heads: H; d / H must be an even integer. kv_heads: the number of heads of p2 and
    information, a divisor of H, each shared by neighbouring heads of p1 (None: H). backend: a name
    in `relation.ops.BACKENDS`; None runs the fastest backend that takes the input.

    Options: tau (2.0), the Self temperature. count_calibration (True): train lambda, which starts
    at lambda_init (0.5); False: lambda is 0. givens (True): mix the heads of information by angles
    that start at 0. layer_index (0): its parity chooses which heads are paired, so number a model's
    layers in order. rope_base (1e4). qk_norm and output_gate (False): see `ModelConfig`.

    Parameters: w1 (d, d), w2 and wi (kv_heads d_h, d), wo (d, d), which start as `nn.Linear` does,
    theta (kv_heads / 2,) in radians and lam (). Raises InputError for sizes that do not fit.
    """

    _layout, _cache = FULL, HistoryCache
    _options = (*_Layer._options, "count_calibration", "lambda_init")

    def new_cache(self, capacity: int = 256) -> HistoryCache:
        """An empty cache, O(T d). The first block allocates memory for `capacity` tokens."""
        return HistoryCache(capacity)


class LinearRelation(_Layer, LinearRelationMixer):
    """Linear Relation (Section 5.2), a layer with a decode state that does not grow with the text.

    Arguments and options are those of `FullRelation` except count_calibration and lambda_init.
    Parameters: w1, w2, wi, wo and theta as in `FullRelation`; retention_down (d, d), retention_up
    (H, d_h, d_h), as `nn.Linear` starts; a_log, dt_bias (d,), as in KDA. Raises the same errors.
    """

    _layout, _cache = LINEAR, LinearState

    def new_cache(self) -> LinearState:
        """An empty cache, O(d^2 / H) for any number of tokens."""
        return LinearState()
