"""Cross-entropy and its gradient in one pass over the logits.

A program holds one row: it reads the logits once, writes the gradients once, and stores no FP32
copy of them. torch.compile calls the operator without a graph break.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.library import custom_op

from relation.kernels.common import next_power_of_2

# Registers hold 32,768 logits of a row (1024 threads with 32 each); up to twice that, some spill.
LARGEST_VOCABULARY = 65536
_NUMBERS_A_WARP = 1024


@triton.jit
def cross_entropy_kernel(
    logits, targets, nll, dlogits, V, IGNORED: tl.constexpr, ROW: tl.constexpr
):
    row = tl.cast(tl.program_id(0), tl.int64)
    v = tl.arange(0, ROW)
    x = tl.load(logits + row * V + v, mask=v < V, other=float("-inf")).to(tl.float32)
    target = tl.load(targets + row)
    largest = tl.max(x, 0)
    weight = tl.exp(x - largest)
    total = tl.sum(weight, 0)
    counts = target != IGNORED
    # A target outside the vocabulary has no logit. Its loss is NaN, which stops a training run.
    known = (target >= 0) & (target < V)
    target_logit = tl.load(logits + row * V + target, mask=known, other=float("nan")).to(tl.float32)
    tl.store(nll + row, tl.where(counts, tl.log(total) + largest - target_logit, 0.0))
    gradient = weight / total - tl.where(v == target, 1.0, 0.0)
    gradient = tl.where(counts, gradient, 0.0)
    tl.store(dlogits + row * V + v, gradient.to(dlogits.dtype.element_ty), mask=v < V)


@custom_op("relation::cross_entropy", mutates_args=())
def cross_entropy(logits: Tensor, targets: Tensor, ignored: int) -> tuple[Tensor, Tensor]:
    """Return the targets' negative log-likelihoods and their gradients with respect to the logits.

    logits: (N, V), contiguous, BF16, FP16 or FP32. targets: (N,) int64 in [0, V), or `ignored`,
    which gives zeros; any other target's loss is NaN. Returns (N,) nats in FP32 and (N, V) in the
    logits' dtype, both computed in FP32; not differentiable. The caller checks the limit of V.
    """
    N, V = logits.shape
    nll = torch.empty(N, dtype=torch.float32, device=logits.device)
    dlogits = torch.empty_like(logits)
    row = next_power_of_2(V)
    with torch.cuda.device_of(logits):
        cross_entropy_kernel[(N,)](
            logits, targets.contiguous(), nll, dlogits, V, IGNORED=ignored, ROW=row,
            num_warps=min(32, max(4, row // _NUMBERS_A_WARP)),
        )  # fmt: skip
    return nll, dlogits


@cross_entropy.register_fake
def _(logits, targets, ignored):
    return logits.new_empty(logits.shape[:1], dtype=torch.float32), torch.empty_like(logits)
