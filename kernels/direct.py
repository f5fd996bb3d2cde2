"""Launches past Triton's launcher, straight to the function that it has compiled in C.

Triton's launcher is Python. At every launch it encodes a tensor map for every descriptor, and puts
the shape and strides of each into the arguments. Between two launches that differ only in pointers
all else stays the same: it is recorded once, and a map is kept by its pointer. That is enough: a
map is made of the pointer, and of the layout and the kernel, which a plan fixes; it owns no memory.
"""

import copy
import itertools
from collections.abc import Callable, Sequence
from operator import itemgetter
from types import CellType, FunctionType
from typing import Any

import torch
from triton.runtime import driver

# By number: the current device's stream, and pointers of the call's tensors.
Launch = Callable[[int, Sequence[int | None]], None]
# Kept at once, in some 16 MB: every layer, micro-batch and layout has tensors of its own.
MOST_MAPS = 1 << 15
# By the number of an argument of a bound launch, and a pointer.
_maps: dict[tuple[int, int], Any] = {}
_numbers = itertools.count()


class UnexpectedError(Exception):
    """Why a kernel must be launched by Triton's launcher."""


class _At:
    """What a descriptor asks of its tensor: where it lies."""

    def __init__(self, pointer: int):
        self._pointer = pointer

    def data_ptr(self) -> int:
        return self._pointer


class TritonLaunch:
    """The launch of a compiled kernel by Triton's launcher."""

    def __init__(
        self,
        compiled: Any,
        grid: Sequence[int],
        given: Sequence[Any],
        rest: tuple,
        tensors: Sequence[torch.Tensor | None],
    ):
        """given, rest: the kernel's arguments, of which tensors and descriptors come first.

        Each of these lies at one of `tensors` or, with storage that no other has, inside it.
        """
        self.launcher, self.rest = compiled.run, rest
        # Without it Triton unloads the function.
        self._compiled = compiled
        self._grid, self._kernel = (*grid, 1, 1)[:3], (compiled.function, compiled.packed_metadata)
        # Of each argument the descriptor, if it is one, and of which tensor and how far inside.
        self.given: list[tuple[Any, int, int] | None] = []
        for x in given:
            described = None
            if x is not None and not isinstance(x, torch.Tensor):
                described = copy.copy(x)
                x, described.base = x.base, None
            # Where an empty tensor lies is nowhere.
            nowhere = x is None or not x.numel()
            self.given.append(None if nowhere else (described, *_find(x, tensors)))

    def __call__(self, stream: int, pointers: Sequence[int | None]) -> None:
        self.by(self.launcher, stream, pointers)

    def by(self, launcher: Callable, stream: Any, pointers: Sequence[int | None]) -> None:
        """The launch by another launcher."""
        given = []
        for place in self.given:
            x = None
            if place is not None:
                described, k, offset = place
                x = pointers[k] + offset
                if described is not None:
                    pointer, x = x, copy.copy(described)
                    x.base = _At(pointer)
            given.append(x)
        launcher(*self._grid, stream, *self._kernel, None, None, None, *given, *self.rest)


def _find(x: torch.Tensor, tensors: Sequence[torch.Tensor | None]) -> tuple[int, int]:
    """The number of the tensor that x is, or lies in, and how many bytes from its start."""
    for k, one in enumerate(tensors):
        if one is x:
            return k, 0
    storage = x.untyped_storage().data_ptr()
    around = [
        k
        for k, one in enumerate(tensors)
        if one is not None and one.untyped_storage().data_ptr() == storage
    ]
    if len(around) != 1:
        raise ValueError(f"an argument {tuple(x.shape)} is no part of the call's tensors")
    return around[0], x.data_ptr() - tensors[around[0]].data_ptr()


