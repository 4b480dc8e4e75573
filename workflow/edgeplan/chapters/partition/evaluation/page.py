"""The chapter on partitions: its headline figure and cards, findings, figures and tables."""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd

from edgeplan.chapters.partition import paper
from edgeplan.chapters.partition.evaluation.evidence import OURS, PartitionEvidence
from edgeplan.chapters.partition.evaluation.figures import PARTITION_FIGURES
from edgeplan.chapters.partition.evaluation.metrics import BARS
from edgeplan.chapters.partition.evaluation.tables import PARTITION_TABLES
from edgeplan.reporting.kit import PageOf
from edgeplan.reporting.page import CardOf, ChapterPage

_ABOUT = (
    "A model runs on two processors at once: each operator whole on one of them, or split over its output channels where that "
    "is faster. Speedups are over the faster single processor. The paper (LiPG, EPEW 2025) measured phones with GPUs, so "
    "shares compare, latencies do not."
)
_CARDS = (
    CardOf(
        "of the gain that a search finds", ("partition.oracle_gain_share",), paper=f"{100 * paper.POOLED_SHARE:g} %", share=True
    ),
    CardOf("speedup that a search finds", ("partition.oracle_speedup",), "times", paper="1.12 to 2.01"),
    CardOf("speedup of ResNet-18, ResNet-34, VGG16", ("partition.speedup_vs_best_single",), "times", paper="1.05 to 1.78"),
    CardOf("handshake by polling", ("partition.handshake_us",), "us", paper=f"{paper.HANDSHAKE_US[1]:g} us"),
    CardOf("relative error on the GPU, convolutions", ("partition.gpu_mape_conv",), paper="7.4 to 9.0 %", share=True),
)

_PAGE = PageOf(
    "partition",
    "Partition",
    _ABOUT,
    "partition_gains",
    _CARDS,
    BARS,
    PARTITION_TABLES,
    PARTITION_FIGURES,
    ("partition_table_02", "partition_table_03"),
)


def findings(evidence: PartitionEvidence) -> tuple[str, ...]:
    """What could not be measured, and why."""
    noted = evidence.handshakes[evidence.handshakes["note"] != ""]
    told = ("Handshakes by " + noted["synchronisation"] + ": " + noted["note"] + ".").tolist()
    cores = evidence.environment.get("cores", 0)
    if cores < 3:  # noqa: PLR2004  one of them stands for the GPU
        told.append(f"Columns of 2 and 3 CPU threads are left out: of {cores} cores one computes for the GPU.")
    lacking = evidence.models[(evidence.models["way"] == OURS) & evidence.models["median_ms"].isna()]
    told += (lacking["model"] + " does not run on the pair: " + lacking["reason"] + ".").tolist()
    return tuple(told)


def partition_chapter(
    evidence: PartitionEvidence,
    tables: Mapping[str, pd.DataFrame],
    figures: Mapping[str, bytes],
    metrics: Mapping[str, float],
    measured_at: str,
) -> ChapterPage:
    """The chapter of a pair.

    Args:
        evidence: the measurements.
        tables: by id of `PARTITION_TABLES`.
        figures: SVG by id of `PARTITION_FIGURES`; what is absent is left out.
        metrics: of `partition_metrics`.
        measured_at: when the measurements were made, as text.
    """
    return _PAGE.page(evidence, tables, figures, metrics, measured_at, findings(evidence))
