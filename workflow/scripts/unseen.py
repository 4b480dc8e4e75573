"""Measure and predict architectures outside the zoo's families on a device."""

from pathlib import Path

from edgeplan.chapters.prediction.stages.unseen import evaluate_unseen
from stage import stage

with stage(snakemake) as params:
    evaluate_unseen(
        params,
        device=Path(snakemake.input.device),
        rules=Path(snakemake.input.rules),
        predictors=Path(snakemake.input.card).parent,
        rows=Path(snakemake.params.rows),
        models=Path(snakemake.output.models),
        kernels=Path(snakemake.output.kernels),
        metrics=Path(snakemake.output.metrics),
    )
