"""Decoding beside the forward pass on the same tokens: how far logits lie off, which tokens differ.

Teacher-forced: every token decoded is given, so that one that differs changes none after it. The
truth is the forward in FP64; decoding may be off it by twice what the forward of its own precision
is, by RMS and by the largest logit, and a little of the truth's size more.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from relation.bench.prompts import execution, model_of
from relation.nn import Decoder, Execution
from relation.nn.generation import read_prompts
from relation.nn.prepared import Places, Prepared, why_plain
from relation.variants import ModelConfig
from relation.verify.inputs import DTYPES

# Rows, tokens read as a prompt, tokens decoded after them, by kind of device.
SHAPES = {"cuda": (8, 512, 128), "cpu": (2, 12, 8)}
_SLACK = {"fp32": 1e-5, "bf16": 1e-3, "fp16": 1e-3}


def _rms(x: Tensor) -> float:
    return x.square().mean().sqrt().item()


def _largest(x: Tensor) -> float:
    return x.abs().max().item()


def _next_token(
    model: Decoder, prompts: Tensor, places: int, dtype: torch.dtype
) -> Callable[[Tensor], Tensor]:
    """What gives logits (B, V) of the ids (B,) after prompts (B, n), as generation does."""
    device, state = prompts.device, model.decode_state(places)
    if why_plain(model, device, dtype) is not None:
        model.read(prompts, state)
        return lambda ids: model.decode(ids[:, None], state)[:, -1]
    prepared = Prepared(model, dtype)
    read_prompts(model, prepared, prompts, state)
    lengths = torch.full((len(prompts),), state.length, dtype=torch.int32, device=device)
    at = Places(lengths, torch.ones_like(lengths), model.rope_tables(places, device))

    def token(ids: Tensor) -> Tensor:
        logits = prepared.token(ids, state, at)
        lengths.add_(1)
        return logits

    return token


@torch.no_grad()
def agreement(config: ModelConfig, precision: str, device: torch.device) -> dict:
    """The columns of a row of agreement; status is WRONG where decoding is beyond its bound."""
    batch, read, decoded = SHAPES[device.type]
    dtype, whole = DTYPES[precision], read + decoded
    model = model_of(config, execution(dtype, device), device).eval()
    generator = torch.Generator().manual_seed(1)
    tokens = torch.randint(config.vocab_size, (batch, whole), generator=generator).to(device)

    definition = Decoder(config, Execution(full="tiled", linear="chunked")).to(device).double()
    definition.load_state_dict(model.state_dict())
    truth = definition(tokens)[:, read:]
    with torch.autocast(device.type, dtype, enabled=dtype != torch.float32):
        forward = model(tokens)[:, read:].double()
        token = _next_token(model, tokens[:, :read], whole, dtype)
        steps = [token(ids) for ids in tokens[:, read:].unbind(1)]
    found = torch.stack(steps, 1).double()

    beyond = [
        f"its {name} error is {size(found - truth):.2g}, the forward's {size(forward - truth):.2g}"
        for name, size in (("RMS", _rms), ("largest", _largest))
        if not size(found - truth) <= 2 * size(forward - truth) + _SLACK[precision] * size(truth)
    ]
    chosen, usual, right = (logits.argmax(-1) for logits in (found, forward, truth))
    return {
        "context": read,
        "batch": batch,
        "status": "WRONG" if beyond else "PASS",
        "reason": "; ".join(beyond) or None,
        "compared_tokens": batch * decoded,
        "logit_error": _rms(found - truth) / _rms(truth),
        "forward_error": _rms(forward - truth) / _rms(truth),
        "greedy_differs": (chosen != usual).sum().item(),
        "forward_differs": (usual != right).sum().item(),
    }
