"""Commands that run one job of the DAG; each calls one importable function.

Snakemake's rules call them with --config results/<campaign>/campaign.json, the configuration that
the workflow was started with, and --expect, the hash the job was planned with. By hand they read
config.yaml.
"""

import argparse
import logging
import os
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from relation.cli.options import (
    CHOICES,
    add_command,
    add_expect,
    add_threads,
    campaign_results,
    check_expected,
    checkpoint_of,
    chosen_run,
    count,
    set_threads,
    sharing_of,
    whole_results,
)
from relation.errors import InputError, RunError
from relation.pipeline.hashes import code_hash
from relation.pipeline.jobs import DONE
from relation.pipeline.ledger import Ledger
from relation.pipeline.origin import stamp
from relation.pipeline.places import (
    GRADIENTS_FILE,
    MODELS_FILE,
    READINGS,
    VERIFICATION_FILE,
    examination_paths,
    recall_path,
    run_path,
    systems_path,
)
from relation.pipeline.results import Results
from relation.pipeline.uses import uses_of
from relation.spec import Spec, SystemsSpec
from relation.store.parquet import read_parquet
from relation.store.stamp import Stamp


def add_commands(commands) -> None:
    """Register the commands."""
    run = "SCALE/VARIANT/SEED"
    prepare = add_command(
        commands,
        "prepare",
        _prepare,
        "tokenise one corpus",
        "Trains a tokenizer on a corpus and writes it, with the tokens of both splits, to "
        "results/CAMPAIGN/data/DATASET/.",
        "corpus",
        target="DATASET",
    )
    train = add_command(
        commands,
        "train",
        _train,
        "train one run, or go on with a killed one",
        "Trains one run, or goes on with a killed one, and writes its checkpoint, record, log and "
        f"probes to results/CAMPAIGN/runs/{run}/. Of a reading, its name stands for SCALE and the "
        "folder is results/CAMPAIGN/readings/READING/VARIANT/SEED/.",
        "corpus",
        "published",
        target=run,
    )
    train.add_argument(
        "--processes",
        type=count,
        default=1,
        metavar="N",
        help="share each update among so many processes, a GPU each, under torchrun",
    )
    train.add_argument(
        "--nodes",
        type=count,
        default=1,
        metavar="N",
        help="as many of the processes on each of so many nodes; give the command on every node",
    )
    train.add_argument(
        "--rendezvous",
        metavar="HOST:PORT",
        help="where the nodes meet: a free port of the first; srun's tasks need none",
    )
    train.add_argument(
        "--tensorboard", action="store_true", help="log to results/CAMPAIGN/tensorboard too"
    )
    examine = add_command(
        commands,
        "examine",
        _examine,
        "what a run's checkpoint does beyond the paper",
        "Measures copying, long texts and the use of Self on a run's checkpoint, prints them and "
        f"writes records to results/CAMPAIGN/beyond/{run}/.",
        target=run,
    )
    measure = add_command(
        commands,
        "measure",
        _measure,
        "run one systems benchmark",
        "Measures one systems benchmark at one scale and writes "
        "results/CAMPAIGN/systems/BENCHMARK/SCALE.parquet.",
        "published",
        target="BENCHMARK/SCALE",
    )
    recall = add_command(
        commands,
        "recall",
        _recall,
        "train one mixer on associative recall",
        "Trains one mixer on associative recall, prints the share of queries answered and writes "
        "results/CAMPAIGN/recall/MIXER.parquet.",
        "published",
        target="MIXER",
    )
    verify = add_command(
        commands,
        "verify",
        _verify,
        "check the operators against their definitions on this device",
        "Checks the campaign's operators against their definitions in FP64, prints the largest "
        f"errors and writes results/CAMPAIGN/{VERIFICATION_FILE}.",
    )
    gradients = add_command(
        commands,
        "verify-gradients",
        _verify_gradients,
        "check the training step's gradients against FP64",
        "Checks the gradients of a training step against FP64 and writes "
        f"results/CAMPAIGN/{GRADIENTS_FILE}.",
    )
    inventory = add_command(
        commands,
        "inventory",
        _inventory,
        "count the parameters of a campaign's models",
        "Counts the parameters of all the campaign's models, as `params` prints them, and writes "
        f"results/CAMPAIGN/{MODELS_FILE}.",
        "corpus",
    )
    add_command(
        commands,
        "collect",
        _collect,
        "gather the records of the readings, a file a kind",
        "Gathers the records of the readings' runs and writes one Parquet a kind to "
        f"results/CAMPAIGN/{READINGS}/.",
        *CHOICES,
    )
    for parser in (prepare, train, measure, recall):
        parser.add_argument("--again", action="store_true", help="also where it is done")
    for parser in (train, examine, measure, recall, verify, gradients):
        add_threads(parser)
    for parser in (prepare, train, examine, measure, recall, verify, gradients, inventory):
        add_expect(parser)