def bind(launch: TritonLaunch, pointers: Sequence[int | None]) -> Launch:
    """The same launch past Triton's launcher; pointers: of any tensors of these layouts.

    Raises UnexpectedError where Triton's launcher does what this does not know, which was written
    for Triton 3.6 to 3.8.
    """
    function, around = _compiled_function(launch.launcher)

    def expanded(stream: Any, pointers: Sequence[int | None]) -> tuple:
        """What the compiled function would be called with."""
        seen: list[tuple] = []
        try:
            recorder = copy.copy(launch.launcher)
            recorder.launch = around(lambda *given: seen.append(given))
            launch.by(recorder, stream, pointers)
        except (AttributeError, TypeError) as error:
            raise UnexpectedError(f"its launcher cannot be recorded ({error})") from error
        if len(seen) != 1:
            raise UnexpectedError("its launcher does not launch by the function that it holds")
        return seen[0]

    # Where, among the kernel's arguments with descriptors expanded, the map or pointer of which
    # tensor belongs.
    plain, maps, length = [], [], 0
    for place in launch.given:
        if place is not None:
            tiles, *source = place
            if tiles is not None:
                maps.append((length, tiles, *source))
                length += len(tiles.shape) + len(tiles.strides)
            else:
                plain.append((length, *source))
        length += 1
    length += len(launch.rest)

    def split(final: tuple) -> tuple[tuple, Sequence, bool]:
        """What comes before the kernel's arguments, these, and whether they came as one."""
        if isinstance(final[-1], list | tuple) and len(final[-1]) == length:
            return final[:-1], final[-1], True
        return final[:-length], final[-length:], False

    mark = object()
    head, arguments, as_one = split(expanded(mark, pointers))
    place = next((k for k, x in enumerate(head) if x is mark), None)
    known = (
        len(arguments) == length
        and all(arguments[at] == pointers[k] + offset for at, k, offset in plain)
        and all(
            tuple(arguments[at + 1 :][: 2 * len(x.shape)]) == (*x.shape, *x.strides)
            for at, x, *_ in maps
        )
    )
    if place is None or not known:
        raise UnexpectedError("its launcher passes on other arguments")
    before, after = head[:place], head[place + 1 :]
    # Pointers of tensors, then of parts of them, then maps, then the rest: `pick` orders them.
    count, constants = len(pointers), list(arguments)
    parts = sorted({(k, offset) for _, k, offset in plain if offset})
    order = [count + len(parts) + len(maps) + at for at in range(length)]
    for at, k, offset in plain:
        order[at] = count + parts.index((k, offset)) if offset else k
        constants[at] = None
    for j, (at, *_) in enumerate(maps):
        order[at], constants[at] = count + len(parts) + j, None
    pick = itemgetter(*order)
    described = [(next(_numbers), k) for _, _, k, _ in maps]

    def encode(pointers: Sequence[int | None]) -> list:
        _, arguments, _ = split(expanded(None, pointers))
        encoded = [arguments[at] for at, *_ in maps]
        if len(_maps) >= MOST_MAPS:
            _maps.clear()
        _maps.update(
            ((n, pointers[k]), one) for (n, k), one in zip(described, encoded, strict=True)
        )
        return encoded

    def directly(stream: int, pointers: Sequence[int | None]) -> None:
        changing = [*pointers, *[pointers[k] + offset for k, offset in parts]]
        try:
            changing += [_maps[n, pointers[k]] for n, k in described]
        except KeyError:
            changing += encode(pointers)
        arguments = pick(changing + constants)
        if as_one:
            function(*before, stream, *after, arguments)
        else:
            function(*before, stream, *after, *arguments)

    return directly


def _compiled_function(launcher: Any) -> tuple[Callable, Callable[[Callable], Callable]]:
    """What Triton's launcher calls in the end, and how to put another function in its place."""
    try:
        called, *scratch = (
            getattr(launcher, name)
            for name in ("launch", "global_scratch_size", "profile_scratch_size")
        )
    except AttributeError as error:
        raise UnexpectedError(f"its launcher is an unknown one: {error}") from None
    if any(scratch) or getattr(launcher, "gsan_enabled", False):
        raise UnexpectedError("its launcher gives it memory at every launch")
    if not isinstance(called, FunctionType):
        return called, lambda other: other
    # The wrapper that encodes descriptors holds the compiled function in a cell.
    names, cells = called.__code__.co_freevars, called.__closure__ or ()
    if "launcher" not in names:
        raise UnexpectedError("its launcher's wrapper for descriptors is an unknown one")
    place = names.index("launcher")

    def around(other: Callable) -> Callable:
        changed = (*cells[:place], CellType(other), *cells[place + 1 :])
        return FunctionType(called.__code__, called.__globals__, closure=changed)

    return cells[place].cell_contents, around


def current_device() -> int:
    """The current device, as Triton counts."""
    return driver.active.get_current_device()


def stream_getter() -> Callable[[int], int]:
    """What gives a device's current stream."""
    return driver.active.get_current_stream
