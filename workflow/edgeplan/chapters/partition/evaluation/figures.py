"""The figures of the chapter on partitions, after the paper's 2, 3, 5, 6 and 7."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from edgeplan.chapters.partition.evaluation.evidence import CPU, GPU, PartitionEvidence
from edgeplan.reporting import kit
from edgeplan.reporting.drawing import INK, PALETTE, canvas, legend, name_axes
from edgeplan.reporting.kit import NotMeasuredError

_TOP = 8
_CHANNELS = "output channels"


def _curve(e: PartitionEvidence, figure: str) -> Any:
    found = e.curve(figure)
    if found.empty:
        raise NotMeasuredError(f"there is no curve of {figure}")
    return found


def both_processors(e: PartitionEvidence) -> Any:
    """Figure 2: both processors over the output channels of a linear layer, with what half of the runs lie within."""
    f = _curve(e, "figure_02")
    figure, (axis,) = canvas(7.0, 3.6)
    for place, side in enumerate((CPU, GPU)):
        axis.plot(f["outputs"], f[f"{side}_us"], color=PALETTE[place], label=side.upper())
        axis.fill_between(
            f["outputs"], f[f"{side}_low_us"], f[f"{side}_high_us"], color=PALETTE[place], alpha=0.25, linewidth=0
        )
    name_axes(axis, _CHANNELS, "us")
    legend(axis)
    return figure


def _predictions(e: PartitionEvidence, curve: str, shown: tuple[str, ...]) -> Any:
    f = _curve(e, curve)
    figure, (axis,) = canvas(8.0, 3.8)
    axis.plot(f["outputs"], f["gpu_us"], color=INK, linewidth=1.5, label="measured")
    for place, name in enumerate(shown):
        axis.plot(f["outputs"], f[f"{name}_us"], color=PALETTE[place], linewidth=1.2, label=name)
    name_axes(axis, _CHANNELS, "us on the GPU")
    legend(axis, 2)
    return figure


def shapes_alone(e: PartitionEvidence) -> Any:
    """Figure 3: predictors on shapes alone."""
    return _predictions(e, "figure_03", ("plain", "linear regression", "network"))


def dispatch_features(e: PartitionEvidence) -> Any:
    """Figure 5: with dispatch features and without."""
    return _predictions(e, "figure_05", ("ours", "plain"))


def discontinuities(e: PartitionEvidence) -> Any:
    """Figure 6: work groups of a linear layer, and the change of kernel of a convolution."""
    figure, axes = canvas(10.0, 3.8, 2)
    linear = _curve(e, "figure_03")
    axes[0].plot(linear["outputs"], linear["gpu_us"], color=PALETTE[0], label="us")
    axes[0].plot([], [], color=PALETTE[1], linestyle="--", label="work groups")
    other = axes[0].twinx()
    other.plot(linear["outputs"], linear["work_groups"], color=PALETTE[1], linestyle="--")
    other.tick_params(labelsize=8)
    name_axes(axes[0], _CHANNELS, "us on the GPU", "linear, 50 x 768")
    legend(axes[0])
    conv = _curve(e, "figure_06")
    for place, (name, part) in enumerate(conv.groupby("implementation", sort=True)):
        axes[1].plot(part["outputs"], part["gpu_us"], color=PALETTE[place], marker="o", markersize=3, linestyle="", label=name)
    name_axes(axes[1], _CHANNELS, "us on the GPU", "convolution 3 x 3, 64 x 64 x 128")
    legend(axes[1])
    return figure


def importance(e: PartitionEvidence) -> Any:
    """Figure 7: gain of the most important features of convolutions, over all implementations."""
    conv = e.importance[(e.importance["kind"] == "conv") & (e.importance["implementation"] != "")]
    conv = conv if len(conv) else e.importance[e.importance["kind"] == "conv"]
    gain = conv.groupby("feature")["gain"].sum().sort_values(ascending=False)
    share = (gain / gain.sum()).head(_TOP)[::-1]
    figure, (axis,) = canvas(7.0, 3.6)
    colours = [PALETTE[0] if name.startswith("dispatch.") else PALETTE[1] for name in share.index]
    axis.barh(range(len(share)), 100 * share, color=colours)
    axis.set_yticks(range(len(share)), [name.removeprefix("dispatch.").replace("_", " ") for name in share.index])
    for place, label in enumerate(("of the dispatch", "of the shape")):
        axis.plot([], [], "s", color=PALETTE[place], label=label)
    name_axes(axis, "% of the gain", "")
    legend(axis)
    return figure


#: Every figure by id.
PARTITION_FIGURES: Mapping[str, kit.FigureSpec[PartitionEvidence]] = kit.registry(
    kit.FigureSpec("partition_figure_02", "CPU and GPU (Figure 2)", both_processors, ("curves",)),
    kit.FigureSpec("partition_figure_03", "Predictors on shapes alone (Figure 3)", shapes_alone, ("curves",)),
    kit.FigureSpec("partition_figure_05", "With dispatch features (Figure 5)", dispatch_features, ("curves",)),
    kit.FigureSpec("partition_figure_06", "Where latency jumps (Figure 6)", discontinuities, ("curves",)),
    kit.FigureSpec("partition_figure_07", "What predictors rely on (Figure 7)", importance, ("importance",)),
)
