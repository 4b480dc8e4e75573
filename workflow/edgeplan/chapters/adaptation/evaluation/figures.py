"""Draws the figures of the chapter on adaptation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from edgeplan.chapters.adaptation.evaluation.evidence import ALL, LadderEvidence, rung_name
from edgeplan.chapters.adaptation.kept import VARIANT
from edgeplan.chapters.adaptation.ladder import OLD, POOLED, SCRATCH
from edgeplan.reporting import kit
from edgeplan.reporting.drawing import INK, canvas, legend, name_axes, series_style

_COLUMNS = 3


def ladders(e: LadderEvidence) -> Any:
    """Draw the share of the variants within 10 % by seconds of measuring, a panel a new device."""
    f = e.rungs[(e.rungs["use"] == VARIANT) & (e.rungs["method"] != OLD)]
    targets, budgets = list(dict.fromkeys(f["target"])), sorted(set(f["budget_s"]))
    names = list(dict.fromkeys(f["source"]))
    rows = -(-len(targets) // _COLUMNS)
    figure, axes = canvas(10.0, 3.4 * rows, min(_COLUMNS, len(targets)), rows)
    for axis, target in zip(axes, targets, strict=False):
        for (method, source), line in f[f["target"] == target].groupby(["method", "source"], sort=False):
            place = [budgets.index(b) for b in line["budget_s"]]
            label = "from scratch" if method == SCRATCH else "from all others" if source == POOLED else f"from {source}"
            axis.plot(place, 100 * line["within_10pct"], label=label, **series_style(*reversed(divmod(names.index(source), 6))))
        axis.axhline(90, color=INK, linewidth=0.6, linestyle=":")
        axis.set_xticks(range(len(budgets)), [rung_name(b) for b in budgets])
        axis.set_ylim(0, 100)
        name_axes(axis, f"seconds of measuring ({ALL}: every row)", "models within 10 % (%)", target)
        legend(axis, loc="lower right")
    for axis in axes[len(targets) :]:
        axis.set_visible(False)
    return figure


#: Every figure by id.
FIGURES: Mapping[str, kit.FigureSpec[LadderEvidence]] = kit.registry(
    kit.FigureSpec("ladders", "How soon a new device is predicted", ladders, ("ladder",)),
)
