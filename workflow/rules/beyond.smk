# Beyond the paper: right behind a run, as its checkpoint is not shipped.
rule examine:
    input:
        reads("examine"),
    output:
        **writes("examine"),
    log:
        log_of("examine"),
    conda:
        "../../environment.yml"
    threads: 1
    resources:
        gpu=int(ON_GPU),
        gpu_share=OWN_SHARE * CAMPAIGN.runs_per_gpu,
    params:
        config=STARTED_WITH,
        target="{scale}/{variant}/{seed}",
        spec=spec("examine"),
        code=code("examine"),
    message:
        "examine {params.target}; log {log}"
    shell:
        "python -m relation examine {params.target}"
        " --config {params.config} --expect {params.spec} --threads {threads} 2>&1 | tee -i {log}"
