"""The measured timeline of a plan, from a fresh process."""

from __future__ import annotations

import multiprocessing
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pandas as pd

from edgeplan.cold import page_cache
from edgeplan.cold.inputs import random_inputs
from edgeplan.cold.jobs import PrepareResult
from edgeplan.frames import write_parquet
from edgeplan.measurement.lock import machine_lock
from edgeplan.pipeline.cold_plans import digest
from edgeplan.planning.cold_start.machine import Span
from edgeplan.runtime.dnnl import Dnnl

COLUMNS = ("kind", "core", "step", "stage", "start_ms", "end_ms")


def measured_timeline(
    prepared: PrepareResult,
    *,
    threads: int,
    cores: Sequence[int],
    inputs: Mapping[str, tuple[int, ...]],
    seed: int,
    runs: int,
    kept: Path,
    lock_timeout_seconds: float,
) -> pd.DataFrame:
    """The run that took the median time of some cold runs with a warm page cache, each in a process of its own.

    Args:
        prepared: the plan folder.
        threads: of the plan.
        cores: processors that execute.
        inputs: shapes.
        seed: of the inputs.
        runs: how many.
        kept: folder of timelines recorded before, by plan.
        lock_timeout_seconds: how long to wait while another process is measuring.
    """
    if prepared.artefact is None:
        return pd.DataFrame(columns=list(COLUMNS))
    path = kept / f"{digest([prepared.engine_version, threads, runs, seed])}.parquet"
    if path.is_file():
        return pd.read_parquet(path)
    files = prepared.artefact.files
    job = (prepared.artefact.main.parent, threads, tuple(cores), dict(inputs), seed, files)
    spawn = multiprocessing.get_context("spawn")
    with (
        machine_lock(lock_timeout_seconds),
        ProcessPoolExecutor(1, mp_context=spawn, max_tasks_per_child=1) as pool,
    ):
        recorded = [pool.submit(_record, *job).result() for _ in range(runs)]
    middle = sorted(recorded, key=lambda spans: max(s.end_ms for s in spans))[runs // 2]
    frame = pd.DataFrame(timeline_rows("measured", middle), columns=list(COLUMNS))
    write_parquet(frame, path)
    return frame


def timeline_rows(kind: str, spans: Sequence[Span]) -> list[dict[str, Any]]:
    """Spans as rows of `spans.parquet`."""
    return [{"kind": kind, "step": s.layer, **{k: v for k, v in asdict(s).items() if k != "layer"}} for s in spans]


def _record(
    folder: Path, threads: int, cores: Sequence[int], inputs: Mapping[str, tuple[int, ...]], seed: int, files: Sequence[Path]
) -> tuple[Span, ...]:
    """One cold run, in the process that was started for it."""
    from edgeplan.runtime.cold_executor import ColdSession  # noqa: PLC0415  only the process that runs needs it

    page_cache.read_through(files)
    values = random_inputs(inputs, seed)
    dnnl = Dnnl()
    with ColdSession(dnnl, folder, threads=threads, cores=cores) as session:
        session.run(values)
        return session.spans()
