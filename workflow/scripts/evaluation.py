"""Hold the predictions against the measured models; write tables, figures and metrics of a device."""

from pathlib import Path

from edgeplan.chapters.prediction.stages.evaluation import evaluate
from stage import stage

with stage(snakemake) as params:
    evaluate(
        params,
        device=snakemake.wildcards.device,
        results=Path(snakemake.output.metrics).parents[1],
        zoo=Path(snakemake.input.models).parent,
        rows=Path(snakemake.params.rows),
    )
