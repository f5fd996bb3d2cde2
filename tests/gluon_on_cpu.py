"""Gluon's kernels on a CPU, for whoever has no Hopper: enough of the language, in PyTorch.

A program's partitions are threads. TMA copies at once and mbarriers count arrivals and bytes, so
that a tile that is not waited for, a wait that never ends and bytes that are announced wrongly
show. A product reads its shared memory as late as a wait allows, and so does a store by TMA, so
that a stage or slot that is handed back too early shows too. Registers, layouts and fences mean
nothing here.
"""

import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import ModuleType, SimpleNamespace

import torch

_LONGEST_WAIT = 10.0  # seconds
_here = threading.local()


class Pointer:
    """A position in a tensor's storage, or a tensor of positions."""

    def __init__(self, storage: torch.Tensor, at):
        self.storage, self.at = storage, at
        self.dtype = SimpleNamespace(element_ty=storage.dtype)

    @classmethod
    def to(cls, x: torch.Tensor) -> "Pointer":
        size = x.untyped_storage().nbytes() // x.element_size()
        return cls(torch.as_strided(x, (size,), (1,), 0), x.storage_offset())

    def __add__(self, offset) -> "Pointer":
        return Pointer(self.storage, self.at + offset)


class Descriptor:
    """Boxes of a tensor, zeros past its end."""

    def __init__(self, tiles):
        self.x = torch.as_strided(tiles.base, tuple(tiles.shape), tuple(tiles.strides))
        self.dtype, self.layout = tiles.base.dtype, None
        self.block_type = SimpleNamespace(shape=tiles.block_shape)

    def _overlap(self, start: Sequence[int]) -> tuple[tuple[slice, ...], tuple[slice, ...]]:
        """Of the box at `start`, what lies in the tensor: where in the box and where there."""
        shape = zip(start, self.block_type.shape, self.x.shape, strict=True)
        counts = [min(block, size - first) for first, block, size in shape]
        there = tuple(slice(a, a + n) for a, n in zip(start, counts, strict=True))
        return tuple(slice(0, n) for n in counts), there

    def box(self, start: Sequence[int]) -> torch.Tensor:
        box = torch.zeros(self.block_type.shape, dtype=self.dtype)
        inside, there = self._overlap(start)
        box[inside] = self.x[there]
        return box

    def put(self, start: Sequence[int], box: torch.Tensor) -> None:
        inside, there = self._overlap(start)
        self.x[there] = box.view(self.block_type.shape)[inside]


class Shared:
    """Shared memory, NaN at first; `index` and the like are views of it."""

    def __init__(self, x: torch.Tensor):
        self.x, self.shape, self.dtype = x, list(x.shape), x.dtype

    def index(self, k: int) -> "Shared":
        return Shared(self.x[k])

    def reshape(self, shape: Sequence[int]) -> "Shared":
        return Shared(self.x.view(shape))

    def permute(self, order: Sequence[int]) -> "Shared":
        return Shared(self.x.permute(order))

    def load(self, layout: None) -> torch.Tensor:
        return self.x.clone()

    def store(self, value: torch.Tensor) -> None:
        self.x.copy_(value)


class Barrier:
    """An mbarrier."""

    def __init__(self):
        self._changed = threading.Condition()
        self._completed, self._bytes = 0, 0

    def init(self, count: int) -> None:
        self._count = self._missing = count

    def arrive(self, count: int = 1, announced: int = 0) -> None:
        with self._changed:
            assert count <= self._missing, "more arrivals in one phase than were announced"
            self._missing -= count
            self._advance(announced)

    def receive(self, size: int) -> None:
        with self._changed:
            self._advance(-size)

    def wait(self, phase: int) -> None:
        with self._changed:
            done = self._changed.wait_for(lambda: self._completed % 2 != phase, _LONGEST_WAIT)
            assert done, "a wait that does not end"

    def _advance(self, announced: int) -> None:
        self._bytes += announced
        if self._missing == 0 and self._bytes == 0:
            self._completed, self._missing = self._completed + 1, self._count
            self._changed.notify_all()


class Barriers:
    def __init__(self, count: int):
        self._all = [Barrier() for _ in range(count)]

    def index(self, k: int) -> Barrier:
        return self._all[k]


