"""The training loss: the sum of a micro-batch's negative log-likelihoods."""

import torch
import torch.nn.functional as F
from torch import Tensor

from relation import kernels
from relation.data.windows import IGNORED
from relation.kernels.checks import projection_dtype
from relation.kernels.documents import Documents
from relation.nn import Decoder


def summed_nll(
    model: Decoder, inputs: Tensor, targets: Tensor, documents: Documents | None = None
) -> Tensor:
    """Sum of negative log-likelihoods in nats, FP32, over targets that are not IGNORED.

    inputs, targets: (B, T) int64; documents: those of the inputs. On a GPU, where a gradient is
    wanted, it is formed with the loss.
    """
    states, weight = model.states(inputs, documents), model.embedding.weight
    if torch.is_grad_enabled() and _fuses(states.device, weight.shape[0]):
        return _SummedNLL.apply(states, weight, targets, projection_dtype(states))
    logits = model.logits(states)
    return F.cross_entropy(
        logits.flatten(0, 1).float(), targets.flatten(), ignore_index=IGNORED, reduction="sum"
    )


def _fuses(device: torch.device, vocabulary: int) -> bool:
    """Whether the kernel runs there: on a GPU, not in Triton's interpreter."""
    if device.type != "cuda" or kernels.why_unavailable(device) is not None:
        return False
    # It imports Triton.
    from relation.kernels.cross_entropy import LARGEST_VOCABULARY

    return vocabulary <= LARGEST_VOCABULARY


class _SummedNLL(torch.autograd.Function):
    """Output projection and loss, whose logits are gone before the backward pass.

    The forward pass leaves the gradient in the logits for a loss whose own gradient is 1; the
    backward multiplies its two products by what that turns out to be.
    """

    @staticmethod
    def forward(ctx, states: Tensor, weight: Tensor, targets: Tensor, dtype: torch.dtype) -> Tensor:
        from relation.kernels.cross_entropy import cross_entropy

        x, w = states.to(dtype).flatten(0, 1), weight.to(dtype)
        nll, dlogits = cross_entropy(x @ w.mT, targets.flatten(), IGNORED)
        ctx.save_for_backward(x, w, dlogits)
        ctx.shape, ctx.dtypes = states.shape, (states.dtype, weight.dtype)
        return nll.sum()

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, dloss: Tensor):
        x, w, dlogits = ctx.saved_tensors
        dstates, dweight = (dlogits @ w).to(dloss.dtype), (dlogits.mT @ x).to(dloss.dtype)
        states_dtype, weight_dtype = ctx.dtypes
        dstates = (dstates * dloss).to(states_dtype).view(ctx.shape)
        return dstates, (dweight * dloss).to(weight_dtype), None, None
