"""The front of a model: its plans that no other plan beats in first inference, later inferences and memory at once.

`edgeplan plan MODEL` and `edgeplan.plan_front` come here: they ask the chapters for their plans and hold these against each
other. All times are predicted by the same predictors. What kernels take in memory beside the weights, and the disk's speed,
are not: the model's steps are run a few times here for them, and their times are scaled to the predicted ones.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from edgeplan.chapters.cold_start.api import ColdStartPlan, plan_cold_start
from edgeplan.chapters.cold_start.gpu.planned import plan_gpu_start, planning_on
from edgeplan.chapters.cold_start.planners.later import profile_for, repaid
from edgeplan.chapters.memory.api import plan_memory
from edgeplan.chapters.memory.costed import CostedProgram, all_bytes
from edgeplan.chapters.memory.plan import Planner, planning
from edgeplan.chapters.partition.api import plan_partition
from edgeplan.devices.config import DeviceFile
from edgeplan.devices.pairs import load_pair
from edgeplan.errors import DeviceError, FormatError, InfeasibleError, UndecidedError, require_known
from edgeplan.graph.onnx.prepare import Preparation, Shapes, prepare_file
from edgeplan.planning.memory import simulate
from edgeplan.planning.memory.quick import Mode
from edgeplan.planning.profile import BIG, Candidate, Profile, prepare_ms
from edgeplan.profiling.settings import cores_of, planning_device
from edgeplan.runtime.folder import COLD_START, LATER_NAME, PlanFolder, read_folder
from edgeplan.runtime.streaming.again import workload_of
from edgeplan.support.files import FilePath
from edgeplan.support.scratch import ScratchFolder
from edgeplan.writable import require_writable

Goal = Literal["first", "steady", "both"]
GOALS: tuple[Goal, ...] = ("first", "steady", "both")
COLD, CONTINUOUS, MEMORY, PAIR = "cold start", "cold start, continuous", "memory", "pair"
_BUDGETS = 7  # from the least to all weights in memory, evenly by ratio
_GAIN = 0.005  # a plan has to be better by so much to beat another


@dataclass(frozen=True, slots=True)
class FrontPlan:
    """A plan of the front is told by what it is predicted to take.

    Attributes:
        kind: `COLD`, `CONTINUOUS`, `MEMORY` or `PAIR`.
        first_ms: from an open process to the first output, kernels made and weights read.
        later_ms: of an inference after it.
        bound_ms: proven least time for what was planned and its costs: of the first inference for cold starts, else of a later.
        peak_bytes: memory over the idle process, all pages.
        budget_bytes: that a plan of memory was made for; 0 for others.
        arguments: of the `edgeplan plan` command that writes it, without model and output.
    """

    kind: str
    first_ms: float
    later_ms: float
    bound_ms: float
    peak_bytes: int
    budget_bytes: int
    arguments: tuple[str, ...]

    @property
    def costs(self) -> tuple[float, float, float]:
        """Return what plans are held against each other by."""
        return self.first_ms, self.later_ms, float(self.peak_bytes)

    def beats(self, other: FrontPlan) -> bool:
        """Tell whether this plan is as good as another in everything, and better in something."""
        pairs = list(zip(self.costs, other.costs, strict=True))
        return all(a <= b for a, b in pairs) and any(a < (1 - _GAIN) * b for a, b in pairs)


@dataclass(frozen=True)
class Front:
    """The plans of a model that none of its other plans beats, from the fastest first inference on.

    Attributes:
        model: name of the file.
        plans: of the front.
        beaten: plans that another one beats in everything.
        about: lines that say what costs are of another machine, and what could not be planned.
        seconds: that planning took.
    """

    model: str
    plans: tuple[FrontPlan, ...]
    beaten: tuple[FrontPlan, ...]
    about: tuple[str, ...]
    seconds: float

    def best(self, goal: Goal) -> FrontPlan:
        """Return the plan for a goal.

        Args:
            goal: the fastest first inference, the fastest later one, or the fastest first one that is as fast as any later on.
        """
        if goal == "steady":
            return min(self.plans, key=lambda p: (p.later_ms, p.first_ms))
        if goal == "both":
            fastest = min(p.later_ms for p in self.plans)
            return min((p for p in self.plans if p.later_ms <= (1 + _GAIN) * fastest), key=lambda p: p.first_ms)
        return min(self.plans, key=lambda p: (p.first_ms, p.later_ms))


def plan_front(
    model: FilePath,
    *,
    device: FilePath = "cpu-onednn",
    pair: FilePath = "",
    preparation: Preparation | None = None,
    shape: Shapes | None = None,
    set: Mapping[str, Any] | None = None,  # noqa: A002  as on the command line
    batch: int | None = None,
) -> Front:
    """Plan a model in all ways, and keep the plans that no other beats.

    Args:
        model: ONNX file.
        device: name of a device file of the engine onednn, or a path to one.
        pair: name of a pair file, or a path to one; "" plans for the host's processors alone.
        preparation: as for `predict`.
        shape: likewise.
        set: likewise.
        batch: likewise.

    Raises:
        ModelError: the model cannot be read, or holds operators that the runtime lacks.
        BusyError: another process is measuring on this machine.
        EdgeplanError: see `plan_cold_start` and `chapters.memory.plan.planning`.
    """
    began = time.perf_counter()
    with ScratchFolder("front") as scratch:
        work = Path(scratch) / "plans"  # the scratch folder itself is locked for as long as it is there
        work.mkdir()
        source = prepare_file(Path(model), Preparation.given(preparation, shape, set, batch), work / "prepared.onnx")
        cold = plan_cold_start(source, work / "cold", device, costs="predicted")
        processors = cores_of(planning_device(device)).all
        with planning(source, max(1, len(processors) - 1), processors, work / "memory") as planner:
            found = list(_of_memory(planner, cold, len(processors)))
            whole = all_bytes(planner.candidate(planner.forms[0]))
        found += _cold_starts(cold, whole)
        about = list(cold.about)
        if pair:
            try:
                found.append(_of_pair(source, work / "pair", pair, whole, _creating_ms(cold)))
            except (FormatError, DeviceError) as error:
                about.append(f"no plan of {pair}: {error.what}; {error.next_step}")
    beaten = [p for p in found if any(other.beats(p) for other in found)]
    kept = sorted((p for p in found if p not in beaten), key=lambda p: p.costs)
    return Front(Path(model).name, tuple(kept), tuple(beaten), tuple(about), time.perf_counter() - began)


def _chosen(cold: ColdStartPlan) -> tuple[Profile, list[Candidate]]:
    """The profile of a plan's layout, and the candidate of each step in its cold start."""
    profile = profile_for(cold.plan, cold.profiles)
    chosen = []
    for k, layer in enumerate(profile.layers):
        step = cold.plan.step(k)
        chosen.append(next(c for c in layer.candidates if (c.implementation, c.source) == (step.implementation, step.source)))
    return profile, chosen


