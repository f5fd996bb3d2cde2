rule diagnose:
    input:
        checkpoint=rules.train.output.checkpoint,
        validation=lambda w: prepared(run_of(w), "validation.bin"),
    output:
        metrics=f"{FOLDER}/diagnostics/{{scale}}/{{variant}}/{{seed}}.parquet",
        curves=f"{FOLDER}/diagnostics/{{scale}}/{{variant}}/{{seed}}-curves.parquet",
        maps=f"{FOLDER}/diagnostics/{{scale}}/{{variant}}/{{seed}}-maps.parquet",
    log:
        f"{FOLDER}/logs/diagnose/{{scale}}-{{variant}}-{{seed}}.log",
    conda:
        "../../environment.yml"
    threads: 1
    resources:
        gpu=int(ON_GPU),
    params:
        config=STARTED_WITH,
        target="{scale}/{variant}/{seed}",
        spec=lambda w: CAMPAIGN.diagnostics_spec(run_of(w)).job_hash,
        code=code_hash("diagnostics"),
    shell:
        "python -m relation diagnose {params.target}"
        " --config {params.config} --expect {params.spec} --threads {threads} 2>&1 | tee -i {log}"


# Before further runs begin, so that a stopped campaign has whole readings.
use rule diagnose as diagnose_reading with:
    input:
        checkpoint=rules.train_reading.output.checkpoint,
        validation=lambda w: prepared(reading_run(w), "validation.bin"),
    output:
        metrics=f"{FOLDER}/readings/{{reading}}/{{variant}}/{{seed}}/diagnostics.parquet",
        curves=f"{FOLDER}/readings/{{reading}}/{{variant}}/{{seed}}/diagnostics-curves.parquet",
        maps=f"{FOLDER}/readings/{{reading}}/{{variant}}/{{seed}}/diagnostics-maps.parquet",
    log:
        f"{FOLDER}/logs/diagnose/{{reading}}-{{variant}}-{{seed}}.log",
    priority: 1
    resources:
        gpu=WHOLE_GPU,
        gpu_share=SHARED_GPU,
    params:
        config=STARTED_WITH,
        target="{reading}/{variant}/{seed}",
        spec=lambda w: CAMPAIGN.diagnostics_spec(reading_run(w)).job_hash,
        code=code_hash("diagnostics"),


# What the report reads of the readings, and what is shipped: a file a kind of record. Where none is
# asked for, what was gathered before stays.
if CAMPAIGN.reading_runs:

    rule collect:
        input:
            [
                (RESULTS.own_folder / path).as_posix()
                for run in RESULTS.own_reading_runs()
                for path in (*(run_path(run) / file for file in RUN_FILES), diagnostics_path(run))
            ],
            list(map(Path.as_posix, RESULTS.shipped_readings().values())),
        output:
            expand(f"{FOLDER}/readings/{{kind}}.parquet", kind=READING_KINDS),
        log:
            f"{FOLDER}/logs/collect.log",
        conda:
            "../../environment.yml"
        params:
            config=STARTED_WITH,
            runs=canonical_hash([run.config_hash for run in CAMPAIGN.reading_runs]),
            code=code_hash("readings"),
        shell:
            "python -m relation collect --config {params.config} 2>&1 | tee -i {log}"
