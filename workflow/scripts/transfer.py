"""Predict one device with the predictors of another (Table 11)."""

from pathlib import Path

from edgeplan.chapters.prediction.stages.transfer import transfer
from stage import stage

with stage(snakemake) as params:
    transfer(
        params,
        source=Path(snakemake.input.source).parent,
        target=Path(snakemake.input.target).parent,
        csv=Path(snakemake.output.csv),
    )
