"""Measure the whole models on which the intervals of predictions are calibrated."""

from pathlib import Path

from edgeplan.chapters.prediction.stages.calibration import measure_calibration
from stage import stage

with stage(snakemake) as params:
    measure_calibration(
        params,
        device=Path(snakemake.input.device),
        rows=Path(snakemake.params.rows),
        models=Path(snakemake.output.models),
    )
