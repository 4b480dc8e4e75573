"""Tables, figures and figures of merit of the chapter on memory, from rows as its stage writes them; cases measured again."""

from __future__ import annotations

import math
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from shipped_params import PARAMS_FILE, PROFILES, asked_of

from edgeplan.chapters.memory.budget import MIB
from edgeplan.chapters.memory.evaluation.evidence import HELD_MIB, MemoryEvidence
from edgeplan.chapters.memory.evaluation.page import BARS, FIRST, MEMORY_REPORT, memory_findings, memory_metrics
from edgeplan.chapters.memory.evaluation.tables import MEMORY_FIGURES, MEMORY_TABLES
from edgeplan.chapters.memory.measuring import COLUMNS, NUMBERS
from edgeplan.chapters.memory.settings import MemoryParams
from edgeplan.chapters.memory.stages import memory as stage
from edgeplan.chapters.registry import load_params
from edgeplan.reporting.chapter_report import NotMeasuredError

_RAN = {
    "peak": 29 * MIB, "budget": 30 * MIB, "median_ms": 11.0, "first_ms": 13.0, "resident_ms": 10.0, "bound_ms": 10.0,
    "predicted_ms": 10.1, "plan_bound_ms": 10.0, "idle": 28 * MIB, "equal": 1.0, "error": 1e-6, "bands": 3.0, "parts": 1.0,
    "pause_ms": 1.05, "major_faults": 0, "failures": 0, "read": 4 * MIB, "cpu_ms": 9.0, "wait_ms": 0.2, "bytes_per_ms": 2e6,
}  # fmt: skip


