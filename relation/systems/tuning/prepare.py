"""Compiling candidates in many processes at once, before any of them is timed."""

import contextlib
import io
import multiprocessing
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, replace

import torch
from triton.errors import TritonError

from relation.errors import RunError
from relation.kernels.common import architecture
from relation.kernels.flash_relation.launches import Launch, Launches
from relation.systems.bench.flash import draw
from relation.systems.bench.peers import Shape
from relation.systems.tuning.grid import why_unfit
from relation.systems.tuning.passes import Passes

# Each holds a CUDA context, half a GiB of the GPU's memory.
_MOST_WORKERS = 16


@dataclass(frozen=True)
class Target:
    """What a search is for: one shape, and the entry that serves it so far."""

    shape: Shape
    dtype: torch.dtype
    device: torch.device
    shipped: Launches

    def entry(self, name: str, launch: Launch) -> Launches:
        """The shipped entry with one pass replaced."""
        return replace(self.shipped, **{name: launch})


@dataclass(frozen=True)
class Job:
    """One candidate for one pass."""

    target: Target
    name: str
    launch: Launch


def prepare(job: Job) -> str | None:
    """Compile a candidate as its timing will find it in Triton's cache; why it is out, or None.

    It runs once on one sequence: Triton compiles for strides, not for the batch.
    """
    target = job.target
    entry, device = target.entry(job.name, job.launch), target.device
    torch.cuda.set_device(device)
    try:
        # Triton prints the whole program that its assembler refuses.
        with contextlib.redirect_stdout(io.StringIO()):
            reason = why_unfit(job.name, entry, architecture(device))
            if reason is None:
                generator = torch.Generator(device).manual_seed(0)
                inputs = draw(replace(target.shape, batch=1), target.dtype, device, generator)
                Passes([inputs], entry).call(job.name, entry)()
                torch.cuda.synchronize(device)
    except TritonError as error:
        return f"refused by Triton ({type(error).__name__})"
    except RuntimeError as error:
        if "PassManager::run failed" not in str(error):
            raise
        return "refused by Triton (PassManager)"
    return reason


def prepare_all(
    jobs: Sequence[Job],
    note: Callable[[Job], None],
    work: Callable[[Job], str | None] = prepare,
) -> dict[Job, str | None]:
    """What `work` returns for every job, from as many processes as there are cores, at most 16.

    `note` is called as each is done. Raises RunError where a process dies, and what a job raises.
    """
    found = {}
    workers = min(_MOST_WORKERS, len(os.sched_getaffinity(0)), len(jobs))
    # A forked process cannot use a GPU that its parent has used.
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, mp_context=spawn) as pool:
        waiting = {pool.submit(work, job): job for job in jobs}
        try:
            for future in as_completed(waiting):
                found[waiting[future]] = future.result()
                note(waiting[future])
        except BrokenProcessPool:
            raise RunError(
                f"a process that compiles launches died after {len(found)} of {len(jobs)}; look "
                "for the reason in the system's log, or search fewer with --scales"
            ) from None
        finally:
            pool.shutdown(cancel_futures=True)
    return {job: found[job] for job in jobs}
