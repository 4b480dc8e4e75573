"""The whole pipeline in one graph: `snakemake --cores 2` builds everything, `snakemake --report` shows it.

`dvc repro` runs the same stages one by one and decides by content which of them are out of date.
"""


include: "workflow/rules/check.smk"


CURRENT = tracked_as_current()


include: "workflow/rules/stages.smk"


held = hold_workspace(wait=False)


rule everything:
    input:
        [path for stage in STAGES for path in all_of(stage)],


rule all:
    default_target: True
    input:
        # Where DVC finds all of it current nothing is built again, whatever the time stamps say; in a clone the page is missing.
        rules.report.output.report if CURRENT else rules.everything.input,
