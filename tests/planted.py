"""Measurements that meet what real ones may."""

import importlib
import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path

import torch

from relation.errors import InputError


@dataclass
class Planted:
    """Answers every round in `seconds`, except that `what` happens in the method `where`.

    In "seconds" it happens in the round `when`, from 0.
    """

    what: str = "nothing"
    where: str = "prepare"
    when: int = 0
    asked: int = 0

    def _meet(self, where: str) -> None:
        if where != self.where:
            return
        if self.what == "memory":
            raise torch.OutOfMemoryError("Tried to allocate 20.00 GiB.\nmore words")
        if self.what == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if self.what == "absent":
            raise InputError("no such library; install it")
        if self.what == "hang":
            time.sleep(60)
        if self.what == "exit":
            os._exit(3)

    def prepare(self) -> dict:
        self._meet("prepare")
        return {"pid": os.getpid(), "threads": torch.get_num_threads()}

    def seconds(self, measure: str) -> float:
        if self.asked == self.when:
            self._meet("seconds")
        self.asked += 1
        return float(self.asked)

    def proof(self) -> dict:
        self._meet("proof")
        return {"peak_bytes": None, "reserved_bytes": None, "kernels": []}


@dataclass
class Meeting(Planted):
    """Is prepared once `expected` processes are in their preparation, which `folder` tells."""

    folder: Path = Path()
    expected: int = 2

    def prepare(self) -> dict:
        (self.folder / str(os.getpid())).touch()
        for _ in range(1000):
            if len(list(self.folder.iterdir())) == self.expected:
                return super().prepare()
            time.sleep(0.01)
        raise InputError("nobody else came")


class Unknown:
    """A measurement of a module that the process does not have."""

    def __reduce__(self) -> tuple:
        return importlib.import_module, ("a_module_that_is_not_there",)
