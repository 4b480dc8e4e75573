"""A plan that checks itself: swept and planned on the pair, then run beside the other ways; the fastest is the plan.

Nothing has to be known of the pair before. What is compared are plan folders, each opened in a process of its own as `edgeplan
run` opens it, one turn of each after the other, so that all of them meet the same seconds of the machine.
"""

from __future__ import annotations

import json
import logging
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from msgspec import structs

from edgeplan.chapters.partition.checked.fastest import fastest, near, worth_a_turn
from edgeplan.chapters.partition.checked.own_sweep import costs_alone, own_costs, own_times
from edgeplan.chapters.partition.costs import assignments
from edgeplan.chapters.partition.eop.sweeps import SweptModel, subject_of
from edgeplan.chapters.partition.measuring.opened import Opened, opened
from edgeplan.chapters.partition.planned import PlannedModel, write_folder
from edgeplan.chapters.partition.settings import ALL_CORES, PLANNED, SIDES
from edgeplan.devices.pairs import STOCK_GPU, PairFile
from edgeplan.engines.onnxruntime.reference import Verdict, judged
from edgeplan.errors import DeviceError, EdgeplanError
from edgeplan.measurement.process.inputs import random_inputs_of
from edgeplan.planning.partition.costs import GPU, PairCosts
from edgeplan.planning.partition.planner import PartitionPlan, plan
from edgeplan.runtime.folder import read_folder
from edgeplan.runtime.layouts import LIKELY
from edgeplan.runtime.partitioned.build import PairCheck
from edgeplan.runtime.partitioned.session import handshake
from edgeplan.runtime.program import activation_layouts
from edgeplan.support.answers import Answering
from edgeplan.support.scratch import ScratchFolder
from edgeplan.support.subprocesses import module_command
from edgeplan.support.tensors import OUTPUT_TOLERANCE, read_outputs, relative_error

#: The module that holds a plan open in a process of its own.
OPENED = "edgeplan.measurement.process.opened"
#: Kernels of a driver that builds each for a second may be new to it.
_OPENING_SECONDS, _TURN_SECONDS = 300.0, 120.0
_CLOSING_SECONDS = 5.0


class OpenedPlan(Answering):
    """A plan folder in a process that opens it, and runs it when asked. The folder is not needed once the plan is open."""

    def __init__(self, folder: Path) -> None:
        super().__init__(module_command(OPENED, str(folder)))
        self.folder = folder
        self.tell("")

    def wait(self) -> None:
        """Return when the plan is open and has run once; others may be opened meanwhile."""
        self._told(_OPENING_SECONDS)

    def turn(self) -> list[float]:
        """Some inferences back to back, their times in ms."""
        return [float(ms) for ms in self.asked("turn")]

    def steps_ms(self) -> list[float]:
        """The time of each of the model's steps in the last inference, in ms."""
        return [float(ms) for ms in self.asked("steps")]

    def outputs(self) -> Mapping[str, Any]:
        """The outputs of the first inference, on seeded inputs."""
        with tempfile.TemporaryDirectory(prefix="edgeplan-outputs-") as folder:
            path = Path(folder) / "outputs.npz"
            self.asked(f"save {path}")
            return read_outputs(path)

    def asked(self, line: str) -> Any:
        """What is answered to a line."""
        self.tell(line)
        return self._told(_TURN_SECONDS)

    def _told(self, limit_seconds: float) -> Any:
        line = self.answer(limit_seconds)
        try:
            found = json.loads(line or b"")
        except ValueError:
            late = f"no answer of the plan within {limit_seconds:g} s"
            what = f"{late if line is None else 'the process that runs the plan ended'}{self.words()}"
            raise DeviceError(what, where=str(self.folder), next_step="run the same command again") from None
        if isinstance(found, dict) and "what" in found:
            raise EdgeplanError(found["what"], where=found["where"], next_step=found["next_step"])
        return found

    def close(self, patience_seconds: float | None = _CLOSING_SECONDS) -> None:
        """End the process that holds the plan open, once it has ended what it started: their time would count as others'."""
        super().close(patience_seconds)


log = logging.getLogger(__name__)

