"""A search for the layout of tensors that weights stream around best: random restarts, seeded, and small changes of the best.

The lowest layout of tensors leaves the most room at the top, but windows of memory become free
elsewhere: which layout is best to stream around is seen when it is priced. An order of the tensors
and an end of memory for each, the lower or the upper one, make a layout; orders are drawn by size,
area, lifetime or begin, with noise, and the best ones are changed a little, most where a load waits. Work is counted in steps
that are placed, not in seconds: the same plan is found on a slow machine.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np

from edgeplan.planning.layout.greedy import FirstFit
from edgeplan.planning.memory import residents, simulate
from edgeplan.planning.memory.quick import NEAR, REPEATS, Mode, PlannedMemory, around
from edgeplan.planning.memory.workload import Reader, Workload

#: Steps that are placed and simulated by one search: a few seconds.
WORK = 400_000
_MOST_TRIES = 1000  # of small models
_SHORTEST_MS = 1e-6  # of a wait
_NEAR_A_WAIT = 0.8  # of the changes: of a tensor that lives while a load has to wait
_BESIDE = 0.8  # of the layouts: beside the weights that stay in the best plan
_FRESH = 0.2  # of the layouts that are tried: not made from the best one
_CHANGES = (1, 2, 4)


def improved(
    workload: Workload, reader: Reader, planned: PlannedMemory, work: int = WORK, seed: int = 0, first: Sequence[int] = ()
) -> PlannedMemory:
    """A plan for the same budget and mode that is at least as fast.

    Args:
        workload: the steps.
        reader: what weights are read with.
        planned: the plan to begin with.
        work: steps that are placed at most, over all that is tried.
        seed: of what is drawn.
        first: steps whose weights stay at a smaller budget, in their order.
    """
    count = len(workload.tensors)
    if count < 2 or planned.gap <= NEAR:
        return planned
    draw = random.Random(seed)  # noqa: S311  no secret
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
    waits = residents.stalls_ms(simulate.run(workload, reader, planned.placement, repeats))
    lower, upper = workload.tensors.lower, workload.tensors.upper
    found = []
    for k in np.flatnonzero(waits > _SHORTEST_MS).tolist():
        since = max(int(planned.placement.after[k]), 0)
        near = np.flatnonzero((lower <= k) & (upper > since)).tolist()
        if near:
            found.append((float(waits[k]), near))
    return found
