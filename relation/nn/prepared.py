"""A decoder prepared to read prompts and to decode with `relation.kernels.decoding`."""

import copy
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from relation.errors import InputError
from relation.kernels.decoding import (
    ADD,
    GATE,
    embed,
    gate,
    history_token,
    linear_token,
    log_retention,
    norm,
    project,
    why_not,
)
from relation.nn.cache import Cache, DecodeState
from relation.nn.decoder import Block, Decoder
from relation.nn.folding import fold
from relation.nn.mixers import LinearRelationMixer, RopeTables
from relation.variants import FULL, LINEAR, ModelConfig


class Places(NamedTuple):
    """Where a batch stands, on the device.

    lengths: (B,) int32, tokens that each row has read; active: (B,) int32, where 0 a row's Linear
    states stay; tables: RoPE's, (places, d_h) FP32.
    """

    lengths: Tensor
    active: Tensor
    tables: tuple[Tensor, Tensor]


# Weights, states and places are older than the token, whose first kernel is not chained.
_chained = partial(project, chained=True)


class _Layer:
    """A block's weights, what reads one input joined, all cast; and its operator for prompts."""

    def __init__(self, letter: str, block: Block, dtype: torch.dtype):
        mixer = block.mixer
        self.letter, self.call = letter, mixer.call
        readers = [mixer.w1, mixer.w2, mixer.wi]
        self.down_from_residual = None
        if isinstance(mixer, LinearRelationMixer):
            self.retention = _retention(mixer, dtype)
            if mixer.reads_residual:
                self.down_from_residual = mixer.retention_down.weight.to(dtype)
            else:
                readers.append(mixer.retention_down)
        if letter == FULL:
            self.lam = mixer.lam.detach().float().clone()
            self.transport_self = mixer.transport_self
        self.inward = torch.cat([reader.weight for reader in readers]).to(dtype)
        self.outward = mixer.wo.weight.to(dtype)
        self.gate_up = torch.cat([block.ffn.gate.weight, block.ffn.up.weight]).to(dtype)
        self.down = block.ffn.down.weight.to(dtype)

    def mixed(
        self, states: Tensor, x: Tensor, rope: RopeTables, cache: Cache, config: ModelConfig
    ) -> Tensor:
        """The mixer's output (B, T, d) of a prompt's normed states, which the cache takes in.

        x: the residual stream, (B, T, d) FP32.
        """

        from relation.kernels.rotation import rotate  # it imports Triton

        def split(projected: Tensor) -> Tensor:
            """(B, T, n d_h) to (B, T, n, d_h)."""
            return projected.unflatten(-1, (-1, config.head_dim))

        heads, projected = config.heads, split(F.linear(states, self.inward))
        rotated = rotate(projected[:, :, : 2 * heads].transpose(1, 2), *rope)
        p1, p2 = rotated.split(heads, dim=1)
        info = projected[:, :, 2 * heads : 3 * heads].transpose(1, 2)
        if self.letter == LINEAR:
            down = projected[:, :, 3 * heads :]
            if self.down_from_residual is not None:
                down = split(F.linear(x.to(states.dtype), self.down_from_residual))
            g = log_retention(down, self.retention)
            padding = cache.padding(x.shape[1])
            if padding is not None:
                # As in the mixer: padding neither forgets nor writes.
                p2, g = (s.masked_fill(padding[:, None, :, None], 0) for s in (p2, g))
            y, C = self.call(p1, p2, info, g, config.tau, None)
            cache.replace(C, x.shape[1])
        else:
            cache.append(p2, info)
            if self.letter == FULL:
                own = self.transport_self
                y = self.call(p1, p2, info, self.lam, config.tau, transport_self=own)
            else:
                y = self.call(p1, p2, info)
        return F.linear(y.transpose(1, 2).flatten(2), self.outward)


