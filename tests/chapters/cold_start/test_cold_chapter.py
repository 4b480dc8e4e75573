"""Tables and figures of the cold-start chapter, from frames as the stage writes them."""

from __future__ import annotations

from dataclasses import replace

import pandas as pd
import pytest
from cold_chapter_frames import frame_names

from edgeplan.chapters.cold_start.evaluation import figures as cold_figures
from edgeplan.chapters.cold_start.evaluation.evidence import ColdEvidence
from edgeplan.chapters.cold_start.evaluation.metrics import cold_metrics
from edgeplan.chapters.cold_start.evaluation.page import beside
from edgeplan.chapters.cold_start.evaluation.tables import COLD_TABLES
from edgeplan.chapters.cold_start.measuring.planning import VARIANTS
from edgeplan.chapters.cold_start.paper import TABLE4_PLANNING_MEIZU_MS, TABLE4_PLANNING_PIXEL5_MS, TABLE5
from edgeplan.chapters.cold_start.settings import PlanName
from edgeplan.reporting import chapter_report as kit
from edgeplan.zoo.cold_start_models import TABLE4


def test_every_table_is_made(tables: dict[str, pd.DataFrame]) -> None:
    assert [name for name, frame in tables.items() if list(frame.columns) == [kit.REASON]] == []


def test_no_table_is_left_out_when_nothing_was_measured(e: ColdEvidence) -> None:
    empty = replace(e, **{name: getattr(e, name).iloc[:0] for name in frame_names()}, notes={})
    tables = kit.make_or_explain(COLD_TABLES, empty)
    assert tables.keys() == COLD_TABLES.keys()
    for name, frame in tables.items():
        assert list(frame.columns) == [kit.REASON], name
        assert frame[kit.REASON].iloc[0]
    assert kit.draw(cold_figures.COLD_FIGURES, empty) == {}
    assert not cold_metrics(empty)


def test_speedups_are_told_by_baseline(tables: dict[str, pd.DataFrame]) -> None:
    table = tables["cold_table_05"].set_index(["baseline", "page_cache"])
    default = table.loc["ONNX Runtime", "cached"]
    assert (default["least"], default["largest"]) == pytest.approx((40 / 12, 8))
    missing = table.loc["ncnn", "evicted"]
    assert missing["models"] == 0
    assert missing["without"] == "squeezenet: ncnn is not installed"
    assert "Meizu 16T 1.1 to 10.3 (3.7)" in missing["paper_min_max_avg"]


def test_the_first_table_is_the_best_stock_setting_against_our_plan(e: ColdEvidence, tables: dict[str, pd.DataFrame]) -> None:
    assert next(iter(COLD_TABLES)) == "cold_beside"
    table = tables["cold_beside"].set_index(["page_cache", "model"])
    assert table.loc[("cached", "all 2 models, mean"), "speedup"] == pytest.approx(2)
    assert table.loc[("cached", "squeezenet"), ["speedup", "best_stock"]].tolist() == [2, "ONNX Runtime, optimised"]
    assert table.loc[("evicted", "shufflenetv2"), "speedup"] == pytest.approx(54 / 33.5)
    assert "2.00 (95 %: 2.00 to 2.00) with the page cache warm, slower on none of 2 models" in beside(e)


def test_figures_of_the_paper_cover_the_models() -> None:
    assert TABLE4_PLANNING_MEIZU_MS.keys() == TABLE4_PLANNING_PIXEL5_MS.keys() == TABLE4.keys()
    # Section 4.4: the extremes over both phones, but for CRNN-lite, which it leaves out.
    assert max(TABLE4_PLANNING_PIXEL5_MS.values()) == 4157.4
    assert all(s.least <= s.mean <= s.largest for row in TABLE5.values() for s in row.values())


def test_plans_of_the_params_are_known() -> None:
    assert set(PlanName.__args__) == VARIANTS.keys() - {"optimal"}  # type: ignore[attr-defined]
