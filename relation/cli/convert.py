"""The command `convert`: a trained MHA run as a Full Relation model, to go on from."""

import argparse
from pathlib import Path

from relation.cli.options import (
    add_campaign_options,
    campaign_results,
    checkpoint_of,
    chosen_run,
)
from relation.errors import InputError


def add_commands(commands) -> None:
    """Register the command."""
    parser = commands.add_parser(
        "convert",
        help="make a Full Relation model from a trained MHA run",
        description=(
            "Q, K, V and O become W_1, W_2, W_I and W_O, the mixing angles are 0, and lambda is "
            "what gives the lowest loss on the first training windows of the run's order. Writes "
            "a checkpoint to FILE, which `generate --checkpoint` takes."
        ),
    )
    parser.set_defaults(call=_convert)
    parser.add_argument("target", metavar="SCALE/VARIANT/SEED", help="a trained run with MHA")
    parser.add_argument("file", metavar="FILE", type=Path, help="the new model.safetensors")
    parser.add_argument("--device", choices=("cpu", "cuda"), help="default: what there is")
    add_campaign_options(parser)


def _convert(options: argparse.Namespace) -> None:
    import torch

    from relation.data.mask import DocumentMask
    from relation.data.tokens import data_rows, open_prepared
    from relation.data.windows import TrainingWindows
    from relation.machine.devices import claim
    from relation.nn import Decoder, Execution
    from relation.nn.conversion import full_config, start_from_attention
    from relation.train.checkpoint import load_model, save_model
    from relation.train.convert import SearchWindows

    results = campaign_results(options)
    run, file = chosen_run(options.target, results.campaign), options.file
    checkpoint = checkpoint_of(run, results)
    if file.exists():
        raise InputError(f"{file} is there already; name a file that is not")
    config = full_config(run.model_config())
    data = results.data(results.campaign.data[run.data])
    mask = DocumentMask.of(run.document_mask, data)
    row = data_rows(data)["train"]
    tokens = open_prepared(data, "train", row["sha256"])
    on_gpu = torch.cuda.is_available()
    with claim(options.device or ("cuda" if on_gpu else "cpu")) as device:
        windows = TrainingWindows(tokens, run.context, run.seed)
        # The definition of MHA and plain PyTorch in memory linear in T: exact in FP32 everywhere.
        execution = Execution(full="tiled", linear="chunked")
        search = SearchWindows(run, windows, device, mask)
        attention = load_model(checkpoint, device, execution)
        model = Decoder(config, execution).to(device)
        start_from_attention(model, attention)
        before, after = search.fit(model)
        print(f"NLL on {search.tokens:,} training tokens, nat/token:")
        print(f"  {search.nll(attention):.4f}  {run.name}")
        print(f"  {before:.4f}  Full Relation, lambda {config.lambda_init} in every layer")
        print(f"  {after:.4f}  Full Relation, lambda as chosen")
    chosen = {n: p.item() for n, p in model.named_parameters() if n.endswith(".lam")}
    print(f"lambda by layer: {', '.join(f'{value:.3f}' for value in chosen.values())}")
    file.parent.mkdir(parents=True, exist_ok=True)
    save_model(model, file, {"start": run.config_hash})
    print(f"{file}: {run.name} of campaign {results.campaign.name}, converted")
