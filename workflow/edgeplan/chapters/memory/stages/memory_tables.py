"""Stage `memory_tables`: tables, figures, figures of merit and the chapter of the report, from what `memory` measured."""

from __future__ import annotations

import json
from pathlib import Path

from edgeplan.chapters.memory.evaluation.evidence import MemoryEvidence
from edgeplan.chapters.memory.evaluation.figures import MEMORY_FIGURES
from edgeplan.chapters.memory.evaluation.metrics import memory_metrics
from edgeplan.chapters.memory.evaluation.page import memory_chapter
from edgeplan.chapters.memory.evaluation.tables import MEMORY_TABLES
from edgeplan.reporting import kit
from edgeplan.support.frames import read_parquet


def write_memory(*, device: str, runs: Path, environment_path: Path, measured: Path, metrics: Path, chapter: Path) -> None:
    """Write the chapter of a device; nothing is measured.

    Args:
        device: name of the device.
        runs: rows of the stage `memory`.
        environment_path: state of the machine, of the same.
        measured: folder that tables and figures go to.
        metrics: where the figures of merit go.
        chapter: where the report finds the chapter.
    """
    environment = json.loads(environment_path.read_text(encoding="utf-8"))
    evidence = MemoryEvidence(device, read_parquet(runs, "model", "case"), environment)
    kit.write_evidence(
        evidence, MEMORY_TABLES, MEMORY_FIGURES, memory_metrics, memory_chapter,
        measured=measured, metrics=metrics, chapter=chapter,
    )  # fmt: skip
