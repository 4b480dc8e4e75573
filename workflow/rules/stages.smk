"""A rule for each stage that the chapters declare (workflow/edgeplan/chapters/*/chapter.py)."""


include: "common.smk"


from edgeplan.chapters.base import expanded
from edgeplan.chapters.registry import (
    CHAPTERS,
    REPORT,
    STAGES,
    merged_figures,
    parts_of_report,
)

#: Whether DVC holds all stages for current: then the page, where it is missing, is made of the committed files alone.
CURRENT = globals().get("CURRENT", False)


def is_fixed(stage):
    """Whether a stage has one target, which its outputs do not name."""
    names = stage.targets.wildcards if stage.targets else ()
    return not any(
        f"{{{name}}}" in path for path in stage.outputs.values() for name in names
    )


def pattern(stage, path):
    """A path of a stage as Snakemake takes it."""
    return next(expanded(path, stage.targets, config)) if is_fixed(stage) else path


def patterns(stage, paths):
    """Paths of a stage by name."""
    return {name: pattern(stage, path) for name, path in paths.items()}


def inputs_of(stage):
    """What a stage reads; the page what all chapters handed over, too."""
    if stage is not REPORT:
        return patterns(stage, stage.inputs)
    return {} if CURRENT else {"parts": list(parts_of_report(config))}


def outputs_of(stage):
    """What a stage writes: it stays until there is something to put in its place."""
    found = {
        name: update(path) for name, path in patterns(stage, stage.outputs).items()
    }
    merged = {"merged": [update(path) for path in merged_figures(config)]}
    return found | (merged if stage is REPORT else shown_of(stage))


def shown_of(stage):
    """Folders of tables and figures, marked for `snakemake --report`."""
    title = next((c.title for c in CHAPTERS.values() if stage in c.stages), "")
    kinds = {"tables": "csv", "figures": "svg"}
    return {
        f"shown_{kind}": report(
            update(directory(pattern(stage, path))),
            patterns=[f"{{shown}}.{kinds[kind]}"],
            category=f"{title}: {kind}",
            subcategory=", ".join(f"{{{name}}}" for name in stage.targets.wildcards),
            labels={"id": "{shown}"},
        )
        for path in stage.shown
        for kind in [path.rpartition("/")[2]]
    }


def folders_of(stage):
    """Folders that a stage's function is given by name; functions, since folders of inputs are meant, not parts of their names."""
    return {
        name: lambda wildcards, path=path: path.format(**wildcards)
        for name, path in patterns(stage, stage.folders).items()
    }


def log_of(stage):
    """Where a stage logs to: a file for each target."""
    names = () if is_fixed(stage) else stage.targets.wildcards
    return f"work/logs/{'-'.join([stage.name, *(f'{{{name}}}' for name in names)])}.log"


def all_of(stage):
    """What a stage writes for all of its targets."""
    return [
        path
        for output in stage.outputs.values()
        for path in expanded(output, stage.targets, config)
    ]


wildcard_constraints:
    **{
        name: "[a-z0-9]+(-[a-z0-9]+)*"
        for stage in STAGES
        if stage.targets
        for name in stage.targets.wildcards
    },


for stage in STAGES:

    rule:
        name:
            stage.name
        input:
            **inputs_of(stage),
        output:
            **outputs_of(stage),
        log:
            log_of(stage),
        threads: workflow.cores if stage.all_cores else 1
        resources:
            device=1 if stage.rows else 0,
        params:
            **folders_of(stage),
            function=stage.function,
            sections=sections(stage.params),
        script:
            "../scripts/stage.py"
