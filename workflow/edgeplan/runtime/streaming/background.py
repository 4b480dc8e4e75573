"""A plan for a budget is made anew beside the process that runs: what is stored for smaller budgets leaves memory unused.

`python -m edgeplan.runtime.streaming.background FOLDER BUDGET FILE` makes it, in a process of its own that runs when nobody
else wants a processor; its memory is no part of the budget. `BackgroundPlan` starts it and hands over what it found.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from edgeplan.runtime.folder import MEMORY, PlanFolder, read_folder
from edgeplan.runtime.streaming.memory_session import ISOLATED, again_of, mode_of, schedules_of
from edgeplan.runtime.streaming.program import StreamProgram
from edgeplan.runtime.streaming.schedules import ScheduleFile, StoredSchedule, packed
from edgeplan.runtime.streaming.session import Schedule
from edgeplan.support import subprocesses
from edgeplan.support.files import write_atomically

_GAIN = 0.005  # a plan has to be so much faster than a stored one: to change costs reads
_LOWEST_PRIORITY = 19


class BackgroundPlan:
    """A plan in the making.

    Args:
        plan: the folder that it is for.
        budget: bytes over idle.
        polite: whether it is made when nobody else wants a processor.
    """

    def __init__(self, plan: PlanFolder, budget: int, *, polite: bool = True) -> None:
        self._plan = plan
        self._folder = tempfile.TemporaryDirectory(prefix="edgeplan-again-")
        self._path = Path(self._folder.name) / "schedule"
        command = subprocesses.module_command(__name__, str(plan.path), str(budget), str(self._path))
        nothing = subprocess.DEVNULL
        self._process = subprocesses.start(command, stdin=nothing, stderr=nothing)
        if polite:  # from its first instruction on, not from when it could do so itself
            with contextlib.suppress(OSError):
                os.setpriority(os.PRIO_PROCESS, self._process.pid, _LOWEST_PRIORITY)
                os.sched_setscheduler(self._process.pid, os.SCHED_IDLE, os.sched_param(0))

    @property
    def is_made(self) -> bool:
        """Whether nothing more will come; asking costs a system call."""
        return self._process.poll() is not None

    def take(self) -> tuple[StoredSchedule, Schedule] | None:
        """Hand over what was found, once it is made; None where nothing is faster than what is stored, or planning failed."""
        found = None
        if self._path.exists():
            program = self._plan.program_of(StreamProgram)
            steps, buffers = len(program.step_names), len(program.buffer_names)
            file = ScheduleFile(self._path, steps, buffers, back_to_back=mode_of(self._plan) != ISOLATED)
            found = file.stored[0], file.schedule(file.stored[0])
        self.close()
        return found

    def close(self) -> None:
        """End the process, and forget what it made."""
        subprocesses.end(self._process)
        self._folder.cleanup()


def main() -> None:
    """Plan as the command line says."""
    folder, budget, path = sys.argv[1:]
    plan_anew(read_folder(Path(folder), MEMORY), int(budget), Path(path))


def plan_anew(plan: PlanFolder, budget: int, path: Path) -> None:
    """Plan for a budget, and write the schedule if it is faster than the stored one that would be taken.

    Args:
        plan: its program is planned for.
        budget: bytes over idle.
        path: file to write to, as one of stored schedules.
    """
    import numpy as np  # noqa: PLC0415  the process that runs a plan imports this module, and no numpy

    from edgeplan.planning.memory.ladder import beside, from_zero  # noqa: PLC0415  likewise
    from edgeplan.planning.memory.quick import Mode  # noqa: PLC0415  likewise
    from edgeplan.planning.memory.search import WORK  # noqa: PLC0415  likewise
    from edgeplan.runtime.streaming.again import schedule_of  # noqa: PLC0415  likewise

    program, again, schedules = plan.program_of(StreamProgram), again_of(plan), schedules_of(plan)
    layouts, staying, known_ms = list(again.layouts), list[int](), float("inf")
    if schedules is not None and (stored := schedules.fitting(budget)) is not None:
        known, known_ms = schedules.schedule(stored), stored.predicted_ms
        layouts.insert(0, from_zero(np.array(known.buffer_offset, dtype=np.int64)))
        staying = sorted((k for k, until in enumerate(known.again) if until == k), key=known.weight_offset.__getitem__)
    room = budget - again.objects_bytes
    made = beside(again.workload, again.reader, Mode(mode_of(plan)), layouts, room, staying, WORK)
    if made is None or made.predicted_ms > (1 - _GAIN) * known_ms:
        return
    row = budget, made.predicted_ms, made.lower_bound_ms, schedule_of(made)
    content = packed([row], len(program.step_names), len(program.buffer_names))
    write_atomically(path, lambda temporary: temporary.write_bytes(content))


if __name__ == "__main__":
    main()
