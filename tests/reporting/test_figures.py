"""Figures: small, the same every time, in the colours that a page can turn, with a unit on each axis."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import cache, partial
from typing import Any
from xml.etree import ElementTree as ET

import pytest
from cold_chapter_frames import evidence as cold_evidence
from evaluation_evidence import full_evidence
from matplotlib.colors import to_hex
from matplotlib.ticker import FixedLocator

from depth import some
from edgeplan.chapters.cold_start.evaluation.figures import COLD_FIGURES
from edgeplan.chapters.prediction.evaluation.figures import FIGURES
from edgeplan.reporting.drawing import (
    GRID,
    INK,
    MARKERS,
    PALETTE,
    PAPER,
    colours,
    inline,
    series_style,
    setting_place,
    svg,
    width_pt,
)

UNIT = re.compile(r"\((ms|us|%|times|count|pixels|place in the process)\)")
MAX_BYTES = 300_000


@cache
def _functions() -> Mapping[str, Callable[[], Any]]:
    """Every figure of both chapters; none of them may be one that was not measured."""
    first, second = full_evidence(), cold_evidence()
    ours = {name: partial(one.function, first) for name, one in FIGURES.items()}
    return ours | {name: partial(one.function, second) for name, one in COLD_FIGURES.items()}


@pytest.fixture(scope="module")
def figures() -> Mapping[str, Any]:
    return {name: function() for name, function in _functions().items()}


@pytest.fixture(scope="module")
def documents(figures: Mapping[str, Any]) -> Mapping[str, str]:
    return {name: svg(figure).decode() for name, figure in figures.items()}


def test_files_are_small_and_the_same_every_time(documents: Mapping[str, str]) -> None:
    functions = _functions()
    assert functions.keys() == documents.keys()
    for name in some([*functions], "again"):
        assert svg(functions[name]()).decode() == documents[name], name
    for name, document in documents.items():
        assert len(document) < MAX_BYTES, name
        assert not re.search(r"\d\.\d{3}|dc:date|matplotlib v", document), name


def test_text_is_text_and_colours_are_those_that_a_page_knows(documents: Mapping[str, str]) -> None:
    known = {colour.lower() for colour in (*PALETTE, INK, GRID, PAPER)}
    for name, document in documents.items():
        ET.fromstring(document)  # noqa: S314  drawn a moment ago
        assert "<text" in document, name
        assert set(re.findall(r"#[0-9a-f]{6}\b", re.sub(r"url\(#\w+\)|href=\"#\w+\"|id=\"\w+\"", "", document))) <= known, name


def test_figures_do_not_meet_in_one_page(documents: Mapping[str, str]) -> None:
    elements = {name: inline(document, name) for name, document in documents.items()}
    ids = [found for element in elements.values() for found in re.findall(r' id="([^"]+)"', element)]
    assert len(ids) == len(set(ids))
    for element in elements.values():
        assert {*re.findall(r'href="#([^"]+)"', element), *re.findall(r"url\(#([^)]+)\)", element)} <= set(ids)
        assert not re.search(r"https?:|<style|<script|#[0-9a-f]{6};", element)
        assert "var(--ink)" in element
    assert all(width_pt(document) > 300 for document in documents.values())


def test_each_axis_has_a_name_and_a_unit_or_categories(figures: Mapping[str, Any]) -> None:
    for name, figure in figures.items():
        lowest = min(axis.get_position().y0 for axis in figure.axes)
        for axis in figure.axes:
            shared = axis.get_position().y0 > lowest + 0.05  # what stands below it names the axis for both
            for side in (axis.yaxis,) if shared and not axis.get_xlabel() else (axis.xaxis, axis.yaxis):
                told = side.get_label().get_text()
                categories = isinstance(side.get_major_locator(), FixedLocator)
                assert told, (name, side.axis_name)
                assert categories or UNIT.search(told), (name, told)


def test_a_name_has_one_colour_in_all_figures_of_a_chapter(figures: Mapping[str, Any]) -> None:
    for chapter in (FIGURES, COLD_FIGURES):
        seen: dict[str, set[str]] = {}
        for name in chapter:
            for legend in [*(axis.get_legend() for axis in figures[name].axes), *figures[name].legends]:
                for handle, text in zip(legend.legend_handles, legend.texts, strict=True) if legend else ():
                    colour = handle.get_facecolor() if hasattr(handle, "get_facecolor") else handle.get_color()
                    seen.setdefault(text.get_text(), set()).add(to_hex(colour[0] if getattr(colour, "ndim", 1) > 1 else colour))
        assert len(seen) > 8
        assert {name: found for name, found in seen.items() if len(found) > 1} == {}


def test_names_without_a_place_take_free_colours() -> None:
    found = colours(["conv", "new", "fc", "newer"], {"conv": 0, "fc": 1})
    assert [found[name] for name in ("conv", "fc", "new", "newer")] == list(PALETTE[:4])
    assert len(set(colours(map(str, range(30)), {}).values())) == len(PALETTE)


def test_settings_of_an_engine_share_its_colour_and_are_told_apart() -> None:
    names = {
        "onnxruntime": ("onnxruntime", "onnxruntime-optimised", "onnxruntime-prepacked", "ONNX Runtime, packed"),
        "edgeplan": ("edgeplan", "edgeplan, no stealing", "edgeplan, continuous mode", "edgeplan, no stealing, asymmetric"),
    }
    for first, *others in names.values():
        styles = [series_style(*setting_place(name)) for name in (first, *others[: 3 if first == "edgeplan" else 2])]
        assert len({style["color"] for style in styles}) == 1
        assert len({(style["marker"], style["linestyle"]) for style in styles}) == len(styles)
        assert all(style["marker"] in MARKERS for style in styles)
    assert setting_place("ONNX Runtime, packed") == setting_place("onnxruntime-prepacked")
