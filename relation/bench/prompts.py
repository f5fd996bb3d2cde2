"""Reading a prompt, as generation does, beside training's forward pass of as many tokens."""

from collections.abc import Callable

import torch

from relation.nn import Decoder, Execution
from relation.nn.folding import fold
from relation.nn.generation import read_prompts
from relation.nn.prepared import Prepared, why_plain
from relation.train.loss import summed_nll
from relation.variants import ModelConfig


def execution(dtype: torch.dtype, device: torch.device, compiled: bool = False) -> Execution:
    """The backends of training, that prompts are read by too.

    On a GPU PyTorch's FlashAttention takes no FP32: MHA then runs its definition.
    """
    if device.type != "cuda":
        return Execution(mha="flash", full="tiled", linear="chunked", compiled=compiled)
    mha = "reference" if dtype == torch.float32 else "flash"
    return Execution(mha=mha, full="flash", linear="flash", compiled=compiled)


def model_of(config: ModelConfig, run_by: Execution, device: torch.device) -> Decoder:
    """A model of random weights, the same for one configuration each time."""
    model = Decoder(config, run_by)
    model.initialise(seed=0)
    return model.to(device)


def _drawn(config: ModelConfig, batch: int, length: int, device: torch.device) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randint(config.vocab_size, (batch, length), generator=generator).to(device)


def reading(
    config: ModelConfig, context: int, batch: int, dtype: torch.dtype, device: torch.device
) -> Callable[[], object]:
    """Reads a prompt of `context` random tokens a row into a new state; logits of the last."""
    model = model_of(config, execution(dtype, device), device).eval()
    prepared = None if why_plain(model, device, dtype) else Prepared(model, dtype)
    model = fold(model)
    tokens = _drawn(config, batch, context, device)

    def read() -> None:
        with torch.autocast(device.type, dtype, enabled=dtype != torch.float32):
            read_prompts(model, prepared, tokens, model.decode_state(context))

    return read


def forward(
    config: ModelConfig, context: int, batch: int, dtype: torch.dtype, device: torch.device
) -> Callable[[], object]:
    """Training's forward pass of as many tokens: it keeps what a backward needs.

    On a GPU compiled, as training compiles it; its kernels are launched one by one.
    """
    on_gpu = device.type == "cuda"
    model = model_of(config, execution(dtype, device, on_gpu), device)
    tokens = _drawn(config, batch, context + 1, device)
    inputs, targets = tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
    # What was compiled for another model is not taken for this one.
    torch.compiler.reset()
    loss = torch.compile(summed_nll, dynamic=False) if on_gpu else summed_nll

    def passed() -> None:
        with torch.autocast(device.type, dtype, enabled=dtype != torch.float32):
            loss(model, inputs, targets)

    return passed