def _creating_ms(cold: ColdStartPlan) -> float:
    """Milliseconds in which one core makes all kernels of a model in a fresh process."""
    profile, chosen = _chosen(cold)
    return sum(prepare_ms(profile, candidate, BIG, overlapped=False)[1] for candidate in chosen)


def _cold_starts(cold: ColdStartPlan, whole: int) -> Iterator[FrontPlan]:
    """The cold start as it is, and with kernels of their own for later inferences."""
    profile, chosen = _chosen(cold)
    width, plan = profile.big_cores, cold.plan
    later = sum(candidate.warm(width) for candidate in chosen)
    arguments: tuple[str, ...] = ("cold-start", "--costs", "predicted")
    yield FrontPlan(COLD, plan.makespan_ms, later, plan.lower_bound_ms, whole, 0, arguments)
    warm = [layer.candidates[o] for layer, o in zip(profile.layers, repaid(plan, profile), strict=True)]
    if [c.implementation for c in warm] != [c.implementation for c in chosen]:
        later = sum(candidate.warm(width) for candidate in warm)
        more = sum(c.cache_bytes or c.read_bytes for c, old in zip(warm, chosen, strict=True) if c != old)
        arguments = (*arguments, "--continuous")
        yield FrontPlan(CONTINUOUS, plan.makespan_ms, later, plan.lower_bound_ms, whole + more, 0, arguments)


