"""Figures against their bars: passed, missed, undecided inside their own interval; intervals; what is made or explained."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from edgeplan.report.stage import PageSection, render_page
from edgeplan.reporting import chapter_report as kit
from edgeplan.reporting.bars import Bar, interval_keys
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


def _predicted(rng: np.random.Generator, spread: float) -> np.ndarray:
    return TRUTH * (1 + rng.normal(0.0, spread, TRUTH.size))


def test_a_clear_difference_is_clear_and_has_its_sign() -> None:
    rng = np.random.default_rng(3)
    good, bad = _predicted(rng, 0.02), _predicted(rng, 0.10)
    found = rmspe_difference(TRUTH, good, bad, np.arange(40))
    assert 4 < found[0] < found[1] < 12
    other = rmspe_difference(TRUTH, bad, good, np.arange(40))
    assert other == pytest.approx((-found[1], -found[0]))


def test_predictors_of_one_accuracy_are_not_told_apart() -> None:
    rng = np.random.default_rng(4)
    found = rmspe_difference(TRUTH, _predicted(rng, 0.05), _predicted(rng, 0.05), np.arange(40))
    assert found[0] < 0 < found[1]


def test_rows_of_one_group_are_resampled_together() -> None:
    """Rows that say the same thing four times say no more than it once."""
    rng = np.random.default_rng(5)
    ours, theirs = (np.repeat(_predicted(rng, spread)[:10], 4) for spread in (0.05, 0.06))
    width = {
        kind: found[1] - found[0]
        for kind, groups in (("alone", np.arange(40)), ("together", np.repeat(np.arange(10), 4)))
        for found in [rmspe_difference(TRUTH, ours, theirs, groups)]
    }
    assert width["together"] > 1.5 * width["alone"]


def test_one_group_says_nothing() -> None:
    found = rmspe_difference(TRUTH, TRUTH, TRUTH * 1.1, np.zeros(40))
    assert np.isnan(found).all()


def test_the_interval_is_that_of_resampling_by_hand() -> None:
    rng = np.random.default_rng(8)
    ours, theirs = _predicted(rng, 0.05), _predicted(rng, 0.07)
    drawn = rng.integers(0, TRUTH.size, (20000, TRUTH.size))
    points = [100 * np.sqrt(((p / TRUTH - 1)[drawn] ** 2).mean(axis=1)) for p in (ours, theirs)]
    low, high = np.quantile(points[1] - points[0], (0.025, 0.975))
    found = rmspe_difference(TRUTH, ours, theirs, np.arange(40))
    assert found == pytest.approx((low, high), abs=0.15)


@dataclass(frozen=True)
class Evidence:
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


def test_what_is_there_is_made_and_the_rest_explained_in_order(tmp_path: Path) -> None:
    tables = kit.make_or_explain(TABLES, Evidence())
    assert list(tables) == ["b", "a"]
    assert tables["a"].to_dict("list") == {kit.REASON: ["of 0 runs none counts"]}
    seen = Evidence(RUNS)
    tables = kit.make({"b": TABLES["b"]}, seen)[0]
    (shown,) = kit.page_tables(TABLES, tables, seen, "b")
    kit.write_table(shown, tables["b"], tmp_path, "2024-05-06")
    frame = pd.read_csv(tmp_path / "b.csv")
    assert (frame["cold_ms"].tolist(), set(frame["measured_at"])) == ([1.5, 2.0], {"2024-05-06"})
    assert "2 runs." in (tmp_path / "b.md").read_text()
    assert (shown.id, shown.caption, shown.open) == ("b", "2 runs.", True)


def test_nothing_stands_where_a_whole_number_is_missing() -> None:
    frame = pd.DataFrame({"count": pd.array([1, None], dtype="Int64"), "ms": [0.5, float("nan")]})
    assert markdown(table("x", "X", "", frame)).splitlines()[2:] == ["| 1 | 0.5 |", "|  |  |"]
