"""A decoder prepared to decode one token a row with `relation.kernels.decoding`."""

import copy
from typing import NamedTuple

import torch
from torch import Tensor

from relation.errors import InputError
from relation.kernels.decoding import ADD, GATE, history_token, linear_token, project, why_not
from relation.nn.cache import Cache, DecodeState
from relation.nn.decoder import Block, Decoder
from relation.nn.folding import fold
from relation.nn.mixers import LinearRelationMixer
from relation.variants import FULL, LINEAR


class Places(NamedTuple):
    """Where a batch stands, on the device.

    lengths: (B,) int32, tokens that each row has read; active: (B,) int32, where 0 a row's Linear
    states stay; tables: RoPE's, (places, d_h) FP32.
    """

    lengths: Tensor
    active: Tensor
    tables: tuple[Tensor, Tensor]


class _Layer:
    """A block's weights: what reads one input joined, all cast."""

    def __init__(self, letter: str, block: Block, dtype: torch.dtype):
        mixer = block.mixer
        self.letter = letter
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
    """A decoder's weights for `token`: norms and Givens mixing folded in, joined, cast once.

    model: left as it is; dtype: of the products and of the histories, BF16, FP16 or FP32, as the
    prompt was read. Raises InputError where `why_plain` has a reason.
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
        self.embedding = folded.embedding.weight.detach()
        self.outward = (self.embedding * folded.norm.weight).to(dtype)
        self.rope_tables = folded.rope_tables

    def token(self, ids: Tensor, state: DecodeState, places: Places) -> Tensor:
        """Logits (B, V) FP32 of the tokens ids, (B,) int64, which `state` takes in, in place.

        Nothing is waited for, and no length on the host changes. The places must be free: below
        the histories' capacity and the tables' length.
        """
        config = self.config
        x = self.embedding[ids]
        if config.embedding_multiplier is not None:
            x = x * config.embedding_multiplier
        for layer, cache in zip(self.layers, state.layers, strict=True):
            y = self._mixed(layer, x, cache, places)
            project(y, layer.outward, out=x, then=ADD)
            hidden = project(x, layer.gate_up, config.norm_eps, then=GATE)
            project(hidden, layer.down, out=x, then=ADD)
        logits = x.new_empty(len(x), config.vocab_size)
        return project(x, self.outward, config.norm_eps, logits)

    def _mixed(self, layer: _Layer, x: Tensor, cache: Cache, places: Places) -> Tensor:
        """The mixer's y, (B, d), before its output projection."""
        config, (lengths, active, tables) = self.config, places
        heads = (config.heads, config.head_dim)
        projected = project(x, layer.inward, config.norm_eps).unflatten(1, (-1, *heads))
        if layer.letter == LINEAR:
            if layer.down_from_residual is None:
                down = projected[:, 3]
            else:
                down = project(x.to(self.dtype), layer.down_from_residual).unflatten(1, heads)
            given = layer.retention, tables, cache.tensors[0], lengths, active, config.tau
            return linear_token(projected, down, *given)
        given = projected, tables, cache.tensors, lengths
        if layer.letter == FULL:
            return history_token(*given, layer.lam, config.tau, layer.transport_self)
        return history_token(*given)
