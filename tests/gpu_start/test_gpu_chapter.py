"""The chapter on cold starts on a GPU: plans held to all that there are on small instances; figures and page of given rows."""

from __future__ import annotations

import os
from dataclasses import replace
from importlib.util import find_spec
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from edgeplan.chapters.cold_start.gpu.page import GPU_REPORT, GpuStartEvidence, gpu_findings, gpu_metrics, least_ms
from edgeplan.chapters.cold_start.planners.gpu import GPU_PLANNERS, OPTIMAL, GpuCandidate, GpuCosts, GpuOutcome
from edgeplan.chapters.cold_start.settings import GPU_PROTOCOL, GpuStartSettings
from edgeplan.chapters.cold_start.stages.cold_gpu import COLUMNS, GpuStartBench
from edgeplan.devices.config import load_device
from edgeplan.graph.builder import GraphBuilder
from edgeplan.graph.onnx.write import save_onnx
from edgeplan.planning.optimal import Search
from edgeplan.support.tensors import OUTPUT_TOLERANCE

times = st.floats(0.01, 10.0)


@st.composite
def costs(draw: st.DrawFn, fewest: int = 1, most: int = 1) -> GpuCosts:
    """Draw a few steps with one or two kernels, each with raw and kept weights."""
    steps = []
    for _ in range(draw(st.integers(1, 3))):
        step: list[GpuCandidate] = []
        for name in ("own", "other")[: draw(st.integers(1, 2))]:
            load, first = draw(times), draw(times)
            raw = GpuCandidate(
                name, cached=False, read_ms=draw(times), pack_ms=draw(times), upload_ms=draw(times), load_ms=load,
                compile_ms=load + 20.0, first_ms=first, warm_ms=draw(times),
            )  # fmt: skip
            kept = replace(raw, cached=True, read_ms=draw(times), pack_ms=0.0, kept_bytes=8)
            step += [raw, kept]
        steps.append(tuple(step))
    return GpuCosts(tuple(steps), draw(st.integers(fewest, most)), start_ms=1.0)


def _executed_ms(chosen: tuple[GpuCandidate, ...], queues: tuple[tuple[int, ...], ...], start_ms: float) -> float:
    """The time of a plan, event by event: threads prepare their steps in order, the GPU runs each once it is ready."""
    ready = {}
    for queue in queues:
        now = start_ms
        for k in queue:
            now = ready[k] = now + chosen[k].preparation_ms(compiled=False)
    now = start_ms
    for k, one in enumerate(chosen):
        now = max(now, ready[k]) + one.first_ms
    return now


def _check(costs: GpuCosts, found: GpuOutcome) -> None:
    assert sorted(k for queue in found.queues for k in queue) == list(range(len(costs.steps)))
    assert len(found.queues) <= max(1, costs.threads)
    assert all(one in step for one, step in zip(found.choice, costs.steps, strict=True))
    assert found.lower_bound_ms <= found.makespan_ms * (1 + 1e-9)


@settings(deadline=None)  # the solver's, beside other work
@given(costs() | costs(2, 3))
def test_the_optimal_plan_is_feasible_its_bound_holds_and_of_one_thread_it_is_the_best_of_all(costs: GpuCosts) -> None:
    found = GPU_PLANNERS[OPTIMAL](costs, Search(gap=1e-6 if costs.threads == 1 else 1e-3, time_limit_s=10.0))
    _check(costs, found)
    assert _executed_ms(found.choice, found.queues, costs.start_ms) <= found.makespan_ms * (1 + 1e-6)
    best = min(
        _executed_ms(chosen, tuple(tuple(k for k, q in enumerate(places) if q == n) for n in range(costs.threads)), 1.0)
        for chosen in product(*costs.steps)
        for places in product(range(costs.threads), repeat=len(costs.steps))
    )
    assert found.lower_bound_ms <= best * (1 + 1e-6)
    assert costs.threads > 1 or found.makespan_ms == pytest.approx(best, rel=1e-5)


@settings(deadline=None)  # the solver's, beside other work
@given(costs())
def test_each_technique_is_predicted_no_slower_than_the_plan_without_it(costs: GpuCosts) -> None:
    """The ablation of Figure 13: default, K, K+C, K+C+P. Beside it, a plan of the kernels that are fastest later."""
    warm = GPU_PLANNERS["warm"](costs, Search())
    assert [one.warm_ms for one in warm.choice] == [min(other.warm_ms for other in step) for step in costs.steps]
    found = [GPU_PLANNERS[name](costs, Search()) for name in ("default", "K", "K+C", OPTIMAL)]
    for one in (warm, *found):
        _check(costs, one)
    assert [one.code for one in found] == [False, False, True, True]
    for before, after in pairwise(found):
        assert after.makespan_ms <= before.makespan_ms * (1 + 1e-6)
    assert all(one.kernel == "own" and not one.cached for one in found[0].choice)


