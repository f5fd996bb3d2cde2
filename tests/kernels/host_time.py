"""What an eager call of each operator keeps the host for, on a GPU.

Milliseconds, the least and the median of 100 calls that each begin with the GPU idle. Run as
`python tests/kernels/host_time.py`.
"""

import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from relation import kernels

SHAPES = ((32, 8, 1024, 48), (16, 8, 2048, 64), (4, 8, 4096, 80))


def host_ms(call: Callable[[], object], calls: int = 100) -> tuple[float, float]:
    """The least and the median time that a call takes to return."""
    taken = []
    for k in range(calls + 10):
        torch.cuda.synchronize()
        start = time.perf_counter()
        call()
        if k >= 10:
            taken.append(1e3 * (time.perf_counter() - start))
    return min(taken), statistics.median(taken)


def main() -> None:
    print(f"{torch.cuda.get_device_name()}: ms on the host, least / median")
    for B, H, T, D in SHAPES:
        *states, g = torch.randn(5, B, T, H, D, device="cuda").transpose(2, 3)
        *states, dy = (x.bfloat16() for x in states)
        lam = torch.tensor(0.5, device="cuda")
        for name, last in (("flash_relation", lam), ("linear_relation", -g.abs())):
            leaves = [x.detach().requires_grad_() for x in (*states, last)]

            def forward(name=name, leaves=leaves):
                y = getattr(kernels, name)(*leaves)
                return y[0] if isinstance(y, tuple) else y

            def both(forward=forward, leaves=leaves, dy=dy):
                torch.autograd.grad(forward(), leaves, dy)

            times = ["{:.3f} / {:.3f}".format(*host_ms(call)) for call in (forward, both)]
            print(f"{name} {(B, H, T, D)}: forward {times[0]}, and backward {times[1]}")


if __name__ == "__main__":
    main()
