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

sys.path.extend(str(folder) for folder in Path(__file__).resolve().parents[1:3])

import exactness
import test_linear_kernels as linear

from relation import kernels
from relation.kernels.documents import Documents

# Width, and columns cut off in front. With a cut, or width 60, TMA reads copies in BF16.
LAYOUTS = (48, 0), (60, 0), (64, 0), (80, 0), (80, 1), (96, 0), (128, 0)
LENGTHS = 17, 130


def without_front(x: torch.Tensor, cut: int) -> torch.Tensor:
    """A copy of x (B, H, T, D), stored by token; a cut breaks its rows' 16-byte alignment."""
    return torch.nn.functional.pad(x.transpose(1, 2), (cut, 0))[..., cut:].transpose(1, 2)


def share_out_blocks(large: bool) -> None:
    """Use few Gluon programs, so each one takes several blocks and reuses its slots.

    large: whether calls without documents take the launches with several groups of warps.
    """
    if torch.cuda.get_device_capability() == (9, 0):
        from relation.kernels.flash_relation import hopper_launch, launch

        hopper_launch.multiprocessors = lambda device: 1
        launch.is_large = lambda *given: large


def main() -> None:
    for dtype, (width, cut), length in itertools.product(exactness.SLACK, LAYOUTS, LENGTHS):
        shape = 1, 2, length, width
        begins = torch.arange(length, device="cuda") % 70 == 13  # 17 tokens form two documents
        packed = Documents.of(begins.cumsum(0)[None])
        for documents, large in (None, True), (None, False), (packed, False):
            share_out_blocks(large)
            *states, dy, lam = exactness.draw(0, shape, dtype, "cuda")
            inputs = *(without_front(x, cut) for x in states), dy, lam
            exactness.differentiate(kernels.flash_relation, inputs, documents=documents)
        # Head 0 forgets little. In head 1 some channels forget almost everything.
        p1, p2, info, g, *others = linear.draw(0, shape, dtype, "cuda", "channels")
        g[:, 0] = linear.retention("model", shape)[:, 0]
        states = (without_front(x, cut) for x in (p1, p2, info))
        linear.differentiate(kernels.linear_relation, (*states, g, *others))
    torch.cuda.synchronize()
    print("all operators ran forward and backward")


if __name__ == "__main__":
    main()
