"""The measured timeline of a plan, from a fresh process."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pandas as pd

from edgeplan.errors import DeviceError
from edgeplan.measurement.lock import machine_lock
from edgeplan.measurement.process import host_memory, page_cache
from edgeplan.measurement.process.inputs import random_inputs
from edgeplan.measurement.process.interference import Interference
from edgeplan.measurement.process.job import PrepareResult
from edgeplan.measurement.process.prepare_machine import prepare_machine
from edgeplan.planning.machine import Span
from edgeplan.runtime.cold_executor import ColdSession
from edgeplan.runtime.dnnl import Dnnl
from edgeplan.runtime.process import prepare_process
from edgeplan.support.machine import fingerprint
from edgeplan.support.protocols import protocol
from edgeplan.support.store import key_of
from edgeplan.support.subprocesses import module_command, run
from edgeplan.support.table_store import TableStore

COLUMNS = ("kind", "core", "step", "stage", "start_ms", "end_ms")


def measured_timeline(
    prepared: PrepareResult,
    *,
    threads: int,
    cores: Sequence[int],
    inputs: Mapping[str, tuple[int, ...]],
    seed: int,
    runs: int,
    kept: TableStore,
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
        kept: timelines recorded before, by plan, with `COLUMNS`.
        lock_timeout_seconds: how long to wait while another process is measuring.
    """
    if prepared.artefact is None:
        return pd.DataFrame(columns=list(COLUMNS))
    key = timeline_key(prepared.engine_version, threads, runs, seed)
    if (found := kept.get(key)) is not None:
        return found
    files = prepared.artefact.files
    job: dict[str, Any] = {
        "folder": str(prepared.artefact.main.parent),
        "threads": threads,
        "cores": list(cores),
        "inputs": {name: list(shape) for name, shape in inputs.items()},
        "seed": seed,
        "files": [str(file) for file in files],
    }
    with machine_lock(lock_timeout_seconds):
        job["usual_us"] = Interference(cores).usual_us
        recorded = [_recorded(job) for _ in range(runs)]
    middle = sorted(recorded, key=lambda spans: max(s.end_ms for s in spans))[runs // 2]
    frame = pd.DataFrame(timeline_rows("measured", middle), columns=list(COLUMNS))
    kept.commit({key: frame})
    return frame


def timeline_key(version: str, threads: int, runs: int, seed: int) -> str:
    """Digest of all that decides a recorded timeline: the plan (in `version`), how it was run, and the protocol."""
    return key_of([version, threads, runs, seed, protocol("timeline").name])


def timeline_rows(kind: str, spans: Sequence[Span]) -> list[dict[str, Any]]:
    """Spans as rows of `spans.parquet`."""
    return [{"kind": kind, "step": s.layer, **{k: v for k, v in asdict(s).items() if k != "layer"}} for s in spans]


def _recorded(job: Mapping[str, Any]) -> tuple[Span, ...]:
    """One cold run in a fresh process. Not a pool: the scripts of Snakemake, which are `__main__` there, cannot be imported."""
    done = run(module_command(__name__), input=json.dumps(job).encode())
    if done.returncode:
        reason = (done.stderr.decode(errors="replace").strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        raise DeviceError(f"a timeline could not be recorded: {reason}", where=str(job["folder"]), next_step="run it again")
    return tuple(Span(**span) for span in json.loads(done.stdout))


def _record(job: Mapping[str, Any]) -> tuple[Span, ...]:
    """One cold run, in the process that was started for it."""
    page_cache.read_through([Path(file) for file in job["files"]])
    values = random_inputs({name: tuple(shape) for name, shape in job["inputs"].items()}, job["seed"])
    dnnl = Dnnl()
    prepare_process(dnnl)
    machine = fingerprint()
    host_memory.map_code()
    prepare_machine([Path(file) for file in job["files"]], job["cores"], evicted=False, usual_us=job["usual_us"])
    with ColdSession(dnnl, Path(job["folder"]), threads=job["threads"], machine=machine, cores=job["cores"]) as session:
        session.run(values)
        return session.spans()


if __name__ == "__main__":
    print(json.dumps([asdict(span) for span in _record(json.load(sys.stdin))]))  # noqa: T201  the answer to the parent process