class Product:
    """A product under way; its value is there once a wait has passed it."""

    def __init__(self, left, right: Shared, sums):
        self.left, self.right, self.sums, self.value = left, right, sums, None
        _here.products.append(self)

    def finish(self) -> None:
        left, sums = (x.x if isinstance(x, Shared) else x for x in (self.left, self.sums))
        value = left.float() @ self.right.x.float()
        if sums is not None:
            value = value + (sums.value if isinstance(sums, Product) else sums)
        self.value = value


def _multiply(left, right, sums, *, use_acc: bool = True, is_async: bool) -> Product:
    return Product(left, right, sums if use_acc else None)


def _wait(under_way: int, deps: Sequence) -> object:
    while len(_here.products) > under_way:
        _here.products.pop(0).finish()
    found = [x.value if isinstance(x, Product) else x for x in deps]
    assert all(x is not None for x in found), "a product that is not waited for"
    return found[0] if len(found) == 1 else tuple(found)


def _copy(tiles: Descriptor, start: Sequence[int], barrier: Barrier, to: Shared) -> None:
    box = tiles.box([int(k) for k in start])
    to.x.copy_(box.view(to.x.shape))
    barrier.receive(box.nbytes)


def _send(tiles: Descriptor, start: Sequence[int], source: Shared) -> None:
    _here.stores.append((tiles, [int(k) for k in start], source.x))


def _store_wait(under_way: int) -> None:
    """As late as a wait allows, and a little later: others can spoil what is not waited for."""
    time.sleep(0.002)
    while len(_here.stores) > under_way:
        tiles, start, box = _here.stores.pop(0)
        tiles.put(start, box)


def _allocate(dtype, shape: Sequence[int], layout: None):
    if dtype is torch.int64:
        return Barriers(shape[0])
    return Shared(torch.full(tuple(shape), torch.nan if dtype.is_floating_point else -1).to(dtype))


def _load(pointer: Pointer, mask=None, other: float = 0.0) -> torch.Tensor:
    if mask is None:
        return pointer.storage[pointer.at]
    mask = mask.expand(pointer.at.shape)
    return torch.where(mask, pointer.storage[torch.where(mask, pointer.at, 0)], other)


def _store(pointer: Pointer, value: torch.Tensor, mask=None) -> None:
    if mask is None:
        pointer.storage[pointer.at] = value
        return
    mask = mask.expand(pointer.at.shape)
    pointer.storage[pointer.at[mask]] = value[mask].to(pointer.storage.dtype)


_one_at_a_time = threading.Lock()


def _atomic_add(pointer: Pointer, value: int) -> int:
    with _one_at_a_time:
        before = int(pointer.storage[pointer.at])
        pointer.storage[pointer.at] += value
        return before


def _together(calls: Sequence[Callable[[], None]]) -> None:
    """Run calls in threads of their own; the first error is raised."""
    errors = []

    def run(call: Callable[[], None]) -> None:
        try:
            call()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(call,)) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


def _as_program(number: int, programs: int, function: Callable, arguments: Sequence) -> None:
    _here.number, _here.programs = number, programs
    _here.products, _here.stores = [], []
    function(*arguments)


def _specialize(partitions: Sequence[tuple], warps: list[int], registers: list[int]) -> None:
    place = _here.number, _here.programs
    _together([lambda p=p: _as_program(*place, *p) for p in partitions])


def _jit(function: Callable | None = None, **options):
    return function or (lambda function: function)


def _no_layout(*arguments, **options) -> None:
    return None


class _SharedLayout:
    def __new__(cls, **options) -> None:
        return None

    get_default_for = staticmethod(_no_layout)


