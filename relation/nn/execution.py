"""How a model is executed: which backend runs each operator. It never changes what is computed."""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from relation.kernels.flash_relation import WIDEST
from relation.ops import get_backend
from relation.variants import MIXERS, ModelConfig


@dataclass(frozen=True)
class Execution:
    """Backend names by operator, as listed in `relation.ops.BACKENDS`.

    `compiled` says that the model will be traced by torch.compile, which then steps around the
    backends that are marked eager.
    """

    mha: str = "reference"
    full: str = "reference"
    linear: str = "recurrent"
    compiled: bool = False

    def calls(
        self, config: ModelConfig, device: torch.device | None = None
    ) -> dict[str, Callable[..., torch.Tensor]]:
        """The function of each operator that the model uses.

        Raises InputError for an unknown backend or, given a device, for one it cannot run.
        """
        calls = {}
        for operator in sorted({MIXERS[letter] for letter in config.layout}):
            backend = get_backend(operator, getattr(self, operator), device)
            around = self.compiled and backend.eager
            calls[operator] = torch.compiler.disable(backend.call) if around else backend.call
        return calls

    def check(self, config: ModelConfig, device: torch.device) -> None:
        """Raise InputError where the device cannot run a backend that the model uses."""
        self.calls(config, device)


class ByDevice(Execution):
    """The backends for models and layers whose user names none: by where their inputs lie.

    On CUDA the Triton kernels; for heads wider than they take FlexAttention, or chunks of matrix
    products for Linear Relation. Elsewhere plain PyTorch in memory linear in T. MHA runs PyTorch's
    FlashAttention, in FP32 on CUDA the materialised one.
    """

    def calls(
        self, config: ModelConfig, device: torch.device | None = None
    ) -> dict[str, Callable[..., torch.Tensor]]:
        """As `Execution.calls`; a backend that does not take its inputs says so when called."""
        fits = config.head_dim <= WIDEST
        names = {
            "mha": ("flash", "flash"),
            "full": ("flash" if fits else "flex", "tiled"),
            "linear": ("flash" if fits else "chunked", "chunked"),
        }
        return {
            operator: _ByDevice.of(operator, *names[operator])
            for operator in sorted({MIXERS[letter] for letter in config.layout})
        }


@dataclass(frozen=True)
class _ByDevice:
    """An operator by the device of what it is given; on CUDA also by whether that has 16 bits.

    Not a closure: a model that is saved whole, or sent to another process, is pickled with it.
    """

    of_16_bits: Callable[..., torch.Tensor]
    wide: Callable[..., torch.Tensor]
    elsewhere: Callable[..., torch.Tensor]

    @classmethod
    def of(cls, operator: str, on_cuda: str, elsewhere: str) -> "_ByDevice":
        there, here = get_backend(operator, on_cuda).call, get_backend(operator, elsewhere).call
        wide = get_backend(operator, "reference").call if operator == "mha" else there
        return cls(there, wide, here)

    def __call__(self, first: torch.Tensor, *inputs, **options):
        if not first.is_cuda:
            return self.elsewhere(first, *inputs, **options)
        narrow = first.dtype in (torch.bfloat16, torch.float16)
        return (self.of_16_bits if narrow else self.wide)(first, *inputs, **options)
