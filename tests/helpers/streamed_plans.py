"""Plan folders of small models that are streamed, of a made-up profile: what is planned does not hang on the machine."""

from __future__ import annotations

import shutil
from pathlib import Path

from streamed_models import Streamed

from edgeplan.chapters.memory.folders import made_for, write_memory_plan
from edgeplan.planning.memory import bounds
from edgeplan.planning.memory.planner import lowest
from edgeplan.planning.memory.quick import Mode
from edgeplan.profiling.streaming import StreamProfile
from edgeplan.runtime.dnnl import Dnnl
from edgeplan.runtime.folder import WEIGHTS_NAME, PlanFolder, read_folder
from edgeplan.runtime.packed_programs import Budgeted, TapedProgram
from edgeplan.runtime.streaming.schedules import BACK_TO_BACK, MemoryPrediction, MemorySchedule, Schedule

#: Of reading: it takes a good part of what the steps take, so that memory is worth time.
BYTES_PER_MS = 5e4
#: Bytes beside the arena.
OBJECTS = 1 << 20


def least(model: Streamed) -> int:
    """The smallest budget of the plan."""
    return _bound(model) + 8192


def middle(model: Streamed) -> int:
    """The largest budget that a schedule is stored for: some weights stay."""
    return _bound(model) + int(model.workload.weight_bytes.sum()) // 3


def more(model: Streamed) -> int:
    """A budget between the largest stored one and all weights in memory."""
    return _bound(model) + int(model.workload.weight_bytes.sum()) * 2 // 3


def _bound(model: Streamed) -> int:
    return bounds.least_bytes(model.workload) + OBJECTS


def write_streamed_plan(dnnl: Dnnl, model: Streamed, folder: Path, others: float = 0.0) -> PlanFolder:
    """Write a plan with schedules for the smallest and for the middle budget, and read it."""
    program, rows = model.built.program, []
    folder.mkdir()
    for budget in (least(model), middle(model)):
        made = model.document(budget - OBJECTS, Mode.back_to_back, BYTES_PER_MS)
        rows.append(Budgeted(budget, made.predicted_ms, made.lower_bound_ms, Schedule.of(made.model_dump())))
    shutil.copyfile(model.weights, folder / WEIGHTS_NAME)
    profile = StreamProfile(
        compute_ms=(0.1,) * len(program.step_names), bytes_per_ms=BYTES_PER_MS, lanes=2, objects_bytes=OBJECTS, idle_bytes=0,
        run_ms=(), lowest=tuple(lowest(model.workload).tolist()), others=others,
    )  # fmt: skip
    schedule = MemorySchedule(BACK_TO_BACK, rows[0].budget_bytes, 8192, (), (), (), rows[0].placed)
    prediction = MemoryPrediction(rows[0].predicted_ms, rows[0].lower_bound_ms, 0, profile.model_dump())
    made_here, taped = made_for(model.model, dnnl, 1), TapedProgram(program)
    write_memory_plan(folder, taped, made_here, schedule, prediction, [rows[0], *rows], profile)
    return read_folder(folder)
