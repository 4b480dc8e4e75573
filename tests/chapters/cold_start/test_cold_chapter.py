"""Tables and figures of the cold-start chapter, from frames as the stage writes them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pandas as pd
import pytest
from cold_chapter_frames import COLD_MS, MODELS, frame_names, run_row, tables_of

from edgeplan.chapters.cold_start.evaluation import figures as cold_figures
from edgeplan.chapters.cold_start.evaluation import findings
from edgeplan.chapters.cold_start.evaluation.evidence import ColdEvidence
from edgeplan.chapters.cold_start.evaluation.metrics import cold_metrics
from edgeplan.chapters.cold_start.evaluation.tables import COLD_TABLES
from edgeplan.chapters.cold_start.measuring.variants import VARIANTS
from edgeplan.chapters.cold_start.paper import TABLE4_PLANNING_MEIZU_MS, TABLE4_PLANNING_PIXEL5_MS, TABLE5
from edgeplan.chapters.cold_start.settings import PlanName
from edgeplan.reporting import kit
from edgeplan.zoo.cold_start_models import TABLE4

OWN_MS = dict(zip(MODELS, COLD_MS["edgeplan", "optimal"], strict=True))


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


def test_breakdown_has_allocation_as_a_stage_of_its_own(tables: dict[str, pd.DataFrame]) -> None:
    table = tables["cold_table_01"].set_index("stage")
    assert table.index[0] == "memory allocation (part of the others)"
    assert table.loc[table.index[0], "optimal plan, cached, ms"] == pytest.approx(0.7)
    assert table.loc["total cold", "optimal plan, cached, ms"] == pytest.approx(10)
    assert table.loc["create", "warm plan, cached, ms"] == pytest.approx(3)
    assert table.loc["transform", "paper_pixel5_ms"] == 1135.28
    assert (table["model"] == "squeezenet").all()  # of the two it has more FLOPs; ResNet-50 was not measured


def test_kernel_alternatives_stand_beside_the_papers(tables: dict[str, pd.DataFrame]) -> None:
    table = tables["cold_table_02"]
    ours = table[table["from"] == "here"].set_index("kernel")
    assert ours["layout"].to_dict() == {"gemm": "nhwc, blocked16", "brgconv": "nhwc, blocked16"}  # alike under both
    assert ours.loc["brgconv", ["read_raw_ms", "transform_ms", "read_cache_ms", "create_ms"]].tolist() == [1.0, 3.0, 2.0, 3.0]
    assert pd.isna(ours.loc["gemm", "read_cache_ms"])
    assert len(table[table["from"] != "here"]) == 6


def test_a_quick_look_on_one_core_tells_nothing_of_two(e: ColdEvidence) -> None:
    quick = (e.profiles["implementation"] == "gemm") & (e.profiles["layout"] == "nhwc")
    profiles = e.profiles.assign(execute_2_ms=e.profiles["execute_2_ms"].where(~quick, e.profiles["execute_1_ms"]))
    tables = tables_of(["cold_table_02"], replace(e, profiles=profiles))
    rows = tables["cold_table_02"].set_index(["kernel", "layout"])["execute_2_cores_ms"]
    assert pd.isna(rows["gemm", "nhwc"])
    assert rows["gemm", "blocked16"] == 1.5  # what differs keeps its row
    assert rows["brgconv", "nhwc, blocked16"] == 0.6


def test_storage_and_planning_time_stand_beside_the_papers(tables: dict[str, pd.DataFrame]) -> None:
    row = tables["cold_table_04"].set_index("model").loc["squeezenet"]
    assert row["storage_mb"] == pytest.approx(4)
    assert row["flops_g"] == pytest.approx(1.6)
    assert (row["paper_storage_mb"], row["paper_planning_meizu16t_ms"]) == (3.8, 717.9)


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
    assert "2.00 (95 %: 2.00 to 2.00) with the page cache warm, slower on none of 2 models" in findings.beside(e)


def test_load_is_told_against_no_load(tables: dict[str, pd.DataFrame]) -> None:
    table = tables["cold_figure_11"]
    assert table.loc[table["load_percent"] == 50, "slow_down"].tolist() == pytest.approx([1.5] * 3)


def test_runs_without_load_are_one_baseline(e: ColdEvidence) -> None:
    def runs(core: str, percent: int, times: tuple[float, ...]) -> list[dict[str, Any]]:
        rows = [run_row(MODELS[0], "edgeplan", "optimal", 2, "cached", r, t) for r, t in enumerate(times)]
        return [row | {"load_core": core, "load_percent": percent} for row in rows]

    loaded = runs("executing", 0, (8.0, 10.0)) + runs("preparing", 0, (30.0,)) + runs("executing", 50, (15.0,))
    loaded += runs("preparing", 50, (12.0, 14.0))
    kept = e.runs[e.runs["load_core"] == ""]
    frame = tables_of(["cold_figure_11"], replace(e, runs=pd.concat([kept, pd.DataFrame(loaded)])))["cold_figure_11"]
    told = frame[["load_core", "load_percent", "cold_ms", "runs"]].to_numpy().tolist()
    assert told == [["", 0, 10.0, 3], ["first core", 50, 15.0, 1], ["second core", 50, 13.0, 2]]
    assert frame["slow_down"].tolist() == pytest.approx([1.0, 1.5, 1.3])


def test_ablation_adds_one_technique_after_the_other(tables: dict[str, pd.DataFrame]) -> None:
    table = tables["cold_figure_13"].set_index(["model", "page_cache"])
    steps = ["warm_ms", "K_ms", "K+C_ms", "K+C+P_ms"]
    assert table.loc[("squeezenet", "cached"), steps].tolist() == pytest.approx([30, 25, 15, 10])
    assert table.loc[("paper: resnet50, Jetson TX2", "evicted"), steps].tolist() == [8272, 2300, 555, 240]


def test_continuous_inference_follows_the_runs_in_order(tables: dict[str, pd.DataFrame]) -> None:
    table = tables["cold_figure_14"].set_index("setting")
    row = table.loc["ONNX Runtime"]
    assert [row[f"inference_{i}_ms"] for i in (1, 2, 3)] == pytest.approx([80, 4.4, 4])
    assert (row["sum_ms"], row["runs"]) == (pytest.approx(80 + 4.4 * 4), 3)


def test_continuous_mode_stands_beside_the_same_plan_without_it(e: ColdEvidence, tables: dict[str, pd.DataFrame]) -> None:
    rows = tables["cold_figure_14"].set_index(["model", "setting"])["sum_over_without"].dropna()
    assert rows.to_dict() == pytest.approx(
        {(m, "edgeplan, continuous mode"): (t + 0.5 + 22) / (t + 22) for m, t in OWN_MS.items()}
    )
    told = findings.continuous(e)
    assert "costs more than it gains when 5 inferences" in told
    assert "inference 1 1.046 (slower on 2 of 2 models), inference 2 1 (slower on 0 of 2 models)" in told
    quick = e.runs.assign(cold_ms=e.runs["cold_ms"].where(e.runs["plan"] != "continuous", 1.0))
    assert "inference pays when 5 inferences" in findings.continuous(replace(e, runs=quick))
    assert findings.continuous(replace(e, runs=e.runs[e.runs["plan"] != "continuous"])) == ""


def test_figures_of_the_paper_cover_the_models() -> None:
    assert TABLE4_PLANNING_MEIZU_MS.keys() == TABLE4_PLANNING_PIXEL5_MS.keys() == TABLE4.keys()
    # Section 4.4: the extremes over both phones, but for CRNN-lite, which it leaves out.
    assert max(TABLE4_PLANNING_PIXEL5_MS.values()) == 4157.4
    assert all(s.least <= s.mean <= s.largest for row in TABLE5.values() for s in row.values())


def test_plans_of_the_params_are_known() -> None:
    assert set(PlanName.__args__) == VARIANTS.keys() - {"optimal"}  # type: ignore[attr-defined]
