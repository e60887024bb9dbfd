# One job a reference: importing and loading it takes longer than its answers.
for reference in WORKFLOW.references:

    rule:
        name:
            f"reference_{reference.replace('-', '_')}"
        input:
            ancient(WORKFLOW.checkpoint()),
        output:
            WORKFLOW.reference_files(reference),
        log:
            f"{WORKFLOW.references_folder}/logs/{reference}.log",
        resources:
            mem_mb=WORKFLOW.memory(3000, checkpoints=3),
        params:
            config=WORKFLOW.config,
            reference=reference,
            folder=lambda wildcards, output: output[0].rpartition("/")[0],
        shell:
            "molmo2 reference {params.reference} --config {params.config} --output {params.folder} 2> {log}"


for target in WORKFLOW.gated_targets:

    rule:
        name:
            f"measure_{target.replace('-', '_')}"
        input:
            ancient(WORKFLOW.manifest(target)),
            ancient(WORKFLOW.tap_modules(target)),
            reference=ancient(f"{WORKFLOW.references_folder}/{{gate}}.npz"),
        output:
            f"{WORKFLOW.records(target)}/{{gate}}.json",
        log:
            f"{WORKFLOW.records(target)}/logs/{{gate}}.measure.log",
        resources:
            mem_mb=WORKFLOW.memory(2000, checkpoints=1),
        params:
            config=WORKFLOW.config,
            target=target,
        shell:
            "molmo2 measure {wildcards.gate} --config {params.config} --target {params.target}"
            " --reference {input.reference} --output {output} 2> {log}"

    # Before any judge, so that a gate that fails leaves the page.
    rule:
        name:
            f"report_{target.replace('-', '_')}"
        input:
            WORKFLOW.target_records(target),
        output:
            page=report(
                f"{WORKFLOW.report_folder(target)}/gates.html",
                category="Gates",
                labels={"target": target},
            ),
            rest=WORKFLOW.report(target)[1:],
            reported=touch(WORKFLOW.reported(target)),
        log:
            f"{WORKFLOW.records(target)}/logs/report.log",
        params:
            config=WORKFLOW.config,
            target=target,
        shell:
            "molmo2 report --config {params.config} --target {params.target} --output $(dirname {output.page}) 2> {log}"

    rule:
        name:
            f"judge_{target.replace('-', '_')}"
        input:
            ancient(WORKFLOW.reported(target)),
            record=f"{WORKFLOW.records(target)}/{{gate}}.json",
        output:
            WORKFLOW.verdict(target, "{gate}"),
        log:
            f"{WORKFLOW.records(target)}/logs/{{gate}}.judge.log",
        params:
            config=WORKFLOW.config,
        shell:
            "molmo2 judge {input.record} --config {params.config} --output {output} 2> >(tee {log} >&2)"
