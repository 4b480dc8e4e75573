"""Measure whole models on a device: the truth that predictions are held against."""

from pathlib import Path

from edgeplan.chapters.prediction.stages.truth import measure_models
from stage import stage

with stage(snakemake) as params:
    measure_models(
        params,
        device=Path(snakemake.input.device),
        models=Path(snakemake.input.models),
        rows=Path(snakemake.params.rows),
        truth=Path(snakemake.output.truth),
        environment=Path(snakemake.output.environment),
    )
