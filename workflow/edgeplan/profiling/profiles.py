"""Turns rows into profiles: the costs that the planners see, first calls among them.

At its first execution in a process a kernel may pay for tables that the library generates then: oneDNN's `gemm:jit` generates
its matrix kernels, which takes longer than many a model's whole cold start. A profiling process has paid that long before most
samples, so each is measured in a fresh process, as processor time: nothing but the thread itself counts. The processes are
forked from one that has imported everything and executed nothing (`measurement.process.starts.Forks`).
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

import numpy as np

from edgeplan.graph.ir import Shape
from edgeplan.graph.steps import Step
from edgeplan.measurement.process.interference import Clock
from edgeplan.measurement.process.job import OnceJob
from edgeplan.measurement.process.starts import Forks
from edgeplan.planning.profile import BIG, Candidate, Contention, Fresh, Layer, Profile, check, kernel_name
from edgeplan.profiling.samples import Trials
from edgeplan.profiling.settings import Cores
from edgeplan.profiling.store import Row
from edgeplan.runtime.linking import can_be_raw

#: Signatures of these rows begin with this.
ONCE = "once-"
_STAGE = "once"
_LEAST_MS = 0.5  # below, it is what cold caches do, and in every first execution


def work_of(step: Step, shapes: Mapping[str, Shape]) -> str:
    """Name the work that a kernel of a step does: the step's kind, where a product of a single row is apart.

    The library runs that one by other code, which generates nothing at its first execution.
    """
    one_row = step.kind == "fc" and math.prod(shapes[step.outputs[0]][:-1]) == 1
    return f"{step.kind}-row" if one_row else step.kind


def kernel_of(work: str, implementation: str) -> str:
    """Name the kernel of a candidate, whatever layouts it converts from and to; a name means different code for other work."""
    return f"{work} {kernel_name(implementation)}"


def once_ms(rows: Iterable[Row]) -> Mapping[str, float]:
    """Return by kernel the milliseconds of its first execution in a process, from those rows that are about it."""
    return {row.implementation: row.samples_ms[_STAGE][0] for row in rows if row.signature.startswith(ONCE)}


def measure_once(
    trials: Trials,
    known: Collection[str],
    scratch: Path,
    clock: Clock,
    forks: Forks,
    wanted: Collection[tuple[str, str]] | None = None,
) -> list[Row]:
    """Measure the kernels of a model that are not `known` yet, each by the candidate with the least weights.

    Only kernels of the `wanted` candidates (signature, implementation) matter; None for all.
    """
    program = trials.subject.program
    smallest: dict[str, tuple[int, int, int]] = {}
    for index, group in trials.group.items():
        for position, implementation in enumerate(group.implementations):
            kernel = kernel_of(work_of(program.steps[index], program.shapes), implementation.name)
            if kernel not in known and (wanted is None or (group.digest, implementation.name) in wanted):
                candidate = (group.sizes[position].weights, index, position)
                smallest[kernel] = min(smallest.get(kernel, candidate), candidate)
    if not smallest:
        return []
    chosen = {kernel: (index, position, 1) for kernel, (_, index, position) in sorted(smallest.items())}
    made, records = trials.only(tuple(chosen.values()))
    file = scratch / f"once-{trials.subject.program.home}.bin"
    file.write_bytes(made.content)
    times_ms = []
    for record in records:
        before = clock.now()
        time_ms = forks.first_execution_ms(OnceJob(program=file, cache=made.cache, record=record))
        times_ms.append(time_ms / clock.slowness(before, clock.now()))
    now = time.time()
    return [
        Row(ONCE + kernel, kernel, 0, 0, 0, 0, {_STAGE: (_stored(time_ms),)}, now)
        for kernel, time_ms in zip(chosen, times_ms, strict=True)
    ]


def _stored(time_ms: float) -> float:
    return float(np.float32(time_ms)) if time_ms >= _LEAST_MS else 0.0  # as rows are stored


@dataclass(frozen=True, slots=True)
class Charge:
    """A charge is a cost of a step besides its measured ones.

    Attributes:
        work: work that the step's kernels do (`work_of`).
        raw: whether the step's weights can be made from the model file in a cold start; else they are always cached.
        share: part of the full creation that is paid; the rest at the price of an equal step's.
        arena_ms: execution, for pages of the arena that it is the first to write.
        weights_ms_per_byte: preparation, for the memory its weights are written to; mapped weights need none.
        once_ms: execution, for kernels whose first execution in a process takes longer. Any step may be the first.
    """

    work: str = ""
    raw: bool = True
    share: float = 1.0
    arena_ms: float = 0.0
    weights_ms_per_byte: float = 0.0
    once_ms: Mapping[str, float] = field(default_factory=dict)


def profile_of(
    name: str,
    layout: str,
    steps: Sequence[tuple[Step, str, float]],
    shapes: Mapping[str, Shape],
    types: Mapping[str, str],
    rows: Mapping[str, Sequence[Row]],
    cores: Cores,
    contention: Contention,
    *,
    touch_ms_per_byte: float = 0.0,
    start_ms: float = 0.0,
    once_ms: Mapping[str, float] = MappingProxyType({}),
    fresh: Fresh | None = None,
    start_noise: float = 0.0,
) -> Profile:
    """Return the profile of a model under one home layout.

    Each step comes with its signature and the milliseconds of touching arena pages first; `types` are of tensors that are not
    of float32, `rows` the candidates of every signature. Besides what was measured of the steps count `touch_ms_per_byte` of
    memory that transformed weights are written to for the first time, `start_ms` before any step is prepared, and `once_ms` of
    a kernel's first execution in a process, by kernel. `start_noise` is the share of the starts behind these factors that
    stayed disturbed.
    """
    layers = []
    for (step, signature, touch_ms), share in zip(steps, shares([s[1] for s in steps]), strict=True):
        raw = can_be_raw(step, types)
        charge = Charge(work_of(step, shapes), raw, share, touch_ms, touch_ms_per_byte, once_ms)
        found = [c for row in rows[signature] for c in candidates_of(row, cores, charge)]
        layers.append(Layer(step.name, step.members, tuple(found)))
    big, little = len(cores.big), len(cores.little)
    noise = max(statistics.fmean(row.noise for _, signature, _ in steps for row in rows[signature]), start_noise)
    others = max((row.others for _, signature, _ in steps for row in rows[signature]), default=0.0)
    ratio, found_fresh = cores.little_ratio, fresh or Fresh()
    return check(Profile(name, layout, big, little, ratio, tuple(layers), contention, start_ms, found_fresh, noise, others))


def shares(signed: Sequence[str]) -> list[float]:
    """Return the share of a full creation that each step pays; for the rest it pays the price of an existing primitive.

    Charged to the first of equal steps alone, a planner could choose a quickly created kernel for that one and seem to get the
    others' nearly for free. Spread evenly, nothing is gained by such a split; what stays is that the first of them really pays
    more, and the others less, than the timeline shows.
    """
    return [1.0 / signed.count(signature) for signature in signed]


def candidates_of(row: Row, cores: Cores, charge: Charge) -> tuple[Candidate, ...]:
    """Return the candidates of a row: its implementation with each source of its weights, with what is charged besides."""

    def cost(stage: str) -> float | None:
        times = row.samples_ms.get(stage)
        return float(statistics.median(times)) if times else None

    def by_class(stage: str) -> dict[str, float]:
        found = {core: cost(f"{stage}:{core}") for core in cores.classes}
        again = cost(f"{stage}_again:{BIG}")
        full = found[BIG]
        discount = (1 - charge.share) * (full - min(full, again)) / full if full and again is not None else 0.0
        return {core: (time or 0.0) * (1 - discount) for core, time in found.items()}

    extra = charge.arena_ms + charge.once_ms.get(kernel_of(charge.work, row.implementation), 0.0)
    execute = {width: _execution_ms(row, "first", width) + extra for width in cores.widths}
    warm = {width: _execution_ms(row, "warm", width) for width in cores.widths}
    create, transform, nothing = by_class("create"), by_class("transform"), dict.fromkeys(cores.classes, 0.0)
    name, scratch = row.implementation, row.scratch_bytes
    if not row.weight_bytes:
        return (Candidate(name, "none", nothing, create, nothing, execute, 0, 0, scratch, warm),)
    size = row.weight_bytes
    touched = size * charge.weights_ms_per_byte
    transform, copied = _more(transform, touched), _more(by_class("cached_read"), touched)
    made = Candidate(name, "raw", by_class("read"), create, transform, execute, row.raw_bytes, 0, scratch, warm)
    return (
        *((made,) if charge.raw else ()),
        Candidate(name, "cached_read", copied, create, nothing, execute, size, size, scratch, warm),
        Candidate(name, "cached_mmap", by_class("cached_mmap"), create, nothing, execute, size, size, scratch, warm),
    )


def _more(times: Mapping[str, float], extra: float) -> dict[str, float]:
    return {core: time + extra for core, time in times.items()}


def _execution_ms(row: Row, which: str, width: int) -> float:
    """Return the first or a warm execution at a width; what had a quick look only is taken to be as slow as on one core."""
    return float(statistics.median(row.samples_ms.get(f"{which}:{width}") or row.samples_ms[f"{which}:1"]))
