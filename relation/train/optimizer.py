"""AdamW with the paper's decay of 0.1 (Appendix B.2).

B.2 names no exemption. Which parameters decay is a reading; the page of assumptions lists it.
"""

from inspect import unwrap

import torch

from relation.nn import Decoder


class AdamW(torch.optim.AdamW):
    """PyTorch's AdamW, never traced by torch.compile.

    PyTorch wraps these methods against tracing, and the first call imports torch._dynamo, which
    takes every process two seconds.
    """

    step = torch.no_grad()(unwrap(torch.optim.AdamW.step))
    zero_grad = unwrap(torch.optim.AdamW.zero_grad)
    add_param_group = unwrap(torch.optim.AdamW.add_param_group)
    state_dict = unwrap(torch.optim.AdamW.state_dict)
    load_state_dict = unwrap(torch.optim.AdamW.load_state_dict)


def build_optimizer(
    model: Decoder,
    learning_rate: float,
    betas: tuple[float, float],
    eps: float,
    weight_decay: float,
    decay_embedding: bool,
    decay_vectors: bool = False,
) -> AdamW:
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
    return AdamW(groups, lr=learning_rate, betas=betas, eps=eps, fused=True)
