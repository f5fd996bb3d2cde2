"""The command `generate`: a trained checkpoint continues a prompt, streaming."""

import argparse
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from relation.cli.options import (
    add_campaign_options,
    campaign_results,
    checkpoint_of,
    chosen_run,
    given_checkpoint,
)
from relation.errors import InputError


def add_commands(commands) -> None:
    """Register the command."""
    parser = commands.add_parser(
        "generate",
        help="continue a prompt from a trained checkpoint",
        description=(
            "Prints the prompt and streams its continuation; speed and decode-state bytes go to "
            "standard error. A prompt of <|endoftext|> starts a new document."
        ),
    )
    parser.set_defaults(call=_generate)
    parser.add_argument("target", metavar="SCALE/VARIANT/SEED", nargs="?", help="a trained run")
    parser.add_argument(
        "--checkpoint",
        type=Path,
        help="a model.safetensors in place of a run; takes no option that chooses a campaign",
    )
    parser.add_argument("--tokenizer", type=Path, help="the tokenizer.json of --checkpoint")
    prompt = parser.add_mutually_exclusive_group(required=True)
    prompt.add_argument("--prompt", help="the text to continue")
    prompt.add_argument(
        "--prompt-file",
        help="a UTF-8 file with the text, - for standard input; one final newline is dropped",
    )
    parser.add_argument("--tokens", type=int, default=200, help="at most so many (default: 200)")
    parser.add_argument(
        "--temperature", type=float, default=1.0, help="0 takes the likeliest token (default: 1)"
    )
    parser.add_argument("--top-k", type=int, help="draw among the k likeliest (default: all)")
    parser.add_argument(
        "--top-p",
        type=float,
        default=1.0,
        help="draw among the fewest likeliest that reach this probability (default: 1)",
    )
    parser.add_argument("--seed", type=int, default=0, help="of the draws (default: 0)")
    parser.add_argument("--device", choices=("cpu", "cuda"), help="default: what there is")
    add_campaign_options(parser)


class _Source(NamedTuple):
    checkpoint: Path
    tokenizer: Path
    context: int | None  # tokens it was trained on; a checkpoint alone does not tell


def _source(options: argparse.Namespace) -> _Source:
    """Where the model and its tokenizer lie."""
    if options.checkpoint is not None:
        if options.target is not None or options.tokenizer is None:
            raise InputError("give --checkpoint with --tokenizer, in place of SCALE/VARIANT/SEED")
        return _Source(given_checkpoint(options), options.tokenizer, None)
    if options.target is None or options.tokenizer is not None:
        raise InputError("give SCALE/VARIANT/SEED, or --checkpoint with --tokenizer")
    results = campaign_results(options)
    run = chosen_run(options.target, results.campaign)
    tokenizer = results.data(results.campaign.data[run.data]) / "tokenizer.json"
    return _Source(checkpoint_of(run, results), tokenizer, run.context)


def _prompt(options: argparse.Namespace) -> str:
    """The text to continue. Raises InputError where there is none or it is not UTF-8."""
    try:
        if options.prompt_file is None:
            text = options.prompt
            text.encode("utf-8")
        elif options.prompt_file == "-":
            text = sys.stdin.buffer.read().decode("utf-8").removesuffix("\n")
        else:
            text = Path(options.prompt_file).read_bytes().decode("utf-8").removesuffix("\n")
    except OSError as error:
        raise InputError(f"prompt file {options.prompt_file}: {error.strerror}") from None
    except UnicodeError:
        raise InputError("the prompt is not UTF-8; convert it") from None
    if not text:
        raise InputError("the prompt is empty; give some text to continue")
    return text


def _generate(options: argparse.Namespace) -> None:
    import torch

    from relation.data.splits import END_OF_TEXT
    from relation.data.tokenizer import load_tokenizer
    from relation.machine.devices import claim
    from relation.nn import Execution
    from relation.nn.folding import fold
    from relation.nn.generation import Sampling, generate_tokens, stream_text, why_plain
    from relation.train.checkpoint import load_model

    sampling = Sampling(options.temperature, options.top_k, options.top_p, options.seed)
    text, source = _prompt(options), _source(options)
    on_gpu = torch.cuda.is_available()
    if options.device == "cuda" and not on_gpu:
        raise InputError("--device cuda: PyTorch sees no CUDA GPU here; give --device cpu")
    tokenizer = load_tokenizer(source.tokenizer)
    prompt = tokenizer.encode(text, add_special_tokens=False).ids
    reach = len(prompt) + options.tokens
    with claim(options.device or ("cuda" if on_gpu else "cpu")) as device:
        # On a GPU, PyTorch's flash attention takes no FP32.
        mha = "reference" if device.type == "cuda" else "flash"
        plain = Execution(mha=mha, full="tiled", linear="chunked")
        model = fold(load_model(source.checkpoint, device, plain).eval())
        if model.config.vocab_size != tokenizer.get_vocab_size():
            raise InputError(
                f"{source.checkpoint} has {model.config.vocab_size} tokens and {source.tokenizer} "
                f"{tokenizer.get_vocab_size()}; give the tokenizer that it was trained with"
            )
        if device.type == "cuda":
            reason = why_plain(model, device, torch.float32)
            if reason is None:
                model.run_by(Execution(mha=mha, full="flash", linear="flash"))
            else:
                print(f"warning: plain PyTorch decodes, as {reason}", file=sys.stderr)
        state = model.decode_state()
        stop = tokenizer.token_to_id(END_OF_TEXT)
        tokens = generate_tokens(model, prompt, options.tokens, sampling, stop, state)
        if source.context is not None and reach > source.context:
            print(
                f"warning: up to {reach:,} tokens go beyond the {source.context:,} of the training "
                "context",
                file=sys.stderr,
            )
        drawn = []

        def noted() -> Iterable[int]:
            for token in tokens:
                drawn.append(token)
                yield token

        # A model's text may hold characters that the terminal's encoding lacks.
        sys.stdout.reconfigure(errors="replace")
        began = time.perf_counter()
        print(text, end="", flush=True)
        for piece in stream_text(tokenizer, noted()):
            print(piece, end="", flush=True)
        print(flush=True)
        seconds = time.perf_counter() - began
    ended = ", ended by the model" if len(drawn) < options.tokens else ""
    print(
        f"{len(drawn):,} tokens{ended}, {len(drawn) / seconds:,.0f} tok/s with the prompt's "
        f"{len(prompt):,} read; decode state {state.nbytes:,} bytes after {state.length:,} tokens",
        file=sys.stderr,
    )
