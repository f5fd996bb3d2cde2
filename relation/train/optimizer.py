"""AdamW with the paper's decay of 0.1 (Appendix B.2).

B.2 names no exemption. Which parameters decay is a reading; the page of assumptions lists it.
"""

import torch

from relation.nn import Decoder


def build_optimizer(
    model: Decoder,
    learning_rate: float,
    betas: tuple[float, float],
    eps: float,
    weight_decay: float,
    decay_embedding: bool,
    decay_vectors: bool = False,
) -> torch.optim.AdamW:
    """A fused AdamW over two groups: the parameters that decay, and those that do not.

    decay_embedding: whether the tied embedding decays; decay_vectors: whether norms, lambda,
    angles, A_log and dt_bias do, which have fewer than two dimensions.
    """
    decayed, plain = [], []
    for name, parameter in model.named_parameters():
        decays = decay_embedding if name == "embedding.weight" else True
        if parameter.ndim < 2:
            decays = decay_vectors
        (decayed if decays else plain).append(parameter)
    groups = [
        {"params": decayed, "weight_decay": weight_decay},
        {"params": plain, "weight_decay": 0.0},
    ]
    groups = [group for group in groups if group["params"]]
    return torch.optim.AdamW(groups, lr=learning_rate, betas=betas, eps=eps, fused=True)
