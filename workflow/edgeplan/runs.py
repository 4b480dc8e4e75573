"""Runs plans: one function and one result for plan folders of every kind (docs/api.md).

`edgeplan.run` and the command `edgeplan run` come here.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import isfinite
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, cast

import numpy as np

from edgeplan.chapters.memory.budget import budget_sizes
from edgeplan.engines.onnxruntime.reference import model_apart, reference_apart
from edgeplan.errors import CheckError, DeviceError, InfeasibleError, InputError, ParamsError
from edgeplan.measurement.process.inputs import not_finite, random_inputs_of
from edgeplan.opening import open_plan
from edgeplan.runtime.folder import COLD_START, ENGINE, GPU_START, MEMORY, PARTITION, PlanFolder, read_folder
from edgeplan.runtime.native_session import NativeSession
from edgeplan.runtime.streaming.schedules import F32, HALVES_TOLERANCE, stored_as
from edgeplan.support.files import FilePath
from edgeplan.support.own_process import resident
from edgeplan.support.tensors import OF_ITS_OWN, OUTPUT_TOLERANCE, QUANTISED_TOLERANCE, Array, checked_inputs, read_inputs

if TYPE_CHECKING:
    import numpy.typing as npt

    from edgeplan.engines.serving import EngineSession
    from edgeplan.gpu_start.session import GpuSession
    from edgeplan.handover import HandoverSession
    from edgeplan.runtime.partitioned.session import PairSession

_log = logging.getLogger(__name__)
#: Inferences of a pair whose last one is noted: the first find nothing in caches.
_SPANS_OF = 3
_LATE, _SLOWER = 0.5, 1.5  # share of waiting, and of what was predicted, from which on a run is told to be late
_MB_PER_S = 1e3  # in bytes a millisecond


@dataclass(frozen=True)
class Phase:
    """Inferences by one budget of memory.

    Attributes:
        budget: bytes over idle.
        predicted_ms: of an inference.
        replan_ms: to take another schedule for the budget; 0 for the one that was stored.
        pause_ms: until the first inference could begin: memory filled.
        run_ms: of each inference, until its outputs were there.
        read_bytes: during all of them.
        wait_ms: of each inference, how long steps waited for their weights.
    """

    budget: int
    predicted_ms: float
    replan_ms: float
    pause_ms: float
    run_ms: tuple[float, ...]
    read_bytes: int
    wait_ms: tuple[float, ...] = ()


def lateness(phase: Phase, bytes_per_ms: float) -> str:
    """Tell that weights came late because they were read more slowly than when the plan was made; "" where that is not so.

    Nobody knows how fast that was where `bytes_per_ms` is 0.
    """
    ran_ms, waited_ms, expected_ms = sum(phase.run_ms), sum(phase.wait_ms), phase.predicted_ms * len(phase.run_ms)
    rate = phase.read_bytes / max(ran_ms, 1e-9)  # steps wait most of the time, so reads are at work nearly all of it
    if waited_ms < _LATE * ran_ms or ran_ms < _SLOWER * expected_ms or rate * _SLOWER > bytes_per_ms:
        return ""
    waiting, now, then = 100 * waited_ms / ran_ms, rate / _MB_PER_S, bytes_per_ms / _MB_PER_S
    return (
        f"weights came late: steps waited for them {waiting:.0f} % of the time; they were read at {now:.0f} MB/s, "
        f"{then:.0f} MB/s when the plan was made: give more memory, or plan again"
    )


def run_budgets(
    session: NativeSession, inputs: Mapping[str, object], repeat: int, budgets: Sequence[int]
) -> tuple[list[Phase], dict[str, bytes], InfeasibleError | None]:
    """Run by one budget after the other; one that is refused leaves the results of the others.

    Args:
        session: the plan, opened.
        inputs: buffers of values, row-major, by name.
        repeat: inferences of each budget.
        budgets: bytes over idle; empty: the one that it was planned for.

    Returns:
        The inferences by budget, the last outputs, and why the first of the budgets that are too small was refused.
    """
    phases: list[Phase] = []
    outputs: dict[str, bytes] = {}
    refused: InfeasibleError | None = None
    isolated = session.fact("isolated") == 1
    for budget in budgets or (int(session.fact("budget_bytes")),):
        began = time.perf_counter()
        try:
            predicted_ms = session.set_budget(budget) if budgets else session.fact("predicted_ms")
        except InfeasibleError as error:
            refused = refused or error
            continue
        chosen = time.perf_counter()
        session.prepare_later()
        pause_ms, replan_ms = (time.perf_counter() - chosen) * 1e3, (chosen - began) * 1e3 if budgets else 0.0
        begun, times, waits = session.fact("bytes_read"), [], []
        if not isolated:
            session.expect(repeat)
        for _ in range(repeat):
            if isolated:
                session.prepare_later()
            began_ns = time.perf_counter_ns()
            outputs = session.run_taking(inputs, lambda _name, view: bytes(view))
            times.append((session.fact("ended_ns") - began_ns) / 1e6)
            waits.append(session.fact("waited_ns") / 1e6)
        ran = tuple(times), int(session.fact("bytes_read") - begun), tuple(waits)
        phases.append(Phase(budget, predicted_ms, replan_ms, pause_ms, *ran))
    if refused is not None and not phases:
        raise refused
    return phases, outputs, refused


class _Planned(Protocol):
    """A planned result, as planning functions return it, knows its folder."""

    @property
    def folder(self) -> Path:
        """Name the folder of the plan."""


@dataclass(frozen=True)
class Run:
    """Holds the inferences of a plan of any kind.

    Attributes:
        plan: what was run: its kind, what it was made for, its schedule and prediction.
        outputs: of the last inference in this process, by name; empty if all ran in fresh ones.
        cold_ms: time of each cold start, opening the plan included; of plans of cold starts alone. On a GPU it begins once the
            driver is loaded and the device open.
        warm_ms: time of each other inference.
        stages_ms: of the cold start in this process, sums over all processors.
        continuous: whether the plan has kernels of its own for later inferences.
        handed_over: of a plan that holds a later one for another processor, the inference, from 1 on, from which that answered;
            0: none.
        stayed_because: why it answered none; "" of other plans, and where it was not ready or not decided yet.
        phases: of a plan of memory, its inferences budget by budget.
        spans_ms: of a plan of a pair, for each step of the model when it began, and when its part on each processor ended, by
            a session of its own behind the timed ones, whose GPU notes it.
        winograd: of a plan of a pair, whether a kernel computes by Winograd's transforms.
        peak_bytes: the most resident memory of this process so far, all pages.
        difference: largest difference from ONNX Runtime's outputs on the same inputs, relative to the largest magnitude of each
            output; None unless it was asked for.
        tolerance: what it may be: more where the model rounds to bytes, or where ONNX Runtime is as far from itself.
        not_finite: names of the inputs that held infinities or what is no number.
    """

    plan: PlanFolder
    outputs: Mapping[str, Array] = field(default_factory=dict)
    cold_ms: tuple[float, ...] = ()
    warm_ms: tuple[float, ...] = ()
    stages_ms: Mapping[str, float] = field(default_factory=dict)
    continuous: bool = False
    handed_over: int = 0
    stayed_because: str = ""
    phases: tuple[Phase, ...] = ()
    spans_ms: tuple[tuple[float, float, float], ...] = ()
    winograd: bool = False
    peak_bytes: int = 0
    difference: float | None = None
    tolerance: float = OUTPUT_TOLERANCE
    not_finite: tuple[str, ...] = ()

    @property
    def compared(self) -> str:
        """Say how far outputs are from ONNX Runtime's, and how far these are from each other where that decides."""
        told = f"largest difference from ONNX Runtime: {self.difference:.1e} of the largest magnitude"
        if (stored := stored_as(self.plan)) != F32:
            told += f"; weights are stored as {stored}"
        if self.tolerance not in (OUTPUT_TOLERANCE, QUANTISED_TOLERANCE):
            told += f"; with optimisations it differs from itself without by up to {self.tolerance / OF_ITS_OWN:.1e}"
        return told

    def require_checked(self) -> None:
        """Refuse, as a CheckError, outputs that differ from ONNX Runtime's by more than rounding costs, if compared."""
        weights = stored_as(self.plan)
        halved = weights != F32
        tolerance = max(self.tolerance, HALVES_TOLERANCE) if halved else self.tolerance
        if self.difference is None or self.difference <= tolerance:
            return
        by = f"by {self.difference:.1e} of the largest magnitude" if isfinite(self.difference) else "in what is not finite"
        if self.not_finite:
            named = ", ".join(map(repr, self.not_finite))
            what = f", on inputs that are not finite ({named}): oneDNN's activations do not pass on what is no number"
            next_step = "check the plan on finite inputs; what this run gave is no answer"
        elif halved:
            what = f" {by}, more than {tolerance:g}: its weights are stored as {weights}"
            next_step = f"plan the model again with whole weights: edgeplan plan memory --weights {F32}"
        else:
            what = f" {by}, more than the {self.tolerance:.0e} of rounding"
            next_step = "plan the model again; do not use this plan if that changes nothing"
        where = f"model {Path(self.plan.made_for.model).name}"
        raise CheckError(f"outputs differ from ONNX Runtime's{what}", where=where, next_step=next_step)


