"""Plan, run and report a campaign. Snakemake's rules call the same commands.

A rule passes --config, the resolved configuration of its plan, and --hash, the hash of its job. A
job whose specification has another hash is refused. By hand, choices of config.yaml can be given
as KEY=VALUE. Only the commands that need PyTorch import it.
"""

import argparse
import os
import re
import sys
from argparse import Namespace
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

from relation import records
from relation.config import CONFIG, parsed, reference
from relation.errors import OUT_OF_MEMORY, InputError, RelationError, check_among
from relation.plan import Campaign, Run, load, snakemake_command
from relation.variants import parameter_count

RUN = "SCALE/VARIATION/VARIANT/SEED"


def _campaign(options: Namespace) -> Campaign:
    """The campaign that --config and the choices select; `books` for `report --published`."""
    if getattr(options, "published", False):
        if options.choices or options.config != CONFIG:
            raise InputError("--published takes no choices: it reports all that is shipped")
        return load({"campaign": "books"})
    choices = {}
    for choice in options.choices:
        key, _, value = choice.partition("=")
        if not value:
            raise InputError(
                f"{choice!r} is not a choice; give KEY=VALUE as in config.yaml, after the job"
            )
        choices[key] = value if key in ("vary", "campaign", "corpus") else parsed(value)
    return load(options.config, **choices)


def _check_hash(options: Namespace, hash: str, job: str) -> None:
    """Raise InputError if a job's specification is not the one that its rule was planned with."""
    if options.hash not in (None, hash):
        raise InputError(
            f"{job}: the specification's hash is {hash}, planned was {options.hash}; the "
            "configuration, texts or planning code have changed since then; start snakemake again"
        )
    records.commit()  # cached now: the records must name the code that runs, not a later commit


def _begin(options: Namespace, hash: str, job: str) -> None:
    """Check the hash. Use one thread, because the number of threads changes rounding."""
    import torch

    _check_hash(options, hash, job)
    torch.set_num_threads(1)


def _check_found(*runs: Run) -> None:
    """Raise InputError if a text is missing whose content is part of the runs' hashes."""
    for data in {run.data.name: run.data for run in runs}.values():
        if data.path is not None and data.fingerprint is None and not Path(data.path).exists():
            raise InputError(f"corpus {data.path} does not exist; restore it or correct its path")


def _join(campaign: Campaign) -> None:
    """Join the records of all jobs that are made into the campaign's files."""
    _check_found(*campaign.runs)
    shipped = campaign.hashes() if campaign.published else ()
    records.collect(campaign.folder, campaign.files(), shipped)


def _data(campaign: Campaign, run: Run) -> Path:
    """A run's data folder. Raises InputError if it is missing or has another specification."""
    _check_found(run)
    folder = campaign.folder / "data" / run.data.name
    if set(records.read(folder / "data.parquet", "data")["hash"]) != {run.data.hash}:
        raise InputError(f"{folder} holds other texts or settings than {run.name}; run snakemake")
    return folder


def _checkpoint(campaign: Campaign, run: Run) -> Path:
    """A run's checkpoint. Raises InputError if it is missing or has another specification."""
    _check_found(run)
    folder = campaign.folder / "runs" / run.name
    path, record = folder / "model.safetensors", folder / "run.parquet"
    if not (path.exists() and record.exists()):
        choices = campaign.choices() | {"published": "false"}
        made_by = snakemake_command(choices, target=str(path))
        raise InputError(f"run {run.name} has no {path}; make it with `{made_by}`")
    from relation.train.checkpoint import trained_as

    if {trained_as(path)} | set(records.read(record, "runs")["hash"]) != {run.hash}:
        raise InputError(f"{path} was not trained as {run.hash}, the planned run; train it again")
    return path


# The rules' jobs. `_run` prints what a command returns, unless Snakemake called it.


def _prepare(campaign: Campaign, options: Namespace) -> Path:
    from relation.data.corpus import prepare

    problem = f"campaign {campaign.name} has no data {options.target!r}"
    check_among(options.target, campaign.data, problem)
    data = campaign.data[options.target]
    _check_hash(options, data.hash, f"data {data.name}")
    out = campaign.folder / "data" / data.name
    prepare(data, out)
    return out


