"""Figures of all chapters share their size, fonts, and colours that colour-blind readers can tell apart."""

from __future__ import annotations

import io
import re
from collections.abc import Iterable, Mapping
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

#: Okabe and Ito's palette, without yellow (too pale on white). Black is off by a little: SVG does
#: not say plain black, and a page could not turn it.
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#111111", "#999999")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
LINES, HATCHES = ("-", "--", ":", "-."), ("", "////", "\\\\\\\\", "xxxx")
INK, GRID, PAPER = "#222222", "#dddddd", "#ffffff"
_FONT = 11

#: What has the same colour in every figure, as a place in `PALETTE`.
Places = Mapping[str, int]
PREDICTORS: Places = {"predicted": 0, "ours": 0, "kernel sum": 0, "operator sum": 1, "FLOPs": 2, "FLOPs+MAC": 3}
KINDS: Places = {"conv": 0, "dwconv": 1, "fc": 2, "maxpool": 3, "avgpool": 4, "add": 5, "concat": 6, "others": 7}
PLANS: Places = {"optimal": 0, "K+C+P": 0, "K+C": 2, "K": 5, "warm": 7}
STATES: Places = {"page cache warm": 0, "page cache evicted": 5}
_ENGINES: Places = {"edgeplan": 0, "onnx": 1, "openvino": 2, "ncnn": 3, "litert": 5}
#: What tells settings of one engine apart, in their names: the first found counts.
_VARIANTS: Places = {"asymmetric-nnv12": 3, "asymmetric": 2, "continuous": 3, "packed": 2} | dict.fromkeys(
    ("optimised", "cache", "stealing", "fixed"), 1
)
#: Text as text, not as outlines of letters; ids that are no random numbers.
_SETTINGS = {"svg.fonttype": "none", "svg.hashsalt": "edgeplan"}
_LONG = re.compile(r"-?\d+\.\d{3,}")
#: Names that are digests of coordinates, whose last digits differ between machines: numbered.
_DIGEST = re.compile(r"(?<=[#\"])[A-Za-z][0-9a-f]{10}(?=[\")])")
#: The element's size, what describes the file, rules of style that would be the page's.
_HEAD = re.compile(
    r'<svg[^>]*(viewBox="[^"]*")[^>]*>(?:\s*<metadata>.*?</metadata>)?(?:\s*<defs>\s*<style.*?</style>\s*</defs>)?', re.DOTALL
)
_ID, _REFERENCE = re.compile(r' id="([^"]*)"'), re.compile(r'(?<=href="#)[^"]*|(?<=url\(#)[^)]*')
#: Colours of the drawing -> names of the page's variables.
_VARIABLES = {INK: "ink", GRID: "grid", PAPER: "paper"} | {colour: f"series-{i + 1}" for i, colour in enumerate(PALETTE)}
_COLOUR = re.compile("|".join(_VARIABLES), re.IGNORECASE)
_BY_COLOUR = {colour.lower(): name for colour, name in _VARIABLES.items()}


def colours(names: Iterable[str], places: Mapping[str, int]) -> dict[str, str]:
    """Return a colour for each name of a figure: its own, else the first that is free, else grey."""
    wanted = list(dict.fromkeys(names))
    taken = {places[name] for name in wanted if name in places}
    free = iter(i for i in range(len(PALETTE)) if i not in taken)
    return {name: PALETTE[places[name] if name in places else next(free, len(PALETTE) - 1)] for name in wanted}


def setting_place(name: str) -> tuple[int, int]:
    """Return the place of a setting in the palette, by its engine, and a number that tells it from the engine's others."""
    plain = name.lower()
    place = next((place for engine, place in _ENGINES.items() if plain.startswith(engine)), len(PALETTE) - 1)
    return place, next((number for word, number in _VARIANTS.items() if word in plain), 0)


def canvas(width: float = 9.0, height: float = 4.6, columns: int = 1, rows: int = 1) -> tuple[Any, list[Any]]:
    """Create a figure (inches) with `columns` x `rows` axes, without any global state."""
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    axes = [figure.add_subplot(rows, columns, i + 1) for i in range(rows * columns)]
    for axis in axes:
        axis.set_axisbelow(True)
        axis.grid(visible=True, color=GRID, linewidth=0.8)
        axis.set_facecolor("none")
        axis.tick_params(which="both", labelsize=_FONT, colors=INK)
        for side, spine in axis.spines.items():
            spine.set(color=INK, visible=side not in ("top", "right"))
    return figure, axes


