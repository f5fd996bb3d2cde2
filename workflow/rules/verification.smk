rule verify:
    output:
        **writes("verify"),
    log:
        log_of("verify"),
    conda:
        "../../environment.yml"
    threads: 1
    resources:
        gpu=int(ON_GPU),
    params:
        config=STARTED_WITH,
        spec=spec("verify"),
        code=code("verify"),
    message:
        "check the operators against their definitions; log {log}"
    shell:
        "python -m relation verify --config {params.config}"
        " --expect {params.spec} --threads {threads} 2>&1 | tee -i {log}"


# Before anything is trained: a step that loses a gradient trains another model.
rule verify_gradients:
    output:
        **writes("verify_gradients"),
    log:
        log_of("verify_gradients"),
    priority: 2
    conda:
        "../../environment.yml"
    threads: 1
    resources:
        gpu=int(ON_GPU),
    params:
        config=STARTED_WITH,
        spec=spec("verify_gradients"),
        code=code("verify_gradients"),
    message:
        "check the gradients against FP64; log {log}"
    shell:
        "python -m relation verify-gradients --config {params.config}"
        " --expect {params.spec} --threads {threads} 2>&1 | tee -i {log}"
