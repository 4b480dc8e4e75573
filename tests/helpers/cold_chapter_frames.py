"""Measurements of a cold-start chapter as the stage writes them, with numbers that are easy to calculate with.

Two models. Cold, page cache warm, two threads, in ms: `squeezenet` 80 (ONNX Runtime), 20 (optimised), 10 (own); `shufflenetv2`
40, 24, 12.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from edgeplan.chapters.cold_start.evaluation.evidence import TABLE2_CONV, ColdEvidence
from edgeplan.chapters.cold_start.measuring.runs import RUN_COLUMNS
from edgeplan.measurement.process.job import RunResult
from edgeplan.planning.profile import Candidate, Layer, Profile
from edgeplan.profiling.frame import to_frame

MODELS = ("squeezenet", "shufflenetv2")
#: (setting, plan) -> cold ms of both models with two threads and a warm page cache; one thread takes twice as long.
COLD_MS: Mapping[tuple[str, str], tuple[float, float]] = {
    ("onnxruntime", ""): (80.0, 40.0),
    ("onnxruntime-optimised", ""): (20.0, 24.0),
    ("edgeplan", "optimal"): (10.0, 12.0),
    ("edgeplan", "evicted"): (11.5, 13.5),
    ("edgeplan", "nnv12"): (11.0, 13.0),
    ("edgeplan-fixed", "warm"): (30.0, 30.0),
    ("edgeplan-fixed", "K"): (25.0, 26.0),
    ("edgeplan-fixed", "K+C"): (15.0, 16.0),
    ("edgeplan", "predicted"): (12.0, 15.0),
    ("edgeplan-continuous", "continuous"): (10.5, 12.5),
    ("edgeplan-fixed", "asymmetric"): (18.0, 19.0),
}
WARM_MS = {"onnxruntime": 4.0, "onnxruntime-optimised": 4.4, "edgeplan": 5.0}
EVICTED_EXTRA_MS = 30.0
PLANNED_EXTRA_MS = 20.0  # of the plan for it


def run_row(model: str, setting: str, plan: str, threads: int, state: str, repeat: int, cold_ms: float) -> dict[str, Any]:
    """One run, as `cold.results` writes it."""
    own = setting.startswith("edgeplan")
    warm = WARM_MS["edgeplan" if own else setting] * (2 if threads == 1 else 1)
    stages = {"open": 1.0, "first_run": cold_ms - 1}
    if own:
        stages = {"open": 0.5, "read": 1.0, "create": 3.0, "transform": 2.0, "execute": 6.0}
    blank = RunResult(cold_ms=cold_ms).model_dump()
    row = {name: blank.get(name, "" if kind == "str" else 0) for name, kind in RUN_COLUMNS.items()}
    return row | {
        "model": model, "setting": setting, "engine": "onednn" if own else "onnxruntime", "stock": not own,
        "stores_work": setting != "onnxruntime", "threads": threads, "state": state, "repeat": repeat, "cold_ms": cold_ms,
        "warm_ms": json.dumps([warm * 1.1, warm, warm * 1.2, warm * 1.1]), "warm_min_ms": warm, "output_error": 1e-6,
        "stages_ms": json.dumps(stages), "first_touch_ms": 0.7, "reason": "", "plan": plan, "load_percent": 0, "load_core": "",
        "slowness": 1.0,
    }  # fmt: skip


def run_rows() -> list[dict[str, Any]]:
    """All runs: three repeats around the table's value, so that it is the median."""
    rows = []
    for (setting, plan), times in COLD_MS.items():
        counts = (1,) if plan == "asymmetric" else (1, 2) if plan in ("", "optimal", "evicted", "warm") else (2,)
        later = PLANNED_EXTRA_MS if plan == "evicted" else EVICTED_EXTRA_MS
        for model, cold in zip(MODELS, times, strict=True):
            for threads in counts:
                for state, extra in (("cached", 0.0), ("evicted", later)):
                    base = (cold if threads == 2 or plan == "asymmetric" else 2 * cold) + extra
                    rows += [run_row(model, setting, plan, threads, state, r, base + d) for r, d in enumerate((0.0, -1.0, 5.0))]
    for percent, factor in ((0, 1.0), (25, 1.2), (50, 1.5)):
        for setting, plan in (("edgeplan", "optimal"), ("edgeplan-fixed", "optimal"), ("onnxruntime-optimised", "")):
            row = run_row(MODELS[0], setting, plan, 2, "cached", 0, 10.0 * factor)
            rows.append(row | {"load_percent": percent, "load_core": "preparing"})
    rows.append(rows[0] | {"setting": "ncnn", "cold_ms": float("nan"), "reason": "ncnn is not installed", "stages_ms": ""})
    return rows


