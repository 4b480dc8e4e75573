"""Plans for a budget, and the proof that there is none."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from edgeplan.errors import InfeasibleError, UndecidedError
from edgeplan.planning.layout import greedy
from edgeplan.planning.layout.buffers import BufferLayout, Buffers, Ints, Verdict
from edgeplan.planning.layout.parts import graph
from edgeplan.planning.layout.solve import solve
from edgeplan.planning.memory import algorithm1, bounds
from edgeplan.planning.memory.quick import Mode, PlannedMemory, best
from edgeplan.planning.memory.search import WORK, improved
from edgeplan.planning.memory.workload import Reader, Workload


def plan(
    workload: Workload,
    reader: Reader,
    budget: int,
    mode: Mode = Mode.isolated,
    timeout_s: float = 10.0,
    work: int = WORK,
) -> PlannedMemory:
    """Plan the streaming of weights.

    Args:
        workload: the steps.
        reader: what weights are read with.
        budget: bytes for tensors and weights.
        mode: what is planned for.
        timeout_s: for an exact search, which only a tight budget needs.
        work: of the search for a better layout of the tensors (`search.improved`); 0: none.

    Raises:
        InfeasibleError: it is proven that nothing fits; the message says what is the least.
        UndecidedError: neither a plan nor a proof is found in the time.
    """
    if budget < bounds.least_bytes(workload):
        raise _does_not_fit(workload, budget, timeout_s)
    paper = (placed for _ in [0] if mode is Mode.back_to_back and (placed := algorithm1.place(workload, budget)) is not None)
    found = best(workload, reader, budget, mode, _tensor_layouts(workload, budget), paper)
    if found is None:
        exact = solve(_one_by_one(workload), budget, timeout_s)
        if exact.verdict is Verdict.infeasible:
            raise _does_not_fit(workload, budget, timeout_s)
        if exact.offsets is None:
            raise UndecidedError(
                f"no layout of {budget} bytes was found in {timeout_s:g} s, nor that there is none",
                next_step="give more time or a larger budget",
            )
        found = best(workload, reader, budget, mode, [exact.offsets[: len(workload.tensors)]])
        if found is None:
            raise RuntimeError("the skyline finds no place for weights that have one")
    return improved(workload, reader, found, work)


def least(workload: Workload, timeout_s: float = 60.0) -> BufferLayout:
    """Return the least budget that is enough, with a layout that loads weights in their own step."""
    return solve(_one_by_one(workload), None, timeout_s)


def _one_by_one(workload: Workload) -> Buffers:
    tensors = workload.tensors
    steps = np.flatnonzero(workload.weight_bytes)
    return Buffers(
        np.concatenate([tensors.lower, steps]),
        np.concatenate([tensors.upper, steps + 1]),
        np.concatenate([tensors.size, workload.weight_bytes[steps]]),
        np.concatenate([tensors.alignment, np.full(len(steps), workload.weight_alignment)]),
    )


def _does_not_fit(workload: Workload, budget: int, timeout_s: float) -> InfeasibleError:
    found = least(workload, timeout_s)
    known = f"the least is {found.height} bytes" if found.proven else f"the least is {found.lower_bound} bytes or more"
    enough = found.height if found.height is not None else found.lower_bound
    what = f"does not fit in {budget} bytes: {known}, proven for these slices"
    return InfeasibleError(what, next_step=f"give a budget of {enough} bytes or more, or slice finer")


def _tensor_layouts(workload: Workload, budget: int) -> Iterator[Ints]:
    """Yield the lowest greedy layout of the tensors, then the one at both ends of the budget."""
    tensors = workload.tensors
    if not len(tensors):
        yield np.zeros(0, dtype=np.int64)
        return
    yield lowest(workload)
    if (ends := algorithm1.at_both_ends(workload, budget)) is not None:
        yield ends


def lowest(workload: Workload) -> Ints:
    """Return the lowest greedy layout of the tensors."""
    return greedy.lowest(graph(workload.tensors), workload.tensors)
