"""Plans for a budget, and the proof that there is none."""

from __future__ import annotations

from collections.abc import Iterator
from ctypes import c_int, c_int64

import numpy as np

from edgeplan.errors import InfeasibleError, UndecidedError
from edgeplan.planning.layout import greedy
from edgeplan.planning.layout.buffers import BufferLayout, Buffers, Ints
from edgeplan.planning.memory import bounds
from edgeplan.planning.memory.quick import Mode, PlannedMemory, best
from edgeplan.planning.memory.search import WORK, improved
from edgeplan.planning.memory.workload import Placement, Reader, Workload, placement
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


def plan(
    workload: Workload,
    reader: Reader,
    budget: int,
    mode: Mode = Mode.isolated,
    work: int = WORK,
) -> PlannedMemory:
    """Plan the streaming of weights.

    Args:
        workload: the steps.
        reader: what weights are read with.
        budget: bytes for tensors and weights.
        mode: what is planned for.
        work: of the search for a better layout of the tensors (`search.improved`); 0: none.
    """
    if budget < bounds.least_bytes(workload):
        raise _does_not_fit(least(workload), budget)
    paper = (placed for _ in [0] if mode is Mode.back_to_back and (placed := place(workload, budget)) is not None)
    found = best(workload, reader, budget, mode, _tensor_layouts(workload, budget), paper)
    if found is None:
        tightest = least(workload)
        if tightest.height > budget:
            raise _does_not_fit(tightest, budget)
        found = best(workload, reader, budget, mode, [tightest.offsets[: len(workload.tensors)]])
        if found is None:
            raise RuntimeError("the skyline finds no place for weights that have one")
    return improved(workload, reader, found, work)


def least(workload: Workload) -> BufferLayout:
    """Return the least budget found, with a layout that loads weights in their own step."""
    tensors = workload.tensors
    steps = np.flatnonzero(workload.weight_bytes)
    return greedy.least(
        Buffers(
            np.concatenate([tensors.lower, steps]),
            np.concatenate([tensors.upper, steps + 1]),
            np.concatenate([tensors.size, workload.weight_bytes[steps]]),
            np.concatenate([tensors.alignment, np.full(len(steps), workload.weight_alignment)]),
        )
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
    """Yield the lowest greedy layout of the tensors, then the one at both ends of the budget."""
    tensors = workload.tensors
    if not len(tensors):
        yield np.zeros(0, dtype=np.int64)
        return
    yield lowest(workload)
    if (ends := at_both_ends(workload, budget)) is not None:
        yield ends


def lowest(workload: Workload) -> Ints:
    """Return the lowest greedy layout of the tensors."""
    return greedy.lowest(workload.tensors)