_CPU, _GPU = SIDES
_HANDSHAKES = 50
#: How often ways that are near to each other are opened before one is chosen.
_OPENINGS = 2
#: Errors of CUDA and of OpenCL where a GPU is for one process at a time, and another one has it.
_TAKEN = ("DEVICE_UNAVAILABLE", "DEVICE_NOT_AVAILABLE")


@dataclass(frozen=True, slots=True)
class CheckLimits:
    """Limits say how long checking a plan may take.

    Attributes:
        turns: of each way, at most, each time that it is opened.
        turns_s: seconds of all these turns; there are `fewest` whatever they take.
        fewest: turns of each way.
        stock: settings of stock engines that run it on all cores of the pair; where there are some, the GPU's stock engine runs
            it, too.
    """

    turns: int = 15
    turns_s: float = 6.0
    fewest: int = 5
    stock: tuple[str, ...] = ("onnxruntime", "openvino")


def checked_plan(pair: PairFile, model: Path, output: Path, limits: CheckLimits | None = None) -> PlannedModel:
    """Plan a model from its own sweep, run the plan beside the other ways, and write the folder of the fastest."""
    return CheckedPlanning(pair, subject_of(model.stem, model, 0), limits or CheckLimits()).go(output)


class CheckedPlanning:
    """The planning of one model, part by part."""

    def __init__(self, pair: PairFile, subject: SweptModel, limits: CheckLimits) -> None:
        self.pair, self.subject, self.limits = pair, subject, limits
        self.taken, self.began, self.known = dict[str, float](), time.monotonic(), dict[str, PlannedModel]()
        self.made: PlannedModel

    @contextmanager
    def _part(self, name: str) -> Iterator[None]:
        """Note the seconds that a part of planning takes."""
        began = time.monotonic()
        yield
        self.taken[name] = round(time.monotonic() - began, 2)

    def go(self, output: Path) -> PlannedModel:
        """Plan, check and write; see `checked_plan`."""
        with ScratchFolder("plans") as scratch:
            folder = Path(scratch) / "ways"  # the scratch folder itself is locked
            folder.mkdir()
            with opened(self.pair, profiling=True) as both:
                planned = self.made = self.planned(both)
            with opened(self.pair) as both, self._part("write"):
                ways = self.known = self.ways(both, planned)
                names, block = both.names, both.block
                folders, left_out = self._written(both, folder)
            with self._part("check"):
                check, steps_ms = fastest_right(folders, self.limits, left_out=left_out)
        chosen = ways[check.way]
        if chosen.alone and not chosen.engine:
            subject = replace(self.subject, layouts=chosen.layouts)
            on = f"{names[0]}, {len(chosen.alone)} core{'s' if len(chosen.alone) > 1 else ''}"
            own = costs_alone(subject, steps_ms, block, (on, names[1]))
            chosen = replace(chosen, costs=own, plan=plan(own.costs))
        factor = check.median_ms.get(PLANNED, 0.0) / planned.plan.makespan_ms if planned.plan.makespan_ms else 0.0
        seconds = time.monotonic() - self.began
        told = structs.replace(check, planned_factor=factor, seconds=seconds, steps=self.taken)
        chosen = replace(chosen, check=told, seconds=seconds)
        with opened(self.pair) as both:
            write_folder(chosen, both, output)
        return chosen

    def fresh(self, way: str) -> PairCheck:
        """Run all ways once more, in new processes: what was chosen because it happened to be fast is found out.

        The way that was chosen is held against the best of the others.
        """
        with ScratchFolder("plans") as scratch:
            folder = Path(scratch) / "ways"
            folder.mkdir()
            with opened(self.pair) as both:
                folders, left_out = self._written(both, folder)
            return fastest_right(folders, self.limits, way, left_out)[0]

    def _written(self, both: Opened, folder: Path) -> tuple[dict[str, Path], dict[str, str]]:
        """Write the folder of each way; return them, and why some ways have none."""
        folders, left_out = dict[str, Path](), dict[str, str]()
        for k, (name, known) in enumerate(self.known.items()):
            with _leaving_out(name, left_out):
                write_folder(known, both, folder / str(k))
                folders[name] = folder / str(k)
        if self.limits.stock and STOCK_GPU not in self.known and self.pair.devices()[1].engine == "cuda":
            left_out[STOCK_GPU] = "it cannot be kept to a part of the GPU"
        return folders, left_out

    def planned(self, both: Opened) -> PlannedModel:
        """The plan from the model's own times."""
        subject = self.subject
        with self._part("sweep"):
            handshake_ms = handshake(*both.processors, both.synchronisation, _HANDSHAKES).median_us / 1e3
            times = own_times(both, subject, handshake_ms)
            self.cpu_ms = [times.whole[first][0] for first in times.twin]
        with self._part("plan"):
            costs = own_costs(times, names=both.names, handshake_ms=handshake_ms)
            made = plan(costs.costs)
        if all(step.on != "split" for step in made.steps):
            gpu_ms = sum(times.whole[first][1] for first in times.twin)
            told = (sum(self.cpu_ms), gpu_ms, 1e3 * handshake_ms, time.monotonic() - self.began)
            log.info("do not split: operators take %.4g ms on the cpu, %.4g on the gpu, a hand-over %.3g us (%.1f s)", *told)
        return PlannedModel(subject.model, subject.lowered, subject.layouts, costs, made, time.monotonic() - self.began)

    def ways(self, both: Opened, planned: PlannedModel) -> dict[str, PlannedModel]:
        """List the ways to run the model, the simplest first; a plan that is one of the others is not run twice."""
        subject, ways = self.subject, dict[str, PlannedModel]()
        cores = tuple(sorted(self.pair.cores))
        for home in LIKELY:
            inside = replace(subject, layouts=activation_layouts(subject.lowered, home))
            ways[f"{ALL_CORES} ({home})"] = self._alone(both, inside, cores)
        ways[_CPU] = self._alone(both, subject, both.pair.processors[0].cores)
        costs = planned.costs
        on_gpu = plan(_whole_on(costs.costs, GPU))
        places = set(assignments(planned.plan, subject.lowered))
        if any(step.on == _GPU for step in on_gpu.steps):
            ways[_GPU] = replace(planned, plan=on_gpu)
        if places != {0} and not (_GPU in ways and _places(planned.plan) == _places(on_gpu)):
            ways[PLANNED] = planned
        settings = (*self.limits.stock, *([STOCK_GPU] if self.limits.stock and self.pair.takes_stock_gpu() else []))
        return ways | {name: replace(planned, alone=cores, engine=name) for name in settings}

    def _alone(self, both: Opened, subject: SweptModel, cores: tuple[int, ...]) -> PlannedModel:
        costs = costs_alone(subject, self.cpu_ms, both.block, both.names)
        made = plan(costs.costs)
        return PlannedModel(subject.model, subject.lowered, subject.layouts, costs, made, 0.0, alone=cores)


