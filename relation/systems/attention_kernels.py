"""Which kernels of attention or of a Relation operator ran, by their names in a profile."""

import re
from collections.abc import Callable, Sequence

import torch
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

from relation.errors import RunError

# Names of the kernels that each backend must run on a GPU; PyTorch's and cuDNN's carry more.
_ON_GPU = {
    ("mha", "flash"): r"flash_(fwd|bwd)",
    ("mha", "cudnn"): r"cudnn|sdpa",
    ("full", "flash"): r"^(forward|p1|p2_info|repair)_kernel",
    ("linear", "flash"): (
        r"^(prepare|chunk_states|segment_scan|output|information_backward|coordinates_backward|"
        r"weak_(output|information|coordinates|gradients))_kernel"
    ),
}
# On a CPU the operations of PyTorch stand for kernels; what is written in PyTorch has none.
_ON_CPU = {("mha", "flash"): r"scaled_dot_product_flash_attention_for_cpu"}
_OTHERS = r"fmha|efficient_attention|flex_attention|_scaled_dot_product_"
_CUDNN = re.compile(_ON_GPU["mha", "cudnn"])
# Inductor names a kernel after the operations whose inputs and results it moves. Its templates
# (triton_tem_), FlexAttention's among them, do the work themselves.
_MOVER = re.compile(r"triton_(?!tem_)")


def _own(operator: str, backend: str, device: torch.device) -> str | None:
    return (_ON_GPU if device.type == "cuda" else _ON_CPU).get((operator, backend))


def _matches(operator: str, backend: str, device: torch.device, name: str) -> bool:
    own = _own(operator, backend, device)
    if own is None or not re.search(own, name):
        return False
    # cuDNN's kernels have "flash" in their names.
    return (operator, backend) != ("mha", "flash") or not _CUDNN.search(name)


def named_kernels(names: Sequence[str], device: torch.device) -> list[str]:
    """Those of attention or of a Relation operator, in order, each once."""
    patterns = (_ON_GPU if device.type == "cuda" else _ON_CPU).values()
    any_of = re.compile("|".join((*patterns, _OTHERS)))
    return sorted({name for name in names if any_of.search(name) and not _MOVER.match(name)})


def attention_kernels(update: Callable[[], object], device: torch.device) -> list[str]:
    """The names of the attention kernels that ran in an update; on a CPU, PyTorch's operations."""
    on_gpu = device.type == "cuda"
    activity = ProfilerActivity.CUDA if on_gpu else ProfilerActivity.CPU
    # Of the one cycle nothing is cleared; without acc_events PyTorch warns that it would be.
    with profile(activities=[activity], acc_events=True) as found:
        update()
    wanted = DeviceType.CUDA if on_gpu else DeviceType.CPU
    names = [event.key for event in found.key_averages() if event.device_type == wanted]
    return named_kernels(names, device)


def check_kernels(
    operator: str, backend: str, device: torch.device, kernels: Sequence[str]
) -> None:
    """Raise RunError unless a backend's own kernels ran and no other one of attention.

    kernels: as `attention_kernels` gives them. A backend in plain PyTorch must have run none.
    """
    strange = [name for name in kernels if not _matches(operator, backend, device, name)]
    if strange:
        raise RunError(f"{operator} by {backend!r} was asked for, and {strange[0]} ran")
    if not kernels and _own(operator, backend, device) is not None:
        raise RunError(f"{operator} by {backend!r} was asked for, and no kernel of its name ran")