def _stamped(options: argparse.Namespace, stage: str, spec: Spec, what: str) -> Stamp:
    """The stamp of the job of a specification, which is what its rule was planned with."""
    check_expected(options.expect, spec.job_hash, what)
    return stamp(stage, uses_of(spec))


def _is_done(options: argparse.Namespace, results: Results, rule: str, spec: Spec) -> bool:
    """Whether a job that somebody calls by hand is done, which is then said.

    A rule's call is never refused: Snakemake has decided that its job is made again.
    """
    if options.expect is not None or options.again:
        return False
    ledger = Ledger(results)
    job = getattr(ledger, rule)(spec)
    if ledger.state(job).name != DONE:
        return False
    print(f"{options.target} is done: {job.paths[0]}; --again makes it again")
    return True


def _made(options: argparse.Namespace, result: str, record: Path) -> None:
    """Say what a job that was called by hand has come to, and where its record is."""
    if options.expect is None:
        print(f"{options.target}: {result}\n{record}")


def _prepare(options: argparse.Namespace) -> None:
    from relation.data.prepare import prepare
    from relation.pipeline.preflight import make_chosen_corpus

    results = campaign_results(options)
    campaign = results.campaign
    make_chosen_corpus(campaign)
    spec = campaign.data.get(options.target)
    if spec is None:
        raise InputError(
            f"campaign {campaign.name} has no data set {options.target!r}; "
            f"choose among {', '.join(campaign.data)}"
        )
    stamped = _stamped(options, "data", spec, spec.name)
    if _is_done(options, results, "prepare", spec):
        return
    work = results.folder / "work" / spec.name
    output = results.data(spec)
    prepare(spec, output, work, campaign.name, stamped)
    _made(options, "tokenised", output / "data.parquet")


def _train_under_torchrun(started: list[str]) -> None:
    """Start this very command as torchrun does, by its options `started`.

    Raises RunError where the nodes do not meet, SystemExit where the processes failed or were
    stopped: the first of them has said why.
    """
    # PyTorch's C++ and torchrun say less of a failure than the run's line, at greater length.
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.elastic.rendezvous import RendezvousError
    from torch.distributed.run import parse_args, run

    logging.getLogger("torch.distributed.elastic").setLevel(logging.CRITICAL)
    with TemporaryDirectory(prefix="torchrun-") as logs:
        try:
            run(parse_args([*started, "--log-dir", logs, "-m", "relation", *sys.argv[1:]]))
        except (ChildFailedError, SignalException):
            raise SystemExit(2) from None
        except RendezvousError as error:
            # torchrun makes a folder for each start of its processes.
            if any(Path(logs).glob("*/attempt_*")):
                raise SystemExit(2) from None
            raise RunError(
                f"the nodes did not meet ({error}); see that each runs the command and reaches the "
                "first one, and run it again on all of them"
            ) from None


def _train(options: argparse.Namespace) -> None:
    results = campaign_results(options)
    campaign = results.campaign
    spec = chosen_run(options.target, campaign)
    stamped = _stamped(options, "training", spec, spec.name)
    among_others = "TORCHELASTIC_RUN_ID" in os.environ
    if not among_others and _is_done(options, results, "train", spec):
        return
    if max(options.processes, options.nodes) > 1 and not among_others:
        from relation.train.launch import torchrun_options

        where = options.processes, options.nodes, options.rendezvous
        _train_under_torchrun(torchrun_options(*where, spec.name))
        return

    from relation.flow.probe import FlowProbe
    from relation.train.probes import ValidationProbe
    from relation.train.run import train

    set_threads(options)
    data = results.data(campaign.data[spec.data])
    wanted = options.tensorboard or campaign.tensorboard
    events = results.folder / "tensorboard" / spec.name if wanted else None
    looks = campaign.diagnostics
    sampling = campaign.diagnostics_spec(spec, looks["probe_sequences"])
    vocabulary, code = spec.model_config().vocab_size, code_hash("probe", uses_of(spec))
    probes = (
        FlowProbe(sampling, looks["probes"], data, vocabulary, code),
        ValidationProbe(looks["validations"], looks["validation_tokens"], data, spec),
    )
    output, resume = results.folder / run_path(spec), results.folder / "resume"
    start = None
    if spec.start is not None:
        start = checkpoint_of(campaign.run(spec.scale, "mha", spec.seed), results)
    sharing = sharing_of(campaign, spec)
    train(spec, data, output, resume, events, probes, sharing, stamped, start)
    if os.environ.get("RANK", "0") == "0":
        record = output / "record.parquet"
        loss = read_parquet(record).column("final_nll")[0].as_py()
        _made(options, f"final NLL {loss:.4f} nat/token on the validation text", record)


