"""This registry lists figures; a new one is one function and one line of `FIGURES`.

A new figure is one function and one line of `FIGURES`.
"""

from __future__ import annotations

from collections.abc import Mapping

from edgeplan.chapters.prediction.evaluation import figures_kernels as kernels
from edgeplan.chapters.prediction.evaluation import figures_models as models
from edgeplan.chapters.prediction.evaluation.evidence import Evidence
from edgeplan.reporting.kit import FigureSpec, registry

#: Every figure by id, in the order of the report.
FIGURES: Mapping[str, FigureSpec[Evidence]] = registry(
    FigureSpec(
        "figure_06",
        "Where the latency goes",
        kernels.breakdown,
        ("breakdown", "models"),
    ),
    FigureSpec(
        "figure_07",
        "Conv by kernel size and by input size",
        kernels.sizes,
        ("sweeps",),
    ),
    FigureSpec(
        "figure_08",
        "Conv by output channels",
        kernels.channels,
        ("sweeps",),
    ),
    FigureSpec(
        "figure_09",
        "Accuracy on unseen families",
        models.baselines_figure,
        ("models.predicted_ms", "models.macs", "models.memory_bytes"),
    ),
    FigureSpec(
        "figure_10",
        "Error by latency",
        models.error_by_latency,
        ("models.predicted_ms",),
    ),
    FigureSpec(
        "figure_11",
        "Operators against kernels",
        models.operators_against_kernels,
        ("models.predicted_ms", "models.operator_sum_ms"),
    ),
)
