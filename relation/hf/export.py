"""Export a trained run as a folder that transformers loads."""

import tempfile
from pathlib import Path

import pandas as pd
import torch
from transformers import PreTrainedTokenizerFast

from relation import records
from relation.data.tokenizer import END_OF_TEXT, load_tokenizer
from relation.errors import InputError
from relation.hf.modeling import RelationForCausalLM
from relation.jobs import Run
from relation.train.checkpoint import load_model


def export(run: Run, checkpoint: Path, tokenizer: Path, folder: Path) -> None:
    """Write the config, weights, tokenizer and model card of a run's checkpoint to a new folder.

    Raises InputError if `folder` exists or the run diverged. After any error there is no folder,
    never an incomplete one.
    """
    if folder.exists():
        raise InputError(f"{folder} exists already; name a new folder")
    folder.parent.mkdir(parents=True, exist_ok=True)
    words = PreTrainedTokenizerFast(
        tokenizer_object=load_tokenizer(tokenizer),
        **dict.fromkeys(("bos_token", "eos_token", "pad_token"), END_OF_TEXT),
        padding_side="left",
        model_input_names=["input_ids", "attention_mask"],
        model_max_length=run.context,
        clean_up_tokenization_spaces=False,
    )
    special = dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id"), words.eos_token_id)
    row = records.read(checkpoint.with_name("run.parquet"), "runs").iloc[0]
    if pd.isna(row["final_nll"]):
        raise InputError(f"{run.name} diverged: there is no model to export")
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}-") as temporary:
        unfinished = Path(temporary) / folder.name
        model = load_model(checkpoint, torch.device("cpu"))
        RelationForCausalLM.of(model, **special).save_pretrained(unfinished)
        words.save_pretrained(unfinished)
        card = Path(__file__).with_name("card.md").read_text(encoding="utf-8")
        (unfinished / "README.md").write_text(card.format(run=run, **row), encoding="utf-8")
        for path in unfinished.glob("*.safetensors"):  # safetensors lets only the owner read them
            path.chmod((unfinished / "README.md").stat().st_mode)
        unfinished.rename(folder)
