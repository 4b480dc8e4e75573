"""Build the zoo: models, variants and the prior distribution."""

from pathlib import Path

from edgeplan.chapters.prediction.stages.zoo import build_zoo
from stage import stage

with stage(snakemake) as params:
    build_zoo(
        params,
        models=Path(snakemake.output.models),
        prior=Path(snakemake.output.prior),
        costs=Path(snakemake.output.costs),
    )
