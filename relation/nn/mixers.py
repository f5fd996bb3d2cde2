"""Token mixers as modules: projections around an operator of `relation.ops`."""

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from relation.kernels.documents import Documents
from relation.nn.cache import HistoryCache, LinearState
from relation.nn.norm import Normed
from relation.ops import (
    attention_step,
    causal_flow,
    full_flow,
    full_relation_step,
    givens_mix,
)
from relation.ops.rope import apply_rope
from relation.ops.scores import for_heads
from relation.registry import Registry
from relation.variants import MIXERS, ModelConfig

RopeTables = tuple[Tensor, Tensor]
Draw = Callable[[str, torch.Size], Tensor]


class Mixer(nn.Module):
    """Shared by all mixers: two rotated coordinates, one transported state, an output projection.

    config: the model; layer_index: which layer of it, from 0; call: the operator's function.
    Input, `Normed`, and output are (B, T, d). `w1`, `w2`, `wi` are Q, K, V in MHA and the relation
    and information projections in Relation, so that paired models share names and initial values.

    A mixer's forward is given the layer's cache when decoding: x then holds the newest tokens, the
    cache what is kept of those before, and the cache takes the newest in. An empty cache's first
    block, a prompt, is computed by the operator's backend. Or it is given the
    documents of the batch; RoPE's tables then hold each token's place in its own.
    """

    def __init__(self, config: ModelConfig, layer_index: int, call: Callable[..., Tensor]):
        super().__init__()
        self.heads, self.head_dim = config.heads, config.head_dim
        self.call = call
        d, shared = config.d_model, config.shared_heads * config.head_dim
        self.w1 = nn.Linear(d, d, bias=False)
        self.w2 = nn.Linear(d, shared, bias=False)
        if not config.raw_information:
            self.wi = nn.Linear(d, shared, bias=False)
        self.wo = nn.Linear(d, d, bias=False)

    def split(self, x: Tensor) -> Tensor:
        """(B, T, H d_h) to (B, H, T, d_h); H is fewer where heads share."""
        return x.unflatten(-1, (-1, self.head_dim)).transpose(1, 2)

    def coordinates(self, x: Normed, rope: RopeTables) -> tuple[Tensor, Tensor]:
        """The two rotated coordinates, (B, H, T, d_h); the second may have fewer heads."""
        p1, p2 = (self.split(x.through(linear)) for linear in (self.w1, self.w2))
        return apply_rope(p1, *rope), apply_rope(p2, *rope)

    def output(self, y: Tensor) -> Tensor:
        """Concatenate the heads of y (B, H, T, d_h) and project to (B, T, d)."""
        return self.wo(y.transpose(1, 2).flatten(2))

    def draw_vectors(self, config: ModelConfig, draw: Draw) -> None:
        """Draw the initial values of parameters that are no matrices; most mixers draw none.

        `draw(name, shape)` gives uniform numbers in [0, 1) that depend on the name alone.
        """


class AttentionMixer(Mixer):
    """Multi-head attention with RoPE on Q and K."""

    def forward(
        self,
        x: Normed,
        residual: Tensor,
        rope: RopeTables,
        cache: HistoryCache | None = None,
        documents: Documents | None = None,
    ) -> Tensor:
        q, k = self.coordinates(x, rope)
        v = self.split(x.through(self.wi))
        if cache is None:
            return self.output(self.call(q, k, v, documents=documents))
        prompt, history = cache.length == 0, cache.append(k, v)
        if prompt:
            return self.output(self.call(q, k, v))
        history = (for_heads(states, self.heads) for states in history)
        return self.output(attention_step(q, *history, lengths=cache.lengths))

    def flow(self, x: Normed, rope: RopeTables, documents: Documents | None = None) -> Tensor:
        """Normalised flow (B, H, T, T), FP32."""
        return causal_flow(*self.coordinates(x, rope), documents=documents)

    def transport(self, x: Normed, flow: Tensor) -> Tensor:
        """The mixer's output by the definition, from the flow of the same x."""
        return self.output(flow @ for_heads(self.split(x.through(self.wi)), self.heads))


