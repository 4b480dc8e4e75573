"""Plans a model in all ways, and runs each plan before it is told, beside ONNX Runtime.

`edgeplan plan MODEL` and `edgeplan.plan_front` come here. A plan is told by what whoever runs it meets: the time from a
process's start to its first answer, that of a later inference, and the most memory that the process takes.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Literal, Unpack

import numpy as np

from edgeplan.chapters.cold_start.api import plan_cold_start
from edgeplan.chapters.cold_start.gpu.planned import plan_gpu_start, planning_on
from edgeplan.chapters.memory.folders import all_bytes
from edgeplan.chapters.memory.plan import planning
from edgeplan.chapters.partition.api import plan_partition
from edgeplan.comparing.ways import REFERENCE, Ran, Session, Source, Turns, plan_session, serve
from edgeplan.devices.pairs import load_pair
from edgeplan.errors import DeviceError, FormatError, InfeasibleError, require_known
from edgeplan.graph.onnx.prepare import OpenParts, Preparation, prepare_file
from edgeplan.planning.memory.quick import Mode
from edgeplan.profiling.settings import cores_of, planning_device
from edgeplan.runtime.folder import LATER_NAME, PlanFolder, replacing, require_replaceable
from edgeplan.support.files import FilePath
from edgeplan.support.scratch import ScratchFolder
from edgeplan.writable import require_writable

Goal = Literal["first", "steady", "both"]
GOALS: tuple[Goal, ...] = ("first", "steady", "both")
COLD, CONTINUOUS, MEMORY, PAIR, STOCK = "cold start", "cold start, continuous", "memory", "pair", "ONNX Runtime"
_MIB = 1 << 20
_BUDGETS = 3  # from the least to all weights in memory, evenly by ratio
_PROCESSES, _SECONDS = 7, 0.1  # of each plan, in turns with the others', and of its later inferences: medians count
_PATIENCE_SECONDS = 600.0  # with one process, and with a converter
_ALIKE = 1.02  # later inferences that take no more than this times the fastest are as fast


@dataclass(frozen=True, slots=True)
class FrontPlan:
    """A plan that was run here, or ONNX Runtime as it comes.

    Attributes:
        kind: `COLD`, `CONTINUOUS`, `MEMORY`, `PAIR` or `STOCK`.
        threads: that compute.
        first_ms: of a process, from its start to its first answer; median.
        later_ms: of a later inference; median.
        peak_bytes: the most memory that such a process takes, later inferences included, all pages.
        budget_bytes: over idle, that a plan of memory was made for; 0 for others.
        arguments: of the `edgeplan plan` command that writes it, without model and output.
    """

    kind: str
    threads: int
    first_ms: float = 0.0
    later_ms: float = 0.0
    peak_bytes: int = 0
    budget_bytes: int = 0
    arguments: tuple[str, ...] = ()


@dataclass(frozen=True)
class Front:
    """The plans of a model, and what ONNX Runtime takes on the same processors.

    Attributes:
        model: name of the file.
        plans: by first inference.
        stock: ONNX Runtime as it comes.
        about: lines that say what could not be planned.
        seconds: that planning and running took.
    """

    model: str
    plans: tuple[FrontPlan, ...]
    stock: FrontPlan
    about: tuple[str, ...]
    seconds: float

    def best(self, goal: Goal) -> FrontPlan:
        """Return the fastest first inference, the fastest later one, or the fastest first of those as fast later."""
        if goal == "steady":
            return min(self.plans, key=lambda p: (p.later_ms, p.first_ms))
        fastest = min(p.later_ms for p in self.plans)
        fitting = [p for p in self.plans if goal == "first" or p.later_ms <= _ALIKE * fastest]
        return min(fitting, key=lambda p: (p.first_ms, p.later_ms))


def plan_front(
    model: FilePath,
    *,
    device: FilePath = "cpu-onednn",
    pair: FilePath = "",
    **given: Unpack[OpenParts],
) -> Front:
    """Plan a model in all ways, and run each plan, and ONNX Runtime, as a user would.

    Args:
        model: ONNX file.
        device: name of a device file of the engine onednn, or a path to one.
        pair: name of a pair file, or a path to one; "" plans for the host's processors alone.
        given: what the file leaves open (`OpenParts`).

    Raises:
        ModelError: the model cannot be read, or holds operators that the runtime lacks.
        BusyError: another process is measuring on this machine.
        EdgeplanError: see `plan_cold_start` and `chapters.memory.plan.planning`.
    """
    wanted = Preparation.given(**given)
    with ScratchFolder("front") as scratch:
        source = prepare_file(Path(model), wanted, Path(scratch, "prepared.onnx"))
        return _ran_in(scratch, Path(model).name, source, device, pair)[0]


def _ran_in(scratch: str, model: str, source: Path, device: FilePath, pair: FilePath) -> tuple[Front, tuple[Path, ...]]:
    """The front of a model, and the folder of each of its plans."""
    began, about, processors = time.perf_counter(), [], cores_of(planning_device(device)).all
    work = Path(scratch) / "plans"  # the scratch folder itself is locked for as long as it is there
    work.mkdir()
    ways = [*_cold_starts(source, work, device, len(processors)), *_of_memory(source, work, processors)]
    if pair:
        try:
            plan_partition(source, work / "pair", pair)
            ways.append((FrontPlan(PAIR, len(processors), arguments=("partition", "--pair", str(pair))), work / "pair"))
        except (FormatError, DeviceError) as error:
            about.append(f"no plan of {pair}: {error.what}; {error.next_step}")
    stock = serve(REFERENCE, Source(source, work / "stock"), device, processors, _PATIENCE_SECONDS)
    by_stock = partial(stock.session, len(processors), processors)
    beside, *ran = _in_turns([by_stock, *(partial(plan_session, folder, processors) for _, folder in ways)])
    found = [
        (replace(way, first_ms=first, later_ms=later, peak_bytes=peak), folder)
        for (way, folder), (first, later, peak) in zip(ways, ran, strict=True)
    ]
    plans, folders = zip(*sorted(found, key=lambda f: (f[0].first_ms, f[0].later_ms)), strict=True)
    return Front(model, plans, FrontPlan(STOCK, len(processors), *beside), tuple(about), time.perf_counter() - began), folders


def _cold_starts(source: Path, work: Path, device: FilePath, threads: int) -> Iterator[tuple[FrontPlan, Path]]:
    """The cold start as it is, and with kernels of their own for later inferences where there are any."""
    plan_cold_start(source, work / "cold", device)
    yield FrontPlan(COLD, threads, arguments=("cold-start",)), work / "cold"
    if plan_cold_start(source, work / "continuous", device, continuous=True).plan.later:
        yield FrontPlan(CONTINUOUS, threads, arguments=("cold-start", "--continuous")), work / "continuous"


def _of_memory(source: Path, work: Path, processors: Sequence[int]) -> Iterator[tuple[FrontPlan, Path]]:
    """Plans for budgets from the least on, in whole MiB."""
    threads = max(1, len(processors) - 1)  # one reads
    made = {}
    with planning(source, threads, processors, work / "memory") as planner:
        low = planner.enough(Mode.back_to_back)
        high = max(low, all_bytes(planner.programs.candidate(planner.programs.forms[0])))
        for size in np.geomspace(low, high, _BUDGETS):
            budget = -(-int(size) // _MIB) * _MIB
            folder = work / f"memory-{budget}"
            if budget not in made:
                with suppress(InfeasibleError):
                    planner.write(budget, Mode.back_to_back, folder)
                    made[budget] = folder
    for budget, folder in made.items():
        words = ("memory", "--budget", f"{budget // _MIB}MiB")
        yield FrontPlan(MEMORY, threads, budget_bytes=budget, arguments=words), folder


def _in_turns(made: Sequence[Callable[[int], Session]]) -> list[tuple[float, float, int]]:
    """Median ms of first answers and of later inferences, and the most bytes held, of what is made for so many inferences."""
    ran = [list[Ran]() for _ in made]
    with Turns() as turns:
        for _ in range(_PROCESSES):
            for session, own in zip(made, ran, strict=True):
                runs = int(_SECONDS * 1e3 / own[-1].later_ms) if own else 0
                own.extend(turns.run([session(runs)], seconds=_SECONDS, patience=_PATIENCE_SECONDS)[0])
    return [
        (statistics.median(r.first_ms for r in own), statistics.median(r.later_ms for r in own), max(r.peak for r in own))
        for own in ran
    ]


@dataclass(frozen=True, slots=True)
class PlanForGoal:
    """A plan that was written for a goal: its folder, which of the front it is, and the later one of a second processor."""

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
    """Plan a model in all ways, and write the plan that is best for a goal (`Front.best`) to a folder; else as `plan_front`.

    With a pair and for both goals the plan begins on the host and goes over to the second processor (`edgeplan.handover`).
    """
    require_known("goal", [goal], GOALS, "--for")
    out = Path(output)
    require_writable(out, instead="choose another folder with -o")
    require_replaceable(out)
    second = load_pair(str(pair)).devices()[1] if pair and goal == "both" else None
    if second is not None:
        with planning_on(second):
            pass  # what cannot be opened is refused before anything is written
    source = prepare_file(Path(model), preparation or Preparation(), out.with_name(f"{out.name}.onnx"))
    with ScratchFolder(f".{out.name}.front-", out.absolute().parent) as scratch:  # a rename brings what ran to its place
        found, folders = _ran_in(scratch, Path(model).name, source, device, "" if second is not None else pair)
        chosen = next(p for p in found.plans if p.kind == COLD) if second is not None else found.best(goal)
        with replacing(out) as building:
            for path in folders[found.plans.index(chosen)].iterdir():
                path.rename(building / path.name)
    later = plan_gpu_start(source, out / LATER_NAME, second).plan if second is not None else None
    return found, PlanForGoal(out, chosen, later)
