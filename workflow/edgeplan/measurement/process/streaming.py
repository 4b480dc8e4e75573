"""A plan of memory run in a process of its own, `python -m edgeplan.measurement.process.streaming`: JSON from stdin to stdout.

It imports what running needs and no more: what it says of memory is what a program takes that runs plans and nothing else.
Sizes are in bytes, times in milliseconds.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import time
from collections.abc import Iterator, Mapping
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

from edgeplan.runtime.installed import installed_libraries
from edgeplan.runtime.streaming.measured import MeasuredStream, ready
from edgeplan.support.lazy import sha256
from edgeplan.support.own_process import page_table_bytes, reset_peak, resident, take_stdout, wait_at

_SMALL_BYTES = 1 << 20
#: Inferences until all code has run once: the first one runs step by step, the second one as all that follow.
READY_INFERENCES = 2
_kept: list[MeasuredStream] = []  # to free its kernels would read other pages of the library


def main() -> None:
    """Read a job, do it, write its result."""
    stdout = take_stdout()
    job = json.loads(sys.stdin.buffer.read())
    result = json.dumps(run(job)).encode()
    with os.fdopen(stdout, "wb") as file:
        file.write(result)
    if job.get("gate"):
        os._exit(0)  # what libraries do at exit would be read with megabytes around it, and count


def run(job: Mapping[str, Any]) -> dict[str, Any]:
    """Run a plan as a job says.

    Args:
        job: `folder` of the plan; `inputs`: files of the inputs' bytes by name; `schedules`: plan documents, null for the
            folder's own, or budgets whose stored schedules are taken, each for as many `runs`, one after the other in the same
            session; `isolated`: memory is filled before each run; `followed`: weights are loaded
            for one inference more, as if another followed; `processors` and `reader_processors` that the threads may use;
            `slowed_ns`: of each step; `debug`: freed memory is filled with NaN;
            `gives_back`: it goes back to the system; `bandwidth_passes`: how often all weights are read afterwards;
            `outputs`: where to write the last outputs' bytes.
    """
    if job.get("processors"):
        os.sched_setaffinity(0, job["processors"])
    inputs = {name: bytearray(Path(path).read_bytes()) for name, path in job["inputs"].items()}
    library = next(installed_libraries(), "libdnnl.so.3")
    ready(job["folder"], library, alone=bool(job.get("gate")))
    wait_at(job.get("gate", ""))
    reset_peak()
    idle, tables, faults = resident(), page_table_bytes(), _major_faults()
    session = _opened(job, library)
    phases, begun = _phases(session, job, inputs)
    peak = resident()
    rates, widened = [], 0.0
    for _ in range(int(job.get("bandwidth_passes", 0))):
        rates.append(session.fact("streamed_bytes") / session.stream_ms())
        widened = max(widened, session.fact("widened_per_ms"))
    result = {
        "idle": idle,
        "peak": peak,
        "table_bytes": max(0, page_table_bytes() - tables),
        "phases": phases,
        "direct": bool(session.fact("direct")),
        "major_faults": _major_faults() - faults,
        "later_major_faults": _major_faults() - begun,
        "files": [] if job.get("gate") else sorted(set(_code_files())),
        "read_ms": session.read_ms() if job.get("bandwidth_passes") else 0.0,
        "bytes_per_ms": rates,
        "widened_per_ms": widened,
    }
    if job.get("steps"):
        result["making"], result["running"] = session.pages(running=False), session.pages(running=True)
    if job.get("gate"):
        _kept.append(session)
    else:
        session.close()
    return result


def _opened(job: Mapping[str, Any], library: str) -> MeasuredStream:
    wanted = job["schedules"][0]
    session = MeasuredStream(
        job["folder"], library, None if isinstance(wanted, int) else wanted,
        budget=wanted if isinstance(wanted, int) else 0, readers=job.get("reader_processors", ()),
        debug=bool(job.get("debug")), gives_back=bool(job.get("gives_back")), records=bool(job.get("steps")),
    )  # fmt: skip
    session.slow(job.get("slowed_ns", ()))
    return session


def _phases(
    session: MeasuredStream, job: Mapping[str, Any], inputs: Mapping[str, bytearray]
) -> tuple[list[dict[str, Any]], int]:
    """The phases of a job, and the major faults of the process until all code had run once."""
    phases: list[dict[str, Any]] = []
    ready = 0
    for number, wanted in enumerate(job["schedules"]):
        began, replanned = time.perf_counter(), 0.0
        if not number:
            session.wait_touched()  # else what the first inference takes for a moment would not be seen
        elif isinstance(wanted, int):
            session.set_budget(wanted)
            replanned = (time.perf_counter() - began) * 1e3
        else:
            session.apply(wanted)
        if job["isolated"]:
            session.fill()
        paused = (time.perf_counter() - began) * 1e3 - replanned
        phase, faults_then = _runs(session, job, inputs)
        ready = ready if number else faults_then
        session.settle()
        phases.append({"replan_ms": replanned, "pause_ms": paused, "memory": resident(), **phase})
    return phases, ready


def _runs(session: MeasuredStream, job: Mapping[str, Any], inputs: Mapping[str, bytearray]) -> tuple[dict[str, Any], int]:
    """The inferences of a phase, and the major faults of the process until all code had run once."""
    times: list[float] = []
    steps: list[list[float]] = []
    waits: list[float] = []
    read: list[int] = []
    digests = set()
    files = {name: Path(path) for name, path in job.get("outputs", {}).items()}
    runs, ready = int(job["runs"]), 0
    if not job["isolated"]:
        session.expect(runs + bool(job.get("followed")))
    cpu = time.process_time()
    for number in range(runs):
        if job["isolated"]:
            session.fill()
        before = int(session.fact("bytes_read"))
        begin = time.perf_counter_ns()
        last = number == runs - 1
        made = session.run_taking(inputs, partial(_taken, last or not number, files if last else {}))
        ready = _major_faults() if number < READY_INFERENCES else ready
        times.append((session.fact("ended_ns") - begin) / 1e6)
        ran = session.ran_ns()
        waits.append(sum(next_begin - end for (_, end), (next_begin, _) in pairwise(ran)) / 1e6)
        if job.get("steps"):
            steps.append([(end - begin) / 1e6 for begin, end in ran])
        read.append(int(session.fact("bytes_read")) - before)
        if all(made.values()):
            digests.add(sha256(b"".join(made[name] for name in sorted(made))).hexdigest())
    phase = {
        "run_ms": times,
        "wait_ms": waits,
        "step_ms": steps,
        "read_bytes": read,
        "digests": sorted(digests),
        "cpu_ms": (time.process_time() - cpu) * 1e3,
    }
    return phase, ready


def _major_faults() -> int:
    """Pages that this process had to wait for the disk for."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_majflt


def _code_files() -> Iterator[str]:
    """Yield the files whose code this process has mapped."""
    with open("/proc/self/maps") as file:  # noqa: PTH123  as `own_process`
        for line in file:
            _, access, _, _, _, *path = line.rstrip("\n").split(None, 5)
            if path and "x" in access and path[0].startswith("/") and Path(path[0]).is_file():
                yield path[0]


def _taken(looked_at: bool, files: Mapping[str, Path], name: str, view: memoryview) -> bytes:
    """The digest; of large outputs where they are looked at alone, since it takes time of the next inference."""
    if name in files:
        files[name].write_bytes(view)
    return sha256(view).digest() if looked_at or view.nbytes <= _SMALL_BYTES else b""


if __name__ == "__main__":
    main()
