rule compile:
    input:
        ancient(f"{WORKFLOW.identity_folder}/programs/{{program}}.mlir"),
    output:
        f"{WORKFLOW.identity_folder}/{{tag}}/{{program}}.vmfb",
    log:
        f"{WORKFLOW.identity_folder}/logs/{{tag}}/{{program}}.log",
    benchmark:
        f"{WORKFLOW.identity_folder}/benchmarks/{{tag}}/{{program}}.tsv"
    resources:
        mem_mb=2000,
    params:
        config=WORKFLOW.config,
        target=lambda wildcards: WORKFLOW.tags[wildcards.tag],
    shell:
        "molmo2 compile {input} --config {params.config} --target {params.target} --output {output} 2> {log}"


# The bundle's archives are second names of the converted ones, and Snakemake touches every output of a finished job in
# turn: as an input, an archive would become newer than the outputs touched before it. The index stands for them.
for target in WORKFLOW.targets:

    rule:
        name:
            f"bundle_{target.replace('-', '_')}"
        input:
            ancient(WORKFLOW.modules(target)),
            ancient(WORKFLOW.weights_index()),
            ancient(WORKFLOW.processor_files()),
        output:
            WORKFLOW.bundle(target),
        log:
            f"{WORKFLOW.logs(target)}/bundle.log",
        params:
            config=WORKFLOW.config,
            target=target,
        shell:
            "molmo2 bundle --config {params.config} --target {params.target} 2> {log}"
