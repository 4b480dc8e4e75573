"""Figures of merit, tables and the page of cold starts, by hand from the frames of `cold_chapter_frames`."""

from __future__ import annotations

from dataclasses import replace

import pandas as pd
import pytest
from cold_chapter_frames import evidence, frame_names, run_rows
from shipped_params import PROFILES, asked_of

from edgeplan.chapters.cold_start.evaluation import metrics, page
from edgeplan.chapters.cold_start.evaluation import tables as cold_tables
from edgeplan.chapters.cold_start.evaluation.evidence import ColdEvidence
from edgeplan.chapters.cold_start.evaluation.figures import COLD_FIGURES
from edgeplan.chapters.cold_start.evaluation.tables import COLD_TABLES
from edgeplan.chapters.cold_start.measuring.planning import VARIANTS
from edgeplan.chapters.cold_start.settings import PlanName
from edgeplan.reporting import chapter_report as kit
from edgeplan.reporting.page import bar_lines


@pytest.fixture(scope="module")
def e() -> ColdEvidence:
    return evidence()


@pytest.fixture(scope="module")
def tables(e: ColdEvidence) -> dict[str, pd.DataFrame]:
    return kit.make_or_explain(COLD_TABLES, e)


@pytest.mark.parametrize(
    ("reason", "failed"),
    [
        ("outputs differ from ONNX Runtime's by 0.1 of their largest magnitude", True),
        ("34% of the files were in the page cache, not as in state 'evicted'", False),
        ("left out: the time for measuring cold starts was over", False),
    ],
)
def test_starts_of_our_plans_that_failed_count(e: ColdEvidence, reason: str, failed: bool) -> None:
    assert metrics.cold_metrics(e)["cold.failed_starts"] == 0, "ncnn's do not"
    own = (e.runs["setting"] == "edgeplan") & (e.runs["plan"] == "optimal") & (e.runs["state"] == "cached")
    lost = e.runs.index[own & (e.runs["repeat"] == 0) & (e.runs["model"] == "squeezenet")]
    runs = e.runs.copy()
    runs.loc[lost, "reason"] = reason
    found = replace(e, runs=runs)
    assert metrics.cold_metrics(found)["cold.failed_starts"] == (len(lost) if failed else 0)
    table = cold_tables.beside(found).set_index(["page_cache", "model"])
    assert table.loc[("cached", "squeezenet"), "failed_starts"] == (len(lost) if failed else 0)


def test_our_plan_beside_stock_engines_is_the_one_for_the_state(e: ColdEvidence) -> None:
    assert metrics.own_cold(e.runs, "evicted")["cold_ms"].tolist() == [33.5, 31.5]
    assert metrics.own_cold(e.runs, "evicted", "optimal")["cold_ms"].tolist() == [42.0, 40.0]
    assert metrics.own_cold(e.runs, "cached")["cold_ms"].tolist() == [12.0, 10.0]
    without = e.runs[e.runs["plan"] != "evicted"]  # it was not asked for, or the disk could not be measured
    failed = e.runs.assign(reason=e.runs["reason"].where(e.runs["plan"] != "evicted", "timed out"))
    for runs in (without, failed):
        assert metrics.own_cold(runs, "evicted")["cold_ms"].tolist() == [42.0, 40.0]


def test_failed_and_loaded_runs_do_not_count(e: ColdEvidence) -> None:
    worse = pd.DataFrame(run_rows())
    fast = worse.iloc[:2].assign(cold_ms=0.001)
    runs = pd.concat([worse, fast.assign(reason="crashed"), fast.assign(load_percent=25)], ignore_index=True)
    assert metrics.cold_metrics(replace(e, runs=runs)) == metrics.cold_metrics(e)


def test_warm_figures_are_of_the_plan_for_it(e: ColdEvidence) -> None:
    """Page cache warm: no plan is picked because it was fastest by chance, here on an evicted one and from predicted costs."""
    lucky = e.runs["plan"].eq("K") | (e.runs["plan"].eq("optimal") & e.runs["state"].eq("evicted"))
    times = e.runs["warm_min_ms"].where(~e.runs["plan"].eq("warm"), 3.0).where(~lucky, 1.0)
    found = metrics.cold_metrics(replace(e, runs=e.runs.assign(warm_min_ms=times)))
    assert found["runtime.warm_vs_best_stock"] == pytest.approx(3 / 4)
    without = metrics.cold_metrics(replace(e, runs=e.runs[e.runs["plan"] != "warm"]))
    assert "runtime.warm_vs_best_stock" not in without


def test_every_table_is_made_or_tells_that_nothing_was_measured(e: ColdEvidence, tables: dict[str, pd.DataFrame]) -> None:
    assert [name for name, frame in tables.items() if list(frame.columns) == [kit.REASON]] == []
    empty = replace(e, **{name: getattr(e, name).iloc[:0] for name in frame_names()}, notes={})
    tables = kit.make_or_explain(COLD_TABLES, empty)
    assert tables.keys() == COLD_TABLES.keys()
    for name, frame in tables.items():
        assert list(frame.columns) == [kit.REASON], name
        assert frame[kit.REASON].iloc[0]
    assert kit.draw(COLD_FIGURES, empty) == {}
    assert not metrics.cold_metrics(empty)


def test_plans_of_the_params_are_known() -> None:
    assert set(PlanName.__args__) == VARIANTS.keys() - {"optimal"}  # type: ignore[attr-defined]


@pytest.mark.parametrize("profile", PROFILES)
def test_no_headline_of_a_profile_lacks_its_value(e: ColdEvidence, profile: str) -> None:
    asked = asked_of("cold_start", profile)
    runs = e.runs[e.runs["model"].isin(asked["models"]) & e.runs["plan"].isin(["", "optimal", *asked["plans"]])]
    runs = runs[runs["threads"].isin(asked["threads"]) & runs["state"].isin(asked.get("states", ["cached", "evicted"]))]
    few = replace(e, runs=runs[~runs["stock"] | runs["setting"].isin(asked["settings"])])
    shown = page.COLD_REPORT.page(few, {}, {}, metrics.cold_metrics(few))
    assert shown.lacking == ()
    assert shown.cards[0].sentence.startswith("starts ")


def test_a_start_that_beats_its_bound_breaks_the_bound_not_the_bar(e: ColdEvidence, tables: dict[str, pd.DataFrame]) -> None:
    key, title = "cold.over_work_bound_cached", "cold over the work bound, page cache warm"
    usual = page.cold_findings(e, tables, {key: 1.2})
    for value, verdict in ((0.89, "miss"), (1.2, "pass"), (1.4, "miss")):
        (line,) = (line for line in bar_lines(metrics.BARS, {key: value}) if line.title == title)
        assert (line.verdict, line.bar) == (verdict, ">= 1 and <= 1.3")
    assert len(set(page.cold_findings(e, tables, {key: 0.89})) - set(usual)) == 1
    assert set(page.cold_findings(e, tables, {key: 1.4})) <= set(usual)