def _train(campaign: Campaign, options: Namespace) -> Path | None:
    run = campaign.run(options.target)
    _begin(options, run.hash, f"run {run.name}")
    data = _data(campaign, run)
    launched = "TORCHELASTIC_RUN_ID" in os.environ  # by torchrun
    if options.processes != 1 and not launched:
        from relation.train.distributed import check_processes, claimed_gpus

        check_processes(run, options.processes)
        with claimed_gpus(run, options.processes):
            return _under_torchrun(options.processes)
    from relation.train.run import train

    leads = not launched or os.environ["RANK"] == "0"
    if leads:  # `status` finds the hash of the log's run in this line
        print(f"{run.name}: training, specification {run.hash}", file=sys.stderr)
    out = campaign.folder / "runs" / run.name
    train(run, data, out, campaign.folder / "work", campaign.runs_per_gpu)
    return out / "run.parquet" if leads else None


def _under_torchrun(processes: int) -> None:
    """Run this same command under torchrun. Raises SystemExit if a process fails.

    A failed process prints its own error, so torchrun's report is hidden. A killed process cannot
    print one, so this function does.
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
        launch = ["--standalone", "--local-addr", "127.0.0.1", "--nproc-per-node", str(processes)]
        try:
            run(parse_args([*launch, "--log-dir", logs, "-m", "relation", *sys.argv[1:]]))
        except (ChildFailedError, SignalException) as error:
            first = error.get_first_failure()[1] if isinstance(error, ChildFailedError) else None
            if first is not None and first.exitcode < 0:  # minus the signal that killed it
                print("error: a process was killed; run the same command again", file=sys.stderr)
            raise SystemExit(2) from None


def _diagnose(campaign: Campaign, options: Namespace) -> Path:
    from relation.flow.diagnose import diagnose

    run = campaign.run(options.target)
    _begin(options, run.flow_hash, f"diagnostics of {run.name}")
    out = campaign.folder / "flow" / run.name
    diagnose(run, _data(campaign, run), _checkpoint(campaign, run), out, campaign.runs_per_gpu)
    return out


def _length(campaign: Campaign, options: Namespace) -> Path:
    from relation.beyond.length import measure

    run = campaign.run(options.target)
    if campaign.length is None:
        raise InputError(f"campaign {campaign.name} has no section `length`; add one to its file")
    _begin(options, campaign.length.hash(run), f"long texts of {run.name}")
    out = campaign.folder / "length" / run.name
    data, checkpoint = _data(campaign, run), _checkpoint(campaign, run)
    measure(run, data, checkpoint, out, campaign.length, campaign.runs_per_gpu)
    return out


def _recall(campaign: Campaign, options: Namespace) -> Path:
    from relation.beyond.recall import run

    recall = campaign.recall_of(options.target)
    _begin(options, recall.hash, f"recall of {recall.mixer}")
    out = campaign.folder / "recall" / f"{recall.mixer}.parquet"
    run(recall, out, campaign.runs_per_gpu)
    return out


def _bench(campaign: Campaign, options: Namespace) -> Path:
    from importlib import import_module

    benchmark, _, scale = options.target.partition("/")
    bench = campaign.bench(benchmark, scale)
    _begin(options, bench.hash, f"benchmark {options.target}")
    out = campaign.folder / "bench" / benchmark / f"{scale}.parquet"
    data = [campaign.folder / "data" / name for name in campaign.corpora_of(bench)]
    import_module(f"relation.bench.{bench.kind}").measure(bench, out, *data)
    return out


def _check(campaign: Campaign, options: Namespace) -> str:
    from relation import check

    if campaign.check is None:
        raise InputError(f"campaign {campaign.name} has no checks; set `check: true`")
    _begin(options, campaign.check.hash, "check")
    out, made = campaign.folder / "check", {"operators": "checks", "gradients": "gradients"}
    check.operators(campaign.check, out / "operators.parquet")
    check.gradients(campaign.check, out / "gradients.parquet")
    rows = [records.read(out / f"{name}.parquet", kind) for name, kind in made.items()]
    within = sum((each["error"] <= each["allowed"]).sum() for each in rows)
    return f"{within} of {sum(map(len, rows))} errors are as small as allowed: {out}"


def _collect(campaign: Campaign, options: Namespace) -> None:
    _check_hash(options, campaign.hash, f"campaign {campaign.name}")
    _join(campaign)


def _report(campaign: Campaign, options: Namespace) -> Path:
    from report import site

    folder = records.PUBLISHED if options.published else campaign.folder
    if not options.published:
        _join(campaign)
    site.build(campaign, folder / "report", published=options.published)
    return folder / "report" / "index.html"


# Commands for users.


def _duration(hours: float) -> str:
    if hours < 1 / 60:
        return f"{3600 * hours:.0f} s"
    return f"{hours:,.2f} h" if hours >= 0.1 else f"{60 * hours:.1f} min"


def _plan(campaign: Campaign, options: Namespace) -> None:
    from relation.data.corpus import check_texts

    # The chosen runs, and how many of them are shipped.
    print(f"{campaign.title}: {campaign.description}")
    models = {}
    for run in campaign.runs:
        models.setdefault((run.scale, run.variant), run.model)
    for (scale, variant), model in models.items():
        print(f"  {scale} {variant}: {parameter_count(model):,} parameters")
    for data in {(run.data.title, run.data.path): run.data for run in campaign.runs}.values():
        streams = {stream["path"]: stream for stream in (data.source or {}).get("streams", ())}
        print(f"  text: {data.title}, {data.path or ', '.join(streams)}")
    for name in sorted(campaign.variations.keys() - {run.variation for run in campaign.planned}):
        print(f"  variation {name} makes no run: no scale is left, or no run is new")
    shown = list(dict.fromkeys(column.variation for column in campaign.columns))
    if {run.variation for run in campaign.runs} - set(shown):
        print(f"  the report shows only {', '.join(shown)}; `columns` in its file chooses others")
    shipped = [run for run in campaign.runs if run.hash in campaign.shipped()]
    print(f"{len(campaign.runs)} runs are chosen; {len(shipped)} of them are shipped.")

    # The jobs to run, each by the folder of its files, or by its file if others share the folder.
    todo = []
    for path, hash in campaign.files().items():
        if not records.is_made(campaign.folder / path, hash):
            shared = path.startswith(("bench/", "recall/"))
            todo.append(path if shared else path.rpartition("/")[0])
    todo = list(dict.fromkeys(todo))
    if not todo:
        print("Nothing is to be made except the report.")
        return
    jobs = Counter(job.split("/")[0] for job in todo)
    names = {"runs": "train", "flow": "diagnose", "data": "prepare"}
    print("To be made:", ", ".join(f"{n} {names.get(job, job)}" for job, n in jobs.items()))

    # The time and the disk space that they need.
    runs = [run for run in campaign.runs if f"runs/{run.name}" in todo]
    hours, scales = Counter(), campaign.matrix.section.scales
    speeds = {name: scale.expected_tokens_per_second for name, scale in scales.items()}
    for run in runs:
        if speeds[run.scale]:
            hours[f"{run.scale}/{run.variation}"] += run.budget_tokens / speeds[run.scale] / 3600
    lines = [f"  {name}: {_duration(value)} of training" for name, value in hours.items()]
    lines += [f"  {name}: no expected_tokens_per_second set" for name in speeds if not speeds[name]]
    unit = "GPU" if campaign.device == "cuda" else "core"
    disk = sum(4 * parameter_count(run.model) for run in runs) / 2**20  # FP32
    if hours:
        time = _duration(hours.total())
        lines.append(f"Training takes about {time} of one {unit}, and some seconds to start a job.")
    print(*lines, f"Checkpoints take {disk:,.0f} MiB of disk.", sep="\n")
    campaign.tell_replaced(runs)
    # Last, so that the plan is printed even if texts are missing. The error stops `make`.
    for job in todo:
        if job.startswith("data/"):
            check_texts(campaign.data[job.removeprefix("data/")])


def _status(campaign: Campaign, options: Namespace) -> None:
    groups: dict[str, Counter] = {}  # how many runs have each state, by scale/variation
    named, work = [], campaign.folder / "work"
    for run in campaign.runs:
        note = _last_line(campaign.folder / "logs" / "train" / f"{run.name}.log", run.hash)
        if records.is_made(campaign.folder / "runs" / run.name / "run.parquet", run.hash):
            state = "done"
        elif run.hash in campaign.shipped():
            state = "shipped"
        elif records.is_held(work / f"{run.hash}.lock"):
            state = "running"
        elif re.match(r"[\w.]*error\b", note, re.IGNORECASE):  # our line, or a traceback's last
            state = "failed"
        elif note or (work / f"{run.hash}.safetensors").exists():
            state = "stopped"
        else:
            state = "waiting"
        groups.setdefault(f"{run.scale}/{run.variation}", Counter())[state] += 1
        if state in ("failed", "running", "stopped"):
            named.append(f"{state:<8} {run.name:<44} {note}".rstrip())
    total = sum(groups.values(), Counter())
    unfinished = {k: counts for k, counts in groups.items() if counts.keys() - {"shipped", "done"}}
    lines = sorted(named)[:10] + (["..."] if len(named) > 10 else [])
    for name, counts in {**unfinished, f"{campaign.title}, all runs": total}.items():
        lines.append(f"{name}: " + ", ".join(f"{n} {state}" for state, n in counts.items()))
    print(*lines, sep="\n")
    if total["stopped"]:
        print("Start snakemake again: stopped runs resume, or start over without a saved state.")


def _last_line(log: Path, hash: str) -> str:
    """The last line of a run's log; empty if the log belongs to another specification."""
    text = log.read_text(errors="replace") if log.exists() else ""
    return text.strip().splitlines()[-1].strip() if hash in text else ""


