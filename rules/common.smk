from molmo2_iree.build.workflow import open_workflow

WORKFLOW = open_workflow(config)


wildcard_constraints:
    program=r"[a-z]+-[a-z0-9]+(-taps)?",
    tag=WORKFLOW.tag_pattern,
    file=r"[\w][\w.-]*",
    gate=r"[a-z0-9-]+",
