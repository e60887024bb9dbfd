rule convert:
    input:
        ancient(WORKFLOW.checkpoint()),
    output:
        WORKFLOW.archives(),
    log:
        f"{WORKFLOW.weights_folder}/logs/convert.log",
    benchmark:
        f"{WORKFLOW.weights_folder}/benchmarks/convert.tsv"
    resources:
        mem_mb=2000,
    params:
        config=WORKFLOW.config,
    shell:
        "molmo2 convert --config {params.config} 2> {log}"
