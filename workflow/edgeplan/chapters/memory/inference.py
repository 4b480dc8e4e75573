"""Running a plan folder of the memory chapter in this process, by one budget after the other."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from edgeplan.chapters.memory.plan import MODEL_NAME
from edgeplan.errors import FormatError, ModelError
from edgeplan.measurement.process.page_cache import evict
from edgeplan.planning.memory.document import MemoryPlan, read_plan
from edgeplan.planning.memory.quick import Mode
from edgeplan.profiling.streaming import StreamProfile, plan_document
from edgeplan.runtime.dnnl import Dnnl
from edgeplan.runtime.plan_folder import files_of, model_sha256
from edgeplan.runtime.streaming.again import Again, schedule_of, warm_up
from edgeplan.runtime.streaming.program import AGAIN, StreamProgram
from edgeplan.runtime.streaming.session import PLAN_NAME, PROFILE_NAME, WEIGHTS_NAME, Session, open_session
from edgeplan.support.machine import fingerprint

Array = npt.NDArray[np.float32]


class About(BaseModel):
    """What a plan folder was made from.

    Attributes:
        model, model_sha256: the ONNX file.
        budget_bytes: over idle, all pages.
        limit_bytes: the most bytes of weights of a part of a step.
        regions: first and last step, and rows of a band, of what runs in bands.
        machine: fingerprint of the machine that it was profiled on.
        weights_sha256: of the weights in the folder.
        processors: that computed and read when it was profiled.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    format_version: Literal[1] = 1
    model: str
    model_sha256: str
    budget_bytes: Annotated[int, Field(gt=0)]
    limit_bytes: int
    regions: list[tuple[int, int, int]]
    machine: str
    weights_sha256: str
    processors: dict[Literal["compute", "reader"], list[int]]


@dataclass(frozen=True)
class Phase:
    """Inferences by one budget.

    Attributes:
        budget: bytes over idle.
        plan: the plan.
        replan_ms: to make it; 0 for the one that was stored.
        pause_ms: until the first inference could begin: memory freed and filled again.
        run_ms: of each inference.
        read_bytes: during all of them.
    """

    budget: int
    plan: MemoryPlan
    replan_ms: float
    pause_ms: float
    run_ms: tuple[float, ...]
    read_bytes: int


@dataclass(frozen=True)
class MemoryRun:
    """Inferences of a plan.

    Attributes:
        program: what was run.
        outputs: of the last inference, by name.
        phases: one for each budget.
        difference: largest difference from ONNX Runtime's outputs; None unless it was asked for.
        not_finite: names of the inputs that held infinities or what is no number.
    """

    program: StreamProgram
    outputs: Mapping[str, Array]
    phases: tuple[Phase, ...]
    difference: float | None = None
    not_finite: tuple[str, ...] = ()


def is_memory_plan(folder: Path) -> bool:
    """Whether a folder holds a plan of this chapter, a damaged one included."""
    return any((folder / name).is_file() for name in (WEIGHTS_NAME, MODEL_NAME, PROFILE_NAME))  # one may be missing


def read_about(folder: Path) -> About:
    """What a plan folder was made from; refused on another machine.

    Raises:
        FormatError: it is damaged, or for another machine.
    """
    path = folder / MODEL_NAME
    try:
        found = About.model_validate_json(path.read_bytes())
    except OSError as error:
        raise FormatError(f"cannot read the plan: {error.strerror}", where=str(path), next_step=AGAIN) from error
    except ValidationError as error:
        first = error.errors()[0]
        what = f"the plan does not fit: {'.'.join(map(str, first['loc']))}: {first['msg']}"
        raise FormatError(what, where=str(path), next_step=AGAIN) from error
    if found.machine != fingerprint():
        raise FormatError("the plan is for another machine", where=str(folder), next_step=AGAIN)
    return found


def read_profile(folder: Path) -> StreamProfile:
    """The profile that plans of a folder are made from.

    Raises:
        FormatError: it is damaged.
    """
    path = folder / PROFILE_NAME
    try:
        return StreamProfile.model_validate_json(path.read_bytes())
    except (OSError, ValidationError) as error:
        raise FormatError("the profile cannot be read", where=str(path), next_step=AGAIN) from error


