"""Data-parallel training of one run: the processes that torchrun starts, on one node or several.

Each takes every size-th micro-batch of an update. Each has a copy of the model, and gradients and
loss are summed through one all-reduce an update; or they share one model
(`relation.train.shards`). All processes take the same step, and the sum is a single process's up
to the order of its terms.
"""

import json
import math
import os
import secrets
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.rendezvous import rendezvous

from relation.errors import InputError, RunError
from relation.machine.devices import claim, claim_gpus

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
        """name: the run's, for messages."""
        self.name, self.rank, self.size, self._store = name, 0, 1, None
        self._node, self._place, self._on_node = 0, 0, 1
        self._looked, self._asked_since = time.monotonic(), math.inf
        if not dist.is_torchelastic_launched() or int(os.environ["WORLD_SIZE"]) == 1:
            return
        numbers = (int(os.environ[key]) for key in ("GROUP_RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE"))
        self._node, self._place, self._on_node = numbers
        self._store, self.rank, self.size = next(rendezvous("env://"))

    @property
    def leads(self) -> bool:
        return self.rank == 0

    @property
    def _spans_nodes(self) -> bool:
        return self._on_node < self.size

    def share(self, count: int, equally: bool = False) -> range:
        """Which of an update's `count` micro-batches this process takes.

        equally: all take as many, where `count` is not enough for that numbers beyond it.
        """
        return range(self.rank, -(-count // self.size) * self.size if equally else count, self.size)

    def check_enough(self, micro_batches: int) -> None:
        """Raise InputError where an update has fewer micro-batches than there are processes."""
        if self.size > micro_batches:
            raise InputError(
                f"{self.name}: an update has {micro_batches} micro-batches, which "
                f"{self.size} processes cannot share; give torchrun at most {micro_batches}"
            )

    @contextmanager
    def one_voice(self) -> Iterator[None]:
        """Of errors in several processes, let the first through; the others end without a word.

        A lost connection becomes PeerEndedError. On several nodes an InputError names its own.
        """
        try:
            yield
        except Exception as error:
            if not self._speaks():
                raise SystemExit(2) from error
            if _lost_connection(error):
                raise self._peer_ended() from error
            if self._spans_nodes and isinstance(error, InputError):
                raise InputError(f"{error} (on node {socket.gethostname()})") from error
            raise

    def _speaks(self) -> bool:
        """Whether this process is the first that failed, or cannot know."""
        try:
            return self._store is None or self._store.add("failed", 1) == 1
        except RuntimeError:  # the node that held the store is gone
            return True

    def check_peers(self, asked: bool = False) -> None:
        """Raise PeerEndedError where another process has failed; looks at most once a second.

        asked: whether this one was asked to stop. torchrun stops the survivors when a process dies,
        so one that still waits 20 s later assumes that its peers are dead.
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
        return self._from(self.leads, key, find)

    def _from(self, finder: bool, key: str, find: Callable[[], Any]) -> Any:
        if self._store is None:
            return find()
        if finder:
            value = find()
            self._store.set(key, json.dumps(value))
            return value
        self._wait_until(lambda: self._store.check([key]))
        return json.loads(self._store.get(key))

    def _wait_until(self, come: Callable[[], bool]) -> None:
        while not come():
            self.check_peers()
            time.sleep(_SECONDS_BETWEEN_LOOKS)

    def check_shared(self, folder: Path) -> None:
        """Raise InputError where this node does not see what the first process writes to a folder.

        Called by all. The mark that it leaves there is swept with what a kill leaves.
        """
        if not self._spans_nodes:
            return

        def mark() -> str:
            path = folder / f".seen-{secrets.token_hex(8)}"
            path.touch()
            return path.name

        if not (folder / self.from_lead("shared", mark)).exists():
            raise InputError(
                f"{self.name}: {folder} is not the folder that the first node writes to; put "
                "results/ on storage that all nodes share"
            )

    @contextmanager
    def device(self, kind: str, sharing: int = 1) -> Iterator[torch.device]:
        """Yield this process's own device of `kind` ("cpu" or "cuda"), and join the others.

        sharing: how many single processes may share a GPU. The first process of each node holds
        the GPUs of all there. Raises InputError where there are too few.
        """
        if self._store is None:
            with claim(kind, sharing) as device:
                yield device
            return
        with ExitStack() as stack:
            # All wait for the first here, whose GPUs or lock may be somebody else's.
            gpus = nullcontext([]) if kind == "cpu" else claim_gpus(self._on_node)
            indices = self._claimed_in_turn(lambda: stack.enter_context(gpus))
            device = torch.device("cpu")
            if kind == "cuda":
                device = torch.device("cuda", indices[self._place])
                torch.cuda.set_device(device)
            # While PyTorch joins the processes, none would hear of another's failure.
            self._store.set(f"ready/{self.rank}", "")
            everybody = [f"ready/{rank}" for rank in range(self.size)]
            self._wait_until(lambda: self._store.check(everybody))
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

    def _claimed_in_turn(self, claim_all: Callable[[], list[int]]) -> list[int]:
        """The GPUs of this node, claimed by its first process once the node before has its own.

        torchrun numbers nodes by their addresses: two runs claim the same nodes in the same order,
        and neither waits for the other with half of what both need.
        """
        first = self._place == 0
        if first and self._node > 0:
            self._wait_until(lambda: self._store.check([f"gpus/{self._node - 1}"]))
        return self._from(first, f"gpus/{self._node}", claim_all)

    def all_reduce(self, values: Tensor, operation=dist.ReduceOp.SUM) -> None:
        """Reduce a tensor over the processes, in place. Raises PeerEndedError where one is gone."""
        if self._store is None:
            return
        try:
            dist.all_reduce(values, operation)
        except RuntimeError as error:
            raise self._peer_ended() from error

    def largest(self, values: Tensor) -> None:
        """Give each of a tensor's values the largest that any process has, in place."""
        self.all_reduce(values, dist.ReduceOp.MAX)

    def check_same(self, model: nn.Module) -> None:
        """Raise RunError unless each parameter's bits have one sum in all processes."""
        if self._store is None:
            return
        bits = [p.detach().view(torch.int32).sum(dtype=torch.int64) for p in model.parameters()]
        low, high = torch.stack(bits), torch.stack(bits)
        self.all_reduce(low, dist.ReduceOp.MIN)
        self.largest(high)
        if not torch.equal(low, high):
            raise RunError(
                f"{self.name}: the {self.size} processes hold different parameters; nothing is "
                "written; look after the hardware and run the same command again"
            )


def _lost_connection(error: Exception) -> bool:
    """Whether an error is a collective's or the store's: gloo's is a bare RuntimeError."""
    return isinstance(error, dist.DistError) or (
        type(error) is RuntimeError and "gloo" in str(error)
    )


class SummedGradients:
    """The `reduce` of an UpdateStep: gradients and loss become their sums over the processes.

    parameters: those of which every process has a copy, none where they are sharded, as FSDP sums
    their gradients. A process without a micro-batch of this update adds zeros. `signals`, (2,) on
    the device, sums what `signalled` says in each process: whether it was asked to stop, and
    whether a state is due. So all learn it alike.
    """

    def __init__(
        self,
        world: World,
        parameters: Sequence[nn.Parameter],
        device: torch.device,
        signalled: Callable[[], tuple[bool, bool]],
    ):
        self._world, self._signalled, self._parameters = world, signalled, parameters
        sizes = [p.numel() for p in parameters]
        self._flat = torch.zeros(sum(sizes) + 3, device=device)
        *parts, self._loss, self.signals = self._flat.split([*sizes, 1, 2])
        self._views = [v.view_as(p) for v, p in zip(parts, parameters, strict=True)]

    def __call__(self, loss: Tensor) -> None:
        """Sum the gradients and `loss`, a scalar, in place."""
        if any(p.grad is None for p in self._parameters):
            self._flat.zero_()
        for view, parameter in zip(self._views, self._parameters, strict=True):
            if parameter.grad is not None:
                view.copy_(parameter.grad)
            parameter.grad = view
        self._loss.copy_(loss)
        for signal, given in zip(self.signals, self._signalled(), strict=True):
            signal.fill_(float(given))
        self._world.all_reduce(self._flat)
        loss.copy_(self._loss[0])
