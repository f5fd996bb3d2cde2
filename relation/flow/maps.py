"""Flow maps: a flow pooled to few blocks, small enough to keep for every layer and head."""

import torch
from torch import Tensor

from relation.flow.codes import SIDE


def pooled(flow: Tensor, side: int = SIDE) -> Tensor:
    """The flow between blocks of neighbouring tokens, (..., n, n) of (..., T, T), n = min(side, T).

    Block a begins at token floor(a T / n). Entry (a, b) is the mass that a row of block a gives to
    all tokens of block b, mean over the rows: rows sum to 1, as the flow's do.
    """
    length = flow.shape[-1]
    blocks = min(side, length)
    tokens = torch.arange(length, device=flow.device)
    starts = torch.arange(blocks, device=flow.device) * length // blocks
    block = torch.searchsorted(starts, tokens, right=True) - 1
    member = (block == torch.arange(blocks, device=flow.device)[:, None]).to(flow.dtype)
    return (member / member.sum(-1, keepdim=True)) @ flow @ member.T
