# Beyond the paper: what a mixer can do that its loss does not show.


rule recall:
    output:
        **writes("recall"),
    log:
        log_of("recall"),
    conda:
        "../../environment.yml"
    threads: 1
    resources:
        gpu=OWN_GPU,
        gpu_share=OWN_SHARE,
    params:
        config=STARTED_WITH,
        spec=spec("recall"),
        code=code("recall"),
    message:
        "train {wildcards.mixer} on associative recall; log {log}"
    shell:
        "python -m relation recall {wildcards.mixer} --config {params.config}"
        " --expect {params.spec} --threads {threads} 2>&1 | tee -i {log}"
