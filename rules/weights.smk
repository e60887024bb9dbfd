rule convert:
    input:
        WORKFLOW.checkpoint(),
    output:
        WORKFLOW.archives(),
    log:
        f"{WORKFLOW.weights_folder}/logs/convert.log",
    benchmark:
        f"{WORKFLOW.weights_folder}/benchmarks/convert.tsv"
    resources:
        mem_mb=2000,
    shell:
        "molmo2 convert --config {WORKFLOW.config} 2> {log}"
