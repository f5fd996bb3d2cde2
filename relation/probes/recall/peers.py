"""Linear attention of other people beside Linear Relation, from flash-linear-attention's layers.

The library is optional. GLA (Yang et al. 2024) and KDA (Kimi Delta Attention, 2025) are taken as it
publishes them, KDA with its short convolutions, GLA without; both with a state of d_h x d_h a head,
as Linear Relation's.
"""

import importlib
from typing import Any

import torch
from torch import Tensor, nn

from relation.nn.norm import Normed

_LAYERS: dict[str, tuple[str, dict[str, Any]]] = {
    "gla": ("GatedLinearAttention", {"expand_k": 1.0}),
    "kda": ("KimiDeltaAttention", {}),
}


def is_peer(mixer: str) -> bool:
    """Whether a mixer is flash-linear-attention's."""
    return mixer in _LAYERS


def why_no_peer(device: torch.device) -> str | None:
    """Why a peer cannot run, one line; None where it can."""
    if device.type != "cuda":
        return f"it needs a GPU, and this device is {device}"
    try:
        importlib.import_module("fla.layers")
    except ImportError as error:
        return (
            f"flash-linear-attention's layers cannot be imported ({error}); "
            "pip install flash-linear-attention"
        )
    return None


class PeerMixer(nn.Module):
    """A layer of flash-linear-attention, (B, T, d) to (B, T, d), called as a decoder's mixer."""

    def __init__(self, layer: nn.Module):
        super().__init__()
        self.layer = layer

    def forward(self, x: Normed, *unused: object, documents: None = None) -> Tensor:
        return self.layer(x.scaled())[0]


def peer_mixer(mixer: str, d_model: int, heads: int) -> PeerMixer:
    """A layer with its library's own initial weights, from PyTorch's default generator."""
    name, options = _LAYERS[mixer]
    layers = importlib.import_module("fla.layers")
    widths = {"hidden_size": d_model, "num_heads": heads}
    if mixer == "kda":
        widths["head_dim"] = d_model // heads
    return PeerMixer(getattr(layers, name)(**widths, **options))
