# How a job is started.

# Without a conda or container environment, jobs run on the interpreter that runs Snakemake.
deployed = workflow.deployment_settings.deployment_method
interpreter = "" if deployed else f"{Path(sys.executable).parent}:"
shell.prefix(
    f"set -o pipefail; export PATH={interpreter!r}$PATH PYTHONPATH={str(PROJECT)!r}"
    "${{PYTHONPATH:+:$PYTHONPATH}}; "
)
