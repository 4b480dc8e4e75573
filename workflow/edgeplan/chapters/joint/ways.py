"""Ways to start a model within a budget: plans by the commands of users, and engines with mapped weights, all in turns.

Each start is a fresh process in a memory cgroup of its own, which pays for its libraries: no page of them nor of the weights
is in memory before. Once it is idle the group is held to what it uses then and the budget, page cache counted. The time is from
the start of the process to its first outputs, without what sets the group up.
"""

from __future__ import annotations

import contextlib
import json
import math
import re
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from msgspec import to_builtins

from edgeplan.chapters.joint.pairs import PairedModel
from edgeplan.engines.onnxruntime.reference import reference_outputs
from edgeplan.measurement.lock import WAIT_SECONDS, machine_lock
from edgeplan.measurement.process import stock
from edgeplan.measurement.process.inputs import random_inputs
from edgeplan.measurement.process.memory_group import Limited, NoGroupError, run_paying
from edgeplan.measurement.process.page_cache import evict
from edgeplan.measurement.process.prepared_plan import prepared
from edgeplan.measurement.process.stock_memory import StockResult
from edgeplan.planning.joint.first import FirstInference, Making, timeline
from edgeplan.planning.joint.search import before_all
from edgeplan.profiling.streaming import RunSettings, StreamProfile, StreamRun, run_apart
from edgeplan.runtime.folder import WEIGHTS_NAME, PlanFolder, read_folder
from edgeplan.runtime.streaming.again import placement_of, workload_of
from edgeplan.runtime.streaming.memory_session import MemoryPrediction, MemorySchedule, schedules_of
from edgeplan.runtime.streaming.program import StreamProgram
from edgeplan.support.subprocesses import module_command, run
from edgeplan.support.tensors import relative_error
from edgeplan.support.workers import ColdRunError, answered, last_words

JOINT, PLAIN, COLD, PAID = "joint", "memory", "cold start", "joint, paying for all"
_COLD_SETTING = "edgeplan"  # of the engines, which starts plans of cold starts
NUMBERS = (
    *("turn", "budget", "first_ms", "opened_ms", "peak", "failures", "killed", "predicted_ms", "makespan_ms", "bound_ms"),
    *("later_ms", "worse", "plan_seconds", "error", "round_ms"),
)
TEXTS = ("way", "reason")
_WORKER = "edgeplan.runtime.streaming.start"
_PLANNED = re.compile(r"plans in (\d+) s")
_PLAN_SECONDS, _START_SECONDS = 1200.0, 30.0
_KIB = 1024
_WIDER = (1.0, 1.5, 2.5)  # times a share: budgets that a model of a pair is planned for, the first that it fits in
_SAME = 1.005  # plans as fast as each other
_FAILURES = (ColdRunError, NoGroupError, TimeoutError)
Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class StartedModel:
    """A model that is started within a budget.

    Attributes:
        model: the ONNX file.
        work: folder for plans.
        device: name or file of the device.
        processors: of it; the first ones compute.
        budget: bytes over idle.
        seed: of the inputs.
    """

    model: Path
    work: Path
    device: str
    processors: tuple[int, ...]
    budget: int
    seed: int

    @property
    def compute(self) -> tuple[int, ...]:
        """Return the processors that compute: one reads where there are several."""
        return _computing(self.processors)


def _computing(processors: tuple[int, ...]) -> tuple[int, ...]:
    return processors[: max(1, len(processors) - 1)]


def stock_peak(model: Path, processors: tuple[int, ...]) -> int:
    """Return what ONNX Runtime takes over idle, bytes."""
    return stock.peak_bytes(model, _computing(processors))


def starts(subject: StartedModel, beside: Sequence[str], turns: int, wait_seconds: float = WAIT_SECONDS) -> list[Row]:
    """Plan a model, and start it by all ways in turns; a way that cannot be has one row with the reason.

    Args:
        subject: the model and its budget.
        beside: settings of engines.
        turns: of each way.
        wait_seconds: how long to wait while another process measures.

    Raises:
        BusyError: another process still measures then.
    """
    rows: list[Row] = []
    inputs = _written_inputs(subject)
    makers: dict[str, Callable[[], Callable[[], Row]]] = {
        **{way: partial(_own_way, subject, way, inputs) for way in (JOINT, PLAIN)},
        COLD: partial(_cold_way, subject),
        **{setting: partial(_engine_way, subject, setting) for setting in beside},
    }
    ways: dict[str, Callable[[], Row]] = {}
    for way, make in makers.items():
        try:
            ways[way] = make()
        except ColdRunError as error:
            rows.append({"way": way, "reason": error.reason})
    with machine_lock(wait_seconds):
        if JOINT in ways:
            rows.append({"way": PAID, **_paid(subject, read_folder(subject.work / JOINT), inputs)})
        died = dict.fromkeys(ways, 0)
        for turn in range(turns):
            for way, start in ways.items():
                if died[way] > turns / 2:
                    continue  # it does not live, however the rest ends
                try:
                    row = start()
                except _FAILURES as error:
                    row = _failed(error)
                died[way] += "first_ms" not in row
                rows.append({"way": way, "turn": turn, **row})
    return [{"budget": subject.budget, **row} for row in rows]