def _of_memory(planner: Planner, cold: ColdStartPlan, processors: int) -> Iterator[FrontPlan]:
    """Plans for budgets from the least on, of the coarsest and the finest form of the model's steps."""
    _, chosen = _chosen(cold)
    width = max(w for w in chosen[0].execute_ms if w <= max(1, processors - 1))  # one processor reads
    predicted_ms, creating_ms = sum(candidate.warm(width) for candidate in chosen), _creating_ms(cold)
    candidates = [_scaled(candidate, predicted_ms / planner.fastest_ms) for candidate in _forms(planner)]
    low = min(candidate.least_bytes() for candidate in candidates)
    high = max(low + 1, all_bytes(candidates[0]))
    for budget in np.geomspace(low, high, _BUDGETS).astype(np.int64).tolist():
        made = []
        for candidate in candidates:
            with suppress(InfeasibleError, UndecidedError):
                made.append((candidate.planned(budget, Mode.back_to_back), candidate))
        if made:
            steady, candidate = min(made, key=lambda pair: pair[0].predicted_ms)
            work = workload_of(candidate.program, candidate.profile.first_step_ms)
            first = creating_ms + simulate.run(work, candidate.reader, steady.placement, filled=False).latency_ms
            whole = -(-budget // 1024)  # KiB
            arguments = ("memory", "--budget", f"{whole}KiB")
            yield FrontPlan(MEMORY, first, steady.predicted_ms, steady.lower_bound_ms, budget, budget, arguments)


def _forms(planner: Planner) -> Sequence[CostedProgram]:
    return [planner.candidate(form) for form in dict.fromkeys((planner.forms[0], planner.forms[-1]))]


def _scaled(candidate: CostedProgram, factor: float) -> CostedProgram:
    """A program whose steps take so many times what was measured: what else ran on the machine then is no matter."""
    profile = candidate.profile
    scaled = {name: tuple(ms * factor for ms in getattr(profile, name)) for name in ("compute_ms", "first_step_ms")}
    return replace(candidate, profile=profile.model_copy(update=scaled))


def _of_pair(source: Path, output: Path, pair: FilePath, whole: int, creating_ms: float) -> FrontPlan:
    made = plan_partition(source, output, pair)
    latency, bound = made.plan.makespan_ms, made.plan.lower_bound_ms
    return FrontPlan(PAIR, creating_ms + latency, latency, bound, whole, 0, ("partition", "--pair", str(pair)))


@dataclass(frozen=True, slots=True)
class PlanForGoal:
    """A plan that was written for a goal.

    Attributes:
        folder: what `edgeplan run` executes.
        chosen: of the front.
        later: the plan of the second processor, which takes over from the first.
    """

    folder: Path
    chosen: FrontPlan
    later: PlanFolder | None = None


def write_front_plan(
    model: FilePath,
    output: FilePath,
    *,
    goal: Goal = "first",
    device: FilePath = "cpu-onednn",
    pair: FilePath = "",
    preparation: Preparation | None = None,
) -> tuple[Front, PlanForGoal]:
    """Plan a model in all ways, and write the plan that is best for a goal.

    Args:
        model: ONNX file.
        output: folder to write the plan to.
        goal: see `Front.best`.
        device: as for `plan_front`.
        pair: likewise. For both goals the plan begins on the host and goes over to the second processor (`edgeplan.handover`).
        preparation: as for `predict`.

    Raises:
        ParamsError: there is no such goal.
        EdgeplanError: see `plan_front`.
    """
    require_known("goal", [goal], GOALS, "--for")
    require_writable(Path(output), instead="choose another folder with -o")
    second = load_pair(str(pair)).devices()[1] if pair and goal == "both" else None
    if second is not None:
        with planning_on(second):
            pass  # what cannot be opened is refused before anything is written
    found = plan_front(model, device=device, pair=pair if second is None else "", preparation=preparation)
    if second is not None:
        return found, _handing_over(found, Path(model), Path(output), device, second, preparation)
    chosen = found.best(goal)
    if chosen.kind == MEMORY:
        made = plan_memory(model, output, chosen.budget_bytes, device=device, preparation=preparation)
        return found, PlanForGoal(made.folder, chosen)
    if chosen.kind == PAIR:
        plan_partition(model, output, pair, preparation=preparation)
        return found, PlanForGoal(Path(output), chosen)
    continuous = chosen.kind == CONTINUOUS
    cold = plan_cold_start(model, output, device, costs="predicted", continuous=continuous, preparation=preparation)
    return found, PlanForGoal(cold.folder, chosen)


def _handing_over(
    found: Front, model: Path, output: Path, device: FilePath, second: DeviceFile, preparation: Preparation | None
) -> PlanForGoal:
    """Write the cold start of the host, and in it the plan of the pair's second processor, which takes over."""
    cold = plan_cold_start(model, output, device, costs="predicted", preparation=preparation)
    source = Path(read_folder(cold.folder, COLD_START).made_for.model)
    later = plan_gpu_start(source, cold.folder / LATER_NAME, second)
    chosen = next(plan for plan in (*found.plans, *found.beaten) if plan.kind == COLD)
    return PlanForGoal(cold.folder, chosen, later=later.plan)
