rule reference:
    input:
        WORKFLOW.checkpoint(),
    output:
        f"{WORKFLOW.references_folder}/{{gate}}.npz",
    log:
        f"{WORKFLOW.references_folder}/logs/{{gate}}.log",
    resources:
        mem_mb=3000,
    shell:
        "molmo2 reference {wildcards.gate} --config {WORKFLOW.config} --output {output} 2> {log}"


for tag in WORKFLOW.tags:

    rule:
        name:
            f"measure_{tag.replace('-', '_')}"
        input:
            WORKFLOW.manifest(tag),
            WORKFLOW.tap_modules(tag),
            reference=f"{WORKFLOW.references_folder}/{{gate}}.npz",
        output:
            f"{WORKFLOW.records(tag)}/{{gate}}.json",
        log:
            f"{WORKFLOW.records(tag)}/logs/{{gate}}.measure.log",
        params:
            target=WORKFLOW.tags[tag],
        resources:
            mem_mb=2000,
        shell:
            "molmo2 measure {wildcards.gate} --config {WORKFLOW.config} --target {params.target}"
            " --reference {input.reference} --output {output} 2> {log}"


rule judge:
    input:
        "{folder}/{gate}.json",
    output:
        "{folder}/{gate}.verdict.json",
    log:
        "{folder}/logs/{gate}.judge.log",
    params:
        tolerances=WORKFLOW.tolerances(),
    shell:
        "molmo2 judge {input} --config {WORKFLOW.config} --output {output} 2> >(tee {log} >&2)"
