# How a job is started, and where the project lies: seen from the working folder, so that a copied
# project has the same inputs.

import os

SOURCE = Path(os.path.relpath(PROJECT))

# Without a conda or container environment, jobs run on the interpreter that runs Snakemake.
deployed = workflow.deployment_settings.deployment_method
interpreter = "" if deployed else f"{Path(sys.executable).parent}:"
shell.prefix(
    f"set -o pipefail; export PATH={interpreter!r}$PATH PYTHONPATH={str(PROJECT)!r}"
    "${{PYTHONPATH:+:$PYTHONPATH}}; "
)
