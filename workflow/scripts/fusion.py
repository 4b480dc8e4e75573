"""Detect what the engine of a device fuses."""

from pathlib import Path

from edgeplan.chapters.prediction.stages.fusion import detect_fusion
from stage import stage

with stage(snakemake) as params:
    detect_fusion(
        params,
        device=Path(snakemake.input.device),
        models=Path(snakemake.input.models),
        rows=Path(snakemake.params.rows),
        rules=Path(snakemake.output.rules),
        test_cases=Path(snakemake.output.test_cases),
        skipped=Path(snakemake.output.skipped),
        verification=Path(snakemake.output.verification),
    )
