"""From attention to Relation: a model's Q, K, V and O as W_1, W_2, W_I and W_O.

Both mixers have the same matrices and differ in their flow alone. Over j <= i, with U the scaled
scores, attention's row i is Softmax(U_ij). Full Relation's is the softmax of S_i = sigmoid(U_ii /
tau) at j = i and of R_ij = SiLU(U_ij) - lambda log i before it (Section 3.1, eq:causal-relation).
With angles 0, I-tilde = I (eq:givens-rotation), so that equal flows transport equal states.

No lambda makes the flows equal in general. It cancels within a row's history, R_ij - R_ik =
SiLU(U_ij) - SiLU(U_ik) (eq:within-history-preference), where attention has U_ij - U_ik. For U >= 0
they are within x / (1 + e^x) <= 0.28 of each other, and ever closer as U grows; but SiLU(U) > -0.28
for every U, so that Relation hides no token as attention does. Exact are

- the first row, for every lambda: F_11 = 1. So a converted model's logits of a document's first
  token are attention's.
- a row whose scores U_ij, j < i, are all equal, for one lambda:
  lambda log i = LSE_{j<i}(SiLU(U_ij)) - S_i - LSE_{j<i}(U_ij) + U_ii (eq:self-history-odds).
  The second row always is such a row, but every row and head asks for a lambda of its own.

Lambda, one number a layer, is therefore chosen by the loss: `fit_lambda`.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeVar

import torch
from torch import Tensor, nn

from relation.errors import InputError
from relation.nn.decoder import Decoder
from relation.variants import FULL, MHA, ModelConfig

Batch = TypeVar("Batch")


def full_config(config: ModelConfig) -> ModelConfig:
    """The model of `config` with Full Relation in place of its MHA layers.

    Raises InputError where it has none, and where its heads cannot be paired for Givens mixing.
    """
    if MHA not in config.layout:
        raise InputError(f"a model of layers {config.layout} has no MHA layer to convert")
    return replace(config, layout=config.layout.replace(MHA, FULL))


@torch.no_grad()
def start_from_attention(model: Decoder, attention: Decoder) -> None:
    """Give `model` the weights of `attention`, whose MHA layers are Full Relation in it.

    Angles become 0 and lambda the configuration's initial value; `fit_lambda` chooses it. Raises
    InputError for models that differ in more.
    """
    layout = full_config(attention.config).layout
    given, own = (dict(each.named_parameters()) for each in (attention, model))
    shapes = {name: own[name].shape for name in given.keys() & own.keys()}
    if model.config.layout != layout or shapes != {n: p.shape for n, p in given.items()}:
        raise InputError(
            f"the model has layers {model.config.layout} and width {model.config.d_model}, the "
            f"one to start from {attention.config.layout} and {attention.config.d_model}; take "
            f"one of layers {layout} and otherwise that shape"
        )
    for name, parameter in own.items():
        if name in given:
            parameter.copy_(given[name])
        else:
            parameter.fill_(model.config.lambda_init if name.endswith(".lam") else 0.0)


def fit_lambda(
    model: nn.Module, batches: Sequence[Batch], loss: Callable[[Batch], Tensor]
) -> tuple[float, float]:
    """Set every layer's lambda where the loss, summed over the batches, is lowest; all else stays.

    model: has parameters named `lam`, as a Full Relation layer does; loss: of one batch, a scalar
    that lambda has a gradient through. Returns that sum before and after, in the loss's unit. The
    layers' numbers are searched together, from their present values, by L-BFGS with a line search:
    on equal inputs and devices the same each time. Raises InputError for a model without lambda.
    """
    numbers = [p for name, p in model.named_parameters() if name.rpartition(".")[2] == "lam"]
    if not numbers:
        raise InputError("the model has no lambda to choose; convert it to Full Relation first")
    found: list[float] = []

    def total_loss() -> float:
        for number in numbers:
            number.grad = torch.zeros_like(number)
        total = 0.0
        for batch in batches:
            value = loss(batch)
            for number, gradient in zip(numbers, torch.autograd.grad(value, numbers), strict=True):
                number.grad += gradient
            total += value.item()
        found.append(total)
        return total

    # The tolerance is that of a step's gain and of the slope along it, which before the first step
    # is the gradient's square: at 1e-5 a loss that falls by 0.001 slowly would be left where it is.
    search = torch.optim.LBFGS(
        numbers, max_iter=50, tolerance_change=1e-7, line_search_fn="strong_wolfe"
    )
    search.step(total_loss)
    total_loss()
    for number in numbers:
        number.grad = None
    return found[0], found[-1]