def _generate(campaign: Campaign, options: Namespace) -> None:
    import torch
    from tokenizers.decoders import DecodeStream

    from relation import machine
    from relation.data.tokenizer import END_OF_TEXT, load_tokenizer
    from relation.nn.generate import Sampling, generate_tokens
    from relation.train.checkpoint import load_model

    run = campaign.run(options.target)
    checkpoint = _checkpoint(campaign, run)
    tokenizer = load_tokenizer(_data(campaign, run) / "tokenizer.json")
    sampling = Sampling(options.temperature, options.top_k, options.top_p, options.seed)
    prompt = tokenizer.encode(options.prompt, add_special_tokens=False).ids
    with machine.claim("cuda" if torch.cuda.is_available() else "cpu") as device:
        model = load_model(checkpoint, device)
        stop = tokenizer.token_to_id(END_OF_TEXT)
        tokens = generate_tokens(model, prompt, options.tokens, sampling, stop)
        print(options.prompt, end="", flush=True)
        stream = DecodeStream(skip_special_tokens=False)
        for token in tokens:  # a character may take several; the last one's piece completes it
            print(stream.step(tokenizer, token) or "", end="", flush=True)
    print()


def _export(campaign: Campaign, options: Namespace) -> Path:
    try:
        from relation.hf.export import export
    except ImportError as error:
        raise InputError(str(error).partition("\n")[0]) from None
    run = campaign.run(options.target)
    tokenizer = _data(campaign, run) / "tokenizer.json"
    export(run, _checkpoint(campaign, run), tokenizer, options.folder)
    return options.folder


