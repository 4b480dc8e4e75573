"""Stage `partition_eop_tables`: EOP's tables, figures and figures of merit, from what `partition_eop` measured."""

from __future__ import annotations

import json
from pathlib import Path

from edgeplan.chapters.partition.eop.evidence import EopEvidence
from edgeplan.chapters.partition.eop.figures import EOP_FIGURES
from edgeplan.chapters.partition.eop.metrics import eop_metrics
from edgeplan.chapters.partition.eop.page import eop_chapter
from edgeplan.chapters.partition.eop.tables import EOP_TABLES
from edgeplan.reporting import kit
from edgeplan.support.frames import read_parquet


def write_eop(
    *,
    pair: str,
    sampled: Path,
    contention: Path,
    sweeps: Path,
    plans: Path,
    key: Path,
    environment_path: Path,
    measured: Path,
    metrics: Path,
    chapter: Path,
) -> None:
    """Write the chapter of a pair; nothing is measured.

    Args:
        pair: its name.
        sampled: of the stage `partition_eop`, as all of these.
        contention: factors of steps side by side.
        sweeps: steps split at every share.
        plans: all ways to run the models.
        key: key operators.
        environment_path: state of the machine, of the same.
        measured: folder that tables and figures go to.
        metrics: where the figures of merit go.
        chapter: where the report finds the chapter.
    """
    environment = json.loads(environment_path.read_text(encoding="utf-8"))
    evidence = EopEvidence(
        pair,
        read_parquet(sampled, "operator", "dimension", "size", "side", "us"),
        read_parquet(contention, "cpu_load", "gpu_load"),
        read_parquet(sweeps, "model", "step", "dimension"),
        read_parquet(plans, "model", "way", "median_ms"),
        read_parquet(key, "model", "tuned_us", "grid_us"),
        environment,
    )
    kit.write_evidence(
        evidence, EOP_TABLES, EOP_FIGURES, eop_metrics, eop_chapter,
        measured=measured, metrics=metrics, chapter=chapter,
    )  # fmt: skip
