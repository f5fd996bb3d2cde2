RUN = "{scale}/{variation}/{variant}/{seed}"
RUN_NAME = "{wildcards.scale}/{wildcards.variation}/{wildcards.variant}/{wildcards.seed}"
# How many processes train one run: a GPU each; on a CPU as many as are asked for.
PROCESSES = "{resources.gpu}" if ON_GPU else "{resources.processes}"


def run_of(wildcards):
    return CAMPAIGN.run(RUN.format(**dict(wildcards.items())))


def data_of(wildcards):
    return f"{FOLDER}/data/{run_of(wildcards).data.name}/data.parquet"


def tokens_of(wildcards):
    """The data of a run; of the tokens that it is planned with, fresh dates retrain nothing."""
    path = data_of(wildcards)
    return ancient(path) if run_of(wildcards).data.name in READY else path


rule train:
    input:
        data=tokens_of,
    output:
        run=f"{FOLDER}/runs/{RUN}/run.parquet",
        losses=f"{FOLDER}/runs/{RUN}/losses.parquet",
        probes=f"{FOLDER}/runs/{RUN}/probes.parquet",
        model=f"{FOLDER}/runs/{RUN}/model.safetensors",
    log:
        f"{FOLDER}/logs/train/{RUN}.log",
    # A killed run goes on from its resume state. None: as often as the profile says.
    retries: 3 if ON_CLUSTER else int(ON_GPU) or None
    resources:
        # More for one run: --set-resources train:gpu=4; on a CPU, train:processes=2.
        gpu=int(ON_GPU),
        processes=1,
    params:
        spec=lambda w: run_of(w).hash,
    shell:
        f"python -m relation train {RUN_NAME}"
        f" --config {CONFIG} --hash {{params.spec}} --processes {PROCESSES} > {{log}} 2>&1"


rule diagnose:
    input:
        data=data_of,
        model=rules.train.output.model,
    output:
        flow=f"{FOLDER}/flow/{RUN}/flow.parquet",
        curves=f"{FOLDER}/flow/{RUN}/curves.parquet",
        maps=f"{FOLDER}/flow/{RUN}/maps.parquet",
    log:
        f"{FOLDER}/logs/diagnose/{RUN}.log",
    # Before further runs begin, so that a stopped campaign has whole ones.
    priority: 1
    resources:
        gpu=int(ON_GPU),
    params:
        spec=lambda w: run_of(w).flow_hash,
    shell:
        f"python -m relation diagnose {RUN_NAME}"
        f" --config {CONFIG} --hash {{params.spec}} > {{log}} 2>&1"


# Asked for by its path alone: a folder for transformers, with tokenizer and model card.
rule export:
    input:
        model=rules.train.output.model,
    output:
        directory(f"{FOLDER}/exported/{RUN}"),
    log:
        f"{FOLDER}/logs/export/{RUN}.log",
    shell:
        f"python -m relation export {RUN_NAME} --config {CONFIG} --folder {{output}} > {{log}} 2>&1"
