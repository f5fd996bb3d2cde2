"""Triton's search for launches in less time: candidates compiled side by side and timed briefly."""

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial

_WARM_MILLISECONDS, _TIMED_MILLISECONDS = 5, 20


@contextmanager
def brief_autotuning() -> Iterator[None]:
    """Inside it, every `triton.autotune` that has to choose does so in a fraction of its time.

    A library may have hundreds of candidates for one head width. They are compiled on all cores
    that this process may use before the first is timed, and each is timed for 25 ms instead of 125.
    Which candidates there are, and that the fastest is taken, stays as the library has it. Raises
    ImportError without Triton.
    """
    from triton import AsyncCompileMode
    from triton.runtime.autotuner import Autotuner
    from triton.testing import do_bench

    choose, timer = Autotuner.prune_configs, Autotuner.do_bench

    def compile_chosen(self, kwargs: dict) -> list:
        chosen = choose(self, kwargs)
        given = {name: value for name, value in kwargs.items() if name != "warmup"}
        # A candidate that does not compile fails again when it is timed, where it is left out.
        with AsyncCompileMode(pool, ignore_errors=True):
            for candidate in chosen:
                self.fn.warmup(*self.nargs.values(), **given, **candidate.all_kwargs())
        return chosen

    brief = partial(do_bench, warmup=_WARM_MILLISECONDS, rep=_TIMED_MILLISECONDS)
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        Autotuner.prune_configs, Autotuner.do_bench = compile_chosen, staticmethod(brief)
        try:
            yield
        finally:
            Autotuner.prune_configs, Autotuner.do_bench = choose, timer