def _own_way(subject: StartedModel, way: str, inputs: Mapping[str, Path]) -> Callable[[], Row]:
    """Plan a model within its budget; what starts the plan."""
    plan, told, seconds = _planned(subject, way)
    about = _about(plan, subject.budget) | {"plan_seconds": float(told[1]) if told else seconds}
    return partial(_own_start, subject, plan, inputs, about)


def _cold_way(subject: StartedModel) -> Callable[[], Row]:
    """Plan a cold start, which knows no budget; what starts it."""
    plan, _, _ = _planned(subject, COLD)
    artefact, processors = prepared(plan.path).artefact, subject.processors[: plan.made_for.threads]
    return partial(_stock_start, subject, _COLD_SETTING, artefact, stock.inputs_of(subject.model), processors)


def _engine_way(subject: StartedModel, setting: str) -> Callable[[], Row]:
    """Prepare a model for an engine; what starts it."""
    folder, inputs = subject.work / setting, stock.inputs_of(subject.model)
    folder.mkdir()
    artefact = stock.prepared(setting, subject.model, inputs, folder, len(subject.compute))
    return partial(_stock_start, subject, setting, artefact, inputs, subject.compute)


def _planned(subject: StartedModel, way: str) -> tuple[PlanFolder, re.Match[str] | None, float]:
    """A plan by a user's command, what it told of planning, and its seconds.

    Raises:
        ColdRunError: there is no such plan; the command's last words are in the message.
    """
    folder = subject.work / way
    budget = ("--budget", f"{subject.budget // _KIB}KiB")
    kinds = {JOINT: ("plan",), PLAIN: ("plan", "memory"), COLD: ("plan", "cold-start")}
    given = {JOINT: (*budget, "--for", "first"), PLAIN: budget, COLD: ("--costs", "predicted")}
    words = (*kinds[way], str(subject.model), *given[way], "-o", str(folder))
    began = time.perf_counter()
    done = run(module_command("edgeplan", *words, "--device", subject.device), timeout=_PLAN_SECONDS)
    if done.returncode:
        what = f"edgeplan plan ended with {done.returncode}{last_words(done.stderr)}"
        raise ColdRunError(what, where=str(subject.model), next_step="give a larger share")
    told = _PLANNED.search(done.stdout.decode(errors="replace"))
    return read_folder(folder), told, time.perf_counter() - began


def paired(name: str, subject: StartedModel) -> PairedModel:
    """Plan a model to run in turns with another one.

    Raises:
        ColdRunError: there is no such plan.
    """
    plan = _planned_for_pairs(subject)
    free = run_apart(plan.path, plan.made_for.threads, [None], _job(subject, plan, _written_inputs(subject), 1))
    return PairedModel(name, plan.path, subject.budget, tuple(free.files))


def _planned_for_pairs(subject: StartedModel) -> PlanFolder:
    """A plan within the budget, or else within a larger one: what it holds of the model serves plans for other budgets."""
    *first, last = _WIDER
    for factor in first:
        with contextlib.suppress(ColdRunError):
            return _planned(replace(subject, budget=int(factor * subject.budget)), PLAIN)[0]
    return _planned(replace(subject, budget=int(last * subject.budget)), PLAIN)[0]


def _about(plan: PlanFolder, budget: int) -> Row:
    """The prediction of a plan; and how many of its special cases would be better with the same costs."""
    schedule, prediction = plan.scheduled(MemorySchedule), plan.predicted(MemoryPrediction)
    found: Row = {"later_ms": prediction.ms, "worse": 0.0}
    stored = schedules_of(plan)
    fitting = stored.fitting(budget) if stored is not None else None
    found["worse"] += fitting is not None and prediction.ms > _SAME * fitting.predicted_ms
    if not prediction.first_ms:
        return found  # a plan of later inferences
    if (first := schedule.first) is not None:
        program, profile = plan.program_of(StreamProgram), StreamProfile.model_validate(prediction.profile)
        work = workload_of(program, profile.first_step_ms)
        kernels, beside = tuple(program.columns.kernel_of), bool(schedule.reader)
        problem = FirstInference(work, profile.reader, kernels, profile.making_ms, beside)
        making, placed = Making(first.kernels.own, first.kernels.beside), placement_of(first.placed)
        before_ms, own_ms = (timeline(problem, placed, each).latency_ms for each in (before_all(problem), making))
        found["worse"] += own_ms > _SAME * before_ms
    found |= {"makespan_ms": prediction.first_ms, "bound_ms": prediction.first_bound_ms}
    return found | {"predicted_ms": prediction.opening_ms + prediction.first_ms}


def _written_inputs(subject: StartedModel) -> dict[str, Path]:
    wanted, found = stock.inputs_of(subject.model), {}
    values = random_inputs(wanted.shapes, subject.seed, wanted.types, wanted.below)
    for number, (name, value) in enumerate(values.items()):
        found[name] = subject.work / f"input-{number}.bin"
        found[name].write_bytes(np.ascontiguousarray(value).tobytes())
    return found