def _rows(faults: int) -> Iterator[dict[str, Any]]:
    """Of one model, whose runs in a group wait for so many pages."""

    def row(case: str, setting: str = "", **values: float) -> dict[str, Any]:
        return {"case": case, "setting": setting, **values}

    yield row("stock", "onnxruntime", peak=600 * MIB, median_ms=12.0)
    yield row("stock", "onnxruntime-frugal", peak=300 * MIB, median_ms=12.0)
    yield row("budget", share=0.1, **_RAN)
    yield row("budget", share=0.05, budget=MIB, needed=2 * MIB) | {"reason": "does not fit"}
    yield row("least", **_RAN)
    yield row("second", "2 threads", share=0.1, **_RAN)
    for k in range(3):
        yield row("layer", f"layer {k}", place=k, weights=k * MIB, activations=MIB, compute_ms=1.0, load_ms=0.6 * k)
    yield row("ablated", "edgeplan", budget=MIB, median_ms=10.0, wait_ms=0.0, peak=MIB)
    yield row("ablated", "without both", budget=MIB, median_ms=15.0, wait_ms=3.0, peak=MIB)
    for k in range(4):
        switch = {} if k % 2 else {"replan_ms": 5.0, "pause_ms": 1.0}
        yield row("adapted", place=k, budget=(1 + k // 2) * MIB, peak=MIB, median_ms=9.0, **switch)
    contained = {"budget": 60 * MIB, "peak": 50 * MIB, "failures": 0}
    for setting, waited in (("least", 0), ("30 %", faults)):
        yield from (row("contained", setting, place=k, major_faults=waited, **contained) for k in range(3))
    yield row("offline", budget=1e8, weights=5e8, cutting_s=2.0, profiling_s=3.0, replan_ms=6.0)


def _turn(of: str, over: float, ratio: float) -> dict[str, Any]:
    """A phase of a plan that takes so many times as long as with all weights in memory."""
    return {
        "case": "turn", "setting": of, "median_ms": 10.0 * over, "resident_ms": 10.0, "bound_ms": 10.0, "wait_ms": 0.1,
        "ratio": ratio, "factor": 1.2,
    }  # fmt: skip


def _picked(setting: str, budget: float, ms: float, read_ahead: float = 8192, **more: float) -> dict[str, Any]:
    """A run of what one would pick for little memory."""
    return {"case": "frugal", "setting": setting, "budget": budget, "read_ahead": read_ahead, "median_ms": ms, **more}


def evidence(*, empty: bool = False) -> MemoryEvidence:
    """Two models with a few rows of every case."""
    alone = [
        {"case": "slowed", "setting": "edgeplan", "factor": 1.3, "ratio": 3.0, "median_ms": 0.02, "wait_ms": 0.01, "peak": MIB},
        {"case": "slowed", "setting": "onnxruntime", "median_ms": 0.03},
        {"case": "busy", "setting": "edgeplan", "median_ms": 0.1, "wait_ms": 0.01, "peak": MIB},
        *(_turn("slowed", 1.02, ratio) for ratio in (2.9, 3.0, 3.1)),
        _turn("slowed", 1.5, 4.0),
        *(_turn("busy", 1.1, 2.4) for _ in range(3)),
        _picked("onnxruntime", math.nan, 12.0, peak=600 * MIB, anonymous=590 * MIB, file=8 * MIB),
        _picked("onnxruntime", HELD_MIB * MIB, math.nan) | {"reason": "killed: out of memory"},
        _picked("onnxruntime-frugal", math.nan, 13.0, peak=260 * MIB, anonymous=20 * MIB, file=240 * MIB),
        _picked("onnxruntime-frugal", HELD_MIB * MIB, 33.0, major_faults=1000),
        _picked("onnxruntime-frugal", HELD_MIB * MIB, 22.0, 128, major_faults=2000),
        _picked("edgeplan-mapped", math.nan, 12.0, peak=250 * MIB, anonymous=10 * MIB, file=240 * MIB),
        _picked("edgeplan-mapped", HELD_MIB * MIB, 16.5, major_faults=100),
        _picked("edgeplan", math.nan, 12.0, peak=14 * MIB, anonymous=11 * MIB, file=3 * MIB),
        _picked("edgeplan", HELD_MIB * MIB, 11.0, major_faults=0),
        {"case": "same", "setting": "onnxruntime", "budget": 600 * MIB, "full_ms": 12.0, "median_ms": 9.0},
        {"case": "same", "setting": "on demand", "budget": 40 * MIB, "full_ms": 22.0, "median_ms": 11.0},
        {"case": "bf16", "setting": "f32", "share": 0.1, "budget": MIB, "median_ms": 12.0, "wait_ms": 4.0, "peak": MIB},
        {"case": "bf16", "setting": "bf16", "share": 0.1, "budget": MIB, "median_ms": 10.0, "wait_ms": 1.0, "error": 0.005},
        {"case": "bf16", "setting": "f32", "share": 0.05, "budget": MIB, "reason": "does not fit"},
        {"case": "bf16", "setting": "bf16", "share": 0.05, "budget": MIB, "median_ms": 20.0, "wait_ms": 9.0, "error": 0.002},
    ]
    layer = {"model": "fc-4096-4096", "case": "slice", "place": 0}
    of_layers = [
        {"model": "conv", "case": "kernel", "setting": "jit", "compute_ms": 1.0, "needed": 4 * MIB, "weights": MIB},
        {"model": "conv", "case": "kernel", "setting": "gemm", "compute_ms": 2.0, "needed": 8 * MIB, "weights": MIB},
        layer | {"setting": "whole layers", "needed": 9 * MIB, "median_ms": 3.0, "full_ms": 5.0},
        layer | {"setting": "parts", "needed": 3 * MIB, "median_ms": 3.1, "full_ms": 6.0},
    ]
    found = [{"model": "vgg19"} | row for row in _rows(3)] + [{"model": "resnet152"} | row for row in (*_rows(0), *alone)]
    return _evidence([] if empty else [*found, *of_layers])


def _evidence(rows: list[dict[str, Any]]) -> MemoryEvidence:
    frame = pd.DataFrame(rows).reindex(columns=list(COLUMNS))
    frame[list(NUMBERS)] = frame[list(NUMBERS)].astype("float64")
    texts = [name for name in COLUMNS if name not in NUMBERS]
    frame[texts] = frame[texts].fillna("").astype(str)
    return MemoryEvidence("cpu-onednn", frame, {})


def test_total_budgets_hold_where_all_runs_do() -> None:
    found = evidence()
    assert memory_metrics(found)["memory.total_in_cgroup"] == 3  # the runs of one model in its share do not hold
    runs = found.runs.copy()
    runs.loc[runs["case"] == "contained", "failures"] = math.nan  # a system without groups
    assert "memory.total_in_cgroup" not in memory_metrics(replace(found, runs=runs))


@pytest.mark.parametrize("profile", PROFILES)
def test_no_headline_of_a_profile_lacks_its_value(profile: str) -> None:
    """Each is of models and engines that every profile measures; the committed params add what ResNet-152 takes."""
    asked = asked_of("memory", profile)
    rows = [{"model": model} | row for model in asked["models"] for row in _rows(0)]
    few = _evidence([row for row in rows if row["case"] != "stock" or row["setting"] in asked["settings"]])
    page, whole = (MEMORY_REPORT.page(e, {}, {}, memory_metrics(e)) for e in (few, evidence()))
    assert page.lacking == whole.lacking == ()
    assert {card.title for card in page.cards} < {card.title for card in whole.cards}
    assert all("ResNet-152" in card.title for card in whole.cards if card.title not in {one.title for one in page.cards})


@pytest.mark.parametrize("name", MEMORY_TABLES)
def test_every_table_is_made_of_all_rows(name: str) -> None:
    made = MEMORY_TABLES[name].make(evidence())
    assert set(made["model"]) - {"vgg19", "all models, mean"} in ({"resnet152"}, {"conv"}, {"fc-4096-4096"})
    assert not made.columns.duplicated().any()


def test_every_figure_is_drawn_of_all_rows_and_nothing_is_made_without() -> None:
    assert all(figure.make(evidence()).axes for figure in MEMORY_FIGURES.values())
    for made in (*MEMORY_TABLES.values(), *MEMORY_FIGURES.values()):
        with pytest.raises(NotMeasuredError):
            made.make(evidence(empty=True))


def test_every_bar_has_its_figure_of_merit() -> None:
    found = memory_metrics(evidence())
    assert {key for key in found if not key.endswith((".low", ".high"))} == {bar.key for bar in (*BARS, *FIRST)}
    assert found["memory.points_within_10pct_of_bound"] == 1
    assert found["memory.peak_over_budget_max"] == pytest.approx(29 / 30)
    assert found["memory.least_peak_over_onnxruntime"] == pytest.approx(29 / 600)
    assert found["memory.resnet152_reduction"] == pytest.approx(1 - 29 / 600)
    assert not memory_metrics(evidence(empty=True))


def _changed(case: str, **values: float | str) -> MemoryEvidence:
    """The first row of a case is another."""
    runs = evidence().runs.copy()
    runs.loc[runs.index[runs["case"] == case][0], list(values)] = list(values.values())
    return MemoryEvidence("cpu-onednn", runs, {})


def _with(case: str, **values: float | str) -> dict[str, float]:
    """Figures of merit where the first row of a case is another."""
    return memory_metrics(_changed(case, **values))


def test_runs_that_failed_count() -> None:
    share = pytest.approx(5 / 6, rel=1e-5)  # two models, three plans of each
    for case in ("budget", "least", "second"):
        assert _with(case, equal=0)["memory.outputs_equal"] == share
    assert _with("second", error=1.0)["memory.outputs_equal"] == share
    assert _with("budget", equal=0, error=math.nan, median_ms=math.nan)["memory.outputs_equal"] == share


@pytest.mark.parametrize("case", ["budget", "least", "second"])
@pytest.mark.parametrize("failures", [math.nan, 1.0])
def test_a_plan_that_was_killed_counts_whatever_was_counted_of_it(case: str, failures: float) -> None:
    dead = {"failures": failures, "pause_ms": math.nan, "major_faults": math.nan, "reason": "was ended by SIGKILL:"}
    found = _with(case, **dead)
    assert found["memory.cgroup_killed"] == 1
    assert memory_metrics(evidence())["memory.cgroup_killed"] == 0
    assert any("1 of 6 plans failed: vgg19" in text for text in memory_findings(_changed(case, **dead)))


def test_a_system_without_groups_gives_no_figures_of_them() -> None:
    nothing = {"failures": math.nan, "pause_ms": math.nan, "major_faults": math.nan}
    runs = evidence().runs
    planned = runs["case"].isin(["budget", "least", "second", "contained"])
    runs.loc[planned, [*nothing, "reason"]] = [*nothing.values(), "this system has no memory controller for cgroups"]
    assert not {key for key in memory_metrics(MemoryEvidence("cpu-onednn", runs, {})) if "cgroup" in key}


ROOT = Path(__file__).parents[3]
RESULTS = "results/cpu-onednn/memory"


@pytest.mark.committed
def test_the_rows_in_git_make_the_table_in_git_and_the_machine_that_measured_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(stage.STORED_ROWS_ONLY, "1")
    params = load_params(PARAMS_FILE)
    assert isinstance(params, MemoryParams)
    shutil.copytree(ROOT / "data/rows/cpu-onednn/memory", tmp_path / "rows")
    shutil.copy(ROOT / RESULTS / "environment.json", tmp_path)
    device, files = ROOT / "config/devices/cpu-onednn.yaml", {name: tmp_path / name for name in ("rows", "work")}
    written = {"runs": tmp_path / "runs.parquet", "environment_path": tmp_path / "environment.json"}
    stage.measure_memory(params, device=device, **files, **written)
    for path in written.values():
        assert path.read_bytes() == (ROOT / RESULTS / path.name).read_bytes(), path.name
