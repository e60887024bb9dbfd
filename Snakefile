"""The whole build: config -> lock -> fetch -> convert -> trace -> compile -> bundle -> measure -> report -> judge."""

from snakemake.utils import min_version

min_version("9.25")


configfile: "config/targets.yaml"
configfile: "config/references.yaml"
configfile: "config/tolerances.yaml"
configfile: "config/default.yaml"


container: "docker://python:3.11-slim"


include: "rules/common.smk"


onstart:
    WORKFLOW.start()


onerror:
    WORKFLOW.show_divergence()


localrules:
    all,
    bundles,
    gates,
    programs,


rule all:
    default_target: True
    input:
        WORKFLOW.bundles(),
        WORKFLOW.all_reports(),
        WORKFLOW.all_verdicts(),


rule bundles:
    input:
        WORKFLOW.bundles(),


rule gates:
    input:
        WORKFLOW.all_reports(),
        WORKFLOW.all_verdicts(),


rule programs:
    input:
        WORKFLOW.programs(),


include: "rules/checkpoint.smk"
include: "rules/weights.smk"
include: "rules/programs.smk"
include: "rules/modules.smk"
include: "rules/gates.smk"


for target in WORKFLOW.targets:

    rule:
        name:
            target
        input:
            WORKFLOW.bundle(target),
            WORKFLOW.report(target),
            WORKFLOW.verdicts(target),
        localrule: True
