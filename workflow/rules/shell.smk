# How a job is started, and where the project lies: seen from the working folder, so that a copied
# project has the same inputs.

import os

from relation.machine import forks

SOURCE = Path(os.path.relpath(PROJECT))

# Without a conda or container environment, jobs run on the interpreter that runs Snakemake.
deployed = workflow.deployment_settings.deployment_method
interpreter = "" if deployed else f"{Path(sys.executable).parent}:"
ENVIRONMENT = (
    f"set -o pipefail; export PATH={interpreter!r}$PATH PYTHONPATH={str(PROJECT)!r}"
    "${{PYTHONPATH:+:$PYTHONPATH}}; "
)
shell.prefix(ENVIRONMENT)

# What most jobs import.
LIBRARIES = (
    "filelock numpy pandas pyarrow.parquet pydantic.type_adapter safetensors.torch torch tqdm yaml"
)
SERVERS = []


def decide_at_once():
    """Decide which job is next when one has ended, and at no other time.

    To keep to --max-jobs-per-timespan, which is for queues, Snakemake 9.27 decides anew once a
    second for every job that has ended: after a hundred jobs a hundred times a second.
    """
    workflow.scheduler.job_rate_limiter = None


def import_once(libraries=LIBRARIES, project=None):
    """Make jobs forks of a process that has imported their libraries; project: as in forks.start.

    One of several threads, as a benchmark, is a process of its own: libraries count threads when
    they are imported.
    """
    try:
        address, server = forks.start(
            libraries.split(), {**os.environ, **forks.ONE_THREAD}, project
        )
    except OSError as error:
        print(f"note: jobs are not forked from a server of imports: {error}", file=sys.stderr)
        return
    SERVERS.append(server)
    fork = (
        f'[ "$OMP_NUM_THREADS" = 1 ] && set -- {forks.python(address)} "$@" || set -- python "$@"'
    )
    shell.prefix(ENVIRONMENT + f'python() {{{{ {fork}; command "$@"; }}}}; ')
