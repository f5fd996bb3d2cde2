"""The command line: what Snakemake's rules call, and what a person asks of a campaign.

Rules give --config, the resolved configuration that they were planned with, and --hash, that of the
job; a job whose specification has another hash is refused. By hand, choices of config.yaml can be
given as KEY=VALUE. Heavy packages are imported by the command that needs them.
"""

import argparse
import os
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from relation.config import CONFIG, parsed, reference
from relation.errors import InputError, RelationError
from relation.plan import WHY_UNMEASURED, Campaign, Run, load
from relation.variants import parameters

if TYPE_CHECKING:
    import pandas as pd

RUN = "SCALE/VARIATION/VARIANT/SEED"
Options = argparse.Namespace


def _campaign(options: Options) -> Campaign:
    """The campaign that --config and the choices name."""
    choices = {}
    for choice in options.choices:
        key, equals, value = choice.partition("=")
        if not equals:
            raise InputError(f"{choice!r} is no choice; give KEY=VALUE as in config.yaml")
        choices[key] = value if key in ("vary", "campaign", "corpus") else parsed(value)
    return load(options.config, **choices)


def _same(options: Options, found: str, what: str) -> None:
    """Refuse a job whose specification is not the one that its rule was planned with."""
    if options.hash not in (None, found):
        raise InputError(
            f"{what}: its specification is {found}, planned was {options.hash}: the configuration "
            "or the code of the plan changed meanwhile; start snakemake again"
        )


def _settle(runs_per_gpu: int = 1) -> None:
    """One thread, as the number decides the order of sums, and a share of a GPU."""
    import torch

    from relation import machine

    torch.set_num_threads(1)
    machine.RUNS_PER_GPU = runs_per_gpu


def _made(options: Options, path: Path) -> None:
    if options.hash is None:
        print(path)


def _data(campaign: Campaign, run: Run) -> Path:
    """The prepared corpus of a run. Raises InputError unless it is there, of this specification."""
    from relation import records

    folder = campaign.folder / "data" / run.data.name
    if set(records.read(folder / "data.parquet", "data")["hash"]) != {run.data.hash}:
        raise InputError(
            f"{folder} holds other texts or settings than {run.name} is planned with; run snakemake"
        )
    return folder


def _checkpoint(campaign: Campaign, run: Run) -> Path:
    """The checkpoint of a run. Raises InputError unless it is there, of this specification."""
    from relation import records

    folder = campaign.folder / "runs" / run.name
    path, record = folder / "model.safetensors", folder / "run.parquet"
    if not (path.exists() and record.exists()):
        raise InputError(
            f"run {run.name} has no {path}; make it with `snakemake --cores all --config "
            f"campaign={campaign.name} published=false -- {path}`"
        )
    if (found := set(records.read(record, "runs")["hash"])) != {run.hash}:
        raise InputError(f"{path} was trained as {found.pop()}, now planned is {run.hash}")
    return path


# The jobs of the rules.


def _prepare(options: Options) -> None:
    from relation.data.corpus import prepare

    campaign = _campaign(options)
    data = campaign.data.get(options.target)
    if data is None:
        raise InputError(
            f"campaign {campaign.name} has no data {options.target!r}; choose among "
            f"{', '.join(campaign.data)}"
        )
    _same(options, data.hash, f"data {data.name}")
    prepare(data, campaign.folder / "data" / data.name)
    _made(options, campaign.folder / "data" / data.name)


def _train(options: Options) -> None:
    campaign = _campaign(options)
    run = campaign.run(options.target)
    _same(options, run.hash, f"run {run.name}")
    if options.processes > 1 and "TORCHELASTIC_RUN_ID" not in os.environ:
        _under_torchrun(options.processes)
        return
    from relation.train.run import train

    _settle(campaign.runs_per_gpu)
    out = campaign.folder / "runs" / run.name
    train(run, _data(campaign, run), out, campaign.folder / "work")
    if os.environ.get("RANK", "0") == "0":
        _made(options, out / "run.parquet")


