"""`python -m edgeplan.runtime.streaming.anew FOLDER BUDGET FILE` plans for a budget with all that a plan folder knows.

The process that runs a plan starts this one (`background`), and takes the file once it is there.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

from edgeplan.planning.memory.ladder import beside, from_zero
from edgeplan.planning.memory.quick import Mode
from edgeplan.planning.memory.search import WORK
from edgeplan.runtime.folder import MEMORY, PlanFolder, read_folder
from edgeplan.runtime.streaming.again import schedule_of
from edgeplan.runtime.streaming.memory_session import MemorySchedule, again_of, schedules_of
from edgeplan.runtime.streaming.program import StreamProgram
from edgeplan.runtime.streaming.schedules import packed
from edgeplan.support.files import write_atomically

_GAIN = 0.005  # a plan has to be so much faster than a stored one: to change costs reads


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
    program, again, schedules = plan.program_of(StreamProgram), again_of(plan), schedules_of(plan)
    layouts, staying, known_ms = list(again.layouts), list[int](), float("inf")
    if schedules is not None and (stored := schedules.fitting(budget)) is not None:
        known, known_ms = schedules.schedule(stored), stored.predicted_ms
        layouts.insert(0, from_zero(np.array(known.buffer_offset, dtype=np.int64)))
        staying = sorted((k for k, until in enumerate(known.again) if until == k), key=known.weight_offset.__getitem__)
    mode, room = Mode(plan.scheduled(MemorySchedule).mode), budget - again.objects_bytes
    made = beside(again.workload, again.reader, mode, layouts, room, staying, WORK)
    if made is None or made.predicted_ms > (1 - _GAIN) * known_ms:
        return
    row = budget, made.predicted_ms, made.lower_bound_ms, schedule_of(made)
    content = packed([row], len(program.step_names), len(program.buffer_names))
    write_atomically(path, lambda temporary: temporary.write_bytes(content))


if __name__ == "__main__":
    main()
