"""Data-parallel training of one run: the processes that torchrun starts on one machine.

Each has a copy of the model and takes every size-th micro-batch of an update. Gradients and loss
are summed through one all-reduce an update, so all take the same step, and the sum is a single
process's up to the order of its terms.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor, nn

from relation.errors import InputError
from relation.jobs import Run
from relation.machine import claim, gpu_lock

_TIMEOUT = timedelta(minutes=30)  # longer than the first process takes to save and evaluate


def check_processes(run: Run, count: int) -> None:
    """Raise InputError, before any of them starts, where `count` processes cannot train a run."""
    if run.divergence == "record":  # the others would wait for the one that ends
        raise InputError(f"{run.name}: divergence: record takes one process, not {count}")
    if not 1 <= count <= run.accumulation:
        raise InputError(
            f"{run.name}: an update has {run.accumulation} micro-batches, which {count} processes "
            f"cannot share; give 1 to {run.accumulation}"
        )


@contextmanager
def claimed_gpus(run: Run, count: int) -> Iterator[None]:
    """Hold the GPUs of a run's processes and let these see no others; on a CPU nothing.

    Raises InputError where the machine has fewer.
    """
    if run.device == "cpu":
        yield
        return
    with gpu_lock(count) as indices:
        names = (torch.cuda.get_device_properties(index).uuid for index in indices)
        os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(f"GPU-{name}" for name in names)
        yield


class World:
    """The processes that train one run; `rank` is this one's number, from 0, of `size`.

    The first leads: it alone saves, logs, evaluates and talks. Without torchrun there is one.
    """

    def __init__(self):
        self.rank, self.size = 0, 1
        if dist.is_torchelastic_launched():
            self.rank, self.size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        self.leads = self.rank == 0

    @contextmanager
    def device(self, kind: str, runs_per_gpu: int) -> Iterator[torch.device]:
        """Yield this process's own device of `kind` ("cpu" or "cuda"), and join the others.

        runs_per_gpu: how many runs share a GPU with the one process of a run; for several
        processes `claimed_gpus` has whole ones.
        """
        if self.size == 1:
            with claim(kind, runs_per_gpu) as device:
                yield device
            return
        device = torch.device("cpu")
        if kind == "cuda":
            device = torch.device("cuda", self.rank)
            torch.cuda.set_device(device)
        dist.init_process_group("nccl" if kind == "cuda" else "gloo", timeout=_TIMEOUT)
        yield device
        # Not after an error: a peer may be gone, and with it the end of what is under way.
        dist.destroy_process_group()


def summed_gradients(model: nn.Module) -> Callable[[Tensor], None]:
    """The `reduce` of an UpdateStep: gradients and loss become their sums over the processes.

    A process without a micro-batch of this update adds zeros.
    """
    parameters = list(model.parameters())
    sizes = [p.numel() for p in parameters]

    def reduce(loss: Tensor) -> None:
        gradients = (torch.zeros_like(p) if p.grad is None else p.grad for p in parameters)
        flat = torch.cat([*(gradient.flatten() for gradient in gradients), loss.view(1)])
        dist.all_reduce(flat)
        for parameter, total in zip(parameters, flat[:-1].split(sizes), strict=True):
            parameter.grad = total.view_as(parameter)
        loss.copy_(flat[-1])

    return reduce
