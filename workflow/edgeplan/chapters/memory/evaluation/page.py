"""The chapter on memory: its headline figure and cards, findings, figures and tables."""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd

from edgeplan.chapters.memory import paper
from edgeplan.chapters.memory.evaluation.evidence import MemoryEvidence
from edgeplan.chapters.memory.evaluation.figures import MEMORY_FIGURES
from edgeplan.chapters.memory.evaluation.metrics import BARS
from edgeplan.chapters.memory.evaluation.tables import MEMORY_TABLES
from edgeplan.reporting.kit import PageOf
from edgeplan.reporting.page import CardOf, ChapterPage

_ABOUT = (
    "Models run in less memory than their weights take: weights are read from the disk while steps run. Memory is the peak "
    "over the idle process, all pages counted. The paper (FlexNN, MobiCom 2024) measured phones, so shares compare, "
    "latencies do not."
)


def _percent(share: float) -> str:
    return f"{100 * share:g} %"


_CARDS = (
    CardOf(
        "memory saved, ResNet-152", ("memory.resnet152_reduction",), paper=_percent(paper.REDUCTION["resnet152"]), share=True
    ),
    CardOf("memory saved, VGG-19", ("memory.vgg19_reduction",), paper=_percent(paper.REDUCTION["vgg19"]), share=True),
    CardOf(
        "latency gained on a slower processor",
        ("memory.phonelike_overhead",),
        paper=_percent(paper.OVERHEAD["resnet152"]),
        share=True,
    ),
    CardOf("budgets within 10 % of the proven bound", ("memory.points_within_10pct_of_bound",), paper="no bound", share=True),
    CardOf("as fast as frugal ONNX Runtime in as much memory", ("memory.speedup_vs_frugal_ort",), "times"),
)

_PAGE = PageOf("memory", "Memory", _ABOUT, "memory_figure_10", _CARDS, BARS, MEMORY_TABLES, MEMORY_FIGURES, ("memory_least",))


def findings(evidence: MemoryEvidence) -> tuple[str, ...]:
    """What does not fit, and what could not be measured."""
    frame = evidence.budgets
    named = frame["model"] + " at " + (100 * frame["share"]).map("{:g} %".format)
    lacking = named[frame["needed"].notna()].tolist()
    told = [f"Budgets below what the finest slices and bands need: {', '.join(lacking)}."] if lacking else []
    failed = frame["needed"].isna() & (frame["reason"] != "")
    told += (named[failed] + ": " + frame.loc[failed, "reason"] + ".").tolist()
    return tuple(told)


def memory_chapter(
    evidence: MemoryEvidence,
    tables: Mapping[str, pd.DataFrame],
    figures: Mapping[str, bytes],
    metrics: Mapping[str, float],
    measured_at: str,
) -> ChapterPage:
    """The chapter of a device.

    Args:
        evidence: the measurements.
        tables: by id of `MEMORY_TABLES`.
        figures: SVG by id of `MEMORY_FIGURES`; what is absent is left out.
        metrics: of `memory_metrics`.
        measured_at: when the measurements were made, as text.
    """
    return _PAGE.page(evidence, tables, figures, metrics, measured_at, findings(evidence))