def run(
    plan: PlanFolder | _Planned | FilePath,
    inputs: Mapping[str, npt.ArrayLike] | npt.ArrayLike | FilePath | None = None,
    *,
    repeat: int = 1,
    budgets: Sequence[str] = (),
    device: FilePath = "",
    check: bool = False,
    model: FilePath | None = None,
    cold: bool = False,
    evicted: bool = False,
) -> Run:
    """Run a plan of any kind.

    Args:
        plan: a plan folder, what `read_folder` read of one, or what a function that plans returned.
        inputs: arrays by name, of the types of the model's inputs, the array alone for a model of one input, or a file of them
            (.npz, .npy); seeded random ones without. Fresh processes take random ones.
        repeat: how many inferences; of a plan of memory, of each budget.
        budgets: of a plan of memory, as "64MiB", one after the other; without, the one that it was planned for.
        device: of a plan of a cold start, the device that it was planned for, whose cores to take; without, the first
            processors that this process may use.
        check: compare outputs with ONNX Runtime's on the same inputs (`Run.difference`; `Run.require_checked` raises).
        model: with `check`, the ONNX file to check against, where it has moved since it was planned.
        cold: of a plan of a cold start, a fresh process for each inference.
        evicted: with `cold`, the plan's files are dropped from the page cache before each.

    Raises:
        InputError: inputs do not fit the model.
        ParamsError: arguments contradict each other or the kind of the plan, or a budget is no size.
        InfeasibleError: a budget is too small.
        FormatError: no plan, a damaged one, or one for another machine, library, driver or model.
        DeviceError: too few cores for the plan, or a processor that is not there or fails.
        ColdRunError: a fresh process failed.
        ModelError: the weights cannot be read; with `check`, the model is not found or changed.
    """
    began = time.perf_counter()
    found = (
        plan if isinstance(plan, PlanFolder) else read_folder(Path(plan if isinstance(plan, (str, PathLike)) else plan.folder))
    )
    _require_fitting(
        found.kind, repeat, cold=cold, evicted=evicted, budgets=bool(budgets), given=inputs is not None, check=check
    )
    program = found.program
    read_ms = (time.perf_counter() - began) * 1e3
    cores = cores_of_device(found, str(device)) if device and found.kind != GPU_START else ()
    values: dict[str, Any]
    if inputs is None:
        values = random_inputs_of(program.inputs)
    elif isinstance(inputs, (str, PathLike)):
        values = read_inputs(Path(inputs), program.inputs)
    else:
        values = checked_inputs(inputs, program.inputs)
    if cold and found.kind == GPU_START:
        from edgeplan.measurement.process.gpu_starts import starts_apart  # noqa: PLC0415  each kind loads its own

        return Run(found, cold_ms=starts_apart(found, values, repeat, evicted=evicted))
    if cold:
        from edgeplan.measurement.process.starts import start_apart  # noqa: PLC0415  its values are checked by pydantic

        times, continuous = start_apart(found, values, repeat, cores, evicted=evicted)
        return Run(found, cold_ms=times, continuous=continuous)
    source = model_apart(found.path, None if model is None else Path(model)) if check else None
    sizes = budget_sizes(budgets)
    odd = named_not_finite(values)
    with open_plan(found, cores, budgets=sizes) as session:
        if found.kind in (COLD_START, GPU_START):
            spent_ms = read_ms if found.kind == GPU_START else 0.0
            made, first = _run_cold(cast("NativeSession | HandoverSession | GpuSession", session), values, repeat, spent_ms)
        elif found.kind == MEMORY:
            made, first = _run_budgets(cast("NativeSession", session), values, repeat, sizes)
        else:
            made, first = _run_pair(cast("PairSession | EngineSession", session), values, repeat)
        made |= {"peak_bytes": resident()["peak"], "not_finite": odd}
        if source is not None:  # behind the run, whose time it would change
            made["difference"], made["tolerance"] = reference_apart(source, values, (first, made["outputs"]))
    if found.kind == PARTITION:
        made["spans_ms"] = _spans_of_pair(found, values)
    return Run(found, **made)


