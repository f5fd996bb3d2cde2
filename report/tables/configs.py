"""Geometry, data and budget of the models, worded as the paper words them: Table 6."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pandas as pd

from relation.variants import PAIRED
from report.table import Cells, cell, table

Model = Mapping[str, Any]


def shape(model: Model) -> str:
    """Layers / d_model / heads x head width / d_ff, as the appendix prints it."""
    widths = f"{model['d_model']}/{model['heads']}x{model['head_dim']}/{model['d_ff']}"
    return f"{model['layers']}/{widths}"


def geometry(model: Model) -> str:
    """The same with a letter for the layers, as Table 2 prints it."""
    return shape(model).replace("/", "L/", 1)


def vocabulary(model: Model) -> str:
    """4K for 4,096; a vocabulary that is no multiple of 1,024 in full."""
    size = int(model["vocab"])
    return f"{size // 1024}K" if size % 1024 == 0 else str(size)


def data_and_vocabulary(model: Model) -> str:
    """Corpus and vocabulary; Table 2 prints the SmolLM corpus by its name alone."""
    return f"{model['data_title'].removesuffix(' corpus')}/{vocabulary(model)}"


def tokens(model: Model) -> str:
    """The training budget with at most four significant digits: 150M, 1.071B, 98.3K."""
    budget = int(model["budget_tokens"])
    for size, letter in ((1e9, "B"), (1e6, "M"), (1e3, "K")):
        if budget >= size:
            return f"{budget / size:.4g}{letter}"
    return str(budget)


def micro_ga(model: Model) -> str:
    """Sequences of a micro-batch / micro-batches of an update."""
    return f"{model['micro']:.0f}/{model['accumulation']:.0f}"


def of_models(
    models: pd.DataFrame, wordings: Mapping[str, Callable[[Model], str]], numbers: Sequence[str]
) -> Cells:
    """Cells a scale: words and numbers of Relation's model, or of MHA's where it has none."""
    both = models[models["variant"].isin(PAIRED)].sort_values("variant")  # full before mha
    for model in both.drop_duplicates("scale").to_dict("records"):
        known = {"sources": (model["source"],)}
        for column, wording in wordings.items():
            yield cell(model["scale"], column, text=wording(model), **known)
        for column in numbers:
            yield cell(model["scale"], column, float(model[column]), **known)


@table("6", "app-configs", "Model configurations")
def configurations(models: pd.DataFrame) -> Cells:
    """Decoder configurations. Our parameters are counted on the built models. An update of the
    paper takes 131,072 tokens at every scale."""
    wordings = {"geometry": shape, "vocab": vocabulary, "tokens": tokens}
    wordings |= {"data": lambda model: str(model["data_title"])}
    yield from of_models(models, wordings, ("context",))
    for model in models[models["variant"].isin(PAIRED)].to_dict("records"):
        row, variant, known = model["scale"], model["variant"], {"sources": (model["source"],)}
        yield cell(row, f"params.{variant}", float(model["parameters"]), **known)
        yield cell(row, f"micro_ga.{variant}", text=micro_ga(model), **known)
