"""What every cold start pays before the first step is prepared: reading the program, opening files, starting threads."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from msgspec.structs import replace as changed

from edgeplan.cold.inputs import Array
from edgeplan.cold.profiling.settings import Cores
from edgeplan.cold.profiling.store import Row
from edgeplan.cold.profiling.subjects import Subject
from edgeplan.cold.profiling.trials import Trials
from edgeplan.runtime.cold_executor import ColdSession
from edgeplan.runtime.dnnl import Dnnl
from edgeplan.runtime.linked import LinkedProgram, write_linked
from edgeplan.runtime.plan_folder import PLAN_NAME, PROGRAM_NAME

#: Signatures of the rows of whole programs begin with this; the `position` of such a row is the number of steps.
START = "start-"
_STAGE = "start"
_MACHINE = "profiled"


def start_signature(signed: Sequence[str]) -> str:
    """The key of a program's row: it stands for all of its steps."""
    return START + hashlib.sha256(" ".join(signed).encode()).hexdigest()[:18]


def start_ms(row: Row) -> float:
    """The least time: whatever else was running only adds to it."""
    return min(row.samples_ms[_STAGE])


def start_row(signed: Sequence[str], times_ms: Sequence[float]) -> Row:
    """The row of a program."""
    stored = tuple(np.asarray(times_ms, np.float32).tolist())  # as rows are stored
    return Row(start_signature(signed), "", len(signed), 0, 0, 0, {_STAGE: stored}, time.time())


def measure_start(
    dnnl: Dnnl, subject: Subject, model: Path, inputs: Mapping[str, Array], cores: Cores, scratch: Path, repeats: int
) -> tuple[float, ...]:
    """Start a program of the first candidates cold, several times.

    Args:
        dnnl: the library.
        subject: the steps.
        model: the model file.
        inputs: values of the inputs.
        cores: of the device.
        scratch: folder to write to.
        repeats: how often.

    Returns:
        Milliseconds from opening the folder to the first work on a step, the first process-wide calls left out.
    """
    folder = scratch / f"start-{subject.program.home}"
    folder.mkdir(exist_ok=True)
    write_linked(_program(dnnl, subject, model, cores, folder), folder / PROGRAM_NAME)
    times = []
    for _ in range(repeats + 1):
        with ColdSession(
            dnnl, folder, threads=len(cores.big), machine=_MACHINE, cores=cores.big, little=cores.little
        ) as session:
            session.run(inputs)
            times.append(min(span.start_ms for span in session.spans()))
    return tuple(times[1:])


def _program(dnnl: Dnnl, subject: Subject, model: Path, cores: Cores, folder: Path) -> LinkedProgram:
    """A program that prepares everything beside execution."""
    groups = tuple(replace(g, implementations=g.implementations[:1], sizes=g.sizes[:1]) for g in subject.groups)
    width = len(cores.big) if cores.little else 1
    trials = Trials(dnnl, Subject(subject.program, groups), model, (width,), folder)
    steps = tuple(trials.step(index, 0, width) for index in range(len(subject.program.steps)))
    lanes = len(cores.little) or len(cores.big) - 1
    plan = b"{}"
    (folder / PLAN_NAME).write_bytes(plan)
    every = tuple(range(len(steps)))
    changes = {
        "machine": _MACHINE,
        "plan_sha256": hashlib.sha256(plan).hexdigest(),
        "threads": len(cores.big),
        "equal_cores": not cores.little,
        "main": () if lanes else every,
        "queues": tuple(every[lane::lanes] for lane in range(lanes)),
        "steps": steps,
    }
    return changed(trials.program, **changes)
