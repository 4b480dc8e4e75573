"""The whole pipeline in one graph: `snakemake --cores 2` builds everything, `snakemake --report` shows it.

`dvc repro` runs the same stages one by one and decides by content which of them are out of date.
"""


include: "workflow/rules/check.smk"
include: "workflow/rules/stages.smk"


held = hold_workspace(wait=False)


rule everything:
    input:
        [path for stage in STAGES for path in all_of(stage)],


rule all:
    default_target: True
    input:
        # Where DVC finds all of it up to date there is nothing to do, whatever the time stamps say.
        "dvc.lock" if tracked_as_current() else rules.everything.input,