def _publish(campaign: Campaign, options: Namespace) -> str:
    if any(not choice.startswith("campaign=") for choice in options.choices):
        raise InputError("publish takes only campaign=: it publishes the whole campaign")
    _join(campaign)
    return "\n".join(records.publish(campaign.name))


def _config(campaign: None, options: Namespace) -> str:
    return reference()


class _Parser(argparse.ArgumentParser):
    """Reports a wrong call in one line, as InputError. Rejects abbreviated options."""

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
        command.add_argument("--hash", help="set by Snakemake: the job must have this hash")
        command.add_argument(
            "choices", nargs="*", default=[], metavar="KEY=VALUE", help="as in config.yaml: seeds=1"
        )
        return command

    add("plan", _plan, "show what a campaign computes and which jobs remain")
    add("status", _status, "show the progress of a campaign")
    add("config", _config, "print the reference of all configuration keys")
    add("prepare", _prepare, "tokenise one corpus", "CORPUS-VOCABULARY")
    train = add("train", _train, "train one run, or resume a killed one", RUN)
    train.add_argument("--processes", type=int, default=1, help="one per GPU, under torchrun (1)")
    add("diagnose", _diagnose, "measure the flow of a run's checkpoint", RUN)
    add("length", _length, "measure a run's checkpoint on texts longer than its context", RUN)
    add("recall", _recall, "train one mixer on associative recall", "MIXER")
    bench = add("bench", _bench, "run one benchmark", "BENCHMARK/SCALE")
    bench.epilog = "To compare operators of any shape, see `bench operators --help`."
    add("check", _check, "check operators and gradients against FP64")
    add("collect", _collect, "join the records of a campaign's jobs, one file per kind")
    report = add("report", _report, "write the report of a campaign or of results/published")
    report.add_argument("--published", action="store_true", help="report results/published")
    add("publish", _publish, "merge a campaign's records into results/published")
    generate = add("generate", _generate, "continue a prompt with a run's checkpoint", RUN)
    generate.add_argument("--prompt", required=True, help="<|endoftext|> starts a new document")
    generate.add_argument("--tokens", type=int, default=200, help="tokens to write, at most (200)")
    generate.add_argument("--temperature", type=float, default=1.0, help="0: likeliest token (1)")
    generate.add_argument("--top-k", type=int, help="draw from the k likeliest tokens (all)")
    generate.add_argument("--top-p", type=float, default=1.0, help="nucleus sampling threshold (1)")
    generate.add_argument("--seed", type=int, default=0, help="random seed (0)")
    export = add("export", _export, "write a run as a folder that transformers can load", RUN)
    export.add_argument("--folder", type=Path, required=True, help="new folder to write")
    return parser