@given(costs(), st.floats(0.0, 1.0))
def test_plans_that_take_all_at_once_are_held_to_the_best_of_all(costs: GpuCosts, fill_ms_per_byte: float) -> None:
    """Uploads are beside all else that prepares, and the GPU runs after both."""
    steps = tuple(tuple(replace(one, merged_ms=one.load_ms / 2) for one in step) for step in costs.steps)
    costs = replace(costs, steps=steps, fill_ms_per_byte=fill_ms_per_byte)

    def executed_ms(chosen: tuple[GpuCandidate, ...]) -> float:
        up = sum(one.kept_bytes * fill_ms_per_byte for one in chosen)
        return costs.start_ms + max(up, sum(one.merged_ms for one in chosen)) + sum(one.first_ms for one in chosen)

    found = GPU_PLANNERS[OPTIMAL](costs, Search())
    _check(costs, found)
    assert found.at_once
    assert all(one.cached for one in found.choice)
    best = min(executed_ms(chosen) for chosen in product(*costs.steps) if all(one.cached for one in chosen))
    assert found.lower_bound_ms <= best * (1 + 1e-9)
    assert found.makespan_ms == pytest.approx(executed_ms(found.choice))
    assert found.makespan_ms == pytest.approx(best, rel=1e-4, abs=1e-4)


#: Cold and later times (ms) of each plan of the two models.
_TIMES = {
    "one": {"optimal": (20.0, 12.0), "warm": (50.0, 10.0), "K+C": (40.0, 12.0), "K": (500.0, 12.0), "default": (800.0, 11.0)},
    "two": {"optimal": (90.0, 30.0), "warm": (95.0, 40.0), "K+C": (99.0, 30.0), "K": (700.0, 30.0), "default": (900.0, 30.0)},
}


#: What the GPU does, and how fast bus and disk are.
_MACHINE = {"work_ms": 2.0, "upload_mb": 80.0, "read_mb": 60.0, "upload_mb_s": 10_000.0, "read_mb_s": 5_000.0}


def _start(model: str, way: str, state: str, repeat: int, cold: float, warm: float, **others: Any) -> dict[str, Any]:
    row: dict[str, Any] = dict.fromkeys(COLUMNS["starts"], 1.0)
    row |= {"model": model, "way": way, "stock": 0.0, "state": state, "repeat": float(repeat), "cold_ms": cold, "warm_ms": warm}
    return row | {"error": 1e-6, "reason": ""} | others


def _starts() -> pd.DataFrame:
    rows = [
        _start(model, way, state, repeat, cold * (1.5 if state == "evicted" else 1.0) + shift, warm)
        for model, ways in _TIMES.items()
        for way, (cold, warm) in ways.items()
        for state in ("cached", "evicted")
        for repeat, shift in enumerate((0.0, -1.0, 1.0))
    ]
    rows.append(_start("one", "onnxruntime-cuda", "cached", 0, 60.0, 5.0, stock=1.0))
    rows.append(_start("three", "", "", 0, np.nan, np.nan, reason="no kernel of the device runs steps of kind lstm"))
    return pd.DataFrame(rows)


def _plans() -> pd.DataFrame:
    row: dict[str, Any] = dict.fromkeys(COLUMNS["plans"], 1.0)
    bounds = (("one", 16.0, 16.0), ("two", 80.2, 80.0))
    return pd.DataFrame(
        [row | {"model": m, "way": "optimal", "predicted_ms": p, "bound_ms": b, "reason": ""} | _MACHINE for m, p, b in bounds]
    )


def _evidence(starts: pd.DataFrame | None = None) -> GpuStartEvidence:
    return GpuStartEvidence("opencl-test", _starts() if starts is None else starts, _plans(), {"cores": 2, "fingerprint": "f"})


def test_figures_of_merit_are_those_of_medians() -> None:
    found = gpu_metrics(_evidence())
    assert found["cold_gpu.over_warm"] == pytest.approx(np.sqrt(20 / 10 * 90 / 30), rel=1e-5), "over the fastest of any plan"
    assert found["cold_gpu.plan_gap_max"] == pytest.approx(0.0025)
    assert found["cold_gpu.speedup_over_default"] == pytest.approx(np.sqrt(800 / 20 * 900 / 90), rel=1e-5)
    assert found["cold_gpu.speedup_over_best_stock"] == pytest.approx(3.0)
    assert found["cold_gpu.output_error_max"] == pytest.approx(1e-6)
    assert found["cold_gpu.failed_starts"] == 0