def _require_fitting(kind: str, repeat: int, *, cold: bool, evicted: bool, budgets: bool, given: bool, check: bool) -> None:
    """Refuse arguments that are none of the plan's."""
    names = {COLD_START: "a cold start", GPU_START: "a cold start on a GPU", MEMORY: "memory", PARTITION: "a pair"}
    names[ENGINE] = "a stock engine"
    if kind not in (COLD_START, GPU_START) and (cold or evicted):
        what = f"a plan of {names[kind]} has no cold starts"
        raise ParamsError(what, where="--cold, --evicted", next_step="leave the option out")
    if kind != MEMORY and budgets:
        what, instead = f"a plan of {names[kind]} has no budget", "plan with edgeplan plan memory, or leave it out"
        raise ParamsError(what, where="--budgets", next_step=instead)
    if evicted and not cold:
        what = "only a cold start can begin with an evicted page cache"
        raise ParamsError(what, where="--evicted", next_step="add --cold, or leave it out")
    if repeat < 1:
        raise ParamsError(f"{repeat} runs are none", where="--repeat", next_step="name 1 or more")
    if cold and given:
        raise InputError("a fresh process takes random inputs", where="--input", next_step="leave out --cold, or --input")
    if cold and check:
        what = "the outputs of a fresh process stay there"
        raise ParamsError(what, where="--check", next_step="leave out --cold, or --check")


