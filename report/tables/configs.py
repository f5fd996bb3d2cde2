"""Geometry, data and budget of the models, in the paper's notation: Table 6."""

from collections.abc import Callable, Mapping
from typing import Any

import pandas as pd

from relation.variants import PAIRED
from report.data import rounded
from report.table import Cells, cell, table

Model = Mapping[str, Any]


# The appendix's format; Table 2 adds a letter after the layers.
SHAPE = "{layers}/{d_model}/{heads}x{head_dim}/{d_ff}"


def vocabulary(model: Model) -> str:
    """Format the vocabulary's size: 4K for 4,096, in full if it is no multiple of 1,024."""
    size = int(model["vocab"])
    return f"{size // 1024}K" if size % 1024 == 0 else str(size)


def tokens(model: Model) -> str:
    """Format the training budget with at most four significant digits: 150M, 1.071B, 98.3K."""
    return rounded(int(model["budget_tokens"]), 4)


def micro_ga(model: Model) -> str:
    """Format sequences per micro-batch / micro-batches per update."""
    return f"{model['micro']:.0f}/{model['accumulation']:.0f}"


def model_cells(models: pd.DataFrame, wordings: Mapping[str, Callable[[Model], str]]) -> Cells:
    """Yield texts and the context of each scale, from Relation's model or, without it, MHA's."""
    pairs = models[models["variant"].isin(PAIRED)].sort_values("variant")  # full before mha
    for scale, scale_models in pairs.groupby("scale", sort=False):
        model = scale_models.iloc[0]
        for column, wording in wordings.items():
            yield cell(scale, column, text=wording(model), of=scale_models[:1])
        yield cell(scale, "context", float(model["context"]), of=scale_models[:1])


@table("6", "app-configs", "Model configurations")
def configurations(models: pd.DataFrame) -> Cells:
    """Decoder configurations. We count parameters from the configuration. In the paper, an update
    takes 131,072 tokens at every scale."""
    wordings = {"geometry": SHAPE.format_map, "vocab": vocabulary, "tokens": tokens}
    yield from model_cells(models, wordings | {"data": "{data_title}".format_map})
    for (scale, variant), rows in models.groupby(["scale", "variant"], sort=False):
        if variant in PAIRED:
            yield cell(scale, f"params.{variant}", float(rows["parameters"].iloc[0]), of=rows)
            yield cell(scale, f"micro_ga.{variant}", text=micro_ga(rows.iloc[0]), of=rows)
