"""A model made ready to decode: what acts on weights alone is done to them once."""

import torch
from torch import nn

from relation.nn.decoder import Decoder
from relation.nn.mixers import InformationMixer, LinearRelationMixer, Mixer
from relation.nn.norm import FoldedRMSNorm
from relation.ops import givens_mix


def _readers(mixer: Mixer) -> list[nn.Linear] | None:
    """The projections that read the mixer's normed input; None where something else does too."""
    if isinstance(mixer, InformationMixer) and not mixer.projects:
        return None  # Raw-X transports the scaled states themselves
    linears = [mixer.w1, mixer.w2, mixer.wi]
    if isinstance(mixer, LinearRelationMixer) and not mixer.reads_residual:
        linears.append(mixer.retention_down)
    return linears


def _mix_in(mixer: InformationMixer) -> None:
    """Put the Givens mixing into the rows of W_I."""
    weight = mixer.wi.weight.unflatten(0, (1, -1, mixer.head_dim))
    mixer.wi.weight.copy_(givens_mix(weight, mixer.theta, mixer.pairing_index).flatten(0, 2))
    mixer.mixes = False


def _scale_in(norm: FoldedRMSNorm, linears: list[nn.Linear]) -> None:
    """Put a norm's scale into the columns of all that read it."""
    for linear in linears:
        linear.weight.mul_(norm.weight)
    norm.weight = None


@torch.no_grad()
def fold(model: Decoder) -> Decoder:
    """Put norms' scales and the Givens mixing into the weights behind them, and return the model.

    In place: decoding and the forward give what they gave up to rounding, without as many products
    as there are weights at every call. Training, and saving as a checkpoint, end here: parameters
    are missing and the others mean something else. A folded model is left as it is.
    """
    model.requires_grad_(False)
    for block in model.blocks:
        readers = _readers(block.mixer)
        if isinstance(block.mixer, InformationMixer) and block.mixer.mixes and readers:
            _mix_in(block.mixer)
        if readers and block.mixer_norm.weight is not None:
            _scale_in(block.mixer_norm, readers)
        if block.ffn_norm.weight is not None:
            _scale_in(block.ffn_norm, [block.ffn.gate, block.ffn.up])
    return model
