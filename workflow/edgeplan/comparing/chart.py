"""Draws a comparison: requests a second against the time of one, with a marker for each way."""

from __future__ import annotations

from pathlib import Path

from edgeplan.comparing.result import Comparison
from edgeplan.reporting.drawing import MARKERS, PALETTE, canvas, legend, name_axes, svg
from edgeplan.support.files import write_atomically


def write_chart(found: Comparison, path: Path) -> None:
    """Draw all ways whose outputs are right, as SVG: a colour for each engine, a mark for each number of sessions."""
    figure, (axis,) = canvas(9.5, 4.2)
    rows = [row for row in found.rows if row.is_right]
    engines, counts = (list(dict.fromkeys(values)) for values in ([r.engine for r in rows], [r.sessions for r in rows]))
    for row in rows:
        sure = [[max(row.latency_ms - row.low_ms, 0.0)], [max(row.high_ms - row.latency_ms, 0.0)]]
        axis.errorbar(
            [row.latency_ms], [row.per_second], xerr=sure, label=row.name, linestyle="none", markersize=6, capsize=2,
            color=PALETTE[engines.index(row.engine) % len(PALETTE)], marker=MARKERS[counts.index(row.sessions) % len(MARKERS)],
        )  # fmt: skip
    axis.set_xlim(left=0)
    axis.set_ylim(bottom=0)
    name_axes(axis, "a later request (ms)", "requests a second", found.model)
    legend(axis, beside=True)
    write_atomically(path, lambda temporary: temporary.write_bytes(svg(figure)))
