RUN = "{scale}/{variation}/{variant}/{seed}"
RUN_NAME = "{wildcards.scale}/{wildcards.variation}/{wildcards.variant}/{wildcards.seed}"
# Processes that train one run: one per GPU; on a CPU the resource `processes`.
PROCESSES = "{resources.gpu}" if ON_GPU else "{resources.processes}"


def run_of(wildcards):
    return CAMPAIGN.run(RUN.format(**dict(wildcards.items())))


def data_once_ready(wildcards):
    """The run's corpus. If it is prepared as planned, a newer date does not train the run again.

    Otherwise it is not ancient: Snakemake compares no parameters of a job whose input is made in
    the same call, so the runs of another text would not be trained.
    """
    name = run_of(wildcards).data.name
    path = f"{FOLDER}/data/{name}/data.parquet"
    return ancient(path) if name in READY else path


rule train:
    input:
        data=data_once_ready,
    output:
        run=f"{FOLDER}/runs/{RUN}/run.parquet",
        losses=f"{FOLDER}/runs/{RUN}/losses.parquet",
        probes=f"{FOLDER}/runs/{RUN}/probes.parquet",
        model=f"{FOLDER}/runs/{RUN}/model.safetensors",
    log:
        f"{FOLDER}/logs/train/{RUN}.log",
    # A retry resumes a killed run from its last state. None: use the profile's `retries`.
    retries: 3 if ON_CLUSTER else int(ON_GPU) or None
    resources:
        # More processes per run: --set-resources train:gpu=4; on a CPU train:processes=2.
        gpu=int(ON_GPU),
        processes=1,
    params:
        spec=lambda w: run_of(w).hash,
    message:
        f"Train {RUN_NAME}; log: {{log}}"
    shell:
        # The record, which is written last, makes a run finished, even if its process then fails.
        # Snakemake would otherwise delete it and, on a GPU, train it again (`retries`).
        f"python -m relation train {RUN_NAME} --config {CONFIG} --hash {{params.spec}}"
        f" --processes {PROCESSES} > {{log}} 2>&1"
        " || (status=$?; test -f {output.run} || exit $status)"


rule diagnose:
    input:
        data=data_once_ready,
        model=rules.train.output.model,
    output:
        flow=f"{FOLDER}/flow/{RUN}/flow.parquet",
        curves=f"{FOLDER}/flow/{RUN}/curves.parquet",
        maps=f"{FOLDER}/flow/{RUN}/maps.parquet",
    log:
        f"{FOLDER}/logs/diagnose/{RUN}.log",
    # Diagnoses come before further runs, so that a stopped campaign has complete runs.
    priority: 1
    resources:
        gpu=int(ON_GPU),
    params:
        spec=lambda w: run_of(w).flow_hash,
    message:
        f"Diagnose the flow of {RUN_NAME}; log: {{log}}"
    shell:
        f"python -m relation diagnose {RUN_NAME}"
        f" --config {CONFIG} --hash {{params.spec}} > {{log}} 2>&1"


# Made only on request by path: a folder for transformers, with tokenizer and model card.
rule export:
    input:
        model=rules.train.output.model,
    output:
        directory(f"{FOLDER}/exported/{RUN}"),
    log:
        f"{FOLDER}/logs/export/{RUN}.log",
    message:
        "Export to {output}; log: {log}"
    shell:
        f"python -m relation export {RUN_NAME} --config {CONFIG} --folder {{output}} > {{log}} 2>&1"
