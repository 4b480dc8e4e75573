"""Train the latency predictors of a device."""

from pathlib import Path

from edgeplan.chapters.prediction.stages.training import train
from stage import stage

with stage(snakemake) as params:
    train(
        params,
        kernels=Path(snakemake.input.kernels),
        summary=Path(snakemake.input.summary),
        rules=Path(snakemake.input.rules),
        calibration=Path(snakemake.input.calibration),
        predictors=Path(snakemake.output.card).parent,
        quality=Path(snakemake.output.quality),
        samplers=Path(snakemake.output.samplers),
    )
