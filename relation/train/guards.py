"""What protects a run: from signals, a full disk, and a compiler that drops a gradient."""

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from relation.errors import InputError, RunError
from relation.registry import tells
from relation.train.shards import part


@contextmanager
def asked_to_stop() -> Iterator[Callable[[], bool]]:
    """Yield a function that tells whether SIGTERM or SIGINT came; the handlers are restored."""
    received: list[int] = []
    handled = (signal.SIGTERM, signal.SIGINT)
    before = [signal.signal(s, lambda number, frame: received.append(number)) for s in handled]
    try:
        yield lambda: bool(received)
    finally:
        for number, handler in zip(handled, before, strict=True):
            signal.signal(number, handler)


@tells
@contextmanager
def writing(name: str, place: Path, kept: Callable[[], str]) -> Iterator[None]:
    """Tell in one line that a run's files cannot be written at `place`, and what `kept` says is.

    Raises RunError for OSError: a full disk, a missing permission, a folder that is gone.
    """
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error).partition("\n")[0]
        raise RunError(
            f"{name}: cannot write to {place} ({reason}); last good state: {kept()}; mend that and "
            "run the same command again"
        ) from error


@tells
def check_writable(folder: Path) -> None:
    """Raise InputError where files could not be made in a folder, before hours are spent on them.

    The folder itself need not be there.
    """
    there = folder
    while not there.exists() and there != there.parent:
        there = there.parent
    if not there.is_dir():
        raise InputError(f"{there} is no folder and {folder} is to be written; move it away")
    if not os.access(there, os.W_OK | os.X_OK):
        raise InputError(f"{there} gives no permission to write {folder}; change its mode or mount")


def check_all_learn(
    model: torch.nn.Module,
    optimizer: torch.optim.Adam,
    run: str,
    anywhere: Callable[[torch.Tensor], None] = lambda learned: None,
) -> None:
    """Raise RunError where a parameter has had gradients of zero alone.

    Every parameter gets a non-zero gradient in update 1. A compiler bug can drop one silently, and
    the run would still finish. anywhere: gives each of (n,) flags, FP32, its largest value in any
    process, in place, as a process may have nothing of a sharded parameter.
    """
    moments = [part(optimizer.state[p]["exp_avg"]) for p in model.parameters()]
    learned = torch.stack([moment.any() for moment in moments]).float()
    anywhere(learned)
    names = (name for name, _ in model.named_parameters())
    idle = [name for name, learns in zip(names, learned.tolist(), strict=True) if not learns]
    if idle:
        raise RunError(
            f"{run}: the gradient of {', '.join(idle)} is zero, so this PyTorch "
            f"({torch.__version__}) differentiates the model wrongly; use the pinned version, or "
            "`compile: false` in config.yaml where the campaign compiles"
        )
