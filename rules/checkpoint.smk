if WORKFLOW.embedded:

    rule checkpoint:
        output:
            WORKFLOW.checkpoint(),
        log:
            f"{WORKFLOW.checkpoint_folder}/logs/checkpoint.log",
        params:
            config=WORKFLOW.config,
        shell:
            "molmo2 fetch --config {params.config} 2> {log}"

else:

    rule fetch:
        output:
            f"{WORKFLOW.checkpoint_folder}/{{file}}",
        log:
            f"{WORKFLOW.checkpoint_folder}/logs/{{file}}.log",
        retries: 2
        resources:
            network=1,
        params:
            config=WORKFLOW.config,
        shell:
            "molmo2 fetch --config {params.config} --file {wildcards.file} 2> {log}"
