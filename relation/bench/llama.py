"""The peer in transformers: a Llama of a model's shape, compiled, with a static cache."""

import importlib.util
from collections.abc import Callable

import torch

from relation.nn.sampling import Sampling, Uniforms, draw
from relation.variants import ModelConfig

_WARM_TOKENS = 3


def why_unavailable(device: torch.device) -> str | None:
    """The reason why the peer cannot be measured on `device`, or None."""
    if importlib.util.find_spec("transformers") is None:
        return "transformers is not installed; pip install transformers"
    return None if device.type == "cuda" else f"it needs a GPU, and this device is {device}"


def build(
    shape: ModelConfig,
    batch: int,
    context: int,
    places: int,
    dtype: torch.dtype,
    device: torch.device,
) -> tuple:
    """The model and its static cache of so many places, `context` of them random tokens."""
    # Imported on use: an optional package, and large.
    from transformers import LlamaConfig, LlamaForCausalLM, StaticCache

    config = LlamaConfig(
        vocab_size=shape.vocab_size,
        hidden_size=shape.d_model,
        intermediate_size=shape.d_ff,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        max_position_embeddings=places,
        tie_word_embeddings=True,
    )
    model = LlamaForCausalLM(config).to(device, dtype).eval()
    cache = StaticCache(config=config, max_cache_len=places)
    cache.early_initialization(batch, shape.heads, shape.head_dim, dtype, device)
    for layer in cache.layers:
        layer.keys.normal_()
        layer.values.normal_()
        layer.cumulative_length.fill_(context)
    return model, cache


def tokens(
    shape: ModelConfig,
    batch: int,
    context: int,
    places: int,
    dtype: torch.dtype,
    device: torch.device,
) -> tuple[Callable[[], None], Callable[[], None]]:
    """Runs a token of the batch, compiled, its sampling and all in one CUDA graph; goes back."""
    torch.compiler.reset()
    model, cache = build(shape, batch, context, places, dtype, device)
    forward = torch.compile(model, dynamic=False)
    ids = torch.zeros(batch, 1, dtype=torch.int64, device=device)
    numbers = Uniforms(0, batch).next()[0].to(device)
    heard = torch.empty(batch, 1, dtype=torch.int64, pin_memory=True)

    @torch.no_grad()
    def step() -> None:
        logits = forward(ids, past_key_values=cache, use_cache=True).logits[:, -1]
        ids.copy_(draw(logits.float(), numbers, Sampling())[:, None])

    side = torch.cuda.Stream(device)
    side.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(side):
        for _ in range(_WARM_TOKENS):
            step()
    torch.cuda.current_stream(device).wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()

    def rewind() -> None:
        for layer in cache.layers:
            layer.cumulative_length.fill_(context)

    rewind()
    event = torch.cuda.Event()

    def replayed() -> None:
        heard.copy_(ids, non_blocking=True)
        event.record()
        graph.replay()
        event.synchronize()

    return replayed, rewind