def _places(made: PartitionPlan) -> object:
    """Return a value that tells two plans apart: where each step runs."""
    return [(step.on, step.cpu_share) for step in made.steps]


def _whole_on(costs: PairCosts, processor: int) -> PairCosts:
    """The same steps, each with nothing but its option on a processor, or on the other where it has none."""
    steps = [replace(s, options=(s.best(processor) or s.best_whole,)) for s in costs.steps]
    return replace(costs, steps=tuple(steps))


def fastest_right(
    folders: Mapping[str, Path], limits: CheckLimits, way: str = "", left_out: Mapping[str, str] | None = None
) -> tuple[PairCheck, list[float]]:
    """Run plan folders in turn; the fastest whose outputs are right, and the times of its steps.

    A process of a plan may be faster or slower than the next one for all its turns. So what is near to the fastest is opened
    once more, and a way that was lucky once is not chosen for it. A way that fails at any time is left out.

    Args:
        folders: by way, the simplest first. They are deleted.
        limits: of the turns.
        way: chosen before, which is never given up and opened once; "": the fastest is found.
        left_out: why further ways have no folder.
    """
    left_out = dict(left_out or {})
    steps_ms: dict[str, list[float]] = {}
    rounds: list[dict[str, list[float]]] = []
    racing = dict(folders)
    while racing:
        with ExitStack() as stack:
            running = {name: stack.enter_context(OpenedPlan(folder)) for name, folder in racing.items()}
            rounds.append(_turns(running, limits, way, left_out, steps_ms))
        worked = [own for one in rounds if (own := {name: ms for name, ms in one.items() if name not in left_out})]
        if not worked:
            told = "; ".join(f"{name}: {why}" for name, why in left_out.items())
            raise DeviceError(f"no way to run the model works: {told}", next_step="run the model on one processor")
        found = fastest(*worked, way=way)
        again = near(found) if not way and len(rounds) < _OPENINGS else []
        racing = {name: folders[name] for name in again} if len(again) > 1 else {}
        for folder in [folder for name, folder in folders.items() if name not in racing]:
            shutil.rmtree(folder, ignore_errors=True)
    turns = sum(max(map(len, one.values())) for one in worked)
    check = PairCheck(
        *(found.way, dict(found.median_ms), found.next_best, found.margin, found.low, found.high),
        *(turns, 0.0, left_out, 0.0, {}),
    )
    return check, steps_ms[found.way]


