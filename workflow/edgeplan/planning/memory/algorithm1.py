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

from ctypes import c_int, c_int64

import numpy as np

from edgeplan.planning.layout.buffers import Buffers, Ints
from edgeplan.planning.memory.workload import Placement, Workload, placement
from edgeplan.support.native_arrays import array, when_needed

_algorithm1 = when_needed("algorithm1", c_int, array(np.int64), c_int64, c_int64, array(np.int64), c_int64)
_both_ends = when_needed("both_ends", c_int, array(np.int64), c_int64, array(np.int64), c_int64)


def place(workload: Workload, budget: int) -> Placement | None:
    """Plan by Algorithm 1; tensors that live in one step alone are its intermediates.

    Returns:
        None where the algorithm returns an error.
    """
    tensors, weights, steps = workload.tensors, workload.weight_bytes, np.arange(workload.steps)
    blocks = Buffers(
        np.concatenate([tensors.lower, steps]),
        np.concatenate([tensors.upper, steps + 1]),
        np.concatenate([tensors.size, weights]),
        np.concatenate([tensors.alignment, np.full(len(steps), workload.weight_alignment)]),
    )
    rows = _rows(blocks)
    if not _algorithm1()(rows, len(tensors), len(steps), workload.by_begin, int(budget)):
        return None
    address, _, since, *_ = rows
    tensor_offset, weight_offset = np.split(address, [len(tensors)])
    weight_offset = np.where(weights > 0, weight_offset, -1)
    since = np.where(weights > 0, since[len(tensors) :], 0)
    after = np.where(weight_offset >= 0, np.maximum.accumulate(since - 1), -1)
    return placement(workload, tensor_offset, weight_offset, after)


def at_both_ends(workload: Workload, budget: int) -> Ints | None:
    """Its layout of activations, for all tensors; None where there is none."""
    rows = _rows(workload.tensors)
    return rows[0] if _both_ends()(rows, len(workload.tensors), workload.by_begin, int(budget)) else None


def _rows(blocks: Buffers) -> Ints:
    """Return what the library takes: addresses (none yet), sizes, first steps, ends of lifetimes, alignments."""
    nowhere = np.full(len(blocks), -1)
    return np.stack([nowhere, blocks.size, blocks.lower, blocks.upper, blocks.alignment], dtype=np.int64)
