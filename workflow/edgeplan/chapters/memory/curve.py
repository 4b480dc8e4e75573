"""Latency against budget, with the bound, as a picture."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

from edgeplan.chapters.memory.budget import MIB
from edgeplan.reporting.drawing import INK, PALETTE, canvas, legend, name_axes
from edgeplan.reporting.svg import svg
from edgeplan.support.files import write_atomically


def write_curve(points: Sequence[tuple[int, float, float]], model: str, path: Path) -> None:
    """Draw budgets (bytes), predicted times and bounds (ms).

    Raises:
        StoreError: it cannot be written.
    """
    figure, (axis,) = canvas(7.0, 4.0)
    budgets = [budget / MIB for budget, _, _ in points]
    axis.plot(budgets, [ms for _, ms, _ in points], color=PALETTE[0], marker="o", markersize=3, label="planned")
    axis.plot(budgets, [ms for _, _, ms in points], color=INK, linestyle="--", label="bound")
    axis.set_xscale("log")
    axis.xaxis.set_major_formatter("{x:g}")
    axis.xaxis.set_minor_formatter("{x:g}")
    axis.set_ylim(bottom=0)
    name_axes(axis, "budget over idle (MiB)", "inference (ms)", model)
    legend(axis)
    write_atomically(path, partial(Path.write_bytes, data=svg(figure)))
