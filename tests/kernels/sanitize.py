"""Run every kernel once on small ragged shapes, under compute-sanitizer on a GPU.

    export PYTORCH_NO_CUDA_MEMORY_CACHING=1
    compute-sanitizer --tool memcheck python tests/kernels/sanitize.py

Without PyTorch's cache every tensor is a separate allocation. A load one element past its end is
then an error, instead of a neighbour's value. `racecheck`, `synccheck` and `initcheck` use the same
script.
"""

import itertools
import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from relation import kernels
from relation.kernels.documents import Documents

# Width, and columns cut off in front. With a cut, or width 60, TMA reads copies in BF16.
LAYOUTS = (48, 0), (60, 0), (64, 0), (80, 0), (80, 1), (96, 0), (128, 0)
LENGTHS = 17, 130
DTYPES = (torch.bfloat16, torch.float16, torch.float32)


def coordinates(length: int, width: int, cut: int, dtype: torch.dtype) -> list[torch.Tensor]:
    """p1, p2 and info, (1, 2, T, D), stored by token; a cut breaks their 16-byte alignment."""
    shape = 1, length, 2, width + cut
    whole = [torch.randn(shape, device="cuda").to(dtype) for _ in range(3)]
    return [x[..., cut:].transpose(1, 2).detach().requires_grad_() for x in whole]


def share_out_blocks() -> None:
    """Use few Gluon programs, so each one takes several blocks and reuses its slots.

    Without documents, this also selects the launches with several groups of warps.
    """
    if torch.cuda.get_device_capability() == (9, 0):
        from relation.kernels.flash_relation import hopper_launch, launch

        hopper_launch.multiprocessors = lambda device: 1
        launch.LARGE = launch.LONG = 1


def main() -> None:
    torch.manual_seed(0)
    share_out_blocks()
    calls = 0
    for dtype, (width, cut), length in itertools.product(DTYPES, LAYOUTS, LENGTHS):
        begins = torch.arange(length, device="cuda") % 70 == 13  # 17 tokens form two documents
        for documents in None, Documents.of(begins.cumsum(0)[None]):
            p1, p2, info = coordinates(length, width, cut, dtype)
            lam = torch.tensor(0.7, device="cuda", requires_grad=True)
            y = kernels.flash_relation(p1, p2, info, lam, documents=documents)
            dy = torch.randn(length, 2, width, device="cuda").to(dtype).transpose(0, 1)[None]
            torch.autograd.grad(y, (p1, p2, info, lam), dy)
            calls += 1

        p1, p2, info = coordinates(length, width, cut, dtype)
        # Head 0 forgets little. In head 1 every second channel forgets almost everything.
        strength = 30.0 * (torch.arange(width, device="cuda") % 2)
        strength = torch.stack((torch.full_like(strength, 0.1), strength))[:, None]
        retention = -torch.rand(p1.shape, device="cuda") * strength
        retention.requires_grad_()
        state = torch.randn(1, 2, width, width, device="cuda", requires_grad=True)
        y, last = kernels.linear_relation(p1, p2, info, retention, state=state)
        leaves = p1, p2, info, retention, state
        torch.autograd.grad((y, last), leaves, (torch.randn_like(y), torch.randn_like(last)))
        calls += 1
    torch.cuda.synchronize()
    print(f"{calls} operators ran forward and backward")


if __name__ == "__main__":
    main()
