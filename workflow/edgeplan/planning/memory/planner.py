"""Plans for a budget, the proof that there is none, and plans of one program for a ladder of budgets.

The lowest layout of tensors leaves the most room at the top, but windows of memory become free
elsewhere: which layout is best to stream around is seen when it is priced. An order of the tensors
and an end of memory for each, the lower or the upper one, make a layout; orders are drawn by size,
area, lifetime or begin, with noise, and the best ones are changed a little, most where a load waits. Work is counted in steps
that are placed, not in seconds: the same plan is found on a slow machine.

A ladder is made beforehand: a change of the budget takes the largest that fits. Budgets lie closer where a little more memory
saves more time. What stays in memory at one of them stays at the same addresses at all larger ones, so that a change reads only
what is new.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from ctypes import c_int, c_int64
from itertools import pairwise

import numpy as np

from edgeplan.errors import InfeasibleError, UndecidedError
from edgeplan.planning import layout
from edgeplan.planning.layout import BufferLayout, Buffers, FirstFit, Ints
from edgeplan.planning.memory.quick import NEAR, REPEATS, Mode, PlannedMemory, around, best, enough_bytes
from edgeplan.planning.memory.workload import Placement, Reader, Workload, least_bytes, placement, simulated, stalls_ms
from edgeplan.support.numerics import array, when_needed

_WORK = 400_000  # steps that are placed and simulated by one search: a few seconds
_MOST_TRIES = 1000  # of small models
_SHORTEST_MS = 1e-6  # of a wait
_NEAR_A_WAIT = 0.8  # of the changes: of a tensor that lives while a load has to wait
_BESIDE = 0.8  # of the layouts: beside the weights that stay in the best plan
_FRESH = 0.2  # of the layouts that are tried: not made from the best one
_CHANGES = (1, 2, 4)
_STEPS = 24  # budgets of a ladder
_MOVING = 1.01  # a plan that keeps what a smaller one keeps may be so much slower than another
_NEAREST = 1.01  # budgets that are no nearer to each other than this
_WIDEST = 1.25  # budgets that are farther from each other have one between them, however alike their plans are in time
_LADDER_WORK, _LADDER_TRIES = 30_000, 60  # of the search for layouts, for each budget: see `_WORK`
_algorithm1 = when_needed("algorithm1", c_int, array(np.int64), c_int64, c_int64, array(np.int64), c_int64)
_both_ends = when_needed("both_ends", c_int, array(np.int64), c_int64, array(np.int64), c_int64)


def algorithm_1(workload: Workload, budget: int) -> Placement | None:
    """Plan by the paper's Algorithm 1, whose intermediates are tensors of one step; None where it returns an error."""
    tensors, weights, steps = workload.tensors, workload.weight_bytes, np.arange(workload.steps)
    rows = _rows(_with_weights(workload, steps))
    if not _algorithm1()(rows, len(tensors), len(steps), workload.by_begin, int(budget)):
        return None
    address, _, since, *_ = rows
    tensor_offset, weight_offset = np.split(address, [len(tensors)])
    weight_offset = np.where(weights > 0, weight_offset, -1)
    since = np.where(weights > 0, since[len(tensors) :], 0)
    after = np.where(weight_offset >= 0, np.maximum.accumulate(since - 1), -1)
    return placement(workload, tensor_offset, weight_offset, after)


def _rows(blocks: Buffers) -> Ints:
    """Return what the library takes: addresses (none yet), sizes, first steps, ends of lifetimes, alignments."""
    nowhere = np.full(len(blocks), -1)
    return np.stack([nowhere, blocks.size, blocks.lower, blocks.upper, blocks.alignment], dtype=np.int64)


