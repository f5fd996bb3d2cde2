"""What must hold before a campaign's first job starts, so that a fault is told at once."""

import json
from collections.abc import Iterable

from relation.config import Campaign
from relation.data.sources import text_files
from relation.errors import InputError
from relation.files import write_text
from relation.results import Results
from relation.training.watch import require_tensorboard


def check(campaign: Campaign, datasets: Iterable[str], needs_gpu: bool) -> None:
    """Raise InputError where a corpus to be prepared, TensorBoard or the jobs' GPU is not there.

    datasets: names of the corpora to be prepared; needs_gpu: whether jobs will use this machine's
    GPU.
    """
    if campaign.tensorboard:
        require_tensorboard()
    for name in datasets:
        spec = campaign.data[name]
        if spec.source["kind"] == "files":
            text_files(spec.path)
    if needs_gpu:
        import torch

        if not torch.cuda.is_available():
            raise InputError(
                f"campaign {campaign.name} trains and measures on a CUDA GPU and PyTorch sees none "
                "here; run it on a machine with one, or choose campaign=smoke"
            )


def write_started_with(campaign: Campaign, results: Results) -> None:
    """Write the configuration that jobs read, results/<campaign>/campaign.json."""
    started_with = {**campaign.settings, "tensorboard": campaign.tensorboard}
    write_text(results.started_with, json.dumps(started_with, indent=2))