def cores_of_device(plan: PlanFolder, device: str) -> tuple[int, ...]:
    """Return the processors of a device, those that execute first.

    DeviceError: it is unknown, or executes on another number of processors than the plan.
    """
    from edgeplan.devices.config import load_device  # noqa: PLC0415  device files are checked by pydantic
    from edgeplan.profiling.settings import cores_of  # noqa: PLC0415  likewise

    found = cores_of(load_device(device))
    if len(found.big) != plan.made_for.threads:
        raise DeviceError(
            f"the plan needs {plan.made_for.threads} processors to execute, the device has {len(found.big)}",
            where=f"device {device!r}",
            next_step="name the device that it was planned for, or plan the model again",
        )
    return (*found.big, *found.little)


def named_not_finite(values: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the names of inputs that hold infinities or what is no number, with a warning: outputs may look like numbers."""
    found = not_finite(values)
    if found:
        _log.warning("not finite everywhere: %s; activations may make numbers of it, so outputs may hide it", ", ".join(found))
    return found


def _run_cold(
    session: NativeSession | HandoverSession | GpuSession, values: Mapping[str, Array], repeat: int, spent_ms: float
) -> tuple[dict[str, Any], Mapping[str, Array]]:
    """Start a plan cold and run it warm after it; return what `Run` holds of that, and the first outputs."""
    first = last = session.run(values)
    times = []
    for _ in range(repeat - 1):  # nothing in between: time to spare would be spent on the kernels of later runs
        began = time.perf_counter()
        last = session.run(values)
        times.append((time.perf_counter() - began) * 1e3)
    made = {"outputs": last, "cold_ms": (spent_ms + session.cold_ms,), "warm_ms": tuple(times)}
    told = ("handed_over", "stayed_because", "continuous")
    found = {name: getattr(session, name) for name in told if hasattr(session, name)}
    return made | found | {"stages_ms": session.stages_ms()}, first


def _run_budgets(
    session: NativeSession, values: Mapping[str, Array], repeat: int, budgets: Sequence[int]
) -> tuple[dict[str, Any], Mapping[str, Array]]:
    """Run the inferences of each budget; return what `Run` holds of them, and the last outputs."""
    given = {name: np.ascontiguousarray(value).data for name, value in values.items()}
    phases, found, refused = run_budgets(session, given, repeat, budgets)
    if refused is not None:
        _log.warning("a budget was refused: %s", refused.what)
    bytes_per_ms = session.fact("bytes_per_ms")
    for told in filter(None, (lateness(phase, bytes_per_ms) for phase in phases)):
        _log.warning("%s", told)
    outputs = {b.name: np.frombuffer(found[b.name], b.dtype).reshape(b.shape) for b in session.outputs}
    warm = tuple(ms for phase in phases for ms in phase.run_ms)
    return {"outputs": outputs, "warm_ms": warm, "phases": tuple(phases)}, outputs


def _run_pair(
    session: PairSession | EngineSession, values: Mapping[str, Array], repeat: int
) -> tuple[dict[str, Any], Mapping[str, Array]]:
    """Run the inferences of a pair or of a stock engine; return what `Run` holds of them, and the last outputs."""
    times = [session.inference_ms(values) for _ in range(repeat)]
    outputs = session.outputs()
    return {"outputs": outputs, "warm_ms": tuple(times), "winograd": session.winograd}, outputs


def _spans_of_pair(plan: PlanFolder, values: Mapping[str, Array]) -> tuple[tuple[float, float, float], ...]:
    """Return when the steps of a pair ran, in a session of its own: what notes it slows a GPU."""
    from edgeplan.engines.pair import open_pair  # noqa: PLC0415  each kind loads its own

    with open_pair(plan, profiling=True) as session:
        for _ in range(_SPANS_OF):
            session.run(values)
        return session.spans_ms()