def plan_streaming(workload: Workload, reader: Reader, budget: int, mode: Mode = Mode.isolated) -> PlannedMemory:
    """Plan the streaming of weights, tensors and weights in so many bytes; `improved` searches on.

    Raises:
        InfeasibleError: they do not fit, proven.
        UndecidedError: no layout was found that fits.
    """
    if budget < least_bytes(workload):
        raise _does_not_fit(least_budget(workload), budget)
    paper = (placed for _ in [0] if mode is Mode.back_to_back and (placed := algorithm_1(workload, budget)) is not None)
    found = best(workload, reader, budget, mode, _tensor_layouts(workload, budget), paper)
    if found is None:
        tightest = least_budget(workload)
        if tightest.height > budget:
            raise _does_not_fit(tightest, budget)
        found = best(workload, reader, budget, mode, [tightest.offsets[: len(workload.tensors)]])
        if found is None:
            raise RuntimeError("the skyline finds no place for weights that have one")
    return found


def least_budget(workload: Workload) -> BufferLayout:
    """Return the least budget found, with a layout that loads weights in their own step."""
    return layout.least(_with_weights(workload, np.flatnonzero(workload.weight_bytes)))


def _with_weights(workload: Workload, steps: Ints) -> Buffers:
    """Return the tensors, then the weights of some steps, each alive in its own."""
    tensors = workload.tensors
    return Buffers(
        np.concatenate([tensors.lower, steps]),
        np.concatenate([tensors.upper, steps + 1]),
        np.concatenate([tensors.size, workload.weight_bytes[steps]]),
        np.concatenate([tensors.alignment, np.full(len(steps), workload.weight_alignment)]),
    )


def _does_not_fit(found: BufferLayout, budget: int) -> InfeasibleError | UndecidedError:
    next_step = f"give a budget of {found.height} bytes or more, or slice finer"
    if budget >= found.lower_bound:
        what = f"no layout of {budget} bytes is found, the least one takes {found.height}"
        return UndecidedError(f"{what}; {found.lower_bound} bytes are the proven least", next_step=next_step)
    known = f"{found.height} bytes" if found.proven else f"{found.lower_bound} bytes or more"
    return InfeasibleError(
        f"does not fit in {budget} bytes: the least is {known}, proven for these slices", next_step=next_step
    )


def _tensor_layouts(workload: Workload, budget: int) -> Iterator[Ints]:
    """Yield the lowest greedy layout of the tensors, then that of Algorithm 1 at both ends of memory, if any."""
    tensors = workload.tensors
    if not len(tensors):
        yield np.zeros(0, dtype=np.int64)
        return
    yield greedy_layout(workload)
    rows = _rows(tensors)
    if _both_ends()(rows, len(tensors), workload.by_begin, int(budget)):
        yield rows[0]


def greedy_layout(workload: Workload) -> Ints:
    """Return the lowest greedy layout of the tensors."""
    return layout.lowest(workload.tensors)


