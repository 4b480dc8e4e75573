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
from pathlib import Path

import numpy as np

from edgeplan.graph.ir import Shape
from edgeplan.graph.steps import Lowered, Step
from edgeplan.measurement.process.interference import Clock
from edgeplan.measurement.process.job import OnceJob
from edgeplan.measurement.process.starts import Forks
from edgeplan.planning.profile import BIG, Candidate, Layer, Profile, check, kernel_name
from edgeplan.profiling.fresh_process_factors import Start
from edgeplan.profiling.samples import Trials
from edgeplan.profiling.settings import Cores
from edgeplan.profiling.store import Constants, Row
from edgeplan.profiling.subjects import touched_pages
from edgeplan.runtime.dnnl import Dnnl
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


def profile_of(
    dnnl: Dnnl,
    name: str,
    lowered: Lowered,
    home: str,
    signed: Sequence[str],
    rows: Mapping[str, Sequence[Row]],
    cores: Cores,
    constants: Constants,
    start: Start,
    once: Mapping[str, float],
) -> Profile:
    """Return the profile of a model under one home layout, by the rows of the candidates of its steps' signatures.

    Besides what was measured of the steps count first touches of memory by the machine's constants, what a fresh process pays
    (`start`), and milliseconds of a kernel's first execution in a process (`once`): any step may be the first.
    """
    pages = touched_pages(dnnl, lowered, home, constants.page_bytes)
    layers = []
    for step, signature, count, share in zip(lowered.steps, signed, pages, shares(signed), strict=True):
        raw, work = can_be_raw(step, lowered.types), work_of(step, lowered.shapes)
        found: list[Candidate] = []
        for row in rows[signature]:
            extra = count * constants.touch_ms_per_page + once.get(kernel_of(work, row.implementation), 0.0)
            costs = {"share": share, "execution_ms": extra, "weights_ms_per_byte": constants.touch_ms_per_byte}
            found += candidates_of(row, cores, raw=raw, **costs)
        layers.append(Layer(step.name, step.members, tuple(found)))
    big, little = len(cores.big), len(cores.little)
    noise = max(statistics.fmean(row.noise for signature in signed for row in rows[signature]), start.noise)
    others = max((row.others for signature in signed for row in rows[signature]), default=0.0)
    about = start.contention, start.start_ms, start.fresh, noise, others
    return check(Profile(name, home, big, little, cores.little_ratio, tuple(layers), *about))


def shares(signed: Sequence[str]) -> list[float]:
    """Return the share of a full creation that each step pays; for the rest it pays the price of an existing primitive.

    Charged to the first of equal steps alone, a planner could choose a quickly created kernel for that one and seem to get the
    others' nearly for free. Spread evenly, nothing is gained by such a split; what stays is that the first of them really pays
    more, and the others less, than the timeline shows.
    """
    return [1.0 / signed.count(signature) for signature in signed]


def candidates_of(
    row: Row, cores: Cores, *, raw: bool = True, share: float = 1.0, execution_ms: float = 0.0, weights_ms_per_byte: float = 0.0
) -> tuple[Candidate, ...]:
    """Return the candidates of a row: its implementation with each source of its weights, with what is charged besides.

    Weights that cannot be made from the model file in a cold start (`raw`) are always cached. Of the full creation a share is
    paid, the rest at the price of an equal step's. Memory that weights are written to costs preparation; mapped ones need none.
    """

    def cost(stage: str) -> float | None:
        times = row.samples_ms.get(stage)
        return float(statistics.median(times)) if times else None

    def by_class(stage: str) -> dict[str, float]:
        found = {core: cost(f"{stage}:{core}") for core in cores.classes}
        again = cost(f"{stage}_again:{BIG}")
        full = found[BIG]
        discount = (1 - share) * (full - min(full, again)) / full if full and again is not None else 0.0
        return {core: (time or 0.0) * (1 - discount) for core, time in found.items()}

    execute = {width: _execution_ms(row, "first", width) + execution_ms for width in cores.widths}
    warm = {width: _execution_ms(row, "warm", width) for width in cores.widths}
    create, transform, nothing = by_class("create"), by_class("transform"), dict.fromkeys(cores.classes, 0.0)
    name, scratch = row.implementation, row.scratch_bytes
    if not row.weight_bytes:
        return (Candidate(name, "none", nothing, create, nothing, execute, 0, 0, scratch, warm),)
    size = row.weight_bytes
    touched = size * weights_ms_per_byte
    transform, copied = (
        {core: time + touched for core, time in times.items()} for times in (transform, by_class("cached_read"))
    )
    made = Candidate(name, "raw", by_class("read"), create, transform, execute, row.raw_bytes, 0, scratch, warm)
    return (
        *((made,) if raw else ()),
        Candidate(name, "cached_read", copied, create, nothing, execute, size, size, scratch, warm),
        Candidate(name, "cached_mmap", by_class("cached_mmap"), create, nothing, execute, size, size, scratch, warm),
    )


def _execution_ms(row: Row, which: str, width: int) -> float:
    """Return the first or a warm execution at a width; what had a quick look only is taken to be as slow as on one core."""
    return float(statistics.median(row.samples_ms.get(f"{which}:{width}") or row.samples_ms[f"{which}:1"]))