def test_a_start_that_compiled_what_its_plan_keeps_counts_as_failed_and_in_no_median() -> None:
    more = pd.DataFrame([_start("one", "optimal", "cached", 3, 5000.0, 12.0, reason="is damaged")])
    found = _evidence(pd.concat([_starts(), more], ignore_index=True))
    assert gpu_metrics(found)["cold_gpu.failed_starts"] == 1
    assert found.of_state("cached").loc["one", "optimal"] == 20.0


def test_the_machine_bound_is_the_largest_of_work_bus_and_disk_and_none_where_one_was_not_measured() -> None:
    plans = _plans()
    assert [least_ms(_evidence(), "one", state) for state in ("cached", "evicted")] == pytest.approx([8.0, 12.0]), "MB, MB a ms"
    shared = replace(_evidence(), plans=plans.assign(upload_mb_s=np.inf))
    assert least_ms(shared, "one", "cached") == 2.0
    unknown = replace(_evidence(), plans=plans.assign(read_mb_s=np.nan))
    assert np.isnan(least_ms(unknown, "one", "evicted"))
    assert np.isnan(least_ms(replace(_evidence(), plans=plans.drop(columns=list(_MACHINE))), "one", "cached"))


def test_the_page_is_written_also_of_one_model_that_did_not_run(tmp_path: Path) -> None:
    for number, starts in enumerate((_starts(), _starts().query("model == 'three'"))):
        folder = tmp_path / str(number)
        page = folder / "opencl-test" / "page.json"
        GPU_REPORT.show(_evidence(starts), folder=folder, metrics=folder / "metrics.json", chapter=page)
        assert (folder / "tables/cold_gpu_beside.csv").is_file()
        assert page.is_file()


def test_starts_by_an_earlier_protocol_are_named() -> None:
    starts = _starts()
    now, before = starts.assign(protocol=GPU_PROTOCOL.name), starts.assign(protocol=GPU_PROTOCOL.earlier[0])
    assert not any("earlier protocol" in told for told in gpu_findings(_evidence(now)))
    mixed = pd.concat([now[now["model"] == "one"], before[before["model"] != "one"]])
    (told,) = (told for told in gpu_findings(_evidence(mixed)) if "earlier protocol" in told)
    assert "two" in told
    assert "one" not in told


@pytest.mark.skipif(find_spec("pyopencl") is None, reason="pyopencl is an extra")
@pytest.mark.long
def test_a_model_is_started_in_all_ways_and_one_that_cannot_says_why(tmp_path: Path) -> None:
    path = tmp_path / "opencl-here.yaml"
    options = {"platform": "Portable Computing Language", "cores": str(max(os.sched_getaffinity(0)))}
    path.write_text(yaml.safe_dump({"format_version": 1, "name": path.stem, "engine": "opencl", "options": options}))
    settings = GpuStartSettings(
        devices=[], models=("squeezenet",), plans=("warm", "K+C", "K", "default"), settings=("onnxruntime-cuda",),
        states=("cached",), repeats=1, compiled_repeats=1, warm_runs=1, gap=0.001, time_limit_s=5.0, lock_timeout_seconds=60.0,
    )  # fmt: skip
    b = GraphBuilder("small", (1, 3, 12, 12))
    model = save_onnx(b.build(b.fc(b.flatten(b.gap(b.conv_bn(b.input, 16, 3, 2))), 10)), tmp_path / "small.onnx")
    bench = GpuStartBench(load_device(path), settings, 0, tmp_path)
    rows = {kind: frame.assign(model="small") for kind, frame in bench.rows(model).items()}
    for kind, columns in COLUMNS.items():
        assert set(columns) < set(rows[kind].columns)
    own = rows["starts"].query("stock == 0")
    assert sorted(own["way"]) == sorted(settings.planners)
    assert (own["reason"] == "").all()
    assert own["error"].max() <= OUTPUT_TOLERANCE
    stock = rows["starts"].query("stock == 1")
    assert ("onnxruntime" in stock["reason"].item()) != (stock["cold_ms"].item() > 0)
    evidence = GpuStartEvidence(path.stem, rows["starts"], rows["plans"], {"cores": 2, "fingerprint": "f"})
    found = gpu_metrics(evidence)
    assert found["cold_gpu.plan_gap_max"] <= 0.01
    assert found["cold_gpu.speedup_over_default"] > 1, "compiling takes many times as long as loading"
    GPU_REPORT.show(evidence, folder=tmp_path, metrics=tmp_path / "m.json", chapter=tmp_path / path.stem / "page.json")

    b = GraphBuilder("recurrent", (5, 1, 8))
    lost = bench.rows(save_onnx(b.build(b.lstm(b.input, 8)), tmp_path / "recurrent.onnx"))
    assert "no kernel of the device runs" in lost["starts"]["reason"].item()
