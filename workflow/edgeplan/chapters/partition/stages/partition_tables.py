"""Stage `partition_tables`: tables, figures, figures of merit and the chapter of the report, from what `partition` measured."""

from __future__ import annotations

import json
from pathlib import Path

from edgeplan.chapters.partition.evaluation.evidence import PartitionEvidence
from edgeplan.chapters.partition.evaluation.figures import PARTITION_FIGURES
from edgeplan.chapters.partition.evaluation.metrics import partition_metrics
from edgeplan.chapters.partition.evaluation.page import partition_chapter
from edgeplan.chapters.partition.evaluation.tables import PARTITION_TABLES
from edgeplan.reporting import kit
from edgeplan.support.frames import read_parquet


def write_partition(
    *,
    pair: str,
    samples: Path,
    layers: Path,
    models: Path,
    handshakes: Path,
    curves: Path,
    tuning: Path,
    errors: Path,
    importance: Path,
    environment_path: Path,
    measured: Path,
    metrics: Path,
    chapter: Path,
) -> None:
    """Write the chapter of a pair; nothing is measured.

    Args:
        pair: its name.
        samples: of the stage `partition`, as all of these.
        layers: splits of layers.
        models: end to end.
        handshakes: by way of waiting.
        curves: of figures.
        tuning: kernels that the dispatcher could have chosen.
        errors: of predictors.
        importance: of their features.
        environment_path: state of the machine, of the same.
        measured: folder that tables and figures go to.
        metrics: where the figures of merit go.
        chapter: where the report finds the chapter.
    """
    environment = json.loads(environment_path.read_text(encoding="utf-8"))
    evidence = PartitionEvidence(
        pair,
        read_parquet(samples, "kind", "cpu_us", "gpu_us"),
        read_parquet(errors, "side", "kind", "predictor"),
        read_parquet(importance, "feature", "gain"),
        read_parquet(layers, "kind", "name", "way", "us"),
        read_parquet(models, "model", "way", "median_ms"),
        read_parquet(handshakes, "synchronisation", "least_us"),
        read_parquet(curves, "figure", "outputs"),
        read_parquet(tuning, "kind", "name", "choice", "turn"),
        environment,
    )
    kit.write_evidence(
        evidence, PARTITION_TABLES, PARTITION_FIGURES, partition_metrics, partition_chapter,
        measured=measured, metrics=metrics, chapter=chapter,
    )  # fmt: skip
