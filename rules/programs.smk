rule trace:
    output:
        f"{WORKFLOW.identity_folder}/programs/{{program}}.mlir",
    log:
        f"{WORKFLOW.identity_folder}/logs/programs/{{program}}.log",
    benchmark:
        f"{WORKFLOW.identity_folder}/benchmarks/programs/{{program}}.tsv"
    resources:
        mem_mb=1500,
    params:
        config=WORKFLOW.config,
    shell:
        "molmo2 trace {wildcards.program} --config {params.config} --output {output} 2> {log}"
