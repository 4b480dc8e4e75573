"""The planner of FlexNN (MobiCom 2024), section 3.3.2, Algorithm 1, as written: the baseline.

Lines of the listing: activations first, at both ends of the buffer (PLANACTIVATIONS); then layer by
layer weights where they can be allocated earliest (PRELOADWEIGHTS) and intermediates in what is
left (PLANINTERMEDIATES); if that fails both again with the weights allocated in their own layer
(PLANNOPRELOAD); if that fails, too, an error. The paper leaves open which end an activation goes to
and which address among several: here the end from which it reaches less far into the middle, and
the lowest address. It allows loads in any order; they are issued in the order of their layers, as
everywhere here.
"""

from __future__ import annotations

from functools import cache

import numpy as np
import numpy.typing as npt

from edgeplan.planning.layout.buffers import Buffers, Ints
from edgeplan.planning.memory.workload import Placement, Workload, placement
from edgeplan.support.compiled import compiled


def place(workload: Workload, budget: int) -> Placement | None:
    """Plan by Algorithm 1; tensors that live in one step alone are its intermediates.

    Returns:
        None where the algorithm returns an error.
    """
    tensors = workload.tensors
    tensor_offset, weight_offset, since, placed = _algorithm(
        workload.weight_bytes,
        workload.weight_alignment,
        tensors.lower,
        tensors.upper,
        tensors.size,
        tensors.alignment,
        workload.by_begin,
        budget,
    )
    if not placed:
        return None
    after = np.where(weight_offset >= 0, np.maximum.accumulate(since - 1), -1)
    return placement(workload, tensor_offset, weight_offset, after)


def at_both_ends(workload: Workload, budget: int) -> Ints | None:
    """Its layout of activations, for all tensors; None where there is none."""
    tensors = workload.tensors
    ranges = (tensors.size, tensors.lower, tensors.upper, tensors.alignment)
    address = _all_at_both_ends(*ranges, workload.by_begin, budget)
    return address if (address >= 0).all() else None


@cache
def load() -> None:
    """Compile or load it, by running it once."""
    one, tensors = np.ones(1, np.int64), Buffers(*(np.array([value], np.int64) for value in (0, 1, 1, 1)))
    tiny = Workload(np.ones(1), one, tensors)
    place(tiny, 2)
    at_both_ends(tiny, 2)


@compiled
def _all_at_both_ends(size: Ints, lower: Ints, upper: Ints, alignment: Ints, by_begin: Ints, budget: int) -> Ints:
    address = np.full(len(size), -1, dtype=np.int64)
    for t in by_begin:
        if not _both_ends(address, size, lower, upper, t, alignment[t], budget):
            break
    return address


@compiled
def _algorithm(
    weights: Ints, unit: int, lower: Ints, upper: Ints, size: Ints, alignment: Ints, by_begin: Ints, budget: int
) -> tuple[Ints, Ints, Ints, bool]:
    n, count = len(weights), len(size)
    # Blocks: tensors, then weights; those with address -1 are not placed.
    address = np.full(count + n, -1, dtype=np.int64)
    bytes_of = np.concatenate((size, weights))
    alive_from = np.concatenate((lower, np.arange(n)))
    alive_to = np.concatenate((upper, np.arange(1, n + 1)))
    since = np.zeros(n, dtype=np.int64)
    activation = upper - lower > 1
    for t in by_begin:
        if activation[t] and not _both_ends(address, bytes_of, alive_from, alive_to, t, alignment[t], budget):
            return address[:count], address[count:], since, False
    for layer in range(n):
        first = _preload(address, bytes_of, alive_from, alive_to, count + layer, layer, unit, budget)
        placed = first >= 0 and _intermediates(address, bytes_of, alive_from, alive_to, activation, layer, alignment, budget)
        if not placed:  # restore the plan, and again without preloading
            for t in range(count):
                if lower[t] == layer and not activation[t]:
                    address[t] = -1
            address[count + layer] = -1
            alive_from[count + layer] = layer
            low = _lowest(address, bytes_of, alive_from, alive_to, count + layer, layer, unit, budget)
            address[count + layer] = low
            if low < 0 or not _intermediates(address, bytes_of, alive_from, alive_to, activation, layer, alignment, budget):
                return address[:count], address[count:], since, False
        since[layer] = alive_from[count + layer] if weights[layer] > 0 else 0
    for layer in range(n):
        if weights[layer] == 0:
            address[count + layer] = -1
    return address[:count], address[count:], since, True


@compiled
def _lowest(address: Ints, size: Ints, start: Ints, end: Ints, block: int, since: int, unit: int, budget: int) -> int:
    """Return the lowest address at which a block fits from layer `since` on; -1 if there is none."""
    free = 0
    moved = True
    while moved:
        moved = False
        for j in range(len(address)):
            beside = address[j] >= 0 and j != block and start[j] < end[block] and since < end[j]
            if beside and address[j] < free + size[block] and free < address[j] + size[j]:
                free = -(-(address[j] + size[j]) // unit) * unit
                moved = True
    return free if free + size[block] <= budget else -1


@compiled
def _highest(address: Ints, size: Ints, start: Ints, end: Ints, block: int, unit: int, budget: int) -> int:
    """Return the highest address at which a block fits; -1 if there is none."""
    at = (budget - size[block]) // unit * unit
    moved = True
    while moved and at >= 0:
        moved = False
        for j in range(len(address)):
            beside = address[j] >= 0 and j != block and start[j] < end[block] and start[block] < end[j]
            if beside and address[j] < at + size[block] and at < address[j] + size[j]:
                at = (address[j] - size[block]) // unit * unit
                moved = True
    return int(max(at, -1))


@compiled
def _both_ends(address: Ints, size: Ints, start: Ints, end: Ints, block: int, unit: int, budget: int) -> bool:
    low = _lowest(address, size, start, end, block, start[block], unit, budget)
    high = _highest(address, size, start, end, block, unit, budget)
    if low < 0 or high < 0:
        return False
    address[block] = low if low + size[block] <= budget - high else high
    return True


@compiled
def _preload(address: Ints, size: Ints, start: Ints, end: Ints, block: int, layer: int, unit: int, budget: int) -> int:
    """Place weights where they can be allocated earliest; -1 if there is no address."""
    low, high = 0, layer
    if _lowest(address, size, start, end, block, high, unit, budget) < 0:
        return -1
    while low < high:  # what fits from a layer on fits from later ones on
        middle = (low + high) // 2
        if _lowest(address, size, start, end, block, middle, unit, budget) >= 0:
            high = middle
        else:
            low = middle + 1
    address[block] = _lowest(address, size, start, end, block, low, unit, budget)
    start[block] = low
    return int(address[block])


@compiled
def _intermediates(
    address: Ints,
    size: Ints,
    start: Ints,
    end: Ints,
    activation: npt.NDArray[np.bool_],
    layer: int,
    alignment: Ints,
    budget: int,
) -> bool:
    for t in range(len(activation)):
        if start[t] == layer and not activation[t]:
            address[t] = _lowest(address, size, start, end, t, layer, alignment[t], budget)
            if address[t] < 0:
                return False
    return True