def _job(subject: StartedModel, plan: PlanFolder, inputs: Mapping[str, Path], runs: int) -> RunSettings:
    schedule = plan.scheduled(MemorySchedule)
    first = None if schedule.first is None else to_builtins(schedule.first)
    return RunSettings(inputs, subject.processors, schedule.reader, runs, isolated=False, first=first)


def _own_start(subject: StartedModel, plan: PlanFolder, inputs: Mapping[str, Path], about: Row) -> Row:
    """Start a plan of ours within the budget."""
    gate, settings, threads = _gate(subject), _job(subject, plan, inputs, 1), plan.made_for.threads
    files = run_apart(plan.path, threads, [None], settings).files
    evict([plan.path / WEIGHTS_NAME])
    job = json.dumps(settings.job(plan.path, threads, [None]) | {"gate": str(gate)})
    held = _held(subject, _WORKER, job, gate, files)
    if row := _ended(held):
        return about | row
    found = answered(StreamRun, f"plan in {plan.path}", held.code, held.stdout, held.stderr)
    return about | _started(held, found.first_ms)


def _stock_start(subject: StartedModel, setting: str, artefact: Any, inputs: stock.Inputs, processors: tuple[int, ...]) -> Row:
    """Start an engine within the budget."""
    gate = _gate(subject)
    mapped = stock.run_stock(stock.stock_job(setting, artefact, inputs, processors, 1)).files
    evict(artefact.files)
    job = stock.stock_job(setting, artefact, inputs, processors, 1, str(gate), _START_SECONDS)
    own = {str(Path(file).resolve()) for file in artefact.files}
    held = _held(subject, stock.MODULE, job.model_dump_json(), gate, [file for file in mapped if file not in own])
    if row := _ended(held):
        return row
    found = answered(StockResult, setting, held.code, held.stdout, held.stderr)
    return _started(held, found.open_ms + found.run_ms[0])


def _held(subject: StartedModel, module: str, job: str, gate: Path, files: Sequence[str]) -> Limited:
    """Run a module within the budget, in a group that pays for its libraries."""
    libraries = subject.work / "libraries"
    libraries.mkdir(exist_ok=True)
    return run_paying(
        module_command(module), job.encode(), gate, files, libraries, budget=subject.budget, timeout_seconds=_START_SECONDS
    )


def _paid(subject: StartedModel, plan: PlanFolder, inputs: Mapping[str, Path]) -> Row:
    """Hold a run to the budget in a group that pays for its libraries, and compare outputs with ONNX Runtime's."""
    program, threads = plan.program_of(StreamProgram), plan.made_for.threads
    outputs = {border.name: subject.work / f"output-{k}.bin" for k, border in enumerate(program.outputs)}
    settings = replace(_job(subject, plan, inputs, 3), outputs=outputs)
    row: Row = {}
    try:
        free = run_apart(plan.path, threads, [None], settings)
        row["error"] = _error(subject, plan, inputs, outputs)
        gate = _gate(subject)
        job = json.dumps(settings.job(plan.path, threads, [None]) | {"gate": str(gate)})
        paid = _held(subject, _WORKER, job, gate, free.files)
    except _FAILURES as error:
        return row | _failed(error)
    over = paid.peak_bytes - paid.idle_bytes
    return row | {"peak": over, "failures": paid.failures, "killed": float(paid.code < 0)}


def _error(subject: StartedModel, plan: PlanFolder, inputs: Mapping[str, Path], outputs: Mapping[str, Path]) -> float:
    """The largest difference of outputs from ONNX Runtime's, relative to the largest magnitude."""
    program = plan.program_of(StreamProgram)
    values = {b.name: np.frombuffer(inputs[b.name].read_bytes(), b.dtype).reshape(b.shape) for b in program.inputs}
    expected = reference_outputs(subject.model, values)
    found = [np.frombuffer(outputs[b.name].read_bytes(), b.dtype).reshape(b.shape) for b in program.outputs]
    return relative_error(found, [expected[b.name] for b in program.outputs])


def _failed(error: Exception) -> Row:
    return {"reason": error.reason if isinstance(error, ColdRunError) else str(error)}


def _gate(subject: StartedModel) -> Path:
    gate = subject.work / "gate"
    gate.unlink(missing_ok=True)
    return gate


def _ended(held: Limited) -> Row:
    """Tell how a process was ended by a signal; nothing where it was not."""
    if held.code not in (-signal.SIGKILL, -signal.SIGALRM):
        return {}
    why = "killed: out of memory, or in time" if held.code == -signal.SIGKILL else f"stopped: over {_START_SECONDS:g} s"
    return {"killed": 1.0, "failures": held.failures, "reason": why}


def _started(held: Limited, opened_ms: float) -> Row:
    peak = held.peak_bytes - held.idle_bytes
    times = {"first_ms": held.ready_ms + opened_ms, "opened_ms": opened_ms}
    return times | {"peak": peak, "failures": held.failures, "killed": 0.0, "error": math.nan}
