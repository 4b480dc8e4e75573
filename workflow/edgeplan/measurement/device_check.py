"""The command `edgeplan device check` tells whether figures from this machine can be trusted."""

from __future__ import annotations

import contextlib
import itertools
import os
import statistics
import time
from collections.abc import Iterator
from dataclasses import astuple, dataclass, replace
from typing import Any

from edgeplan.devices.config import DeviceFile, load_device
from edgeplan.measurement.board.client import BoardMeasurer
from edgeplan.measurement.lock import machine_lock
from edgeplan.measurement.process.interference import LIMIT, Interference
from edgeplan.measurement.references import References, ReferenceTimes
from edgeplan.support import cpus
from edgeplan.support.machine import environment

_RUNS = 6
_WINDOW_SECONDS = 0.25
#: Spread of the windows' least compute times above which labels cannot be normalised well.
MAX_COMPUTE_SPREAD = 0.10
#: The ratio that normalisation leaves: compute windows against each other after dividing by their neighbours.
MAX_RESIDUAL = 0.03
MAX_LOAD = 1.0
#: Share of looks that found another guest on the cores: beyond it a start of tens of milliseconds hardly ever has them alone.
MAX_SHARED = 0.5


@dataclass(frozen=True)
class DeviceCheck:
    """A check holds the findings on one device.

    Attributes:
        environment: state of the machine.
        compute_us, bandwidth_us: least time of each reference in each window.
        shared: share of the looks in which a load that feels every neighbour, on all processors at once, was slowed: other
            guests on the cores that these processors are threads of, or two of these on one core.
        problems: why figures cannot be trusted; empty when they can.
    """

    device: DeviceFile
    engine_version: str
    environment: dict[str, Any]
    compute_us: tuple[float, ...]
    bandwidth_us: tuple[float, ...]
    shared: float
    problems: tuple[str, ...] = ()

    @property
    def compute_spread(self) -> float:
        """Return (90th - 10th percentile) / median of the compute windows: drift of the clock."""
        return _spread(self.compute_us)

    @property
    def residual(self) -> float:
        """Return the median relative difference of neighbouring compute windows: what normalisation cannot remove."""
        steps = [abs(b / a - 1) for a, b in itertools.pairwise(self.compute_us)]
        return statistics.median(steps) if steps else 0.0

    @property
    def trusted(self) -> bool:
        """Tell whether figures from this machine can be trusted."""
        return not self.problems


def _spread(values: tuple[float, ...]) -> float:
    ordered = sorted(values)
    low, high = ordered[len(ordered) // 10], ordered[-1 - len(ordered) // 10]
    return (high - low) / statistics.median(ordered)


def check_device(name: str, seconds: float) -> DeviceCheck:
    """Watch the machine for so many seconds."""
    device = load_device(name)
    return watch(device, seconds) if device.board is None else _watch_there(device, seconds)


def _watch_there(device: DeviceFile, seconds: float) -> DeviceCheck:
    """Have a board watched by its worker."""
    with contextlib.closing(BoardMeasurer(device)) as board:
        facts, found = board.describe(), board.check(seconds)
    state = {**facts.environment, "load_1min": found.load_1min}
    return DeviceCheck(device, facts.engine_version, state, found.compute_us, found.bandwidth_us, found.shared, found.problems)


def watch(device: DeviceFile, seconds: float) -> DeviceCheck:
    """Watch this machine for so many seconds."""
    engine = device.load_engine()
    version = device.engine_version()
    device.check_cores()  # a wrong file is told whatever else is measuring
    with machine_lock():
        state = environment()
        watch = Interference(sorted(os.sched_getaffinity(0)))
        device.pin()
        references = References(engine.reference_loads())
        windows, looks = list[ReferenceTimes](), list[float]()
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            windows.append(references.time(_RUNS))
            watch.look()
            looks.append(watch.now())
            time.sleep(max(0.0, min(_WINDOW_SECONDS, end - time.monotonic())))
    shared = sum(look > LIMIT for look in looks) / len(looks)
    compute, bandwidth = zip(*map(astuple, windows), strict=True)
    found = DeviceCheck(device, version, state, compute, bandwidth, shared)
    return replace(found, problems=tuple(_problems(found)))


def _problems(found: DeviceCheck) -> Iterator[str]:
    device, load = found.device, found.environment["load_1min"]
    if found.compute_spread > MAX_COMPUTE_SPREAD:
        yield f"the compute reference drifts by {100 * found.compute_spread:.0f} % (limit {100 * MAX_COMPUTE_SPREAD:.0f} %)"
    if found.residual > MAX_RESIDUAL:
        yield f"neighbouring windows differ by {100 * found.residual:.1f} % (limit {100 * MAX_RESIDUAL:.0f} %)"
    if found.shared > MAX_SHARED:
        yield f"others used the processors' cores in {100 * found.shared:.0f} % of the looks (limit {100 * MAX_SHARED:.0f} %)"
    if load > MAX_LOAD:
        yield f"the load is {load}: other work is running"
    if held := cpus.held_back():
        yield f"{held} stopped the check"
    if len(device.cores) < device.threads and device.cores:
        yield f"{device.threads} threads share {len(device.cores)} core"


def report_lines(found: DeviceCheck) -> list[str]:
    """Return the result of the check as lines of text."""
    state = found.environment
    lines = [
        f"device      {found.device.name}: {found.device.engine} {found.engine_version}",
        f"threads     {found.device.threads} on core(s) {', '.join(map(str, found.device.cores)) or 'any'}",
        *([f"board       {found.device.board.place}, fingerprint {state['fingerprint']}"] if found.device.board else []),
        f"machine     {state['cpu']}, {state['cores']} cores, {state['memory_gib']} GiB"
        + (", virtual" if state["virtualised"] else ""),
        f"caches      {', '.join(state['caches']) or 'not exposed'}",
        f"isa         {' '.join(state['isa']) or 'not exposed'}",
        f"clock       governor {state['governor']}, highest {state['max_frequency_khz']} kHz, load {state['load_1min']}",
        f"compute     least {min(found.compute_us):.1f} us, spread {100 * found.compute_spread:.1f} %",
        f"neighbours  differ by {100 * found.residual:.1f} % in the median",
        f"shared      cores slowed by others in {100 * found.shared:.0f} % of the looks",
        f"bandwidth   least {min(found.bandwidth_us):.1f} us, spread {100 * _spread(found.bandwidth_us):.1f} %",
    ]
    if found.trusted:
        return [*lines, "verdict     figures from this machine can be trusted"]
    return [
        *lines,
        *(f"problem     {p}" for p in found.problems),
        f"verdict     do not trust figures from this machine now: {cpus.calmer('stop other work, wait')}, and check again",
    ]
