"""Data-parallel training of one run by several processes that torchrun starts on one machine.

Each process has a copy of the model and computes every size-th micro-batch of an update. One
all-reduce per update sums gradients and loss, so all processes take the same step. The sum differs
from a single process's sum only in the order of its terms.
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
    """Raise InputError if `count` processes cannot train a run."""
    if not 1 <= count <= run.accumulation:
        raise InputError(
            f"{run.name}: an update has {run.accumulation} micro-batches, which {count} processes "
            f"cannot share; give at most {run.accumulation}, or lower `micro`"
        )


@contextmanager
def claimed_gpus(run: Run, count: int) -> Iterator[None]:
    """Hold one GPU per process and hide the other GPUs from the processes; on a CPU do nothing.

    Raises InputError if the machine has fewer GPUs.
    """
    if run.device == "cpu":
        yield
        return
    with gpu_lock(count) as indices:
        names = (torch.cuda.get_device_properties(index).uuid for index in indices)
        os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(f"GPU-{name}" for name in names)
        yield


class World:
    """The `size` processes that train one run; `rank` is the number of this process, from 0.

    Process 0 leads: it alone saves, evaluates, records and prints. Without torchrun, `size` is 1.
    """

    def __init__(self):
        self.rank, self.size = 0, 1
        if dist.is_torchelastic_launched():
            self.rank, self.size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        self.leads = self.rank == 0

    @contextmanager
    def device(self, kind: str, runs_per_gpu: int) -> Iterator[torch.device]:
        """Yield this process's device of `kind` ("cpu" or "cuda") and join the other processes.

        runs_per_gpu: how many runs share a GPU, for a run of one process. Several processes do not
        share GPUs: `claimed_gpus` holds a whole GPU for each.
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
        # Not after an error: if a peer is gone, its pending operations never end.
        dist.destroy_process_group()


def summed_gradients(model: nn.Module) -> Callable[[Tensor], None]:
    """Return the `reduce` of an UpdateStep, which sums gradients and loss over the processes.

    A process without a micro-batch in an update adds zeros.
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
