"""The inventory of a campaign's models: parameters counted on the built model, without memory."""

from pathlib import Path

import torch

from relation.nn.decoder import Decoder
from relation.pipeline.campaign import Campaign
from relation.pipeline.origin import origin
from relation.pipeline.uses import uses_of_models
from relation.spec import RunSpec
from relation.store.layouts import MODELS
from relation.store.parquet import write_parquet
from relation.variants import ModelConfig


def count_parameters(config: ModelConfig) -> int:
    """Trained scalars of a model, read off the module built on PyTorch's meta device."""
    with torch.device("meta"):
        return Decoder(config).parameter_count()


def inventory_row(run: RunSpec, data_title: str) -> dict:
    """One row of models.parquet for the model that a run trains."""
    config = run.model_config()
    return {
        "scale": run.scale,
        "variant": run.variant,
        "parameters": count_parameters(config),
        "layers": config.layers,
        "layout": config.layout,
        "d_model": config.d_model,
        "heads": config.heads,
        "head_dim": config.head_dim,
        "d_ff": config.d_ff,
        "vocab": config.vocab_size,
        "context": run.context,
        "micro": run.micro,
        "accumulation": run.accumulation,
        "budget_tokens": run.budget_tokens,
        "data_title": data_title,
    }


def write_inventory(campaign: Campaign, path: Path) -> None:
    """Write models.parquet: a row a scale and variant of the whole campaign."""
    rows = [inventory_row(run, title) for run, title in campaign.inventory()]
    uses = uses_of_models(run for run, _ in campaign.inventory())
    written = origin(campaign.name, campaign.inventory_hash, "models", "meta", uses)
    write_parquet(path, MODELS, rows, written)
