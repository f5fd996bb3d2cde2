# What every stage uses: the campaign, where its results lie, how a job is started, GPU limits.

import re
import sys
import time

from relation.pipeline.hashes import code_hash
from relation.data.sources import corpus_fingerprint
from relation.errors import InputError, RelationError
from relation.pipeline.ledger import Ledger
from relation.pipeline.places import RULES
from relation.pipeline.preflight import (
    check,
    check_corpus,
    check_memory,
    make_chosen_corpus,
    write_started_with,
)
from relation.pipeline.results import chosen_results
from relation.pipeline.summary import Started, report_lines, summary
from relation.spec import canonical_hash
from relation.pipeline.uses import uses_of_report

try:
    RESULTS = chosen_results(config)
    CAMPAIGN = RESULTS.campaign
    if workflow.is_main_process:  # a dry run has no onstart
        make_chosen_corpus(CAMPAIGN)
        check_corpus(CAMPAIGN)
    LEDGER = Ledger(RESULTS)
    if workflow.is_main_process:
        LEDGER.settle()
        check_memory(LEDGER)
    RECORDS = [path.as_posix() for path in LEDGER.record_files()]
except RelationError as error:
    sys.exit(f"error: {error}")

FOLDER = RESULTS.folder.as_posix()
ON_GPU = CAMPAIGN.device == "cuda"
SETTINGS = canonical_hash(CAMPAIGN.settings)
# Whether a queue runs the jobs: Snakemake then limits their number, in place of cores alone.
ON_CLUSTER = workflow.resource_settings.nodes is not None
# How many processes train one run: a GPU each, one where it has a share of a GPU; on a CPU as many
# as are asked for.
PROCESSES = "$(({resources.gpu} > 0 ? {resources.gpu} : 1))" if ON_GPU else "{resources.processes}"

# Where one run spans nodes of a queue, srun starts the command on each: Snakemake itself runs on the
# first. One that fails ends the others.
ON_EACH_NODE = (
    "$([ {resources.nodes} = 1 ] || echo srun --nodes={resources.nodes}"
    " --ntasks={resources.nodes} --ntasks-per-node=1 --kill-on-bad-exit=1)"
)

# Snakemake counts no GPUs: as many jobs run at once as PyTorch sees here, each on its own, unless
# `--resources gpu=1` says otherwise.
if "gpu" not in workflow.global_resources:
    gpus = 1
    if ON_GPU:
        from relation.machine.devices import gpu_count

        gpus = max(1, gpu_count())
    workflow.register_resource("gpu", gpus)
GPUS = workflow.global_resources["gpu"].value
# A job of a reading takes a GPU of a queue whole; here it takes a share.
SHARED_GPU = int(ON_GPU and not ON_CLUSTER)
WHOLE_GPU = int(ON_GPU and ON_CLUSTER)
if "gpu_share" not in workflow.global_resources:
    workflow.register_resource("gpu_share", GPUS * CAMPAIGN.runs_per_gpu)
# A run of the matrix takes a GPU whole unless `runs_per_gpu` was asked for.
OWN_SHARE = SHARED_GPU * CAMPAIGN.matrix_shares
OWN_GPU = int(ON_GPU) - OWN_SHARE

# Jobs read the configuration that this workflow was started with, whatever becomes of config.yaml.
STARTED_WITH = RESULTS.started_with.as_posix()
REPORTED = uses_of_report(run.variant for run in CAMPAIGN.planned_runs)
CHOICE, DRAWN, BESIDE = f"--config {STARTED_WITH}", [], []


include: "shell.smk"


def one_of(names):
    """A pattern of the campaign's own names, so that no rule makes a misspelt file."""
    return "|".join(re.escape(str(name)) for name in dict.fromkeys(names)) or "(?!)"


RUNS = CAMPAIGN.known_runs


wildcard_constraints:
    dataset=one_of(CAMPAIGN.data),
    scale=one_of(CAMPAIGN.scales),
    variant=one_of(run.variant for run in RUNS),
    seed=one_of(run.seed for run in RUNS),
    reading=one_of(run.reading for run in RUNS if run.reading),
    benchmark=one_of(spec.benchmark for spec in CAMPAIGN.planned_systems),
    mixer=one_of(spec.mixer for spec in CAMPAIGN.planned_recall),


def job_of(rule):
    """The job of the ledger that a rule's wildcards name, as a function of them."""
    return lambda wildcards: LEDGER.of_rule(rule, dict(wildcards.items()))


def reads(rule):
    return lambda wildcards: [path.as_posix() for path in job_of(rule)(wildcards).reads]


def spec(rule):
    return lambda wildcards: job_of(rule)(wildcards).spec.job_hash


def writes(rule):
    return {name: f"{FOLDER}/{file}" for name, file in RULES[rule].writes.items()}


def log_of(rule):
    return f"{FOLDER}/logs/{RULES[rule].log}.log"


def code(rule):
    return lambda wildcards: job_of(rule)(wildcards).code


# What the workflow is to run, and since when: it says at last what became of it.
STARTED, BEGAN = [], time.time()


def last_words(ended_well):
    """The last screen: what was made or failed, and where the report is."""
    lines = (*summary(STARTED, BEGAN, ended_well), *report_lines(RESULTS, ended_well))
    print("", *lines, sep="\n", file=sys.stderr)
