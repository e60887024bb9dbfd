rule compile:
    input:
        f"{WORKFLOW.identity_folder}/programs/{{program}}.mlir",
    output:
        f"{WORKFLOW.identity_folder}/{{tag}}/{{program}}.vmfb",
    log:
        f"{WORKFLOW.identity_folder}/logs/{{tag}}/{{program}}.log",
    benchmark:
        f"{WORKFLOW.identity_folder}/benchmarks/{{tag}}/{{program}}.tsv"
    params:
        target=lambda wildcards: WORKFLOW.tags[wildcards.tag],
    resources:
        mem_mb=lambda wildcards, attempt: 2000 * attempt,
    shell:
        "molmo2 compile {input} --config {WORKFLOW.config} --target {params.target} --output {output} 2> {log}"


for tag in WORKFLOW.tags:

    rule:
        name:
            f"bundle_{tag.replace('-', '_')}"
        input:
            WORKFLOW.modules(tag),
            WORKFLOW.archives(),
            WORKFLOW.processor_files(),
        output:
            WORKFLOW.manifest(tag),
        log:
            f"{WORKFLOW.identity_folder}/logs/{tag}/bundle.log",
        params:
            target=WORKFLOW.tags[tag],
        shell:
            "molmo2 bundle --config {WORKFLOW.config} --target {params.target} 2> {log}"
