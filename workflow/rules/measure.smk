rule length:
    input:
        data=data_once_ready,
        model=rules.train.output.model,
    output:
        f"{FOLDER}/length/{RUN}/lengths.parquet",
    log:
        f"{FOLDER}/logs/length/{RUN}.log",
    resources:
        gpu=int(ON_GPU),
    params:
        # None without a section `length`: no file of this rule is then planned.
        spec=lambda w: CAMPAIGN.length and CAMPAIGN.length.hash(run_of(w)),
    message:
        f"Read longer texts with {RUN_NAME}; log: {{log}}"
    shell:
        f"python -m relation length {RUN_NAME}"
        f" --config {CONFIG} --hash {{params.spec}} > {{log}} 2>&1"


rule recall:
    output:
        f"{FOLDER}/recall/{{mixer}}.parquet",
    log:
        f"{FOLDER}/logs/recall/{{mixer}}.log",
    resources:
        gpu=int(ON_GPU),
    params:
        spec=lambda w: CAMPAIGN.recall_of(w.mixer).hash,
    message:
        "Train associative recall with {wildcards.mixer}; log: {log}"
    shell:
        "python -m relation recall {wildcards.mixer}"
        f" --config {CONFIG} --hash {{params.spec}} > {{log}} 2>&1"


rule bench:
    input:
        data=lambda w: [
            ancient(f"{FOLDER}/data/{name}/data.parquet")
            for name in CAMPAIGN.corpora_of(CAMPAIGN.bench(w.benchmark, w.scale))
        ],
    output:
        f"{FOLDER}/bench/{{benchmark}}/{{scale}}.parquet",
    log:
        f"{FOLDER}/logs/bench/{{benchmark}}/{{scale}}.log",
    # All cores, so that no other job runs at the same time. It still computes on one thread.
    threads: 1 if ON_CLUSTER else workflow.cores
    resources:
        gpu=int(ON_GPU),
    params:
        spec=lambda w: CAMPAIGN.bench(w.benchmark, w.scale).hash,
    message:
        "Time {wildcards.benchmark} at {wildcards.scale}; log: {log}"
    shell:
        "python -m relation bench {wildcards.benchmark}/{wildcards.scale}"
        f" --config {CONFIG} --hash {{params.spec}} > {{log}} 2>&1"


rule check:
    output:
        operators=f"{FOLDER}/check/operators.parquet",
        gradients=f"{FOLDER}/check/gradients.parquet",
    log:
        f"{FOLDER}/logs/check.log",
    # On a GPU it also runs alone, because it needs a whole GPU.
    threads: workflow.cores if ON_GPU and not ON_CLUSTER else 1
    resources:
        gpu=int(ON_GPU),
    params:
        spec=CAMPAIGN.check and CAMPAIGN.check.hash,
    message:
        "Check operators and gradients against FP64; log: {log}"
    shell:
        f"python -m relation check --config {CONFIG} --hash {{params.spec}} > {{log}} 2>&1"
