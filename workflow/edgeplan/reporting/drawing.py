"""What all figures share: size, fonts, and colours that colour-blind readers can tell apart."""

from __future__ import annotations

import io
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

#: Okabe and Ito's palette, without yellow (too pale on white).
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000", "#999999")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
LINES = ("-", "--", ":")
INK, GRID = "#222222", "#dddddd"
_FONT = 11
_DPI = 110


def canvas(width: float = 9.0, height: float = 4.6, columns: int = 1, rows: int = 1) -> tuple[Any, list[Any]]:
    """A figure (inches) with `columns` x `rows` axes, without any global state."""
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    axes = [figure.add_subplot(rows, columns, i + 1) for i in range(rows * columns)]
    for axis in axes:
        axis.set_axisbelow(True)
        axis.grid(visible=True, color=GRID, linewidth=0.8)
        axis.tick_params(labelsize=_FONT, colors=INK)
        for side in ("top", "right"):
            axis.spines[side].set_visible(False)
    return figure, axes


def series_style(i: int) -> dict[str, str]:
    """Colour, marker and line of the i-th of many series: where the colours repeat, lines are broken and markers hollow."""
    turn = i // len(PALETTE)
    colour, marker, line = PALETTE[i % len(PALETTE)], MARKERS[i % len(MARKERS)], LINES[turn % len(LINES)]
    return {"color": colour, "marker": marker, "linestyle": line, "fillstyle": "none" if turn else "full"}


def name_axes(axis: Any, x: str, y: str, title: str = "") -> None:
    """Label an axis in the common font."""
    axis.set_xlabel(x, fontsize=_FONT, color=INK)
    axis.set_ylabel(y, fontsize=_FONT, color=INK)
    if title:
        axis.set_title(title, fontsize=_FONT + 1, color=INK)


def legend(axis: Any, columns: int = 1, *, beside: bool = False) -> None:
    """A legend inside the axis, or to its right."""
    if beside:
        axis.legend(fontsize=_FONT - 1, frameon=False, ncols=columns, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    else:
        axis.legend(fontsize=_FONT - 1, frameon=False, ncols=columns)


def legend_above(axis: Any, columns: int) -> None:
    """A legend above the axis, in one or few lines."""
    axis.legend(fontsize=_FONT - 1, frameon=False, ncols=columns, loc="lower left", bbox_to_anchor=(0.0, 1.0))


def log_scale(axis: Any, *, x: bool = False) -> None:
    """A logarithmic y axis (and x axis) with plain numbers."""
    axis.set_yscale("log")
    axes = [axis.yaxis]
    if x:
        axis.set_xscale("log")
        axes.append(axis.xaxis)
    for each in axes:
        each.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        each.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        each.set_minor_formatter(NullFormatter())


def family_ticks(axis: Any, labels: list[str]) -> None:
    """Long names along the x axis."""
    axis.set_xticks(range(len(labels)))
    axis.set_xticklabels(labels, rotation=40, ha="right", rotation_mode="anchor", fontsize=_FONT)
    axis.grid(visible=False, axis="x")


def png(figure: Any) -> bytes:
    """A drawn figure as PNG; the same figure always gives the same bytes."""
    buffer = io.BytesIO()
    # Without this the file would carry the version of the drawing library.
    figure.savefig(buffer, format="png", dpi=_DPI, metadata={"Software": None}, pil_kwargs={"optimize": True})
    return buffer.getvalue()