def _under_torchrun(processes: int) -> None:
    """Start this very command as torchrun does. Raises SystemExit where a process failed.

    The first process that failed has said why, so torchrun's own account is left out.
    """
    import logging
    import tempfile

    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.run import parse_args, run

    logging.getLogger("torch.distributed.elastic").setLevel(logging.CRITICAL)
    with tempfile.TemporaryDirectory(prefix="torchrun-") as logs:
        # --local-addr: some machines cannot resolve their own name.
        where = ["--standalone", "--local-addr", "127.0.0.1", "--nproc-per-node", str(processes)]
        try:
            run(parse_args([*where, "--log-dir", logs, "-m", "relation", *sys.argv[1:]]))
        except (ChildFailedError, SignalException):
            raise SystemExit(2) from None


def _diagnose(options: Options) -> None:
    from relation.flow.diagnose import diagnose

    campaign = _campaign(options)
    run = campaign.run(options.target)
    _same(options, run.flow_hash, f"diagnostics of {run.name}")
    _settle(campaign.runs_per_gpu)
    out = campaign.folder / "flow" / run.name
    diagnose(run, _data(campaign, run), _checkpoint(campaign, run), out)
    _made(options, out)


def _length(options: Options) -> None:
    from relation.beyond.length import measure

    campaign = _campaign(options)
    run = campaign.run(options.target)
    if campaign.length is None:
        raise InputError(f"campaign {campaign.name} has no section `length`")
    _same(options, campaign.length.hash(run), f"long texts of {run.name}")
    _settle(campaign.runs_per_gpu)
    out = campaign.folder / "length" / run.name
    measure(run, _data(campaign, run), _checkpoint(campaign, run), out, campaign.length)
    _made(options, out)


def _recall(options: Options) -> None:
    from relation.beyond.recall import run

    campaign = _campaign(options)
    recall = campaign.recall_of(options.target)
    _same(options, recall.hash, f"recall of {recall.mixer}")
    _settle(campaign.runs_per_gpu)
    out = campaign.folder / "recall" / f"{recall.mixer}.parquet"
    run(recall, out)
    _made(options, out)


def _bench(options: Options) -> None:
    from importlib import import_module

    benchmark, _, scale = options.target.partition("/")
    campaign = _campaign(options)
    bench = campaign.bench(benchmark, scale)
    _same(options, bench.hash, f"benchmark {options.target}")
    _settle()
    own = benchmark if benchmark in ("complexity", "decode") else "steps"
    out = campaign.folder / "bench" / benchmark / f"{scale}.parquet"
    data = [campaign.folder / "data" / name for name in campaign.read_by(benchmark, scale)]
    import_module(f"relation.bench.{own}").measure(bench, out, *data)
    _made(options, out)


def _check(options: Options) -> None:
    from relation import check

    campaign = _campaign(options)
    if campaign.check is None:
        raise InputError(f"campaign {campaign.name} has no checks; set `check: true`")
    _same(options, campaign.check.hash, "check")
    _settle()
    out = campaign.folder / "check"
    check.operators(campaign, out / "operators.parquet")
    check.gradients(campaign, out / "gradients.parquet")
    _made(options, out)


def _models(campaign: Campaign) -> "pd.DataFrame":
    """A row a scale and variant: the geometry, and its parameters."""
    import pandas as pd

    first = {(run.scale, run.variation, run.variant): run for run in reversed(campaign.planned)}
    rows = []
    for run in reversed(first.values()):
        geometry = ("layers", "layout", "d_model", "heads", "head_dim", "d_ff")
        schedule = ("context", "micro", "accumulation", "budget_tokens")
        row = {n: getattr(run, n) for n in ("campaign", "scale", "variation", "variant", *schedule)}
        row |= {name: getattr(run.model, name) for name in geometry}
        row |= {"parameters": parameters(run.model), "vocab": run.model.vocab_size}
        rows.append(row | {"data_title": run.data.title})
    return pd.DataFrame(rows)


