"""Data-parallel training of one run: the processes that torchrun starts on one machine.

Each has a copy of the model and takes every size-th micro-batch of an update. Gradients and loss
are summed through one all-reduce an update, so that all processes take the same step and the sum
is a single process's up to the order of its terms.
"""

import json
import math
import os
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.rendezvous import rendezvous

from relation.errors import InputError, RunError
from relation.machine.devices import claim, claim_gpus

# torchrun's options for processes of this machine alone: by itself it has them find one another by
# the machine's name, which not every machine can resolve.
ON_THIS_MACHINE = ("--standalone", "--local-addr", "127.0.0.1")

_SECONDS_BETWEEN_LOOKS = 0.05
_LOOKS_AT_STORE_EVERY = 1.0  # seconds, while a GPU is waited for
_SECONDS_OF_GRACE = 20.0  # torchrun kills after 30
_TIMEOUT = timedelta(minutes=30)  # longer than the first process takes to save


class PeerEndedError(RunError):
    """Another process of this run is gone."""


class World:
    """The processes that train one run; `rank` is this one's number, from 0, of `size`.

    The first leads: it alone saves, logs, evaluates and talks. Without torchrun there is one.
    """

    def __init__(self, name: str):
        """name: the run's, for messages. Raises InputError for processes on several machines."""
        self.name, self.rank, self.size, self._store = name, 0, 1, None
        self._looked, self._asked_since = time.monotonic(), math.inf
        if not dist.is_torchelastic_launched() or int(os.environ["WORLD_SIZE"]) == 1:
            return
        if os.environ["LOCAL_WORLD_SIZE"] != os.environ["WORLD_SIZE"]:
            raise InputError(f"{name}: one run trains on one machine; give torchrun one node")
        self._store, self.rank, self.size = next(rendezvous("env://"))

    @property
    def leads(self) -> bool:
        return self.rank == 0

    def share(self, count: int) -> range:
        """Which of an update's `count` micro-batches this process takes."""
        return range(self.rank, count, self.size)

    def check_enough(self, micro_batches: int) -> None:
        """Raise InputError where an update has fewer micro-batches than there are processes."""
        if self.size > micro_batches:
            raise InputError(
                f"{self.name}: an update has {micro_batches} micro-batches, which "
                f"{self.size} processes cannot share; give torchrun at most {micro_batches}"
            )

    @contextmanager
    def one_voice(self) -> Iterator[None]:
        """Of errors in several processes, let the first through; the others end without a word."""
        try:
            yield
        except Exception as error:
            if self._store is not None and self._store.add("failed", 1) > 1:
                raise SystemExit(2) from error
            raise

    def check_peers(self, asked: bool = False) -> None:
        """Raise PeerEndedError where another process has failed; looks at most once a second.

        asked: whether this one was asked to stop. One that waits for the others long after that
        takes them for killed, as torchrun asks the rest to stop then.
        """
        now = time.monotonic()
        if asked:
            self._asked_since = min(self._asked_since, now)
            if now - self._asked_since > _SECONDS_OF_GRACE:
                raise self._peer_ended()
        if self._store is not None and now - self._looked > _LOOKS_AT_STORE_EVERY:
            self._looked = now
            if self._store.check(["failed"]):
                raise self._peer_ended()

    def _peer_ended(self) -> PeerEndedError:
        return PeerEndedError(
            f"{self.name}: another process of this run ended without a word; look for what killed "
            "it and run the same command again"
        )

    def from_lead(self, key: str, find: Callable[[], Any]) -> Any:
        """What `find`, called by the first process alone, gives there: a value of JSON.

        The others wait for it. Raises PeerEndedError in them where the first one fails.
        """
        if self._store is None:
            return find()
        if self.leads:
            value = find()
            self._store.set(key, json.dumps(value))
            return value
        while not self._store.check([key]):
            self.check_peers()
            time.sleep(_SECONDS_BETWEEN_LOOKS)
        return json.loads(self._store.get(key))

    @contextmanager
    def device(self, kind: str, sharing: int = 1) -> Iterator[torch.device]:
        """Yield this process's own device of `kind` ("cpu" or "cuda"), and join the others.

        sharing: how many single processes may share a GPU. The first process holds the GPUs of all.
        Raises InputError where there are too few.
        """
        if self._store is None:
            with claim(kind, sharing) as device:
                yield device
            return
        with ExitStack() as stack:
            # All wait for the first here, whose GPUs or lock may be somebody else's.
            gpus = nullcontext([]) if kind == "cpu" else claim_gpus(self.size)
            indices = self.from_lead("gpus", lambda: stack.enter_context(gpus))
            device = torch.device("cpu")
            if kind == "cuda":
                device = torch.device("cuda", indices[self.rank])
                torch.cuda.set_device(device)
            dist.init_process_group(
                "nccl" if kind == "cuda" else "gloo",
                store=self._store,
                rank=self.rank,
                world_size=self.size,
                timeout=_TIMEOUT,
            )
            yield device
            # Not after an error: a peer may be gone, and with it the end of what is under way.
            dist.destroy_process_group()

    def all_reduce(self, values: Tensor, operation=dist.ReduceOp.SUM) -> None:
        """Reduce a tensor over the processes, in place. Raises PeerEndedError where one is gone."""
        if self._store is None:
            return
        try:
            dist.all_reduce(values, operation)
        except RuntimeError as error:
            raise self._peer_ended() from error

    def check_same(self, model: nn.Module) -> None:
        """Raise RunError unless each parameter's bits have one sum in all processes."""
        if self._store is None:
            return
        bits = [p.detach().view(torch.int32).sum(dtype=torch.int64) for p in model.parameters()]
        low, high = torch.stack(bits), torch.stack(bits)
        self.all_reduce(low, dist.ReduceOp.MIN)
        self.all_reduce(high, dist.ReduceOp.MAX)
        if not torch.equal(low, high):
            raise RunError(
                f"{self.name}: the {self.size} processes hold different parameters; nothing is "
                "written; look after the hardware and run the same command again"
            )


class SummedGradients:
    """The `reduce` of an UpdateStep: gradients and loss become their sums over the processes.

    A process without a micro-batch of this update adds zeros. `asked`, what the process was asked
    to stop by, is summed too: `stop`, a scalar on the device, tells all processes alike.
    """

    def __init__(self, world: World, model: nn.Module, asked: Callable[[], bool]):
        self._world, self._asked = world, asked
        self._parameters = list(model.parameters())
        sizes = [p.numel() for p in self._parameters]
        self._flat = torch.zeros(sum(sizes) + 2, device=self._parameters[0].device)
        *parts, self._loss, self.stop = self._flat.split([*sizes, 1, 1])
        self._views = [v.view_as(p) for v, p in zip(parts, self._parameters, strict=True)]

    def __call__(self, loss: Tensor) -> None:
        """Sum the gradients and `loss`, a scalar, in place."""
        if any(p.grad is None for p in self._parameters):
            self._flat.zero_()
        for view, parameter in zip(self._views, self._parameters, strict=True):
            if parameter.grad is not None:
                view.copy_(parameter.grad)
            parameter.grad = view
        self._loss.copy_(loss)
        self.stop.fill_(float(self._asked()))
        self._world.all_reduce(self._flat)
        loss.copy_(self._loss[0])
