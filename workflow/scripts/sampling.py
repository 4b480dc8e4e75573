"""Sample and measure kernels on a device."""

from pathlib import Path

from edgeplan.chapters.prediction.stages.sampling import sample_kernels
from stage import stage

with stage(snakemake) as params:
    sample_kernels(
        params,
        device=Path(snakemake.input.device),
        prior=Path(snakemake.input.prior),
        rules=Path(snakemake.input.rules),
        rows=Path(snakemake.params.rows),
        kernels=Path(snakemake.output.kernels),
        summary=Path(snakemake.output.summary),
    )
