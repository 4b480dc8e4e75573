"""A timeline as a picture: the planned and the measured cold start side by side."""

from __future__ import annotations

from typing import Any

import pandas as pd

from edgeplan.reporting.drawing import INK, PALETTE, PAPER, canvas, name_axes

#: Stages by colour, in the order of the legend; other stages are grey.
STAGE_COLOURS = {"read": PALETTE[0], "create": PALETTE[3], "transform": PALETTE[5], "execute": PALETTE[2]}
_OTHER = PALETTE[7]


def gantt(spans: pd.DataFrame, title: str) -> Any:
    """Draw the timelines of a plan.

    Args:
        spans: of one plan: kind ("planned", "measured"), core, stage, start_ms, end_ms.
        title: of the picture.
    """
    kinds = [kind for kind in ("planned", "measured") if (spans["kind"] == kind).any()]
    cores = sorted(set(spans["core"]), key=lambda core: (core != "main", core))
    figure, axes = canvas(11.0, 1.1 + 0.75 * len(cores) * len(kinds) + 0.5 * len(kinds), rows=len(kinds))
    end = float(spans["end_ms"].max())
    for axis, kind in zip(axes, kinds, strict=True):
        part = spans[spans["kind"] == kind]
        for stage, pieces in part.groupby("stage", sort=False):
            colour = STAGE_COLOURS.get(str(stage), _OTHER)
            for core, bars in pieces.groupby("core", sort=False):
                extents = list(zip(bars["start_ms"], bars["end_ms"] - bars["start_ms"], strict=True))
                axis.broken_barh(extents, (cores.index(core) - 0.38, 0.76), facecolors=colour, edgecolor=PAPER, linewidth=0.2)
        axis.axvline(float(part["end_ms"].max()), color=INK, linewidth=1)
        axis.set_yticks(range(len(cores)), cores)
        axis.invert_yaxis()
        axis.set_xlim(0, end * 1.02)
        axis.grid(visible=False, axis="y")
        name_axes(axis, "time (ms)" if kind == kinds[-1] else "", "core", f"{title}, {kind}: {part['end_ms'].max():.1f} ms")
    drawn = [stage for stage in STAGE_COLOURS if stage in set(spans["stage"])]
    others = [stage for stage in dict.fromkeys(spans["stage"]) if stage not in STAGE_COLOURS]
    handles = [axes[0].plot([], [], "s", color=STAGE_COLOURS.get(s, _OTHER), label=s)[0] for s in (*drawn, *others)]
    figure.legend(handles=handles, loc="outside lower center", ncols=len(handles), frameon=False, labelcolor=INK)
    return figure
