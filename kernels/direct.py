"""Launches past Triton's launcher, straight to the function that it has compiled in C.

Triton's launcher is Python. At every launch it encodes a tensor map for every descriptor, and puts
the shape and strides of each into the arguments. Between two launches that differ only in pointers
all else stays the same: it is recorded once, and a map is kept by its pointer. That is enough: a
map is made of the pointer, and of the layout and the kernel, which a plan fixes; it owns no memory.
"""

import copy
from collections.abc import Callable, Sequence
from operator import itemgetter
from types import CellType, FunctionType
from typing import Any

import torch
from triton.runtime import driver

Tensors = Sequence[torch.Tensor | None]
# A tensor, a descriptor of Triton's or of Gluon's, or None.
Argument = Any
# Of a call's tensors a kernel's first arguments.
Arguments = Callable[..., Sequence[Argument]]
# Of an argument, kept at once: layers and micro-batches have tensors of their own.
MOST_MAPS = 256


class Unexpected(Exception):
    """Why a kernel must be launched by Triton's launcher."""


class TritonLaunch:
    """The launch of a compiled kernel by Triton's launcher, on the current stream."""

    def __init__(
        self, compiled: Any, grid: Sequence[int], rest: tuple, arguments: Arguments | None
    ):
        self.launcher, self.rest, self._arguments = compiled.run, rest, arguments
        self._grid = (*grid, 1, 1)[:3]
        self._kernel = compiled.function, compiled.packed_metadata
        self.device = driver.active.get_current_device()
        self.stream = driver.active.get_current_stream

    def __call__(self, tensors: Tensors) -> None:
        self.by(self.launcher, self.stream(self.device), tensors)

    def by(self, launcher: Callable, stream: Any, tensors: Tensors) -> None:
        """The launch by another launcher."""
        given = [x.data_ptr() if isinstance(x, torch.Tensor) else x for x in self.given(tensors)]
        launcher(*self._grid, stream, *self._kernel, None, None, None, *given, *self.rest)

    def given(self, tensors: Tensors) -> Sequence[Argument]:
        """The kernel's first arguments."""
        return tensors if self._arguments is None else self._arguments(*tensors)


def _compiled_function(launcher: Any) -> tuple[Callable, Callable[[Callable], Callable]]:
    """What Triton's launcher calls in the end, and how to put another function in its place."""
    if getattr(launcher, "gsan_enabled", False):
        raise Unexpected("it is instrumented")
    try:
        scratch = launcher.global_scratch_size, launcher.profile_scratch_size
        called = launcher.launch
    except AttributeError as error:
        raise Unexpected(f"its launcher is an unknown one: {error}") from None
    if any(scratch):
        raise Unexpected("it takes scratch memory at every launch")
    if not isinstance(called, FunctionType):
        return called, lambda other: other
    # The wrapper that encodes descriptors holds the compiled function in a cell.
    names, cells = called.__code__.co_freevars, called.__closure__ or ()
    if "launcher" not in names:
        raise Unexpected("its wrapper for descriptors is an unknown one")
    place = names.index("launcher")

    def around(other: Callable) -> Callable:
        changed = (*cells[:place], CellType(other), *cells[place + 1 :])
        return FunctionType(called.__code__, called.__globals__, closure=changed)

    return cells[place].cell_contents, around


def bind(launch: TritonLaunch, tensors: Tensors) -> Callable[[Tensors], None]:
    """The same launch of other tensors of these layouts, past Triton's launcher.

    Raises Unexpected where Triton's launcher does anything that this does not know: it was written
    for Triton 3.6 to 3.8.
    """
    function, around = _compiled_function(launch.launcher)

    def expanded(stream: Any, tensors: Tensors) -> tuple:
        """What the compiled function would be called with."""
        seen: list[tuple] = []
        recorder = copy.copy(launch.launcher)
        recorder.launch = around(lambda *given: seen.append(given))
        launch.by(recorder, stream, tensors)
        return seen[0]

    # Each an object apart: given twice, as p1 and p2, a tensor would be found in one place.
    tensors = [x if x is None else x.detach() for x in tensors]
    slots = _Slots(launch.given(tensors), tensors, len(launch.rest))
    stream = object()
    head, inner, nested = slots.split(expanded(stream, tensors))
    place = next((k for k, x in enumerate(head) if x is stream), None)
    if place is None or not slots.hold(inner, tensors):
        raise Unexpected("its launcher passes on other arguments")
    before, after = head[:place], head[place + 1 :]
    pick, constants = slots.filling(inner, len(tensors))
    known: list[tuple[int, dict[int, Any]]] = [(k, {}) for _, k in slots.maps]
    device, current_stream = launch.device, launch.stream

    def encode(tensors: Tensors, pointers: list[int | None]) -> list:
        _, inner, _ = slots.split(expanded(None, tensors))
        encoded = [inner[place] for place, _ in slots.maps]
        for (k, maps), one in zip(known, encoded, strict=True):
            if len(maps) >= MOST_MAPS:
                maps.clear()
            maps[pointers[k]] = one
        return encoded

    def launch_directly(tensors: Tensors) -> None:
        pointers = [x if x is None else x.data_ptr() for x in tensors]
        try:
            encoded = [maps[pointers[k]] for k, maps in known]
        except KeyError:
            encoded = encode(tensors, pointers)
        inner = pick(pointers + encoded + constants)
        if nested:
            function(*before, current_stream(device), *after, inner)
        else:
            function(*before, current_stream(device), *after, *inner)

    return launch_directly


class _Slots:
    """Where a kernel's arguments lie that differ between calls, descriptors expanded."""

    def __init__(self, given: Sequence[Argument], tensors: Tensors, rest: int):
        """given: the first arguments, made of `tensors`; rest: how many follow."""
        of = {id(x): k for k, x in enumerate(tensors) if x is not None}
        # A place and the number of the tensor whose pointer, or whose map, belongs there.
        self.pointers: list[tuple[int, int]] = []
        self.maps: list[tuple[int, int]] = []
        # After each map, places with its shape and strides.
        self._shapes: list[tuple[int, ...]] = []
        place = 0
        for x in given:
            if x is not None and not isinstance(x, torch.Tensor):
                self.maps.append((place, of[id(x.base)]))
                self._shapes.append((*x.shape, *x.strides))
                place += len(self._shapes[-1])
            elif x is not None:
                self.pointers.append((place, of[id(x)]))
            place += 1
        self._length = place + rest

    def split(self, final: tuple) -> tuple[tuple, Sequence, bool]:
        """What comes before the kernel's arguments, these, and whether they came as one."""
        if isinstance(final[-1], list | tuple) and len(final[-1]) == self._length:
            return final[:-1], final[-1], True
        return final[: -self._length], final[-self._length :], False

    def hold(self, inner: Sequence, tensors: Tensors) -> bool:
        """Whether the kernel's arguments are as expected."""
        return (
            len(inner) == self._length
            and all(inner[place] == tensors[k].data_ptr() for place, k in self.pointers)
            and all(
                tuple(inner[place + 1 : place + 1 + len(shape)]) == shape
                for (place, _), shape in zip(self.maps, self._shapes, strict=True)
            )
        )

    def filling(self, inner: Sequence, tensors: int) -> tuple[Callable, list]:
        """A function that puts pointers, maps and the constants, joined, in their places."""
        constants, first = list(inner), tensors + len(self.maps)
        order = list(range(first, first + self._length))
        changing = self.pointers + [(place, tensors + j) for j, (place, _) in enumerate(self.maps)]
        for place, source in changing:
            order[place], constants[place] = source, None
        return itemgetter(*order), constants
