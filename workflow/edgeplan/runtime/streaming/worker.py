"""A plan run in a process of its own, `python -m edgeplan.runtime.streaming.worker`: JSON on stdin, JSON on stdout.

It imports what running needs and no more: what it says of memory is what a program takes that runs plans and nothing else.
Sizes are in bytes, times in milliseconds.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from edgeplan.errors import InfeasibleError
from edgeplan.runtime.dnnl import Dnnl
from edgeplan.runtime.folder import MEMORY, WEIGHTS_NAME, PlanFolder, read_folder
from edgeplan.runtime.streaming.library_pages import LibraryPages, RecordedPages, give_up_unused, unchanged_mappings
from edgeplan.runtime.streaming.memory_session import MemorySchedule, choose, pages_of
from edgeplan.runtime.streaming.program import StreamProgram
from edgeplan.runtime.streaming.reader import WeightsFile
from edgeplan.runtime.streaming.session import READY_INFERENCES, Ended, Schedule, StreamSession
from edgeplan.support.answers import take_stdout
from edgeplan.support.digests import sha256
from edgeplan.support.memory_counters import page_tables, reset_peak, resident, wait_at

_SMALL_BYTES = 1 << 20
_SWITCH_SECONDS = 50e-6  # reading threads have the interpreter at once where a step is prolonged awake


_kept: list[StreamSession] = []  # to free its kernels would read other pages of the library


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
    sys.setswitchinterval(_SWITCH_SECONDS)
    folder = Path(job["folder"])
    inputs = {name: Path(path).read_bytes() for name, path in job["inputs"].items()}
    dnnl = Dnnl()
    dnnl.warm_up(int(job["threads"]))
    LibraryPages(dnnl.info.path).drop()  # what the session drops is not to be what idle was
    if job.get("gate"):
        give_up_unused()  # idle is what this process uses, not what was read ahead of it
    wait_at(job.get("gate", ""))
    reset_peak()
    idle, tables, faults = resident(), page_tables(), _major_faults()
    plan = read_folder(folder, MEMORY)
    program = plan.program_of(StreamProgram)
    file = WeightsFile(folder / WEIGHTS_NAME, program.weights_bytes)
    first, replanned = _schedule(plan, job["schedules"][0])
    session, library = _opened(job, dnnl, plan, file, first)
    session.slowed = job.get("slowed_ns", ())
    phases, ready = _phases(session, job, inputs, plan, replanned)
    peak = resident()
    rates, widened = [], 0.0
    for _ in range(int(job.get("bandwidth_passes", 0))):
        rates.append(session.streamed_bytes / session.stream_ms())
        widened = max(widened, session.widened_per_ms)
    result = {
        "idle": idle,
        "peak": peak,
        "table_bytes": max(0, page_tables() - tables),
        "phases": phases,
        "direct": file.direct,
        "major_faults": _major_faults() - faults,
        "later_major_faults": _major_faults() - ready,
        "files": [] if job.get("gate") else sorted({mapping.path for mapping in unchanged_mappings()}),
        "read_ms": session.read_ms() if job.get("bandwidth_passes") else 0.0,
        "bytes_per_ms": rates,
        "widened_per_ms": widened,
    }
    if isinstance(library, RecordedPages):
        result["making"], result["running"] = library.found()
    session.close()
    if job.get("gate"):
        _kept.append(session)
    return result


def _opened(
    job: Mapping[str, Any], dnnl: Dnnl, plan: PlanFolder, file: WeightsFile, schedule: Schedule
) -> tuple[StreamSession, LibraryPages | None]:
    """The session of a job, and the pages of the library that it has in memory."""
    library = RecordedPages(dnnl.info.path) if job.get("steps") else pages_of(plan, dnnl.info.path)
    session = StreamSession(
        dnnl, plan.program_of(StreamProgram), schedule, file, processors=job.get("reader_processors", ()),
        debug=bool(job.get("debug", False)), gives_back=bool(job.get("gives_back", False)), library=library,
    )  # fmt: skip
    return session, library


def _phases(
    session: StreamSession, job: Mapping[str, Any], inputs: Mapping[str, bytes], plan: PlanFolder, replanned: float
) -> tuple[list[dict[str, Any]], int]:
    """The phases of a job, and the major faults of the process until all code had run once."""
    phases: list[dict[str, Any]] = []
    ready = 0
    for number, wanted in enumerate(job["schedules"]):
        if number:
            schedule, replanned = _schedule(plan, wanted)
        began = time.perf_counter()
        if number:
            session.apply(schedule)
        else:
            session.wait_touched()  # else what the first inference takes for a moment would not be seen
        if job["isolated"]:
            session.fill()
        paused = (time.perf_counter() - began) * 1e3
        phase, faults_then = _runs(session, job, inputs)
        ready = ready if number else faults_then
        session.settle()
        phases.append({"replan_ms": replanned, "pause_ms": paused, "memory": resident(), **phase})
    return phases, ready


def _schedule(plan: PlanFolder, wanted: int | Mapping[str, Any] | None) -> tuple[Schedule, float]:
    """A schedule of a plan document, the folder's own, or a stored one for a budget; and the milliseconds to choose it."""
    if wanted is None:
        return plan.scheduled(MemorySchedule).placed, 0.0
    if isinstance(wanted, Mapping):
        return Schedule.of(wanted), 0.0
    began = time.perf_counter()
    if (found := choose([plan], wanted)) is None:
        raise InfeasibleError(f"no stored schedule fits {wanted} bytes", where="--budgets", next_step="give more")
    return found[2], (time.perf_counter() - began) * 1e3


def _runs(session: StreamSession, job: Mapping[str, Any], inputs: Mapping[str, bytes]) -> tuple[dict[str, Any], int]:
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
        before = session.bytes_read
        begin = time.perf_counter_ns()
        last = number == runs - 1
        ended = Ended(partial(_taken, last or not number, files if last else {}))
        made = session.run_taking(inputs, ended)
        ready = _major_faults() if number < READY_INFERENCES else ready
        times.append((ended.at_ns - begin) / 1e6)
        marks = session.times
        steps.append([(marks[2 * k + 1] - marks[2 * k]) / 1e6 for k in range(len(marks) // 2)])
        waits.append(sum(marks[2 * k + 2] - marks[2 * k + 1] for k in range(len(marks) // 2 - 1)) / 1e6)
        read.append(session.bytes_read - before)
        if all(made.values()):
            digests.add(sha256(b"".join(made[name] for name in sorted(made))).hexdigest())
    phase = {
        "run_ms": times,
        "wait_ms": waits,
        "step_ms": steps if job.get("steps") else [],
        "read_bytes": read,
        "digests": sorted(digests),
        "cpu_ms": (time.process_time() - cpu) * 1e3,
    }
    return phase, ready


def _major_faults() -> int:
    """Pages that this process had to wait for the disk for."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_majflt


def _taken(looked_at: bool, files: Mapping[str, Path], name: str, view: memoryview) -> bytes:
    """The digest; of large outputs where they are looked at alone, since it takes time of the next inference."""
    if name in files:
        files[name].write_bytes(view)
    return sha256(view).digest() if looked_at or view.nbytes <= _SMALL_BYTES else b""


if __name__ == "__main__":
    main()