def candidate(kernel: str, source: str, read: float, create: float, transform: float, one: float, both: float) -> Candidate:
    """A candidate of a machine with two equal cores; it reads 1 MB raw, 2 MB from the cache."""
    size = 1_000_000 if source == "raw" else 2_000_000
    stages = ({"big": t} for t in (read, create, transform))
    return Candidate(kernel, source, *stages, {1: one, 2: both}, size, 0 if source == "raw" else size, 0)


def profiles() -> tuple[Profile, ...]:
    """Work of a step: gemm raw 1+1+4+2 = 8, brgconv cached 2+3+0+1 = 6 core-ms; two steps on two cores: bound 6 ms."""
    candidates = (
        candidate("gemm", "raw", 1.0, 1.0, 4.0, 2.0, 1.5),
        candidate("brgconv", "cached_read", 2.0, 3.0, 0.0, 1.0, 0.6),
        candidate("brgconv", "raw", 1.0, 3.0, 3.0, 1.0, 0.6),
    )
    layers = tuple(Layer(f"conv{k}", (f"conv_{k}",), candidates) for k in range(2))
    return tuple(
        Profile(model, layout, 2, 0, 1.0, layers) for model in (*MODELS, TABLE2_CONV) for layout in ("nhwc", "blocked16")
    )


def plan_rows() -> list[dict[str, Any]]:
    """Makespan 9 ms and 11 ms of the optimal plan, bound 9 and 10.9."""
    rows = []
    for plan, times in ((plan, times) for (setting, plan), times in COLD_MS.items() if setting.startswith("edgeplan")):
        optimal, alone = plan in ("optimal", "predicted", "continuous", "asymmetric"), plan == "asymmetric"
        for i, model in enumerate(MODELS):
            rows.append({
                "model": model, "plan": plan, "threads": 1 if alone else 2, "little_ratio": 3.0 if alone else 1.0,
                "planner": "optimal" if optimal else plan, "costs": "predicted" if plan == "predicted" else "profiled",
                "layout": "nhwc", "steps": 2, "widen_from": 1, "makespan_ms": (9.0, 10.1)[i] if optimal else times[i] * 0.9,
                "lower_bound_ms": (9.0, 10.0)[i], "gap": 0.0, "planning_ms": 300.0 + 100 * i, "read_bytes": 4_000_000,
                "cache_bytes": 4_000_000, "note": "searched",
            })  # fmt: skip
    return rows


def evidence(**changes: Any) -> ColdEvidence:
    parts: dict[str, Any] = {
        "runs": pd.DataFrame(run_rows()),
        # 2 MB must be read at least: at 100 MB/s that takes 20 ms
        "bandwidth": pd.DataFrame({"model": MODELS, "repeat": 0, "file_bytes": 5_000_000, "mb_per_s": 100.0}),
        "profiles": to_frame(profiles()),
        "plans": pd.DataFrame(plan_rows()).assign(document="{}"),
        "models": pd.DataFrame(
            {"model": MODELS, "parameters": (1_200_000, 2_300_000), "model_bytes": (5_000_000, 9_000_000), "macs": (8e8, 3e8)}
        ),
        "checks": pd.DataFrame(
            [{"model": m, "layout": "nhwc", "choice": k, "error": 1e-6 * (k + 1)} for m in MODELS for k in range(2)]
        ),
        "notes": {"disk": "this folder lies on no disk"},
        "environment": {"measured_at": "2024-05-06"},
    }
    return ColdEvidence("cpu-test", **(parts | changes))


def frame_names() -> Sequence[str]:
    return [name for name, value in vars(evidence()).items() if isinstance(value, pd.DataFrame)]
