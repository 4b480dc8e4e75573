"""Turns the journal's records into tables, and computes what the chapter's tables ask of them."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Mapping
from typing import Any

import pandas as pd

from edgeplan.engines.registry import setting
from edgeplan.measurement.process.job import STOCK_TOLERANCE, PrepareResult, RunResult
from edgeplan.measurement.provenance import NOT_RECORDED
from edgeplan.support.tensors import OUTPUT_TOLERANCE

#: Columns of the runs; one row a process. `reason` is "" for a run that counts; `stages_ms` is a JSON object, `warm_ms` a JSON
#: list of the warm runs in their order; `compute_us` and `bandwidth_us` are the references timed around the run, `interference`
#: is what was seen of its processors (`attempts.Attempt`), `commit` the state of the code that made the run.
RUN_COLUMNS: Mapping[str, str] = {
    "model": "str",
    "setting": "str",
    "engine": "str",
    "engine_version": "str",
    "stores_work": "bool",
    "stock": "bool",
    "threads": "int64",
    "state": "str",
    "repeat": "int64",
    "cold_ms": "float64",
    "warm_ms": "str",
    "warm_min_ms": "float64",
    "warm_median_ms": "float64",
    "open_ms": "float64",
    "first_run_ms": "float64",
    "stages_ms": "str",
    "first_touch_ms": "float64",
    "anonymous_bytes": "int64",
    "rss_before_bytes": "int64",
    "peak_rss_bytes": "int64",
    "minor_faults": "int64",
    "major_faults": "int64",
    "read_bytes": "int64",
    "file_bytes": "int64",
    "cached_before": "float64",
    "output_error": "float64",
    "prepare_ms": "float64",
    "compute_us": "float64",
    "bandwidth_us": "float64",
    "measured_at": "float64",
    "interference": "float64",
    "commit": "str",
    "reason": "str",
}
_BANDWIDTH_COLUMNS: Mapping[str, str] = {
    "model": "str",
    "repeat": "int64",
    "file_bytes": "int64",
    "mb_per_s": "float64",
    "measured_at": "float64",
}
_COPIED = (
    "cold_ms",
    "first_touch_ms",
    "anonymous_bytes",
    "rss_before_bytes",
    "peak_rss_bytes",
    "minor_faults",
    "major_faults",
    "read_bytes",
    "file_bytes",
    "cached_before",
    "output_error",
)


def result_frame(records: Iterable[Mapping[str, Any]], prepared: Mapping[tuple[str, str, int], PrepareResult]) -> pd.DataFrame:
    """Return one row a run, and one (state "", repeat -1) for each setting that cannot run a model.

    Args:
        records: records of the journal.
        prepared: what preparing gave, by model, setting and threads.
    """
    rows = [_row(record, prepared) for record in records if record["setting"]]
    rows += [
        _shared(model, name, threads, result) | {"state": "", "repeat": -1, "reason": result.reason}
        for (model, name, threads), result in prepared.items()
        if result.artefact is None
    ]
    return _typed(rows, RUN_COLUMNS)


def bandwidth_frame(records: Iterable[Mapping[str, Any]]) -> pd.DataFrame:
    """Return sequential reads of each model's evicted files, in MB/s (10^6 bytes); 0 where they could not be evicted."""
    return _typed([{k: r[k] for k in _BANDWIDTH_COLUMNS} for r in records if not r["setting"]], _BANDWIDTH_COLUMNS)


def _shared(model: str, name: str, threads: int, prepared: PrepareResult) -> dict[str, Any]:
    found = setting(name)
    return {
        "model": model,
        "setting": name,
        "engine": found.engine,
        "engine_version": prepared.engine_version,
        "stores_work": found.stores_work,
        "stock": found.stock,
        "threads": threads,
        "prepare_ms": prepared.prepare_ms,
    }


def _row(record: Mapping[str, Any], prepared: Mapping[tuple[str, str, int], PrepareResult]) -> dict[str, Any]:
    result = RunResult.model_validate(record["result"])
    key = (record["model"], record["setting"], record["threads"])
    row = _shared(*key, prepared[key]) | {name: getattr(result, name) for name in _COPIED}
    return row | {
        "state": record["state"],
        "repeat": record["repeat"],
        "measured_at": record["measured_at"],
        "commit": record.get("commit", NOT_RECORDED),
        "warm_ms": json.dumps([round(ms, 4) for ms in result.warm_ms]),
        "warm_min_ms": min(result.warm_ms, default=None),
        "warm_median_ms": statistics.median(result.warm_ms) if result.warm_ms else None,
        "open_ms": result.stages_ms.get("open"),
        "first_run_ms": result.stages_ms.get("first_run"),
        "stages_ms": json.dumps(result.stages_ms),
        "reason": _reason(record["state"], result, STOCK_TOLERANCE if row["stock"] else OUTPUT_TOLERANCE),
        "interference": result.interference,
        **record["references"],
    }


def _reason(state: str, result: RunResult, tolerance: float) -> str:
    """Return why a run does not count, or ""."""
    if result.reason:
        return result.reason
    if not result.state_reached:
        return f"{result.cached_before:.0%} of the files were in the page cache, not as in state {state!r}"
    if result.output_error is not None and not result.output_error <= tolerance:
        return f"outputs differ from ONNX Runtime's by {result.output_error:.2g} of their largest magnitude"
    return ""


def _typed(rows: Iterable[dict[str, Any]], columns: Mapping[str, str]) -> pd.DataFrame:
    blank = {name: {"int64": 0, "str": ""}.get(dtype) for name, dtype in columns.items()}
    return pd.DataFrame([blank | row for row in rows], columns=list(columns)).astype(dict(columns))
