rule train:
    input:
        train=lambda w: prepared(run_of(w), "train.bin"),
        validation=lambda w: prepared(run_of(w), "validation.bin"),
        record=lambda w: prepared(run_of(w), "data.parquet"),
    output:
        record=f"{FOLDER}/runs/{{scale}}/{{variant}}/{{seed}}/record.parquet",
        log=f"{FOLDER}/runs/{{scale}}/{{variant}}/{{seed}}/log.parquet",
        probes=f"{FOLDER}/runs/{{scale}}/{{variant}}/{{seed}}/probes.parquet",
        checkpoint=f"{FOLDER}/runs/{{scale}}/{{variant}}/{{seed}}/model.safetensors",
    log:
        f"{FOLDER}/logs/train/{{scale}}-{{variant}}-{{seed}}.log",
    # A killed run goes on from its resume state; on a CPU a fault is more likely the user's. A
    # queue ends jobs for reasons of its own.
    retries: 3 if ON_CLUSTER else int(ON_GPU)
    conda:
        "../../environment.yml"
    threads: 1
    resources:
        gpu=int(ON_GPU),
        processes=1,
    params:
        config=STARTED_WITH,
        target="{scale}/{variant}/{seed}",
        spec=lambda w: run_of(w).job_hash,
        code=code_hash("training"),
    shell:
        "python -m relation train {params.target}"
        " --config {params.config} --expect {params.spec} --threads {threads}"
        f" --processes {PROCESSES}"
        " 2>&1 | tee -i {log}"


# A run of a reading: the same, elsewhere. Its times are no result, so it may share a GPU.
use rule train as train_reading with:
    input:
        train=lambda w: prepared(reading_run(w), "train.bin"),
        validation=lambda w: prepared(reading_run(w), "validation.bin"),
        record=lambda w: prepared(reading_run(w), "data.parquet"),
    output:
        record=f"{FOLDER}/readings/{{reading}}/{{variant}}/{{seed}}/record.parquet",
        log=f"{FOLDER}/readings/{{reading}}/{{variant}}/{{seed}}/log.parquet",
        probes=f"{FOLDER}/readings/{{reading}}/{{variant}}/{{seed}}/probes.parquet",
        checkpoint=f"{FOLDER}/readings/{{reading}}/{{variant}}/{{seed}}/model.safetensors",
    log:
        f"{FOLDER}/logs/train/{{reading}}-{{variant}}-{{seed}}.log",
    resources:
        gpu=WHOLE_GPU,
        gpu_share=SHARED_GPU,
        processes=1,
    params:
        config=STARTED_WITH,
        target="{reading}/{variant}/{seed}",
        spec=lambda w: reading_run(w).job_hash,
        code=code_hash("training"),