def improved(
    workload: Workload, reader: Reader, planned: PlannedMemory, work: int = _WORK, first: Sequence[int] = ()
) -> PlannedMemory:
    """A plan for the same budget and mode that is at least as fast as one to begin with.

    At most so many steps are placed (`work`), over all that is tried. `first` are those whose weights stay at a smaller budget,
    in their order.
    """
    count = len(workload.tensors)
    if count < 2 or planned.gap <= NEAR:
        return planned
    draw = random.Random(0)  # noqa: S311  no secret
    layouts = FirstFit(workload.tensors)
    best, order, upper = planned, layouts.random_order(draw), [False] * count
    held_up: list[tuple[float, list[int]]] = []  # waits of the best plan found here, and the tensors that may be in the way
    for _ in range(min(work // workload.steps, _MOST_TRIES)):
        if work <= 0 or best.gap <= NEAR:
            break
        if not held_up or draw.random() < _FRESH:
            tried, ends = layouts.random_order(draw), layouts.random_ends(draw)
        else:
            tried, ends = list(order), list(upper)
            (_, near), *_ = draw.choices(held_up, [wait for wait, _ in held_up])
            for _ in range(draw.choice(_CHANGES)):
                tensor = draw.choice(near) if draw.random() < _NEAR_A_WAIT else draw.randrange(count)
                tried.remove(tensor)
                tried.insert(draw.randrange(count), tensor)
                ends[tensor] ^= draw.random() < 0.5
        stays = workload.weight_bytes[best.placement.stays]
        taken = int((-(-stays // workload.weight_alignment) * workload.weight_alignment).sum())
        offsets = layouts.laid_out(tried, ends, planned.budget - (taken if draw.random() < _BESIDE else 0))
        work -= workload.steps
        if offsets is None:
            continue
        faster = None
        for made in around(workload, reader, best, offsets, first):
            work -= workload.steps
            if made.predicted_ms < best.predicted_ms:
                best = faster = made
        if faster is not None:
            order, upper, held_up = tried, ends, _held_up(workload, reader, faster)
    return best


def _held_up(workload: Workload, reader: Reader, planned: PlannedMemory) -> list[tuple[float, list[int]]]:
    """List the waits of steps for their weights, each with the tensors that live from what the load waits for on."""
    repeats = 1 if planned.mode is Mode.isolated else REPEATS
    waits = stalls_ms(simulated(workload, reader, planned.placement, repeats))
    lower, upper = workload.tensors.lower, workload.tensors.upper
    found = []
    for k in np.flatnonzero(waits > _SHORTEST_MS).tolist():
        since = max(int(planned.placement.after[k]), 0)
        near = np.flatnonzero((lower <= k) & (upper > since)).tolist()
        if near:
            found.append((float(waits[k]), near))
    return found


def ladder(workload: Workload, reader: Reader, mode: Mode) -> Iterator[PlannedMemory]:
    """Plan for budgets from the least to the one that keeps all weights; those that gain nothing are left out."""
    tightest = least_budget(workload)
    layouts = [greedy_layout(workload), tightest.offsets[: len(workload.tensors)]]
    known = layouts
    before: PlannedMemory | None = None
    fastest_ms = math.inf
    for budget in _budgets(workload, reader, mode, layouts, tightest.height):
        staying = before.staying if before is not None else []
        made = _beside(workload, reader, mode, known, budget, staying)
        if made is None:
            continue
        as_fast = made.predicted_ms <= (1 + NEAR) * fastest_ms
        if before is not None and made.predicted_ms >= fastest_ms and not (as_fast and made.loaded_bytes < before.loaded_bytes):
            continue  # a smaller budget is as good, and nothing moves
        yield made
        fastest_ms = min(fastest_ms, made.predicted_ms)
        before = made
        offsets = made.placement.tensor_offset
        known = [*layouts, offsets - int(offsets.min(initial=int(offsets.max(initial=0))))]  # from address 0 on


def _budgets(workload: Workload, reader: Reader, mode: Mode, layouts: Sequence[Ints], least: int) -> list[int]:
    """Budgets from the least on (bytes), ascending: none far from each other, then where plans differ most."""

    def predicted(budget: int) -> float:
        """The milliseconds of a plan made fast; very many where none is found."""
        made = best(workload, reader, budget, mode, layouts, again=True)
        return made.predicted_ms if made is not None else 1e9

    most = min(enough_bytes(workload, offsets) for offsets in layouts)
    times = {budget: predicted(budget) for budget in sorted({least, max(least, most)})}
    while len(times) < _STEPS:
        ordered = sorted(times)
        wide = [(low, high) for low, high in pairwise(ordered) if high > low * _NEAREST]
        if not wide:
            break
        low, high = max(wide, key=lambda pair: pair[1] / pair[0])
        if high < low * _WIDEST:
            low, high = max(wide, key=lambda pair: times[pair[0]] / max(times[pair[1]], _SHORTEST_MS))
        between = math.isqrt(low * high)
        times[between] = predicted(between)
    return sorted(times)


def _beside(
    workload: Workload, reader: Reader, mode: Mode, layouts: Sequence[Ints], budget: int, staying: Sequence[int]
) -> PlannedMemory | None:
    """Plan for a budget that a smaller one was left for, or None; what stayed there does so, unless that costs too much."""
    made, free = (best(workload, reader, budget, mode, layouts, first=first) for first in (staying, []))
    if made is None or free is None:
        return None
    if made.predicted_ms > _MOVING * free.predicted_ms:  # to keep what stays would cost more than moving it once
        made, staying = free, []
    return improved(workload, reader, made, min(_LADDER_WORK, _LADDER_TRIES * workload.steps), staying)
