"""Plans the cold start of a GPU: the GPU executes alone, threads of the host prepare (NNV12, section 3.4).

The GPU is the paper's big core, and every preparing thread a little one. To prepare a step is to read its weights, to load or
compile its kernels, to pack the weights or find them packed, and to upload. The optimal planner of cold starts on a CPU decides
kernels, sources of weights and threads, with a proven bound; the GPU itself never prepares.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp

from edgeplan.planning.machine import CostArrays
from edgeplan.planning.optimal import Search, optimal

_GAP, _MOST_SECONDS = 1e-6, 20.0  # of the search for a start that has all at once
_NEVER = 4.0  # times the time of everything in sequence: what preparing on the GPU costs


@dataclass(frozen=True, slots=True)
class GpuCandidate:
    """A candidate is a kernel of a step with one source of its weights; times in ms.

    Attributes:
        kernel: name of the kernel.
        cached: whether its weights are packed in the plan folder; True where it has none.
        read_ms, pack_ms, upload_ms: of the weights.
        load_ms: of its machine code, shared with the other steps that run it.
        compile_ms: of the same from source.
        first_ms, warm_ms: on the GPU, in the first inference and in later ones.
        read_bytes, kept_bytes: read for it, and kept in the plan folder.
        merged_ms: of its machine code and launches where all steps' code is loaded as one program.
    """

    kernel: str
    cached: bool
    read_ms: float
    pack_ms: float
    upload_ms: float
    load_ms: float
    compile_ms: float
    first_ms: float
    warm_ms: float
    read_bytes: int = 0
    kept_bytes: int = 0
    merged_ms: float = 0.0

    def preparation_ms(self, *, compiled: bool) -> float:
        """Return the time to prepare it, its kernels compiled or loaded."""
        return self.read_ms + self.pack_ms + self.upload_ms + (self.compile_ms if compiled else self.load_ms)


@dataclass(frozen=True, slots=True)
class GpuCosts:
    """Costs hold what each candidate of each step takes.

    Attributes:
        steps: candidates of each step, the dispatcher's own kernel with raw weights first.
        threads: that can prepare at the same time.
        start_ms: paid before all of it, whatever the plan.
        fill_ms_per_byte: to upload kept weights in one go; None where plans have each step prepared by itself.
    """

    steps: tuple[tuple[GpuCandidate, ...], ...]
    threads: int
    start_ms: float = 0.0
    fill_ms_per_byte: float | None = None

    @property
    def least_work_ms(self) -> float:
        """Return the time of the fastest kernels on the GPU, which no start beats, ms."""
        return sum(min(one.warm_ms for one in step) for step in self.steps)

    def least_bytes(self, size: Callable[[GpuCandidate], int]) -> int:
        """Return the fewest bytes that any kernels of the steps take; `size` gives those of a candidate with kept weights."""
        return sum(min((size(one) for one in step if one.cached), default=0) for step in self.steps)


@dataclass(frozen=True, slots=True)
class GpuOutcome:
    """An outcome says how each step is prepared, and where.

    Attributes:
        choice: candidate of each step.
        queues: steps that each thread prepares, in order.
        in_sequence: whether all is prepared before anything runs.
        code: whether machine code is kept.
        at_once: whether kept weights go up in one go, beside all other preparation.
        makespan_ms, lower_bound_ms: predicted, and what no plan beats for these costs.
        note: how it was found.
    """

    choice: tuple[GpuCandidate, ...]
    queues: tuple[tuple[int, ...], ...]
    in_sequence: bool
    code: bool
    makespan_ms: float
    lower_bound_ms: float
    note: str
    at_once: bool = False


def _warm(costs: GpuCosts, search: Search) -> GpuOutcome:
    """Take the kernels that are fastest in later inferences, and plan the rest."""
    fastest = []
    for step in costs.steps:
        best = min(step, key=lambda one: (one.warm_ms, one.kernel)).kernel
        fastest.append(tuple(one for one in step if one.kernel == best))
    return _pipelined(replace(costs, steps=tuple(fastest)), search)


def _in_sequence(costs: GpuCosts, steps: Sequence[Sequence[GpuCandidate]], *, compiled: bool) -> GpuOutcome:
    chosen = tuple(min(step, key=lambda one: one.preparation_ms(compiled=compiled) + one.first_ms) for step in steps)
    total = costs.start_ms + sum(one.preparation_ms(compiled=compiled) + one.first_ms for one in chosen)
    queues = (tuple(range(len(steps))),)
    return GpuOutcome(
        chosen, queues, in_sequence=True, code=not compiled, makespan_ms=total, lower_bound_ms=total, note="in sequence"
    )


def _pipelined(costs: GpuCosts, search: Search) -> GpuOutcome:
    if costs.fill_ms_per_byte is not None:
        return _at_once(costs, costs.fill_ms_per_byte)
    steps = [_undominated(step) for step in costs.steps]
    arrays = _cost_arrays(steps, costs.threads)
    found = optimal(arrays, search)
    chosen = tuple(step[k] for step, k in zip(steps, found.schedule.choice, strict=True))
    queues = tuple(found.schedule.queue(q) for q in range(costs.threads))
    alone = not any(queues)
    return GpuOutcome(
        chosen,
        (tuple(range(len(steps))),) if alone else queues,
        in_sequence=alone,
        code=True,
        makespan_ms=costs.start_ms + found.makespan_ms,
        lower_bound_ms=costs.start_ms + found.lower_bound_ms,
        note=found.note,
    )


def _at_once(costs: GpuCosts, fill_ms_per_byte: float) -> GpuOutcome:
    """Choose kernels where all weights are kept, and uploaded in one go beside the loading of code; the GPU runs after both.

    The time is the larger of the two sums before the GPU begins, and the GPU's: an integer program of a choice for each step.
    Its bound is that of starts that have all at once.
    """
    steps = [[one for one in step if one.cached] for step in costs.steps]
    flat = [one for step in steps for one in step]
    before = np.array([(one.kept_bytes * fill_ms_per_byte, one.merged_ms) for one in flat]).T
    chosen_once = np.repeat(np.eye(len(steps)), [len(step) for step in steps], axis=1)
    found = milp(
        np.array([*(one.first_ms for one in flat), 1.0]),
        integrality=np.array([*[1] * len(flat), 0]),
        bounds=Bounds(0, np.array([*[1.0] * len(flat), np.inf])),
        constraints=[
            LinearConstraint(np.column_stack([chosen_once, np.zeros(len(steps))]), 1, 1),
            LinearConstraint(np.column_stack([before, -np.ones(2)]), -np.inf, 0),
        ],
        options={"mip_rel_gap": _GAP, "time_limit": _MOST_SECONDS},
    )
    taken = found.x[:-1] > 0.5  # a choice is 0 or 1
    best = [one for one, is_taken in zip(flat, taken, strict=True) if is_taken]
    makespan = float(before[:, taken].sum(1).max()) + sum(one.first_ms for one in best)
    return GpuOutcome(
        tuple(best),
        (tuple(range(len(steps))),),
        in_sequence=False,
        code=True,
        makespan_ms=costs.start_ms + makespan,
        lower_bound_ms=costs.start_ms + min(float(found.mip_dual_bound), makespan),
        note="all weights in one go",
        at_once=True,
    )


def _undominated(step: Sequence[GpuCandidate]) -> tuple[GpuCandidate, ...]:
    """Leave out candidates that another one beats in preparation and execution."""
    found: list[GpuCandidate] = []
    for one in sorted(step, key=lambda one: (one.preparation_ms(compiled=False), one.first_ms)):
        if not found or one.first_ms < found[-1].first_ms:
            found.append(one)
    return tuple(found)


def _cost_arrays(steps: Sequence[Sequence[GpuCandidate]], threads: int) -> CostArrays:
    """Return the costs as the optimal planner takes them: the main core is the GPU, which never prepares."""
    shape = (len(steps), max(map(len, steps)))
    prepare, execute = np.full(shape, np.inf), np.full(shape, np.inf)
    for k, step in enumerate(steps):
        for o, one in enumerate(step):
            prepare[k, o], execute[k, o] = one.preparation_ms(compiled=False), one.first_ms
    whole = float(np.where(np.isfinite(prepare), prepare + execute, 0.0).max(axis=1).sum())
    never = np.where(np.isfinite(prepare), _NEVER * whole + 1.0, np.inf)
    return CostArrays(never, prepare, execute, None, prepare, execute, threads, main_prepares=False)


OPTIMAL, WARM, KERNELS, KEPT, STOCK = "optimal", "warm", "K", "K+C", "default"
#: Plans of the paper's ablation (Figure 13) are `default`, `K`, `K+C` and `optimal`. The first three do everything in sequence:
#: with the dispatcher's own kernels and nothing kept, as engines do; with kernels that are chosen, and nothing kept; and with
#: packed weights and machine code kept where that is faster.
GPU_PLANNERS: Mapping[str, Callable[[GpuCosts, Search], GpuOutcome]] = MappingProxyType(
    {
        OPTIMAL: _pipelined,
        WARM: _warm,
        KERNELS: lambda costs, _: _in_sequence(
            costs, [tuple(one for one in step if not one.cached or not one.kept_bytes) for step in costs.steps], compiled=True
        ),
        KEPT: lambda costs, _: _in_sequence(costs, costs.steps, compiled=False),
        STOCK: lambda costs, _: _in_sequence(costs, [step[:1] for step in costs.steps], compiled=True),
    }
)
