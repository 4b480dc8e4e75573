"""Plans of a pair run, and the pair looked at: what the command line does with both."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from edgeplan.chapters.partition.measuring.opened import Opened, opened
from edgeplan.chapters.partition.planned import About, check_opened, model_of, read_folder, session_of
from edgeplan.devices.pairs import PairFile
from edgeplan.errors import DeviceError
from edgeplan.graph.index_limits import index_limits
from edgeplan.graph.ir import Shape
from edgeplan.graph.onnx.read import load_onnx
from edgeplan.measurement.lock import machine_lock
from edgeplan.planning.partition.plan import PartitionPlan
from edgeplan.runtime.partitioned.handshake import Handshake, handshake
from edgeplan.runtime.partitioned.session import PairSession, Synchronisation

Array = npt.NDArray[Any]
_MS_PER_NS = 1e-6


@dataclass(frozen=True, slots=True)
class Input:
    """An input of a model: its name, shape and element type, its size in bytes, and what its integers stay below."""

    name: str
    shape: Shape
    dtype: str
    size: int
    below: int


def inputs_of(model: Path) -> tuple[Input, ...]:
    """The inputs of a model.

    Raises:
        ModelError: it cannot be read.
    """
    graph = load_onnx(model)
    limits, found = index_limits(graph), (graph.tensors[name] for name in graph.inputs)
    return tuple(Input(t.name, t.shape, t.dtype, t.size_bytes, limits.get(t.name, 2)) for t in found)


@dataclass(frozen=True)
class PartitionRun:
    """Inferences of a plan.

    Attributes:
        about: what the plan is for.
        plan: the plan.
        ran: the same, with the times of the last inference.
        outputs: of that, by name.
        times_ms: of each inference.
        winograd: whether a kernel computed by Winograd's transforms.
        difference: largest difference from ONNX Runtime's outputs; None unless it was asked for.
        not_finite: names of the inputs that held infinities or what is no number.
    """

    about: About
    plan: PartitionPlan
    ran: PartitionPlan
    outputs: Mapping[str, Array]
    times_ms: tuple[float, ...]
    winograd: bool
    difference: float | None = None
    not_finite: tuple[str, ...] = ()


def run_plan(folder: Path, inputs: Mapping[str, Array], repeat: int, model: Path | None) -> PartitionRun:
    """Run the plan of a folder.

    Args:
        folder: of the plan.
        inputs: by name.
        repeat: inferences.
        model: the ONNX file, where it has moved.

    Raises:
        FormatError: no plan, or one for another machine, library or driver.
        ModelError: the model is not there or has changed, or an input does not fit.
        DeviceError: a processor is not there, or fails.
    """
    about, plan = read_folder(folder)
    source = model_of(about, model, folder)
    with opened(about.pair, profiling=True) as pair:
        check_opened(about, pair, folder)
        with session_of(pair, source, plan) as session:
            times = []
            for _ in range(repeat):
                session.bind(inputs)
                began = time.perf_counter()
                session.execute()
                times.append((time.perf_counter() - began) * 1e3)
            outputs = session.outputs()
            return PartitionRun(about, plan, as_it_ran(plan, session), outputs, tuple(times), session.winograd)


def as_it_ran(plan: PartitionPlan, session: PairSession) -> PartitionPlan:
    """A plan with the times of the last run: of each step when its first part began, and when each part ended."""
    parts, ran = session.partitioned, session.times * _MS_PER_NS
    origin, lanes = np.array(parts.ranged.origin), np.array(parts.lanes)
    steps = []
    for k, step in enumerate(plan.steps):
        own = origin == k
        start = max(float(ran[own, 0].min()), 0.0)
        ends = [max(float(ran[own & (lanes == lane), 1].max(initial=start)), start) for lane in (0, 1)]
        steps.append(step.model_copy(update={"start_ms": start, "cpu_end_ms": ends[0], "gpu_end_ms": ends[1]}))
    makespan = max(max(step.cpu_end_ms, step.gpu_end_ms) for step in steps)
    return plan.model_copy(update={"steps": tuple(steps), "makespan_ms": makespan})


@dataclass(frozen=True, slots=True)
class PairCheck:
    """What a look at a pair found.

    Attributes:
        pair: its file.
        names, versions: of both processors.
        cores: of each; none for a processor of its own.
        sharing: how memory is shared.
        synchronisation: how they wait for each other.
        why: it is that.
        handshakes: by way of waiting; a text where one cannot be.
    """

    pair: PairFile
    names: tuple[str, str]
    versions: tuple[str, str]
    cores: tuple[tuple[int, ...], tuple[int, ...]]
    sharing: str
    synchronisation: Synchronisation
    why: str
    handshakes: Mapping[Synchronisation, Handshake | str]


def check_pair(pair: PairFile, runs: int = 200) -> PairCheck:
    """Open a pair, say how its processors wait for each other, and measure what that costs.

    Raises:
        DeviceError: a processor is not there, or the pair cannot wait as its file asks.
        BusyError: another process is measuring.
    """
    pair.check_cores()
    with machine_lock(), opened(pair) as found:
        handshakes = {how: _handshake(found, how, runs) for how in Synchronisation}
        one, other = (processor.capabilities for processor in found.processors)
        return PairCheck(
            pair,
            found.names,
            found.versions,
            (one.cores, other.cores),
            str(other.sharing),
            found.synchronisation,
            found.why,
            handshakes,
        )


def _handshake(pair: Opened, how: Synchronisation, runs: int) -> Handshake | str:
    try:
        return handshake(*pair.processors, how, runs)
    except DeviceError as error:
        return error.what


def check_lines(found: PairCheck) -> list[str]:
    """The look as lines of text."""
    lines = [f"pair        {found.pair.name}"]
    for side, name, version, cores in zip(found.pair.processors, found.names, found.versions, found.cores, strict=True):
        on = f" on core(s) {', '.join(map(str, cores))}" if cores else ""
        lines.append(f"{side.name:<12}{name}{on}; {version}")
    lines += [f"memory      shared: {found.sharing}", f"waits by    {found.synchronisation}: {found.why}"]
    for how, made in found.handshakes.items():
        told = made if isinstance(made, str) else f"least {made.least_us:.1f} us, median {made.median_us:.1f} us a step"
        lines.append(f"handshake   by {how}: {told}")
    return lines
