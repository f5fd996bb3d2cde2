"""AdamW with the paper's decay of 0.1 (Appendix B.2), of matrices, not of norms and scalars.

What decays is a reading; the report's page of assumptions lists it.
"""

import torch

from relation.model import Decoder


def build_optimizer(
    model: Decoder,
    learning_rate: float,
    betas: tuple[float, float],
    eps: float,
    weight_decay: float,
    decay_embedding: bool,
) -> torch.optim.AdamW:
    """A fused AdamW over two groups: parameters of two or more dimensions decay, others do not."""
    decayed, plain = [], []
    for name, parameter in model.named_parameters():
        matrix = parameter.ndim >= 2 and (decay_embedding or name != "embedding.weight")
        (decayed if matrix else plain).append(parameter)
    groups = [
        {"params": decayed, "weight_decay": weight_decay},
        {"params": plain, "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=learning_rate, betas=betas, eps=eps, fused=True)
