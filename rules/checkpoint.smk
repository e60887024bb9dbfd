if WORKFLOW.embedded:

    rule checkpoint:
        output:
            WORKFLOW.checkpoint(),
        log:
            f"{WORKFLOW.checkpoint_folder}/logs/checkpoint.log",
        shell:
            "molmo2 fetch --config {WORKFLOW.config} 2> {log}"

else:

    rule fetch:
        output:
            f"{WORKFLOW.checkpoint_folder}/{{file}}",
        log:
            f"{WORKFLOW.checkpoint_folder}/logs/{{file}}.log",
        retries: 2
        resources:
            network=1,
        shell:
            "molmo2 fetch --config {WORKFLOW.config} --file {wildcards.file} 2> {log}"
