"""The flows of a model as it runs, whatever backends execute it."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

from torch import Tensor, nn

from relation.nn import Decoder


@contextmanager
def flows_read(model: Decoder, read: Callable[[int, Tensor], None]) -> Iterator[None]:
    """Call `read(layer, flow)` with the flow (B, H, T, T), FP32, of what each layer is given.

    As in Appendix B.5: of Q and K for MHA, the actual F for Full Relation. Linear Relation forms no
    token-to-token flow; its layers are left out.
    """
    hooks = [
        block.mixer.register_forward_pre_hook(partial(_give, read, layer))
        for layer, block in enumerate(model.blocks)
        if hasattr(block.mixer, "flow")
    ]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _give(read: Callable[[int, Tensor], None], layer: int, mixer: nn.Module, inputs: tuple) -> None:
    x, _, rope, _, documents = inputs
    read(layer, mixer.flow(x, rope, documents))
