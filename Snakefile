"""The whole pipeline in one graph: `snakemake --cores 2` builds everything, `snakemake --report` shows it.

`dvc repro` runs the same stage files one by one and decides by content which of them are out of date.
"""


include: "workflow/common.smk"
include: "workflow/check.smk"
include: "workflow/zoo.smk"
include: "workflow/fusion.smk"
include: "workflow/sampling.smk"
include: "workflow/calibration.smk"
include: "workflow/training.smk"
include: "workflow/truth.smk"
include: "workflow/evaluation.smk"
include: "workflow/unseen.smk"
include: "workflow/transfer.smk"
include: "workflow/cold_start.smk"
include: "workflow/cold_tables.smk"
include: "workflow/report.smk"


held = hold_workspace()


rule everything:
    input:
        for_devices("results/{device}/report.html"),
        for_cold_devices("results/{device}/cold/report.html"),
        rules.zoo.output,
        rules.transfer.output,


rule all:
    default_target: True
    input:
        # Where DVC finds all of it up to date there is nothing to do, whatever the time stamps say.
        "dvc.lock" if tracked_as_current() else rules.everything.input,
