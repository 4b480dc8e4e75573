"""Figures of merit, tables and the page of cold starts on a GPU, from rows that are written here."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from edgeplan.chapters.cold_start.gpu.page import GPU_REPORT, GpuStartEvidence, findings, gpu_metrics, least_ms
from edgeplan.chapters.cold_start.settings import GPU_PROTOCOL
from edgeplan.chapters.cold_start.stages.cold_gpu import COLUMNS

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
    assert not any("earlier protocol" in told for told in findings(_evidence(now)))
    mixed = pd.concat([now[now["model"] == "one"], before[before["model"] != "one"]])
    (told,) = (told for told in findings(_evidence(mixed)) if "earlier protocol" in told)
    assert "two" in told
    assert "one" not in told
