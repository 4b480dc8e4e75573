"""Stage `cold_tables`: tables, figures, figures of merit and the chapter of the report, from what `cold_start` measured."""

from __future__ import annotations

from pathlib import Path

from edgeplan.chapters.cold_start.evaluation.evidence import read_cold_evidence
from edgeplan.chapters.cold_start.evaluation.figures import COLD_FIGURES
from edgeplan.chapters.cold_start.evaluation.metrics import cold_metrics
from edgeplan.chapters.cold_start.evaluation.page import cold_chapter
from edgeplan.chapters.cold_start.evaluation.tables import COLD_TABLES
from edgeplan.reporting import kit


def write_cold_start(*, device: str, measured: Path, metrics: Path, chapter: Path) -> None:
    """Write the chapter of a device; nothing is measured.

    Args:
        device: name of the device.
        measured: folder of the stage `cold_start`; tables and figures go there too.
        metrics: where the figures of merit go.
        chapter: where the report finds the chapter.
    """
    evidence = read_cold_evidence(device, measured)
    kit.write_evidence(
        evidence, COLD_TABLES, COLD_FIGURES, cold_metrics, cold_chapter, measured=measured, metrics=metrics, chapter=chapter
    )