def _turns(
    running: Mapping[str, OpenedPlan], limits: CheckLimits, way: str, left_out: dict[str, str], steps_ms: dict[str, list[float]]
) -> dict[str, list[float]]:
    """Wait until plans are open, and run them in turn; what fails or is wrong is told in `left_out`, and has no times."""
    times: dict[str, list[float]] = {}
    outputs: dict[str, Mapping[str, Any]] = {}
    for name, plan_open in running.items():
        with _leaving_out(name, left_out):
            plan_open.wait()
            outputs[name] = plan_open.outputs()
    left_out |= _wrong(outputs, running)
    until, turns = time.monotonic() + limits.turns_s, 0
    while turns < limits.turns and (turns < limits.fewest or time.monotonic() < until):
        turns += 1
        candidates = {*worth_a_turn(times), way} if turns > 1 else {*running}
        for name in [name for name in outputs if name in candidates and name not in left_out]:
            with _leaving_out(name, left_out):
                times[name] = [*times.get(name, ()), min(running[name].turn())]
            if name in left_out:
                times.pop(name, None)
    for name in times:
        with _leaving_out(name, left_out):
            steps_ms[name] = running[name].steps_ms()
    return times


@contextmanager
def _leaving_out(name: str, left_out: dict[str, str]) -> Iterator[None]:
    """Say why a way is left out, if it fails here."""
    try:
        yield
    except EdgeplanError as error:
        if any(taken in error.what for taken in _TAKEN):
            raise DeviceError(
                f"a check opens several plans on the GPU, which is for one process at a time: {error.headline}",
                where=error.where,
                next_step="let it have several (nvidia-smi -c DEFAULT), or plan without a check: --costs predicted",
            ) from error
        left_out[name] = error.headline


def _wrong(outputs: Mapping[str, Mapping[str, Any]], running: Mapping[str, OpenedPlan]) -> dict[str, str]:
    """Why some plans are not to be taken, whatever they take: outputs differ, and theirs are not ONNX Runtime's.

    Where it cannot run the model, those that most plans agree on are right, and of equally many those of the simplest plan.
    """
    first = next(iter(outputs), "")
    if all(_apart(own, outputs[first]) <= OUTPUT_TOLERANCE for own in outputs.values()):
        return {}
    try:
        plan_read = read_folder(running[first].folder)
        model, inputs = plan_read.require_model(), random_inputs_of(plan_read.program.inputs)
        verdicts, whose = judged(model, inputs, [*outputs.values()]), "ONNX Runtime's"
    except EdgeplanError:
        alike = {name: sum(_apart(one, own) <= OUTPUT_TOLERANCE for one in outputs.values()) for name, own in outputs.items()}
        most = max(alike, key=alike.__getitem__)
        whose = f"those of {most}"
        verdicts = [Verdict(_apart(own, outputs[most]), OUTPUT_TOLERANCE) for own in outputs.values()]
    told = "its outputs differ from {} by {:.1e} of the largest magnitude"
    each = zip(outputs, verdicts, strict=True)
    return {name: told.format(whose, one.difference) for name, one in each if not one.difference <= one.tolerance}


def _apart(own: Mapping[str, Any], reference: Mapping[str, Any]) -> float:
    return relative_error([*own.values()], [reference[name] for name in own])
