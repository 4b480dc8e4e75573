"""The front of a model as a picture: what its plans take in memory, and how long their first and later inferences take."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

from edgeplan.front import COLD, CONTINUOUS, MEMORY, PAIR, Front, FrontPlan
from edgeplan.reporting.drawing import INK, PALETTE, canvas, legend, name_axes
from edgeplan.reporting.svg import svg
from edgeplan.support.files import write_atomically

_MIB = 1 << 20
_COLOURS = {COLD: PALETTE[0], CONTINUOUS: PALETTE[3], MEMORY: PALETTE[1], PAIR: PALETTE[2]}


def write_front(front: Front, path: Path) -> None:
    """Draw the plans of a front as SVG, with those that another one beats in pale.

    Args:
        front: of a model.
        path: of the file.

    Raises:
        StoreError: it cannot be written.
    """
    figure, (axis,) = canvas(8.0, 4.6)
    for kind, colour in _COLOURS.items():
        _series(axis, [plan for plan in front.plans if plan.kind == kind], colour, kind)
    for plan in front.beaten:
        at = plan.peak_bytes / _MIB
        axis.plot([at, at], [plan.first_ms, plan.later_ms], ".", color=_COLOURS[plan.kind], alpha=0.25)
    bounds = sorted((plan.peak_bytes / _MIB, plan.bound_ms) for plan in front.plans)
    axis.plot([at for at, _ in bounds], [ms for _, ms in bounds], "_", color=INK, markersize=10, label="proven bound")
    axis.set_xscale("log")
    axis.xaxis.set_major_formatter("{x:g}")
    axis.xaxis.set_minor_formatter("{x:g}")
    axis.set_ylim(bottom=0)
    name_axes(axis, "memory over idle (MiB)", "inference (ms), predicted", front.model)
    legend(axis)
    write_atomically(path, partial(Path.write_bytes, data=svg(figure)))


def _series(axis: Any, plans: list[FrontPlan], colour: str, kind: str) -> None:
    """Draw plans of a kind: filled where the first inference is, hollow where later ones are."""
    if not plans:
        return
    own = sorted(plans, key=lambda plan: plan.peak_bytes)
    at = [plan.peak_bytes / _MIB for plan in own]
    axis.plot(at, [plan.first_ms for plan in own], color=colour, marker="o", linestyle="--", label=f"{kind}: first")
    later = [plan.later_ms for plan in own]
    axis.plot(at, later, color=colour, marker="o", fillstyle="none", label=f"{kind}: later")
