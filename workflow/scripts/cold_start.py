"""Measure cold starts on a device: profiles, plans, runs beside the stock engines."""

from pathlib import Path

from edgeplan.chapters.cold_start.stages.cold_start import measure_cold_start
from stage import stage

with stage(snakemake) as params:
    measure_cold_start(
        params,
        device=Path(snakemake.input.device),
        predictors=Path(snakemake.params.predictors),
        rows=Path(snakemake.params.rows),
        work=Path(snakemake.params.work),
        measured=Path(snakemake.output.runs).parent,
    )
