"""The first inference of a plan of memory: kernels are made and weights read while its steps run, within the same budget.

What takes longer than in the profile, since it happens beside other things, is measured by a run of a first plan, and planned
for again. A run in a process of its own, and one held by a memory cgroup, show that the budget holds from the first byte on.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from msgspec import to_builtins

from edgeplan.chapters.memory.costed import CostedProgram
from edgeplan.chapters.memory.proof import Proof, Prover
from edgeplan.planning.joint.bounds import first_ms
from edgeplan.planning.joint.first import FirstInference, Making, timeline
from edgeplan.planning.joint.search import FirstPlan, plan_first
from edgeplan.planning.layout.buffers import Ints
from edgeplan.planning.memory import algorithm1, bounds
from edgeplan.planning.memory.document import MemoryPlan
from edgeplan.planning.memory.planner import lowest
from edgeplan.planning.memory.workload import Placement, Workload
from edgeplan.profiling.streaming import RunSettings, StreamRun, run_apart
from edgeplan.runtime.streaming.again import placement_of, workload_of
from edgeplan.runtime.streaming.late_kernels import KernelOrder
from edgeplan.runtime.streaming.session import FirstSchedule, Schedule

_log = logging.getLogger(__name__)
_ATTEMPTS = 8  # runs of a first inference until its costs are known and its budget holds
_SLACK_BYTES = 256 << 10  # pages that come and go from run to run; twice as many after each run that took too much
_PROVEN_RUNS = 5


class LaterPeakError(Exception):
    """Reports that inferences take more than their budget once the first one has made its kernels meanwhile.

    Attributes:
        missing: bytes that their arena has to leave.
    """

    def __init__(self, missing: int) -> None:
        super().__init__(f"{missing} bytes more are needed")
        self.missing = missing


@dataclass(frozen=True, slots=True)
class PlannedFirst:
    """A first inference that was planned, and what runs showed of it.

    Attributes:
        plan: of kernels, weights and steps, after the plan was opened.
        opening_ms: what the plan does not say: to read it, to get memory, and to read the library's code where it first runs.
        measured_ms: of the run, from opening the plan to the outputs.
        peak_bytes: over the idle process, all pages, by the run.
        proof: what a memory cgroup showed that held a run to the budget, or why there was none.
    """

    plan: FirstPlan
    opening_ms: float
    measured_ms: float
    peak_bytes: int
    proof: Proof

    @property
    def predicted_ms(self) -> float:
        """Return what was planned, from opening the plan to the last step."""
        return self.opening_ms + self.plan.makespan_ms

    @property
    def schedule(self) -> FirstSchedule:
        """Return the part that running needs."""
        return first_schedule(self.plan)


def first_schedule(made: FirstPlan) -> FirstSchedule:
    """Make the part of a plan that running needs."""
    placed = made.placement
    waits = (placed.weight_offset >= 0) & (placed.after < 0)
    where = Schedule(
        False,  # noqa: FBT003  by place, as all values of a schedule
        placed.height,
        placed.tensor_offset.tolist(),
        placed.weight_offset.tolist(),
        placed.after.tolist(),
        np.where(waits, placed.again, -1).tolist(),
    )
    return FirstSchedule(where, KernelOrder(made.making.own, made.making.beside))


def first_inference(candidate: CostedProgram, *, beside: bool = True) -> FirstInference:
    """Make the problem of a program's first inference, by the costs of its profile.

    Args:
        candidate: the program.
        beside: whether another processor is there to make kernels.
    """
    program, profile = candidate.program, candidate.profile
    work = workload_of(program, profile.first_step_ms)
    return FirstInference(work, candidate.reader, tuple(program.columns.kernel_of), profile.making_ms, beside)


def room_for_first(candidate: CostedProgram, budget: int) -> int:
    """Return the bytes of a budget that are left for tensors and weights while kernels are made."""
    return budget - candidate.objects_bytes - candidate.profile.making_bytes


def fastest_first(candidate: CostedProgram, budget: int, *, beside: bool = True) -> FirstPlan | None:
    """Plan the first inference of a program by its profile; None where it has to make its kernels before.

    Args:
        candidate: the program.
        budget: bytes over idle.
        beside: whether another processor is there to make kernels.
    """
    problem, room = first_inference(candidate, beside=beside), room_for_first(candidate, budget)
    if room < bounds.least_bytes(problem.workload):
        return None
    return plan_first(problem, room, _layouts(problem.workload, room))


def first_behind_kernels_ms(candidate: CostedProgram, placed: Placement) -> float:
    """Predict a first inference before which one thread makes all kernels, by the costs of the profile.

    Args:
        candidate: the program.
        placed: where its weights and tensors lie.
    """
    problem = first_inference(candidate)
    return sum(problem.making_ms) + timeline(problem, placed, Making((), ())).latency_ms


def opening_ms(run: StreamRun, proof: Proof, makespan_ms: float) -> float:
    """Return how much longer than planned a first inference takes from opening the plan on, in a group that pays for all.

    Args:
        run: of the plan; it tells the time to open one where there is no group.
        proof: in which it was measured.
        makespan_ms: planned.
    """
    return max(run.open_ms, proof.first_ms - makespan_ms)


def behind_kernels(
    candidate: CostedProgram, document: MemoryPlan, budget: int, run: StreamRun, proof: Proof
) -> tuple[float, float, float]:
    """Predict the first inference of a plan whose kernels are made before it: its time, the bound, and what opening takes.

    Args:
        candidate: the program.
        document: the plan.
        budget: bytes over idle.
        run: of the plan.
        proof: what a memory cgroup showed of it.
    """
    took_ms = first_behind_kernels_ms(candidate, placement_of(Schedule.of(document.model_dump())))
    bound_ms = first_ms(first_inference(candidate), budget - candidate.objects_bytes)
    return took_ms, min(took_ms, bound_ms), opening_ms(run, proof, took_ms)


def least_for_first(candidate: CostedProgram) -> int:
    """Return the budget that a first inference beside which kernels are made needs at least."""
    return bounds.least_bytes(candidate.workload) + candidate.objects_bytes + candidate.profile.making_bytes


def planned_first(
    candidate: CostedProgram,
    document: MemoryPlan,
    budget: int,
    settings: RunSettings,
    prover: Callable[[Sequence[str]], Prover],
) -> PlannedFirst | None:
    """Plan the first inference of a plan of memory, and hold runs of it to the budget.

    Args:
        candidate: the program, with what its runs took besides the arena.
        document: the plan of the inferences that follow.
        budget: bytes over idle.
        settings: of the runs.
        prover: makes what holds runs to the budget, from the files that a run mapped.

    Returns:
        None where the budget leaves no room for it: kernels are made before it then.

    Raises:
        LaterPeakError: inferences after it take more than the budget, since making kernels meanwhile leaves something behind.
    """
    threads, later = candidate.program.threads, document.arena_bytes - candidate.profile.making_bytes
    problem, room = first_inference(candidate, beside=len(settings.processors) > 1), room_for_first(candidate, budget)
    is_measured, slack = False, _SLACK_BYTES
    for _ in range(_ATTEMPTS):
        if room < bounds.least_bytes(problem.workload):
            return None
        if (made := plan_first(problem, room, _layouts(problem.workload, room))) is None:
            return None
        timed = replace(settings, first=to_builtins(first_schedule(made)), steps=True)
        run = run_apart(candidate.folder, threads, [document.model_dump()], timed)
        taken = run.taken_bytes
        if taken <= budget and not is_measured:
            problem, is_measured = _as_measured(problem, run), True
            continue
        if taken <= budget:
            held = replace(timed, runs=_PROVEN_RUNS, steps=False)
            proof = prover(run.files).over_idle(candidate.folder, threads, document.model_dump(), held, budget)
            if proof.holds or proof.reason:
                return PlannedFirst(made, opening_ms(run, proof, made.makespan_ms), run.first_ms, run.peak_over_idle, proof)
            _log.debug("a first inference was not held to its budget: %s", proof)
            taken = max(proof.taken_bytes, budget)
        if made.placement.height + slack <= later:  # the peak is that of inferences after it
            raise LaterPeakError(taken - budget + _SLACK_BYTES)
        room, slack = room - (taken - budget + slack), 2 * slack
    return None


def _as_measured(problem: FirstInference, run: StreamRun) -> FirstInference:
    """The problem with the times that a run of it took, all at once."""
    compute = np.array(run.phases[0].step_ms[0])
    return replace(problem, workload=replace(problem.workload, compute_ms=compute), making_ms=run.making_ms)


def _layouts(workload: Workload, room: int) -> Iterator[Ints]:
    """Yield layouts of the tensors to place weights around."""
    yield lowest(workload)
    if (ends := algorithm1.at_both_ends(workload, room)) is not None:
        yield ends