def series_style(place: int, variant: int = 0) -> dict[str, str]:
    """Return colour, marker and line of a series: variants of a colour have other lines, hollow markers."""
    colour, marker, line = PALETTE[place], MARKERS[(place + variant) % len(MARKERS)], LINES[variant % len(LINES)]
    return {"color": colour, "marker": marker, "linestyle": line, "fillstyle": "none" if variant else "full"}


def name_axes(axis: Any, x: str, y: str, title: str = "") -> None:
    """Label both axes in the common font, and set a title."""
    axis.set_xlabel(x, fontsize=_FONT, color=INK)
    axis.set_ylabel(y, fontsize=_FONT, color=INK)
    if title:
        axis.set_title(title, fontsize=_FONT + 1, color=INK)


def legend(axis: Any, columns: int = 1, *, beside: bool = False, **place: Any) -> None:
    """Add a legend inside the axis, or to its right."""
    place = {"loc": "upper left", "bbox_to_anchor": (1.0, 1.0)} if beside else place
    axis.legend(fontsize=_FONT - 1, frameon=False, ncols=columns, labelcolor=INK, **place)


def legend_above(axis: Any, columns: int) -> None:
    """Add a legend above the axis, in one or few lines."""
    legend(axis, columns, loc="lower left", bbox_to_anchor=(0.0, 1.0))


def log_scale(axis: Any, *, x: bool = False) -> None:
    """Scale the y axis (and x axis) logarithmically, with plain numbers."""
    axis.set_yscale("log")
    axes = [axis.yaxis]
    if x:
        axis.set_xscale("log")
        axes.append(axis.xaxis)
    for each in axes:
        each.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        each.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        each.set_minor_formatter(NullFormatter())


def grouped_bars(axis: Any, series: Mapping[str, Any], colours: Iterable[str]) -> None:
    """Draw bars side by side: a series a name, each a value a group."""
    width = 0.8 / len(series)
    for place, ((name, values), colour) in enumerate(zip(series.items(), colours, strict=False)):
        axis.bar(np.arange(len(values)) - 0.4 + width * (place + 0.5), values, width, color=colour, label=name)


def family_ticks(axis: Any, labels: list[str]) -> None:
    """Write long names along the x axis."""
    axis.set_xticks(range(len(labels)))
    axis.set_xticklabels(labels, rotation=40, ha="right", rotation_mode="anchor", fontsize=_FONT)
    axis.grid(visible=False, axis="x")


def svg(figure: Any) -> bytes:
    """Return a drawn figure as SVG; the same figure always gives the same bytes."""
    buffer = io.BytesIO()
    with mpl.rc_context(_SETTINGS):
        figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
    # Digits finer than any screen make files larger, and differ between machines.
    document = _LONG.sub(_rounded, buffer.getvalue().decode())
    numbers = {found: f"{found[0]}{i}" for i, found in enumerate(dict.fromkeys(_DIGEST.findall(document)))}
    return _DIGEST.sub(lambda found: numbers[found[0]], document).encode()


def _rounded(found: re.Match[str]) -> str:
    text = f"{float(found[0]):.2f}".rstrip("0").rstrip(".")
    return "0" if text == "-0" else text


def inline(document: str, name: str) -> str:
    """Return a document of `svg` as an element of a page.

    Ids that are referred to get the figure's name in front, so that figures do not meet in one
    page; others are left out. Colours become variables of the page, named in `style.html.j2`, so
    that a figure is light or dark as the page is; its rules of style are there, too.
    """
    # Larger than this its letters would outgrow the page's.
    head = rf'<svg \1 style="max-width: {1.5 * width_pt(document):.0f}px">'
    element = _HEAD.sub(head, document[document.index("<svg") :], count=1).replace("xlink:href", "href")
    used = set(_REFERENCE.findall(element))
    element = _ID.sub(lambda found: f' id="{name}-{found[1]}"' if found[1] in used else "", element)
    element = _REFERENCE.sub(lambda found: f"{name}-{found[0]}", element)
    return _COLOUR.sub(lambda found: f"var(--{_BY_COLOUR[found[0].lower()]})", element)


def width_pt(document: str) -> float:
    """Return the width of a document of `svg`, in points."""
    found = re.search(r'<svg[^>]*\bwidth="([\d.]+)pt"', document)
    return float(found[1]) if found else 0.0