def require_whole(folder: Path, about: About) -> None:
    """The weights are those that were written.

    Raises:
        ModelError: they are not, or cannot be read.
    """
    path = folder / WEIGHTS_NAME
    try:
        found = model_sha256([path])
        evict([path])  # weights are read past the page cache
    except OSError as error:
        raise ModelError(f"cannot read the weights: {error.strerror}", where=str(path), next_step=AGAIN) from error
    if found != about.weights_sha256:
        raise ModelError("the weights are damaged: not those that were planned", where=str(path), next_step=AGAIN)


def require_of(plan_document: MemoryPlan, program: StreamProgram, folder: Path) -> None:
    """A plan is for a program: each step's weights and each buffer have the room that the program takes.

    Raises:
        FormatError: it is for another one.
    """
    wanted = (
        tuple((step.name, step.weight_bytes) for step in program.steps),
        tuple((b.name, b.size, b.lower, b.upper) for b in program.buffers),
    )
    p = plan_document
    found = (
        tuple(zip(p.steps, p.weight_bytes, strict=True)),
        tuple(zip(p.tensors, p.tensor_bytes, p.tensor_lower, p.tensor_upper, strict=True)),
    )
    if wanted != found:
        raise FormatError("the plan does not fit the program", where=str(folder / PLAN_NAME), next_step=AGAIN)


def run_plan(folder: Path, inputs: Mapping[str, Array], repeat: int, budgets: Sequence[int] = ()) -> MemoryRun:
    """Run a plan.

    Args:
        folder: of the plan.
        inputs: by name.
        repeat: inferences of each budget.
        budgets: bytes over idle, one after the other; without, the one that it was planned for.

    Raises:
        FormatError: the folder is damaged, or for another machine or library.
        InfeasibleError: a budget is too small.
        ModelError: the weights cannot be read.
    """
    about, profile, stored = read_about(folder), read_profile(folder), read_plan(folder / PLAN_NAME)
    mode = Mode(stored.mode)
    require_whole(folder, about)
    phases: list[Phase] = []
    outputs: dict[str, bytes] = {}
    if budgets:
        warm_up()  # so that a change of the budget waits for planning alone
    with open_session(folder, Dnnl(), processors=about.processors["reader"]) as session:
        require_of(stored, session.program, folder)
        again = Again.of(session.program, profile.model_dump(), stored.model_dump())
        for budget in budgets or (about.budget_bytes,):
            begin = planned = time.perf_counter()
            made = stored
            if budgets:
                anew = again.planned(budget, mode)
                planned = time.perf_counter()
                session.apply(schedule_of(anew))
            session.fill()
            ready = time.perf_counter()
            if budgets:
                made = plan_document(session.program, again.workload, again.reader, anew)
            times, read, outputs = _inferences(session, inputs, repeat, mode)
            phases.append(Phase(budget, made, (planned - begin) * 1e3, (ready - planned) * 1e3, times, read))
        program = session.program
    found = {border.name: np.frombuffer(outputs[border.name], border.dtype).reshape(border.shape) for border in program.outputs}
    return MemoryRun(program, found, tuple(phases))


def _inferences(
    session: Session, inputs: Mapping[str, Array], repeat: int, mode: Mode
) -> tuple[tuple[float, ...], int, dict[str, bytes]]:
    times: list[float] = []
    outputs: dict[str, bytes] = {}
    before = session.bytes_read
    if mode is Mode.back_to_back:
        session.expect(repeat)
    for _ in range(repeat):
        if mode is Mode.isolated:
            session.fill()
        begin = time.perf_counter()
        outputs = session.run({name: np.ascontiguousarray(value).data for name, value in inputs.items()})
        times.append((time.perf_counter() - begin) * 1e3)
    return tuple(times), session.bytes_read - before, outputs


def model_of(about: About, given: Path | None) -> Path:
    """The ONNX file that a plan was made from.

    Raises:
        ModelError: it is not found, or is another one by now.
    """
    path = given or Path(about.model)
    if not path.is_file() or model_sha256(files_of(path)) != about.model_sha256:
        what = f"the model {path.name} that was planned is not found, or was changed since"
        raise ModelError(what, where=str(path), next_step="name its ONNX file with --model")
    return path