def _examine(options: argparse.Namespace) -> None:
    from relation.probes.examine import examine

    set_threads(options)
    results = campaign_results(options)
    campaign = results.campaign
    run = chosen_run(options.target, campaign)
    spec = campaign.examination_spec(run)
    check_expected(options.expect, spec.job_hash, f"examination of {run.name}")
    checkpoint = checkpoint_of(run, results)
    outputs = {name: results.folder / file for name, file in examination_paths(run).items()}
    data, stamped = results.data(campaign.data[run.data]), stamp("examination", uses_of(run))
    examine(spec, run, checkpoint, data, outputs, stamped)
    if options.expect is None:  # a rule's job is for its records alone
        from relation.cli.examined import print_examination

        print_examination(outputs)


def measure_benchmark(
    spec: SystemsSpec, data: Path | None, output: Path, stamped: Stamp
) -> list[dict]:
    """Measure a systems benchmark; returns its rows. data: the prepared corpus, if it is there."""
    if spec.stage == "decode":
        from relation.bench import decode

        return decode.measure(spec, output, stamped)
    from relation.bench.campaign import measure

    return measure(spec, data, output, stamp=stamped)


def _measure(options: argparse.Namespace) -> None:
    from relation.bench import start_server, wait_for_server

    start_server()  # imports PyTorch while this process does
    set_threads(options)
    results = campaign_results(options)
    benchmark, _, scale = options.target.partition("/")
    spec = results.campaign.benchmark(benchmark, scale)
    stamped = _stamped(options, spec.stage, spec, f"benchmark {options.target}")
    if _is_done(options, results, "measure", spec):
        return
    data = results.data(results.campaign.data_of_scale(scale))
    wait_for_server()
    output = results.folder / systems_path(spec)
    rows = measure_benchmark(spec, data, output, stamped)
    reasons = dict.fromkeys(f"{row['status']}: {row['reason']}" for row in rows if row["reason"])
    _made(options, "\n".join([f"{len(rows)} measurements", *reasons]), output)


def _recall(options: argparse.Namespace) -> None:
    from relation.probes.recall.run import recall

    set_threads(options)
    results = campaign_results(options)
    spec = results.campaign.recall_of(options.target)
    stamped = _stamped(options, "recall", spec, f"recall {options.target}")
    if _is_done(options, results, "recall", spec):
        return
    output = results.folder / recall_path(spec)
    recall(spec, output, sharing_of(results.campaign), stamped)
    rows = read_parquet(output).to_pylist()
    chosen = [row for row in rows if row["chosen"]]
    shares = []
    for width in dict.fromkeys(row["width"] for row in chosen):
        found = [(row["right"], row["queries"]) for row in chosen if row["width"] == width]
        right, queries = map(sum, zip(*found, strict=True))
        shares.append(f"{100 * right / queries:.1f}% at d = {width}")
    told = f"queries answered at the chosen rates: {', '.join(shares)}"
    _made(options, told if shares else rows[0]["reason"], output)


def _verify(options: argparse.Namespace) -> None:
    from relation.verify.operators import verify

    set_threads(options)
    results = campaign_results(options)
    spec = results.campaign.verification
    stamped = _stamped(options, "verification", spec, "verification")
    output = results.folder / VERIFICATION_FILE
    verify(spec, output, stamped)
    if options.expect is None:  # of a rule's job the report's ledger judges the record
        from relation.cli.verified import print_verification

        print_verification(output)


def _verify_gradients(options: argparse.Namespace) -> None:
    from relation.verify.gradients import verify_gradients

    set_threads(options)
    results = campaign_results(options)
    spec = results.campaign.gradients
    stamped = _stamped(options, "gradients", spec, "gradients")
    output = results.folder / GRADIENTS_FILE
    verify_gradients(spec, output, stamped)
    if options.expect is None:
        print(f"every gradient is within its bound\n{output}")


def _inventory(options: argparse.Namespace) -> None:
    from relation.pipeline.inventory import write_inventory

    results = whole_results(options)
    write_inventory(results.campaign, results.models)
    if options.expect is None:
        print(results.models)


def _collect(options: argparse.Namespace) -> None:
    from relation.pipeline.gather import collect

    for path in collect(campaign_results(options)):
        print(path)