class InformationMixer(Mixer):
    """What Full and Linear Relation share: the information state and its Givens mixing."""

    def __init__(self, config: ModelConfig, layer_index: int, call: Callable[..., Tensor]):
        super().__init__(config, layer_index, call)
        self.tau = config.tau
        # The parity alone: torch.compile compiles a layer's code anew for every other constant.
        self.pairing_index = (layer_index + (config.givens_first_pairing == "B")) % 2
        self.projects, self.mixes = not config.raw_information, config.givens
        if self.mixes:
            self.theta = nn.Parameter(torch.zeros(config.shared_heads // 2))

    def information(self, x: Normed) -> Tensor:
        """I-tilde (B, H, T, d_h): projected (or X itself for Raw-X), split and mixed."""
        if not (self.mixes and self.projects and _is_bare(self.wi)):
            info = self.split(x.through(self.wi) if self.projects else x.scaled())
            return givens_mix(info, self.theta, self.pairing_index) if self.mixes else info
        # Mixing acts on heads and so commutes with the projection of a token: the rows of W_I are
        # mixed, d x d numbers, instead of the states of every token.
        weight = self.wi.weight.unflatten(0, (1, -1, self.head_dim))
        mixed = givens_mix(weight, self.theta, self.pairing_index).flatten(0, 2)
        return self.split(x.project(mixed))


def _is_bare(linear: nn.Module) -> bool:
    """Whether calling a module is its weight's product and nothing else: no adapter, no hook."""
    hooks = (
        linear._forward_hooks,
        linear._forward_pre_hooks,
        linear._backward_hooks,
        linear._backward_pre_hooks,
    )
    # Offloading puts a forward of its own on the instance.
    replaced = type(linear) is not nn.Linear or "forward" in vars(linear)
    return not replaced and linear.bias is None and not any(hooks)


def _shape_lambda(mixer: nn.Module, state_dict: dict[str, Tensor], prefix: str, *rest) -> None:
    """Give a saved lambda the mixer's own shape, () or (1,): it is one number."""
    name = f"{prefix}lam"
    if name in state_dict:
        state_dict[name] = state_dict[name].reshape(mixer.lam.shape)


class FullRelationMixer(InformationMixer):
    """Multi-Head Relation (Section 3.2) with the count calibration lambda of its layer."""

    def __init__(self, config: ModelConfig, layer_index: int, call: Callable[..., Tensor]):
        super().__init__(config, layer_index, call)
        self.transport_self = config.transport_self
        if config.count_calibration:
            self.lam = nn.Parameter(torch.tensor(config.lambda_init))
        else:
            self.register_buffer("lam", torch.tensor(0.0), persistent=False)
        self.register_load_state_dict_pre_hook(_shape_lambda)

    def forward(
        self,
        x: Normed,
        residual: Tensor,
        rope: RopeTables,
        cache: HistoryCache | None = None,
        documents: Documents | None = None,
    ) -> Tensor:
        p1, p2 = self.coordinates(x, rope)
        # Under autocast the projections are BF16 and scaled X is FP32: Raw-X transports BF16 too.
        info = self.information(x).to(p1.dtype)
        numbers, own = (self.calibration(), self.tau), self.transport_self
        if cache is not None and cache.length:
            history = (for_heads(states, self.heads) for states in cache.append(p2, info))
            rest = {"transport_self": own, "lengths": cache.lengths}
            return self.output(full_relation_step(p1, *history, *numbers, **rest))
        if cache is not None:
            cache.append(p2, info)
        y = self.call(p1, p2, info, *numbers, transport_self=own, documents=documents)
        return self.output(y)

    def hold_as_vector(self) -> None:
        """Hold lambda as (1,) instead of (), which FSDP does not shard."""
        if isinstance(self.lam, nn.Parameter):
            self.lam = nn.Parameter(self.lam.detach().reshape(1))

    def calibration(self) -> Tensor:
        """Lambda, FP32 at least, in a layer of 16-bit parameters too."""
        return self.lam.to(torch.promote_types(self.lam.dtype, torch.float32))

    def flow(self, x: Normed, rope: RopeTables, documents: Documents | None = None) -> Tensor:
        """The layer's actual F (B, H, T, T), FP32."""
        coordinates = self.coordinates(x, rope)
        return full_flow(*coordinates, self.lam, self.tau, documents=documents)

    def transport(self, x: Normed, flow: Tensor) -> Tensor:
        """The mixer's output by the definition, from the flow of the same x."""
        carried = flow if self.transport_self else flow.tril(-1)
        return self.output(carried @ for_heads(self.information(x), self.heads))


class LinearRelationMixer(InformationMixer):
    """Linear Relation (Section 5.2) with the channel-wise retention of Kimi Delta Attention.

    The retention path is a pair of matrices a head, d -> d_h -> d_h, with A_log and dt_bias a
    channel, where KDA's published code shares one pair, d -> d_h -> d, and has A_log a head: the
    paper's count of the Hybrid's parameters is that of the former. A_log, dt_bias, g and the
    state are FP32 whatever the autocast.
    """

    def __init__(self, config: ModelConfig, layer_index: int, call: Callable[..., Tensor]):
        super().__init__(config, layer_index, call)
        d, width = config.d_model, config.head_dim
        self.reads_residual = config.retention_input == "residual"
        self.retention_down = nn.Linear(d, d, bias=False)
        self.retention_up = nn.Parameter(torch.empty(config.heads, width, width))
        self.a_log = nn.Parameter(torch.empty(d))
        self.dt_bias = nn.Parameter(torch.empty(d))

    def log_retention(self, x: Normed) -> Tensor:
        """g = log alpha <= 0 as (B, H, T, d_h), FP32 at least."""
        # One product a head over all tokens, as einsum has it, which takes twice the operators.
        down = x.through(self.retention_down)
        heads = down.flatten(0, 1).unflatten(1, (self.heads, -1)).transpose(0, 1)
        r = torch.bmm(heads, self.retention_up.mT).unflatten(1, down.shape[:2]).transpose(0, 1)
        wide = torch.promote_types(self.a_log.dtype, torch.float32)
        a, bias = (p.to(wide).unflatten(0, (self.heads, 1, -1)) for p in (self.a_log, self.dt_bias))
        return -a.exp() * F.softplus(r.to(wide) + bias)

    def forward(
        self,
        x: Normed,
        residual: Tensor,
        rope: RopeTables,
        cache: LinearState | None = None,
        documents: Documents | None = None,
    ) -> Tensor:
        p1, p2 = self.coordinates(x, rope)
        g = self.log_retention(Normed(residual) if self.reads_residual else x)
        C = None if cache is None else cache.state
        padding = None if cache is None else cache.padding(residual.shape[1])
        if padding is not None:
            # Padding neither forgets nor writes, so that the state is that of the row's last token.
            p2, g = (s.masked_fill(padding[:, None, :, None], 0) for s in (p2, g))
        y, C = self.call(p1, p2, self.information(x), g, self.tau, C, documents=documents)
        if cache is not None:
            cache.replace(C, residual.shape[1])
        return self.output(y)

    def draw_vectors(self, config: ModelConfig, draw: Draw) -> None:
        """A ~ U(range) and dt log-uniform over its range, as KDA and Mamba-2 start them."""
        low, high = config.retention_a_range
        self.a_log.copy_((low + (high - low) * draw("a_log", self.a_log.shape)).log())
        low, high = (math.log(v) for v in config.retention_dt_range)
        dt = (low + (high - low) * draw("dt_bias", self.dt_bias.shape)).exp()
        # The inverse of softplus, so that softplus(dt_bias) = dt where the retention path gives 0.
        self.dt_bias.copy_(dt + torch.log(-torch.expm1(-dt)))


class Layer(NamedTuple):
    """The mixer that a letter of a model's layout stands for."""

    key: str
    mixer: type[Mixer]


LAYERS: Registry[str, Layer] = Registry(
    Layer("A", AttentionMixer),
    Layer("F", FullRelationMixer),
    Layer("L", LinearRelationMixer),
)


def build_mixer(
    config: ModelConfig, layer_index: int, calls: dict[str, Callable[..., Tensor]]
) -> Mixer:
    """The mixer of one layer, by its letter in the layout; `calls` maps operator to function."""
    letter = config.layout[layer_index]
    return LAYERS[letter].mixer(config, layer_index, calls[MIXERS[letter]])
