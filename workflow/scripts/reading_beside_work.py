"""Reading threads held against reads that the computing thread has the kernel do, alone and beside a busy processor.

`python workflow/scripts/reading_beside_work.py PLAN` runs a plan of memory both ways in turns, in one process and with the same
outputs, and prints how much longer the one takes than the other: medians of ratios of neighbouring inferences. Beside work
means that another process never sleeps on the processor that the plan gives to its reading threads.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from edgeplan.runtime.dnnl import Dnnl
from edgeplan.runtime.folder import MEMORY, WEIGHTS_NAME, read_folder
from edgeplan.runtime.streaming.memory_session import MemorySchedule
from edgeplan.runtime.streaming.program import StreamProgram
from edgeplan.runtime.streaming.reader import WeightsFile
from edgeplan.runtime.streaming.session import StreamSession
from edgeplan.support import subprocesses
from edgeplan.terminal import say

_BUSY = "import os, sys; os.sched_setaffinity(0, {int(sys.argv[1])})\nwhile True: pass"


@contextmanager
def busy(processor: int | None) -> Iterator[None]:
    """Keep a processor busy, if one is named."""
    if processor is None:
        yield
        return
    process = subprocesses.start([sys.executable, "-c", _BUSY, str(processor)])
    try:
        time.sleep(0.2)
        yield
    finally:
        subprocesses.end(process)


def main() -> None:
    """Run both in turns, and print the ratios."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("plan", type=Path, help="folder of a plan of memory")
    parser.add_argument("--rounds", type=int, default=5, help="changes between quiet and busy")
    parser.add_argument("--repeat", type=int, default=8, help="pairs of inferences in each")
    given = parser.parse_args()
    plan = read_folder(given.plan, MEMORY)
    program, schedule = plan.program_of(StreamProgram), plan.scheduled(MemorySchedule)
    dnnl = Dnnl()
    dnnl.warm_up(program.threads)
    inputs = {border.name: os.urandom(border.size) for border in program.inputs}
    if any(border.dtype == "float32" for border in program.inputs):
        inputs = {border.name: bytes(border.size) for border in program.inputs}
    sessions = {}
    for name, threaded in (("threads", True), ("kernel", False)):
        file = WeightsFile(given.plan / WEIGHTS_NAME, program.weights_bytes)
        sessions[name] = StreamSession(
            dnnl, program, schedule.placed, file, processors=schedule.reader, spare=partial(bool, threaded)
        )
    outputs = {name: [session.run(inputs) for _ in range(2)][-1] for name, session in sessions.items()}
    say(f"outputs equal: {outputs['threads'] == outputs['kernel']}")
    ratios: dict[str, list[float]] = {"quiet": [], "busy": []}
    taken: dict[tuple[str, str], list[float]] = {}
    worked: dict[tuple[str, str], list[float]] = {}
    for number in range(2 * given.rounds):
        beside = ("quiet", "busy")[number % 2]
        with busy(schedule.reader[0] if beside == "busy" else None):
            for pair in range(given.repeat):
                found = {}
                for name in sorted(sessions, reverse=pair % 2 == 1):
                    session = sessions[name]
                    session.expect(2)
                    session.run(inputs)
                    began, used = time.perf_counter(), time.process_time()
                    session.run(inputs)
                    found[name] = (time.perf_counter() - began) * 1e3
                    worked.setdefault((beside, name), []).append((time.process_time() - used) * 1e3)
                    taken.setdefault((beside, name), []).append(found[name])
                ratios[beside].append(found["kernel"] / found["threads"])
    for beside, values in ratios.items():
        threads, kernel = (taken[beside, name] for name in ("threads", "kernel"))
        say(
            f"{beside}: kernel / threads {statistics.median(values):.3f} (quartiles "
            + ", ".join(f"{q:.3f}" for q in statistics.quantiles(values, n=4)[::2])
            + f", {len(values)} pairs); medians {statistics.median(threads):.1f} and {statistics.median(kernel):.1f} ms, "
            f"least {min(threads):.1f} and {min(kernel):.1f}; processor time "
            f"{statistics.median(worked[beside, 'threads']):.1f} and {statistics.median(worked[beside, 'kernel']):.1f} ms"
        )
    for session in sessions.values():
        session.close()


if __name__ == "__main__":
    main()