def _retention(mixer: LinearRelationMixer, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    up = mixer.retention_up.detach().to(dtype).contiguous()
    return up, mixer.a_log.detach().float(), mixer.dt_bias.detach().float()


def why_plain(model: Decoder, device: torch.device, dtype: torch.dtype) -> str | None:
    """The reason why `Prepared` cannot decode a model that computes in dtype, or None."""
    if model.config.raw_information:
        return "Raw-X transports the normed states themselves, for which there is no kernel"
    if model.config.shared_heads < model.config.heads:
        return "its heads share states, which the kernels do not take"
    return why_not(device, dtype, model.config.head_dim)


class Prepared:
    """A decoder's weights to read and to decode: norms and Givens mixing folded in, joined, cast.

    model: left as it is, its backends read prompts; dtype: of the products and of the histories,
    BF16, FP16 or FP32. Raises InputError where `why_plain` has a reason.
    """

    @torch.no_grad()
    def __init__(self, model: Decoder, dtype: torch.dtype):
        self.config, self.dtype = model.config, dtype
        reason = why_plain(model, model.embedding.weight.device, dtype)
        if reason:
            raise InputError(f"the decoding kernels cannot run this model: {reason}")
        folded = fold(copy.deepcopy(model))
        self.layers = [
            _Layer(letter, block, dtype)
            for letter, block in zip(self.config.layout, folded.blocks, strict=True)
        ]
        self.embedding = folded.embedding.weight.detach().float()
        self.outward = (self.embedding * folded.norm.weight).to(dtype)
        self.rope_tables = folded.rope_tables

    @torch.no_grad()
    def read(
        self, tokens: Tensor, state: DecodeState, lengths: Sequence[int] | None = None
    ) -> Tensor:
        """Logits (B, V) FP32 of each row's last token; as `Decoder.read`, into an empty state.

        A layer is two norms, four products and a gate, and between them rotation and operator: a
        third of the kernels that `Decoder.read` launches. Raises InputError as that does, and for
        a state that has read tokens.
        """
        state.check(self.config.layout, tokens, lengths)
        if state.length:
            raise InputError(
                f"the decode state has read {state.length} tokens; let the model's `read` go on"
            )
        if lengths is not None:
            tokens = tokens[:, : max(lengths)]
        (B, T), eps = tokens.shape, self.config.norm_eps
        ends = (slice(None), -1)
        if lengths is not None and len(set(lengths)) > 1:
            counts = torch.tensor(lengths, device=tokens.device)
            state.begin(counts)
            ends = torch.arange(B, device=tokens.device), counts - 1
        rope = self.rope_tables(T, tokens.device)
        x = embed(tokens.flatten(), self.embedding, self.config.embedding_multiplier or 1.0)
        x = x.unflatten(0, (B, T))
        y = None  # what x still lacks
        for layer, cache in zip(self.layers, state.layers, strict=True):
            y = layer.mixed(norm(x, eps, self.dtype, y), x, rope, cache, self.config)
            states = norm(x, eps, self.dtype, y)
            y = F.linear(gate(F.linear(states, layer.gate_up)), layer.down)
        logits = x.new_empty(B, self.config.vocab_size)
        return project(x[ends] + y[ends], self.outward, eps, logits)

    def token(self, ids: Tensor, state: DecodeState, places: Places) -> Tensor:
        """Logits (B, V) FP32 of the tokens ids, (B,) int64, which `state` takes in, in place.

        Nothing is waited for, and no length on the host changes. The places must be free: below
        the histories' capacity and the tables' length.
        """
        config = self.config
        x = embed(ids.contiguous(), self.embedding, config.embedding_multiplier or 1.0)
        for layer, cache in zip(self.layers, state.layers, strict=True):
            y = self._mixed(layer, x, cache, places)
            _chained(y, layer.outward, out=x, then=ADD)
            hidden = _chained(x, layer.gate_up, config.norm_eps, then=GATE)
            _chained(hidden, layer.down, out=x, then=ADD)
        logits = x.new_empty(len(x), config.vocab_size)
        return _chained(x, self.outward, config.norm_eps, logits)

    def _mixed(self, layer: _Layer, x: Tensor, cache: Cache, places: Places) -> Tensor:
        """The mixer's y, (B, d), before its output projection."""
        config, (lengths, active, tables) = self.config, places
        heads = (config.heads, config.head_dim)
        projected = _chained(x, layer.inward, config.norm_eps).unflatten(1, (-1, *heads))
        if layer.letter == LINEAR:
            if layer.down_from_residual is None:
                down = projected[:, 3]
            else:
                down = _chained(x.to(self.dtype), layer.down_from_residual).unflatten(1, heads)
            given = layer.retention, tables, cache.tensors[0], lengths, active, config.tau
            return linear_token(projected, down, *given, chained=True)
        given = [projected, tables, cache.tensors, lengths]
        if layer.letter == FULL:
            given += layer.lam, config.tau, layer.transport_self
        return history_token(*given, chained=True)
