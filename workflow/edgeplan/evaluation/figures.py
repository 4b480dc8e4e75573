"""The registry of figures and how one is written. A new figure is one function and one line of `FIGURES`."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from types import MappingProxyType

from edgeplan.evaluation import figures_kernels as kernels
from edgeplan.evaluation import figures_models as models
from edgeplan.evaluation.artifacts import Evidence, Shown
from edgeplan.evaluation.svg import svg
from edgeplan.files import write_atomically

_ALL = (
    Shown(
        "figure_06",
        "Where the latency goes",
        "Predicted latency of the evaluated models by kernel kind, mean share by family. Paper (Fig. 6): Conv and DWConv take "
        "94.2 %, 91.9 % and 75.5 % on CPU, GPU and VPU.",
        kernels.breakdown,
        ("breakdown", "models"),
    ),
    Shown(
        "figure_07",
        "Conv by kernel size and by input size",
        "Measured and predicted latency of one Conv while one dimension is swept (paper: Fig. 7, same configurations, curves "
        "without numbers: latency grows in other ways than linearly, and in steps with the input size).",
        kernels.sizes,
        ("sweeps",),
    ),
    Shown(
        "figure_08",
        "Conv by output channels",
        "Measured and predicted latency as the output channels are swept: the staircase (paper: Fig. 8, same configuration, "
        "curves without numbers: steps on its GPU and VPU).",
        kernels.channels,
        ("sweeps",),
    ),
    Shown(
        "figure_09",
        "Accuracy on unseen families",
        "Share of models within 10 %. FLOPs and FLOPs+MAC are regressions over the other families; the paper's bars are its "
        "means over five families and three devices (Fig. 9) and, for the operator sum, its CPU (Fig. 11).",
        models.baselines_figure,
        ("models",),
        ("predicted_ms", "macs", "memory_bytes"),
    ),
    Shown(
        "figure_10",
        "Error by latency",
        "Signed prediction error in four groups of equal size by measured latency; box: quartiles, whiskers: 5 and 95 %; "
        "number of models below (paper: Fig. 10, boxes without numbers, of the VPU: large errors below 10 and above 100 ms).",
        models.error_by_latency,
        ("models",),
        ("predicted_ms",),
    ),
    Shown(
        "figure_11",
        "Operators against kernels",
        "Share of models within 5 % and 10 % when operators, or kernels, are summed (paper: Fig. 11; +-10 % on the CPU: 91.3 % "
        "and 99.0 %, operators alone 65.7 % on MobileNetv2s and 48.2 % on NASBench201).",
        models.operators_against_kernels,
        ("models",),
        ("predicted_ms", "operator_sum_ms"),
    ),
    Shown(
        "figure_scatter",
        "Measured and predicted",
        "Every evaluated model; the band is +-10 %.",
        models.scatter,
        ("models",),
        ("predicted_ms",),
    ),
    Shown(
        "figure_errors",
        "Distribution of errors",
        "Left: signed errors. Right: share of models within a bound; where they were measured a second time, beside that.",
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