def _language() -> dict[str, object]:
    layouts = ("BlockedLayout", "NVMMADistributedLayout", "DotOperandLayout", "SliceLayout")
    return dict.fromkeys((*layouts, "SwizzledSharedLayout"), _no_layout) | {
        "NVMMASharedLayout": _SharedLayout,
        "constexpr": lambda x: x,
        "int32": torch.int32,
        "int64": torch.int64,
        "float32": torch.float32,
        "bfloat16": torch.bfloat16,
        "arange": lambda first, last, layout: torch.arange(first, last),
        "zeros": lambda shape, dtype, layout: torch.zeros(shape, dtype=dtype),
        "full": lambda shape, x, dtype, layout: torch.full(shape, x, dtype=dtype),
        "cast": lambda x, dtype: x,
        "convert_layout": lambda x, layout: x,
        "expand_dims": lambda x, axis: x.unsqueeze(axis),
        "where": torch.where,
        "exp2": torch.exp2,
        "log2": torch.log2,
        "log": torch.log,
        "sum": lambda x, axis: x.sum(axis),
        "max": lambda x, axis: int(x.max()),
        "inline_asm_elementwise": lambda asm, constraints, inputs, **options: inputs[0].tanh(),
        "program_id": lambda axis: _here.number,
        "num_programs": lambda axis: _here.programs,
        "static_range": range,
        "atomic_add": _atomic_add,
        "load": _load,
        "store": _store,
        "allocate_shared_memory": _allocate,
        "warp_specialize": _specialize,
    }


def _ampere() -> dict[str, object]:
    # Every thread of four warps arrives.
    arrive = SimpleNamespace(mbarrier_arrive=lambda barrier, increment_count: barrier.arrive(128))
    return {"async_copy": arrive}


def _hopper() -> dict[str, object]:
    return {
        "mbarrier": SimpleNamespace(
            MBarrierLayout=_no_layout,
            init=lambda barrier, count: barrier.init(count),
            wait=lambda barrier, phase: barrier.wait(phase),
            expect=lambda barrier, size: barrier.arrive(announced=size),
            arrive=lambda barrier, count=1: barrier.arrive(count),
        ),
        "tma": SimpleNamespace(
            async_copy_global_to_shared=_copy,
            async_copy_shared_to_global=_send,
            store_wait=_store_wait,
        ),
        "warpgroup_mma": _multiply,
        "warpgroup_mma_init": lambda x: x,
        "warpgroup_mma_wait": _wait,
        "fence_async_shared": _no_layout,
    }


@contextmanager
def gluon_on_cpu(kernels: Sequence[str]) -> Iterator[None]:
    """Modules named in `kernels` are imported anew, with this in Gluon's place, and forgotten."""
    gluon = "triton.experimental.gluon"
    modules = {
        gluon: {"jit": _jit, "constexpr_function": _jit},
        f"{gluon}.language": _language(),
        f"{gluon}.language.nvidia": {},
        f"{gluon}.language.nvidia.ampere": _ampere(),
        f"{gluon}.language.nvidia.hopper": _hopper(),
        f"{gluon}.nvidia": {},
        f"{gluon}.nvidia.hopper": {"TensorDescriptor": object},
    }
    names = [*kernels, *(name for name in sys.modules if name.startswith(gluon))]
    before = _forget(names)
    for name, content in modules.items():
        sys.modules[name] = ModuleType(name)
        vars(sys.modules[name]).update(content)
    vars(sys.modules[gluon])["language"] = sys.modules[f"{gluon}.language"]
    try:
        yield
    finally:
        _forget([*modules, *kernels])
        sys.modules.update({name: module for name, (module, _) in before.items()})
        for name, (_, attribute) in before.items():
            package, _, leaf = name.rpartition(".")
            setattr(sys.modules[package], leaf, attribute)


def _forget(names: Sequence[str]) -> dict[str, tuple[ModuleType, object]]:
    """Take modules out of sys.modules and out of their packages; what was there, by name."""
    packages = {name: sys.modules.get(name.rpartition(".")[0]) for name in names}
    found = {}
    for name, package in packages.items():
        attribute = vars(package).pop(name.rpartition(".")[2], None) if package else None
        if name in sys.modules:
            found[name] = sys.modules.pop(name), attribute
    return found


class CpuPlan:
    """In a `Plan`'s place: runs a kernel's programs at once, in threads."""

    def launch(self, kernel: Callable, tensors: Sequence, configure: Callable) -> None:
        (programs,), numbers, constants = configure()

        def plain(x):
            if isinstance(x, torch.Tensor):
                return Pointer.to(x)
            return x and Descriptor(x)

        names = kernel.__code__.co_varnames[: kernel.__code__.co_argcount]
        given = [*map(plain, tensors), *numbers]
        given += [constants[name] for name in names[len(given) :]]
        _together([lambda n=n: _as_program(n, programs, kernel, given) for n in range(programs)])
