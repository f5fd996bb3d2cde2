"""The command `export`: a trained run as a folder that transformers loads, with a model card."""

import argparse
import json
import tempfile
from pathlib import Path

from relation.cli.options import (
    add_campaign_options,
    campaign_results,
    checkpoint_of,
    chosen_run,
)
from relation.errors import InputError
from relation.pipeline.results import Results
from relation.spec import RunSpec


def add_commands(commands) -> None:
    """Register the command."""
    parser = commands.add_parser(
        "export",
        help="write a trained run as a folder that transformers loads",
        description=(
            "Writes config, weights, tokenizer and a model card whose numbers come from the "
            "campaign's records to DIR. To load it: import relation.hf, then "
            "AutoModelForCausalLM.from_pretrained."
        ),
    )
    parser.set_defaults(call=_export)
    parser.add_argument("target", metavar="SCALE/VARIANT/SEED", help="a trained run")
    parser.add_argument("folder", metavar="DIR", type=Path, help="a folder that is not there yet")
    add_campaign_options(parser, "corpus", "published")


def _export(options: argparse.Namespace) -> None:
    try:
        from relation.hf import RelationForCausalLM
    except ImportError as error:
        raise InputError(str(error)) from None
    results = campaign_results(options)
    run, folder = chosen_run(options.target, results.campaign), options.folder
    if folder.exists():
        raise InputError(f"{folder} is there already; name a folder that is not")
    checkpoint = checkpoint_of(run, results)
    folder.parent.mkdir(parents=True, exist_ok=True)
    # Beside it, so that the folder is whole as soon as it has its name.
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}-") as temporary:
        made = Path(temporary) / folder.name
        _write(run, results, checkpoint, made, RelationForCausalLM)
        made.rename(folder)
    print(f"{folder}: {run.name} of campaign {results.campaign.name}")


def _write(run: RunSpec, results: Results, checkpoint: Path, folder: Path, model: type) -> None:
    import torch

    from relation.data.splits import END_OF_TEXT
    from relation.data.tokenizer import load_tokenizer
    from relation.store.files import write_text
    from relation.train.checkpoint import load_model
    from report.render.card import card
    from report.values.frames import load_records

    campaign = results.campaign
    source = results.data(campaign.data[run.data]) / "tokenizer.json"
    end = load_tokenizer(source).token_to_id(END_OF_TEXT)
    special = dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id"), end)
    decoder = load_model(checkpoint, torch.device("cpu"))
    model.of(decoder, **special).save_pretrained(folder)
    write_text(folder / "tokenizer.json", source.read_text(encoding="utf-8"))
    about = {
        # By the name that every version of transformers knows.
        "tokenizer_class": "PreTrainedTokenizerFast",
        **dict.fromkeys(("bos_token", "eos_token", "pad_token"), END_OF_TEXT),
        "padding_side": "left",
        "model_input_names": ["input_ids", "attention_mask"],
        "model_max_length": run.context,
        "clean_up_tokenization_spaces": False,
    }
    write_text(folder / "tokenizer_config.json", json.dumps(about, indent=2) + "\n")
    records = load_records(campaign, results, partial=True)
    write_text(folder / "README.md", card(run, checkpoint.with_name("record.parquet"), records))
    for path in folder.glob("*.safetensors"):  # which lets nobody but its owner read them
        path.chmod((folder / "README.md").stat().st_mode)
