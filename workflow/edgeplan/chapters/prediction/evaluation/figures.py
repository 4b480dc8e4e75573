"""The registry of figures and how one is written. A new figure is one function and one line of `FIGURES`."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from types import MappingProxyType

from edgeplan.chapters.prediction.evaluation import figures_kernels as kernels
from edgeplan.chapters.prediction.evaluation import figures_models as models
from edgeplan.chapters.prediction.evaluation.evidence import Evidence, Shown
from edgeplan.reporting.svg import svg
from edgeplan.support.files import write_atomically

_ALL = (
    Shown(
        "figure_06",
        "Where the latency goes",
        kernels.breakdown,
        ("breakdown", "models"),
    ),
    Shown(
        "figure_07",
        "Conv by kernel size and by input size",
        kernels.sizes,
        ("sweeps",),
    ),
    Shown(
        "figure_08",
        "Conv by output channels",
        kernels.channels,
        ("sweeps",),
    ),
    Shown(
        "figure_09",
        "Accuracy on unseen families",
        models.baselines_figure,
        ("models",),
        ("predicted_ms", "macs", "memory_bytes"),
    ),
    Shown(
        "figure_10",
        "Error by latency",
        models.error_by_latency,
        ("models",),
        ("predicted_ms",),
    ),
    Shown(
        "figure_11",
        "Operators against kernels",
        models.operators_against_kernels,
        ("models",),
        ("predicted_ms", "operator_sum_ms"),
    ),
    Shown(
        "figure_scatter",
        "Measured and predicted",
        models.scatter,
        ("models",),
        ("predicted_ms",),
    ),
    Shown(
        "figure_errors",
        "Distribution of errors",
        models.error_distribution,
        ("models",),
        ("predicted_ms",),
    ),
)

#: Every figure by id, in the order of the report.
FIGURES: Mapping[str, Shown] = MappingProxyType({picture.id: picture for picture in _ALL})


def make_figures(evidence: Evidence) -> dict[str, bytes]:
    """Every figure whose inputs are there, as SVG by id, in the order of `FIGURES`."""
    return {name: svg(picture.function(evidence)) for name, picture in FIGURES.items() if picture.possible(evidence)}


def write_figures(evidence: Evidence, folder: Path) -> dict[str, bytes]:
    """Draw and write every figure whose inputs are there; returns them by id."""
    figures = make_figures(evidence)
    for name, data in figures.items():
        write_atomically(folder / f"{name}.svg", partial(Path.write_bytes, data=data))
    return figures
