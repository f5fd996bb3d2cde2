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
        spec=lambda w: CAMPAIGN.diagnostics_spec(run_of(w)).job_hash,
        code=code_hash("diagnostics"),
    shell:
        "python -m relation diagnose {wildcards.scale}/{wildcards.variant}/{wildcards.seed}"
        " --config {params.config} --expect {params.spec} --threads {threads} 2>&1 | tee -i {log}"