def _collect(options: Options) -> None:
    """Join the campaign's records, those that were made here before those that are shipped."""
    import pandas as pd

    from relation import records

    campaign = _campaign(options)
    _same(options, campaign.hash, f"campaign {campaign.name}")
    folder, shipped = campaign.folder, records.RESULTS / "published" / campaign.name
    records.collect(folder, campaign.files(records.published_hashes))
    origin = records.origin(campaign.hash, "meta")
    records.write(folder / "models.parquet", "models", _models(campaign), origin)
    planned = campaign.hashes()
    for kind in records.FILES:
        made, path = folder / f"{kind}.parquet", shipped / f"{kind}.parquet"
        parts = [records.read([made] if made.exists() else [], kind)]
        if campaign.published and path.exists():
            rows = records.read(path, kind)
            parts.append(rows[rows["hash"].isin(planned - set(parts[0]["hash"]))])
        records.write(made, kind, pd.concat([p for p in parts if len(p)] or parts[:1]))
    campaign.write_settings(folder / "campaign.json")


def _report(options: Options) -> None:
    from report import site

    campaign = load({"campaign": options.of}) if options.published else _campaign(options)
    out = Path("results/published/report") if options.published else campaign.folder / "report"
    site.build(campaign, out, published=options.published)
    if options.hash is None:
        print(out / "index.html")


# What a person asks.


def _todo(campaign: Campaign) -> dict[str, str]:
    """The files that are still to be made, with their hashes."""
    from relation import records

    found = campaign.files(records.published_hashes)
    there = {}
    for path, planned in found.items():
        file = campaign.folder / path
        kind = next(kind for kind, pattern in records.FILES.items() if Path(path).match(pattern))
        there[path] = file.exists() and set(records.read(file, kind)["hash"]) <= {planned}
    return {path: planned for path, planned in found.items() if not there[path]}


def _plan(options: Options) -> None:
    from relation import records

    campaign = _campaign(options)
    todo = _todo(campaign)
    runs = [run for run in campaign.runs if f"runs/{run.name}/run.parquet" in todo]
    jobs = Counter(path.split("/")[0] for path in todo if not path.endswith(_BESIDE))
    print(f"{campaign.title}: {campaign.description}")
    for scale, variant in dict.fromkeys((run.scale, run.variant) for run in campaign.runs):
        models = (r.model for r in campaign.runs if (r.scale, r.variant) == (scale, variant))
        print(f"  {scale} {variant}: {parameters(next(models)):,} parameters")
    done = records.published_hashes("runs", campaign.name) if campaign.published else ()
    shipped = [run for run in campaign.runs if run.hash in done]
    print(f"{len(campaign.runs)} runs are chosen; {len(shipped)} of them are shipped.")
    if lacking := campaign.unmeasured(records.published_hashes):
        print(f"{len(lacking)} of these have no flow or lengths, each because {WHY_UNMEASURED}.")
    if not todo:
        return print("Nothing is to be made but the report.")
    names = {"runs": "train", "flow": "diagnose", "data": "prepare"}
    print("To be made:", ", ".join(f"{n} {names.get(job, job)}" for job, n in jobs.items()))
    hours: Counter = Counter()
    for run in runs:
        speed = campaign.expected_tokens_per_second[run.scale]
        hours[f"{run.scale}/{run.variation}"] += run.budget_tokens / speed / 3600
    print(*(f"  {name}: {value:,.2f} h of training" for name, value in hours.items()), sep="\n")
    unit = "GPU" if campaign.device == "cuda" else "core"
    disk = sum(4 * parameters(run.model) for run in runs) / 2**30  # FP32
    print(f"Training takes some {sum(hours.values()):,.2f} h of one {unit} at expected speeds.")
    print(f"Checkpoints take {disk:,.1f} GiB of disk.")
    for run in runs if options.runs else ():
        print(run.name, run.hash)


