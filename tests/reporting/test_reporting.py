"""Figures against their bars and intervals; what is made or explained; drawings in the colours that a page can turn."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple
from xml.etree import ElementTree as ET

import numpy as np
import pandas as pd
import pytest
from cold_chapter_frames import evidence as cold_evidence
from evaluation_evidence import full_evidence
from matplotlib.colors import to_hex
from matplotlib.ticker import FixedLocator

from depth import some
from edgeplan.chapters.cold_start.evaluation.figures import COLD_FIGURES
from edgeplan.chapters.prediction.evaluation.page import FIGURES
from edgeplan.report.stage import PageSection, render_page
from edgeplan.reporting import chapter_report as kit
from edgeplan.reporting.bars import Bar, interval_keys
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
from edgeplan.reporting.metrics import estimate, rmspe_difference
from edgeplan.reporting.page import CardOf, ChapterPage, bar_lines, make_cards, markdown, table

HIGH = Bar("x.ratio", "ratio", high=1.0)
LOW = Bar("x.share", "share", low=0.8)
TRUTH = np.full(40, 10.0)


def _with_ends(key: str, value: float, low: float, high: float) -> dict[str, float]:
    return {key: value, **dict(zip(interval_keys(key), (low, high), strict=True))}


@pytest.mark.parametrize(
    ("bar", "metrics", "verdict"),
    [
        (HIGH, {"x.ratio": 0.9}, "pass"),
        (HIGH, {"x.ratio": 1.1}, "miss"),
        (HIGH, _with_ends("x.ratio", 0.9, 0.8, 1.2), "undecided"),
        (HIGH, _with_ends("x.ratio", 1.1, 0.9, 1.2), "undecided"),
        (HIGH, _with_ends("x.ratio", 1.1, 1.05, 1.2), "miss"),
        (LOW, _with_ends("x.share", 0.9, 0.8, 0.95), "pass"),
        (LOW, _with_ends("x.share", 0.7, 0.6, 0.79), "miss"),
        (Bar("x", "between", low=1, high=2), _with_ends("x", 1.5, 0.5, 2.5), "undecided"),
        (LOW, {}, "miss"),
        (LOW, {"x.share": math.nan}, "miss"),
        (LOW, {"x.share": None}, "miss"),
    ],
)
def test_a_bar_inside_the_interval_is_undecided_and_no_value_fails(bar: Bar, metrics: dict[str, float], verdict: str) -> None:
    (line,) = bar_lines([bar], metrics)
    assert line.verdict == verdict
    lost = metrics.get(bar.key) is None or math.isnan(metrics[bar.key])
    assert (line.value == "no value") == lost
    (card,) = make_cards([CardOf("a card", bar.key)], [bar], metrics)
    assert (card.verdict, card.value == "no value") == (verdict, lost)


def test_the_page_says_so() -> None:
    bars = (HIGH, LOW, Bar("x.lost", "lost", low=1))
    metrics = {**_with_ends("x.ratio", 0.9, 0.8, 1.2), "x.share": 0.9}
    lines = tuple(bar_lines(bars, metrics))
    cards = tuple(make_cards([CardOf("takes {} of it", "x.ratio"), CardOf("loses {}", "x.lost", "times")], bars, metrics))
    page = render_page([PageSection("x", ChapterPage("x", "X", "About.", "today", cards=cards, lines=lines))])
    assert "1 of 3 pass, 1 undecided, 1 without a value" in page
    assert re.search(r'<td class=" verdict undecided">undecided</td><td class="">0.9 \(0.8 to 1.2\)</td>', page)
    assert re.search(r"<dt>95 %</dt><dd>0.8 to 1.2</dd>", page)
    assert '<p class="value">no value</p>' in page
    assert '<p class="what">takes 0.9 of it</p>' in page
    assert not make_cards([CardOf("loses {}", "x.lost", further=True)], bars, metrics), "no profile has to measure it"


def test_intervals_hold_the_mean_they_are_of() -> None:
    """Of 200 draws of ten layers about nineteen in twenty intervals hold the true mean: never all, never few."""
    rng = np.random.default_rng(3)
    held = 0
    for _ in range(200):
        drawn = rng.normal(1.0, 0.2, 10)
        found = estimate(np.mean, drawn)
        assert found.low < found.value < found.high
        held += found.low <= 1.0 <= found.high
    assert 165 <= held <= 198
    assert math.isnan(estimate(np.mean, [1.0]).low), "one alone has none"
    assert math.isnan(estimate(lambda _: math.nan, np.arange(5)).low)


def test_the_interval_is_that_of_resampling_by_hand_and_rows_that_repeat_say_no_more() -> None:
    rng = np.random.default_rng(8)
    ours, theirs = (TRUTH * (1 + rng.normal(0.0, spread, TRUTH.size)) for spread in (0.05, 0.07))
    drawn = rng.integers(0, TRUTH.size, (20000, TRUTH.size))
    points = [100 * np.sqrt(((p / TRUTH - 1)[drawn] ** 2).mean(axis=1)) for p in (ours, theirs)]
    low, high = np.quantile(points[1] - points[0], (0.025, 0.975))
    found = rmspe_difference(TRUTH, ours, theirs, np.arange(40))
    assert found == pytest.approx((low, high), abs=0.15)
    assert rmspe_difference(TRUTH, theirs, ours, np.arange(40)) == pytest.approx((-found[1], -found[0]))
    again = (np.repeat(values, 4) for values in (TRUTH, ours, theirs, np.arange(40)))
    assert rmspe_difference(*again) == pytest.approx(found, abs=0.15), "rows of one group are resampled together"
    assert np.isnan(rmspe_difference(TRUTH, ours, theirs, np.zeros(40))).all(), "one group says nothing"


class Evidence(NamedTuple):
    runs: pd.DataFrame | None = None


def _refused(e: Evidence) -> pd.DataFrame:
    raise kit.NotMeasuredError(f"of {len(e.runs or ())} runs none counts")


TABLES = kit.registry(
    kit.TableSpec[Evidence]("b", "Runs", lambda e: e.runs, ("runs.cold_ms",), lambda e: f"{len(e.runs)} runs."),  # type: ignore[arg-type, return-value]
    kit.TableSpec[Evidence]("a", "Refused", _refused),
)
RUNS = pd.DataFrame({"cold_ms": [1.5, 2.0]})


@pytest.mark.parametrize("runs", [None, RUNS[:0], RUNS.rename(columns={"cold_ms": "x"}), RUNS * float("nan")])
def test_absent_empty_and_unknown_inputs_are_one_thing(runs: pd.DataFrame | None) -> None:
    made, reasons = kit.make({"b": TABLES["b"]}, Evidence(runs))
    assert (made, reasons) == ({}, {"b": "there is no runs.cold_ms"})
    assert TABLES["b"].noted(Evidence(runs)) == ""


def test_what_is_there_is_made_and_the_rest_explained_in_order() -> None:
    tables = kit.make_or_explain(TABLES, Evidence())
    assert list(tables) == ["b", "a"]
    assert tables["a"].to_dict("list") == {kit.REASON: ["of 0 runs none counts"]}
    seen = Evidence(RUNS)
    (shown,) = kit.page_tables(TABLES, kit.make({"b": TABLES["b"]}, seen)[0], seen, "b")
    assert (shown.id, shown.caption, shown.open, shown.rows) == ("b", "2 runs.", True, (("1.5",), ("2",)))


def test_nothing_stands_where_a_whole_number_is_missing() -> None:
    frame = pd.DataFrame({"count": pd.array([1, None], dtype="Int64"), "ms": [0.5, float("nan")]})
    assert markdown(table("x", "X", "", frame)).splitlines()[2:] == ["| 1 | 0.5 |", "|  |  |"]


UNIT = re.compile(r"\((ms|us|%|times|count|pixels|place in the process)\)")
MAX_BYTES = 300_000


@pytest.fixture(scope="module")
def functions() -> Mapping[str, Callable[[], Any]]:
    """Every figure of both chapters; none of them may be one that was not measured."""
    parts = ((FIGURES, full_evidence()), (COLD_FIGURES, cold_evidence()))
    return {name: partial(one.function, seen) for specs, seen in parts for name, one in specs.items()}


@pytest.fixture(scope="module")
def figures(functions: Mapping[str, Callable[[], Any]]) -> Mapping[str, Any]:
    return {name: function() for name, function in functions.items()}


@pytest.fixture(scope="module")
def documents(figures: Mapping[str, Any]) -> Mapping[str, str]:
    return {name: svg(figure).decode() for name, figure in figures.items()}


def test_files_are_small_and_the_same_every_time(
    functions: Mapping[str, Callable[[], Any]], documents: Mapping[str, str]
) -> None:
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


@pytest.mark.parametrize(
    "names",
    [
        ("onnxruntime", "onnxruntime-optimised", "onnxruntime-prepacked"),
        ("edgeplan", "edgeplan, no stealing", "edgeplan, continuous mode", "edgeplan, no stealing, asymmetric"),
    ],
)
def test_settings_of_an_engine_share_its_colour_and_are_told_apart(names: tuple[str, ...]) -> None:
    styles = [series_style(*setting_place(name)) for name in names]
    assert len({style["color"] for style in styles}) == 1
    assert len({(style["marker"], style["linestyle"]) for style in styles}) == len(styles)
    assert all(style["marker"] in MARKERS for style in styles)
    assert setting_place("ONNX Runtime, packed") == setting_place("onnxruntime-prepacked")
