"""Data-parallel training of one run: the processes that torchrun starts on one machine.

Each has a copy of the model and takes every size-th micro-batch of an update. Gradients and loss
are summed through one all-reduce an update, so all take the same step, and the sum is a single
process's up to the order of its terms.
"""

import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.rendezvous import rendezvous

from relation.errors import InputError, RunError
from relation.machine import claim, gpu_lock

_TIMEOUT = timedelta(minutes=30)  # longer than the first process takes to save and evaluate


class World:
    """The processes that train one run; `rank` is this one's number, from 0, of `size`.

    The first leads: it alone saves, logs, evaluates and talks. Without torchrun there is one.
    name: the run's, for messages; micro_batches: of an update.
    """

    def __init__(self, name: str, micro_batches: int):
        self.name, self.rank, self.size, self._store = name, 0, 1, None
        self.leads, self._micro_batches = True, micro_batches
        if not dist.is_torchelastic_launched() or int(os.environ["WORLD_SIZE"]) == 1:
            return
        if os.environ["LOCAL_WORLD_SIZE"] != os.environ["WORLD_SIZE"]:
            raise InputError(f"{name}: one run trains on one machine; give torchrun --nnodes 1")
        self._store, self.rank, self.size = next(rendezvous("env://"))
        self.leads = self.rank == 0

    @contextmanager
    def one_message(self) -> Iterator[None]:
        """Let the first process that fails raise its error; the others end without a word.

        What the system says of a file, such as a full disk, becomes a RunError.
        """
        try:
            yield
        except Exception as error:
            first = self._store is None
            with suppress(RuntimeError):  # the process that held the store is gone
                first = first or self._store.add("failed", 1) == 1
            if not first:
                raise SystemExit(2) from error
            # gloo's error is a bare RuntimeError.
            if isinstance(error, dist.DistError) or "gloo" in str(error):
                raise RunError(
                    f"{self.name}: another process of this run ended without a word; look for "
                    "what killed it and run the same command again"
                ) from error
            if isinstance(error, OSError):
                raise RunError(
                    f"{self.name}: {error.filename or 'a file'}: {error.strerror or error}; the "
                    "last resume state, if any, is kept: mend that and run the same command again"
                ) from error
            raise

    @contextmanager
    def device(self, kind: str, runs_per_gpu: int) -> Iterator[torch.device]:
        """Yield this process's own device of `kind` ("cpu" or "cuda"), and join the others.

        runs_per_gpu: how many runs share a GPU with the one process of a run; of several processes
        each has a whole one, and the first holds the GPUs of all. Raises InputError where there are
        too few, or fewer micro-batches than processes.
        """
        if self._store is None:
            with claim(kind, runs_per_gpu) as device:
                yield device
            return
        if self.size > self._micro_batches:
            raise InputError(
                f"{self.name}: an update has {self._micro_batches} micro-batches, which "
                f"{self.size} processes cannot share; give torchrun at most {self._micro_batches}"
            )
        with ExitStack() as stack:
            device = torch.device("cpu")
            if kind == "cuda":
                if self.leads:
                    indices = stack.enter_context(gpu_lock(self.size))
                    self._store.set("gpus", json.dumps(indices))
                while not self._store.check(["gpus"]):  # for hours, if others hold them
                    time.sleep(0.05)
                device = torch.device("cuda", json.loads(self._store.get("gpus"))[self.rank])
                torch.cuda.set_device(device)
            backend = "nccl" if kind == "cuda" else "gloo"
            group = {"store": self._store, "rank": self.rank, "world_size": self.size}
            dist.init_process_group(backend, timeout=_TIMEOUT, **group)
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
