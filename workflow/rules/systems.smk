rule measure:
    input:
        reads("measure"),
    output:
        **writes("measure"),
    log:
        log_of("measure"),
    conda:
        "../../environment.yml"
    # A benchmark takes every core of a CPU or every GPU, so that nothing is trained beside it. It
    # computes on one thread all the same, as training does: on toy models more only wait.
    threads: workflow.cores if CAMPAIGN.systems_alone and not ON_GPU else 1
    resources:
        gpu=int(ON_GPU) and (GPUS if CAMPAIGN.systems_alone and not ON_CLUSTER else 1),
        gpu_share=SHARED_GPU * CAMPAIGN.systems_alone * GPUS * CAMPAIGN.runs_per_gpu,
    params:
        config=STARTED_WITH,
        spec=spec("measure"),
        code=code("measure"),
    message:
        "measure {wildcards.benchmark}/{wildcards.scale}; log {log}"
    shell:
        "python -m relation measure {wildcards.benchmark}/{wildcards.scale} --config {params.config}"
        " --expect {params.spec} --threads 1 2>&1 | tee -i {log}"
