"""Exceptions whose message is meant for the user.

The message is one line: what is wrong, where, and what to do. The command line prints it without
a traceback and exits with status 2.
"""

import re
from collections.abc import Collection
from difflib import get_close_matches
from typing import Any

# In the repr of errors of Python, NumPy and PyTorch. cuBLAS and cuDNN allocate at their first use.
OUT_OF_MEMORY = re.compile(
    "MemoryError|out of memory|allocate memory|(CUBLAS|CUDNN)_STATUS_(ALLOC_FAILED|NOT_INITIALIZED)"
)


class RelationError(Exception):
    """Base of the errors that the command line prints as one line."""


class InputError(RelationError, ValueError):
    """The user's input, or a file on disk, cannot be used."""


def check_among(name: Any, choices: Collection, problem: str) -> None:
    """Raise InputError unless `name` is a choice. It suggests the nearest choice, or all."""
    if name in choices:
        return
    names = list(map(str, choices))
    near = [] if str(name).isdigit() else get_close_matches(str(name), names, 1, cutoff=0.65)
    every = f"choose among {', '.join(names[:20])}{', ...' if len(names) > 20 else ''}"
    hint = f"did you mean {near[0]!r}?" if near else every
    raise InputError(f"{problem}; {hint if names else 'there is none'}")


class RunError(RelationError, RuntimeError):
    """A run cannot go on, for example because of a non-finite loss or a full disk."""


class DivergedError(RunError):
    """A loss, gradient norm, parameter or flow is not finite."""
