"""Predict one device with the predictors of another (Table 11)."""

from pathlib import Path

from edgeplan.pipeline.transfer import transfer
from stage import stage

with stage(snakemake) as params:
    transfer(
        params,
        source=Path(snakemake.input.source),
        target=Path(snakemake.input.target),
        source_environment=Path(snakemake.input.source_environment),
        target_environment=Path(snakemake.input.target_environment),
        csv=Path(snakemake.output.csv),
    )