_BESIDE = tuple(f"{name}.parquet" for name in ("losses", "probes", "curves", "maps", "gradients"))


def _status(options: Options) -> None:
    from relation import records

    campaign = _campaign(options)
    shipped = records.published_hashes("runs", campaign.name) if campaign.published else ()
    counts, unmeasured = Counter(), campaign.unmeasured(records.published_hashes)
    for run in campaign.runs:
        folder = campaign.folder / "runs" / run.name
        log = campaign.folder / "logs" / "train" / f"{run.name}.log"
        record, said = folder / "run.parquet", _last_line(log)
        if run.hash in shipped:
            state = "shipped"
            said = f"no flow or lengths: {WHY_UNMEASURED}" if run in unmeasured else ""
        elif record.exists() and set(records.read(record, "runs")["hash"]) == {run.hash}:
            nll = records.read(record, "runs")["final_nll"].iloc[0]
            state, said = "done", f"final NLL {nll:.4f} nat/token"
        elif said.startswith("error:"):
            state = "failed"
        elif (campaign.folder / "work" / f"{run.hash}.safetensors").exists() or said:
            state = "begun"
        else:
            state, said = "waiting", ""
        counts[state] += 1
        print(f"{run.name:<44} {state:<8} {said}".rstrip())
    print(f"{campaign.title}: " + ", ".join(f"{n} {state}" for state, n in counts.items()))


def _last_line(log: Path) -> str:
    lines = log.read_text(errors="replace").replace("\r", "\n").split("\n") if log.exists() else []
    return next((line.strip() for line in reversed(lines) if line.strip()), "")


def _publish(options: Options) -> None:
    from relation import records

    campaign = _campaign(options)
    print(*records.publish(campaign.name), sep="\n")


def _generate(options: Options) -> None:
    import torch

    from relation import machine
    from relation.data.tokenizer import END_OF_TEXT, load_tokenizer
    from relation.nn.generate import Sampling, generate_tokens, stream_text
    from relation.train.checkpoint import load_model

    campaign = _campaign(options)
    run = campaign.run(options.target)
    checkpoint = _checkpoint(campaign, run)
    tokenizer = load_tokenizer(_data(campaign, run) / "tokenizer.json")
    sampling = Sampling(options.temperature, options.top_k, options.top_p, options.seed)
    prompt = tokenizer.encode(options.prompt, add_special_tokens=False).ids
    with machine.claim("cuda" if torch.cuda.is_available() else "cpu") as device:
        model = load_model(checkpoint, device).eval()
        stop = tokenizer.token_to_id(END_OF_TEXT)
        tokens = generate_tokens(model, prompt, options.tokens, sampling, stop)
        print(options.prompt, end="", flush=True)
        for piece in stream_text(tokenizer, tokens):
            print(piece, end="", flush=True)
    print()


def _export(options: Options) -> None:
    try:
        from relation.hf.export import export
    except ImportError as error:
        raise InputError(str(error).partition("\n")[0]) from None
    campaign = _campaign(options)
    run = campaign.run(options.target)
    tokenizer = _data(campaign, run) / "tokenizer.json"
    export(run, _checkpoint(campaign, run), tokenizer, options.folder)
    print(options.folder)


def _config(options: Options) -> None:
    print(reference())


class _Parser(argparse.ArgumentParser):
    """Tells a wrong call as every other bad input, in one line. Abbreviations are rejected."""

    def __init__(self, **options) -> None:
        super().__init__(**{"allow_abbrev": False, **options})

    def error(self, message: str) -> NoReturn:
        raise InputError(f"{message}; see {self.prog} --help")


