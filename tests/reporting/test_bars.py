"""Figures against their bars: passed, missed, undecided inside their own interval, failed without a value."""

from __future__ import annotations

import math
import re

import numpy as np
import pytest

from edgeplan.report.pages import PageSection, render_page
from edgeplan.reporting.bars import Bar, interval_keys
from edgeplan.reporting.page import CardOf, ChapterPage, bar_lines, make_cards
from edgeplan.reporting.uncertainty import with_interval

HIGH = Bar("x.ratio", "ratio", high=1.0)
LOW = Bar("x.share", "share", low=0.8)


def _with_ends(key: str, value: float, low: float, high: float) -> dict[str, float]:
    return {key: value, **dict(zip(interval_keys(key), (low, high), strict=True))}


@pytest.mark.parametrize(
    ("bar", "metrics", "verdict"),
    [
        (HIGH, {"x.ratio": 0.9}, "pass"),
        (HIGH, {"x.ratio": 1.1}, "miss"),
        (HIGH, _with_ends("x.ratio", 0.9, 0.8, 1.0), "pass"),
        (HIGH, _with_ends("x.ratio", 0.9, 0.8, 1.2), "undecided"),
        (HIGH, _with_ends("x.ratio", 1.1, 0.9, 1.2), "undecided"),
        (HIGH, _with_ends("x.ratio", 1.1, 1.05, 1.2), "miss"),
        (LOW, _with_ends("x.share", 0.9, 0.8, 0.95), "pass"),
        (LOW, _with_ends("x.share", 0.9, 0.7, 0.95), "undecided"),
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
    (card,) = make_cards([CardOf("a card", (bar.key,))], [bar], metrics)
    assert (card.verdict, card.value == "no value") == (verdict, lost)


def test_the_page_says_so() -> None:
    bars = (HIGH, LOW, Bar("x.lost", "lost", low=1))
    metrics = {**_with_ends("x.ratio", 0.9, 0.8, 1.2), "x.share": 0.9}
    lines = tuple(bar_lines(bars, metrics))
    cards = tuple(make_cards([CardOf("takes {} of it", ("x.ratio",)), CardOf("loses {}", ("x.lost",), "times")], bars, metrics))
    page = render_page([PageSection("x", ChapterPage("x", "X", "About.", "today", cards=cards, lines=lines))])
    assert "1 of 3 pass, 1 undecided, 1 without a value" in page
    assert re.search(r'<td class=" verdict undecided">undecided</td><td class="">0.9 \(0.8 to 1.2\)</td>', page)
    assert re.search(r"<dt>95 %</dt><dd>0.8 to 1.2</dd>", page)
    assert '<p class="value">no value</p>' in page
    assert '<p class="what">takes 0.9 of it</p>' in page
    assert not make_cards([CardOf("loses {}", ("x.lost",), further=True)], bars, metrics), "no profile has to measure it"


def test_intervals_hold_the_mean_they_are_of() -> None:
    """Of 200 draws of ten layers about nineteen in twenty intervals hold the true mean: never all, never few."""
    rng = np.random.default_rng(3)
    held = 0
    for _ in range(200):
        drawn = rng.normal(1.0, 0.2, 10)
        found = with_interval("x", lambda chosen, values=drawn: float(values[chosen].mean()), 10)
        assert found["x.low"] < found["x"] < found["x.high"]
        held += found["x.low"] <= 1.0 <= found["x.high"]
    assert 165 <= held <= 198
    assert with_interval("x", lambda _: 1.0, 1) == {"x": 1.0}
    assert set(with_interval("x", lambda _: math.nan, 5)) == {"x"}
