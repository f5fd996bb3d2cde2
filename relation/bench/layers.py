"""Relation layers in a training loop of plain PyTorch, beside attention in the same loop.

The loop is `relation.bench.decoder`'s plain one, the ordinary way to train such a model, with fused
AdamW and without CUDA graphs; the layer takes the place of attention. Compiled and eager are a
benchmark each, so that each has ratios of its own.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from torch import nn

from relation.bench.decoder import MakeMixer, PlainAttention, PlainStep, plain_attention
from relation.bench.peers import Benchmark, Side
from relation.bench.steps import Setup
from relation.nn.layers import FullRelation, LinearRelation
from relation.variants import ModelConfig


def full_layer(config: ModelConfig, layer_index: int) -> nn.Module:
    """`FullRelation` as a user puts it into a model: its backend is chosen by the device."""
    return FullRelation(config.d_model, config.heads, tau=config.tau, layer_index=layer_index)


def linear_layer(config: ModelConfig, layer_index: int) -> nn.Module:
    """`LinearRelation` in the same way."""
    return LinearRelation(config.d_model, config.heads, tau=config.tau, layer_index=layer_index)


def chosen_attention(config: ModelConfig, layer_index: int) -> nn.Module:
    """Attention whose kernel `scaled_dot_product_attention` chooses."""
    return PlainAttention(config.d_model, config.heads, forced=False)


def _eager(setup: Setup, mixer: MakeMixer) -> PlainStep:
    return PlainStep(replace(setup, compile=False), mixer)


def _benchmark(how: str, build: Callable[[Setup, MakeMixer], PlainStep]) -> Benchmark:
    def side(name: str, variant: str, mixer: MakeMixer) -> Side:
        # The names of backends belong to the project's own step, which is not built here.
        return Side(name, variant, {}, build=partial(build, mixer=mixer))

    return Benchmark(
        title=f"Layers in a training loop of plain PyTorch, {how}",
        subject="full-relation",
        steps={
            "matched": (
                side("full-relation", "full", full_layer),
                side("linear-relation", "linear", linear_layer),
                side("flash-attention-2", "mha", plain_attention),
                side("sdpa", "mha", chosen_attention),
            )
        },
    )


_COMPILED = _benchmark("compiled where the campaign's models are", PlainStep)
_EAGER = _benchmark("eager", _eager)
# By kind of device; on a CPU the layers run plain PyTorch, and attention what PyTorch has.
BENCHMARKS = {"cuda": _COMPILED, "cpu": _COMPILED}
EAGER_BENCHMARKS = {"cuda": _EAGER, "cpu": _EAGER}