def build_parser() -> argparse.ArgumentParser:
    """The parser of all commands."""
    parser = _Parser(prog="python -m relation", description=__doc__.split("\n")[0])
    commands = parser.add_subparsers(metavar="COMMAND", required=True)

    def add(name: str, call: Callable, help: str, target: str | None = None):
        command = commands.add_parser(name, help=help, description=f"{help[0].upper()}{help[1:]}.")
        command.set_defaults(call=call)
        if target is not None:
            command.add_argument("target", metavar=target)
        command.add_argument("--config", type=Path, default=CONFIG, help="default: config.yaml")
        command.add_argument("--hash", help="given by Snakemake: the job's, or it is refused")
        command.add_argument(
            "choices", nargs="*", metavar="KEY=VALUE", help="choices of config.yaml"
        )
        return command

    plan = add("plan", _plan, "what a campaign computes, and what of it is still to be made")
    plan.add_argument("--runs", action="store_true", help="list the runs with their hashes")
    add("status", _status, "how far each run of a campaign is")
    add("config", _config, "print the reference of the keys of the configuration")
    add("prepare", _prepare, "tokenise one corpus", "CORPUS-VOCABULARY")
    train = add("train", _train, "train one run, or go on with a killed one", RUN)
    train.add_argument("--processes", type=int, default=1, help="a GPU each, under torchrun")
    add("diagnose", _diagnose, "measure the flow of a run's checkpoint", RUN)
    add("length", _length, "read texts longer than a run was trained on", RUN)
    add("recall", _recall, "train one mixer on associative recall", "MIXER")
    bench = add("bench", _bench, "run one benchmark", "BENCHMARK/SCALE")
    bench.epilog = "`bench operators --help`: compare operators of any shape."
    add("check", _check, "check operators and gradients against FP64")
    add("collect", _collect, "join the records of a campaign's jobs, one file a kind")
    report = add("report", _report, "write the report of a campaign, or of what is shipped")
    report.add_argument("--published", action="store_true", help="of results/published")
    report.add_argument("--of", default="books", help="whose columns that shows (default: books)")
    add("publish", _publish, "merge a campaign's records into results/published")
    generate = add("generate", _generate, "continue a prompt from a run's checkpoint", RUN)
    generate.add_argument("--prompt", required=True, help="<|endoftext|> begins a new document")
    generate.add_argument("--tokens", type=int, default=200, help="at most so many (200)")
    generate.add_argument("--temperature", type=float, default=1.0, help="0: the likeliest (1)")
    generate.add_argument("--top-k", type=int, help="draw among the k likeliest (all)")
    generate.add_argument("--top-p", type=float, default=1.0, help="or the fewest that reach it")
    generate.add_argument("--seed", type=int, default=0, help="of the draws (0)")
    export = add("export", _export, "write a run as a folder for transformers", RUN)
    export.add_argument("--folder", type=Path, required=True, help="one that is not there yet")
    return parser


def main(arguments: list[str] | None = None) -> int:
    """Run one command and return the exit status.

    2 for an error that one line explains; as a shell counts signals, 130 for Ctrl-C and 141 for a
    reader of standard output that went away.
    """
    try:
        try:
            arguments = sys.argv[1:] if arguments is None else arguments
            if arguments[:2] == ["bench", "operators"]:
                from relation.bench import operators

                operators.main(arguments[2:])
                return 0
            parser = build_parser()
            options, further = parser.parse_known_args(arguments)
            options.choices += further  # choices may also follow an option
            if unknown := [each for each in further if each.startswith("-")]:
                parser.error(f"unrecognized arguments: {' '.join(unknown)}")
            options.call(options)
        finally:
            sys.stdout.flush()
    except RelationError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(file=sys.stderr)
        return 130
    except BrokenPipeError:
        # The interpreter flushes standard output once more as it exits.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        reason = error.strerror or str(error).partition("\n")[0]
        print(f"error: {where}{reason}; mend that and run the same command again", file=sys.stderr)
        return 2
    except ModuleNotFoundError as error:
        name = (error.name or "").partition(".")[0]
        if name in ("", "relation", "report"):
            raise
        print(f"error: {name} is not installed; `make setup` installs all", file=sys.stderr)
        return 2
    return 0