def _run(arguments: list[str]) -> None:
    """Run one command. Print its result unless Snakemake called it, with --hash."""
    if arguments[:2] == ["bench", "operators"]:
        from relation.bench import operators

        operators.main(arguments[2:])
        return
    parser = build_parser()
    options, further = parser.parse_known_args(arguments)
    options.choices += further  # choices may also follow an option
    if unknown := [argument for argument in further if argument.startswith("-")]:
        parser.error(f"unrecognized arguments: {' '.join(unknown)}")
    campaign = None if options.call is _config else _campaign(options)
    result = options.call(campaign, options)
    if result is not None and options.hash is None:
        print(result)


def main(arguments: list[str] | None = None) -> int:
    """Run one command and return the exit status.

    0: success. 2: an error, told in one line. 128 and a signal's number: 130 Ctrl-C, 141 SIGPIPE.
    """
    try:
        try:
            _run(sys.argv[1:] if arguments is None else arguments)
        finally:
            sys.stdout.flush()
        return 0
    except KeyboardInterrupt:
        print("\ninterrupted: run the same command again to continue", file=sys.stderr)
        return 130
    except BrokenPipeError:
        # The interpreter flushes standard output again at exit, which must not fail.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except RelationError as error:
        message = str(error)
    except OSError as error:
        file = f"{error.filename}: " if error.filename else ""
        reason = error.strerror or str(error).partition("\n")[0]
        message = f"{file}{reason}; fix this and run the same command again"
    except (MemoryError, RuntimeError) as error:
        if not OUT_OF_MEMORY.search(repr(error)):
            raise
        reason = str(error).partition("\n")[0] or "out of memory"
        message = f"{reason}; lower `micro`, or run fewer jobs at once"
    except ModuleNotFoundError as error:
        name = (error.name or "").partition(".")[0]
        if name in ("", "relation", "report"):
            raise
        message = f"{name} is not installed; `make setup` installs every package"
    print(f"error: {message}", file=sys.stderr)
    return 2
