"""Writes figures as SVG: the same bytes every time, text as text, and colours that follow the page's."""

from __future__ import annotations

import io
import re
from typing import Any

import matplotlib as mpl

from edgeplan.reporting.drawing import GRID, INK, PALETTE, PAPER

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

    Args:
        document: document that `svg` wrote.
        name: id of the figure.
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
