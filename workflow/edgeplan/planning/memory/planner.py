"""Plans for a budget: the best of a few skylines, its time, and the bound that it is held to."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from edgeplan.errors import InfeasibleError, UndecidedError
from edgeplan.planning.layout import greedy
from edgeplan.planning.layout.buffers import Buffers, Ints, Layout, Verdict
from edgeplan.planning.layout.parts import graph
from edgeplan.planning.layout.solve import solve
from edgeplan.planning.memory import algorithm1, bounds, residents, simulate, skyline
from edgeplan.planning.memory.workload import Placement, Reader, Workload

#: Inferences that follow each other when a period is planned; the first ones begin with memory filled.
REPEATS = 6
_ROUNDING = 1e-9
NEAR = 1e-3  # a plan this near to the bound is not improved further


class Mode(StrEnum):
    """What is planned for."""

    isolated = "isolated"  # one inference, memory filled while nothing runs
    back_to_back = "back-to-back"


@dataclass(frozen=True)
class Planned:
    """A plan and what is known about it.

    Attributes:
        placement: where and when.
        budget: bytes.
        mode: what it is planned for.
        predicted_ms: latency of an isolated inference, or the mean time between inferences.
        lower_bound_ms: no plan for these steps, budget and bandwidth is faster.
        loaded_bytes: read during an inference of that mode.
    """

    placement: Placement
    budget: int
    mode: Mode
    predicted_ms: float
    lower_bound_ms: float
    loaded_bytes: int

    @property
    def gap(self) -> float:
        """Relative distance to the bound; 0 where both are."""
        return self.predicted_ms / self.lower_bound_ms - 1 if self.lower_bound_ms > 0 else 0.0


def plan(workload: Workload, reader: Reader, budget: int, mode: Mode = Mode.isolated, timeout_s: float = 10.0) -> Planned:
    """Plan the streaming of weights.

    Args:
        workload: the steps.
        reader: what weights are read with.
        budget: bytes for tensors and weights.
        mode: what is planned for.
        timeout_s: for an exact search, which only a tight budget needs.

    Raises:
        InfeasibleError: it is proven that nothing fits; the message says what is the least.
        UndecidedError: neither a plan nor a proof is found in the time.
    """
    if budget < bounds.least_bytes(workload):
        raise _does_not_fit(workload, budget, timeout_s)
    bound = bounds.isolated_ms(workload, reader, budget)
    if mode is Mode.back_to_back:
        bound = bounds.period_ms(workload, reader, budget)
    best = _best(workload, reader, budget, mode, bound, _tensor_layouts(workload, budget))
    if best is None:
        found = solve(_one_by_one(workload), budget, timeout_s)
        if found.verdict is Verdict.infeasible:
            raise _does_not_fit(workload, budget, timeout_s)
        if found.offsets is None:
            raise UndecidedError(
                f"no layout of {budget} bytes was found in {timeout_s:g} s, nor that there is none",
                next_step="give more time or a larger budget",
            )
        best = _best(workload, reader, budget, mode, bound, iter([found.offsets[: len(workload.tensors)]]))
        if best is None:
            raise RuntimeError("the skyline finds no place for weights that have one")
    return best


def least(workload: Workload, timeout_s: float = 60.0) -> Layout:
    """The least budget that is enough, with a layout that loads weights in their own step."""
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
    """The lowest greedy layout of the tensors, then the one at both ends of the budget."""
    tensors = workload.tensors
    if not len(tensors):
        yield np.zeros(0, dtype=np.int64)
        return
    lowest = greedy.lowest(graph(tensors), tensors)
    if int((lowest + tensors.size).max()) <= budget:
        yield lowest
    if (ends := algorithm1.at_both_ends(workload, budget)) is not None:
        yield ends


def _best(workload: Workload, reader: Reader, budget: int, mode: Mode, bound: float, layouts: Iterator[Ints]) -> Planned | None:
    made: list[Planned] = []
    for offsets in layouts:
        for placed in _placements(workload, reader, budget, mode, offsets):
            made.append(_priced(workload, reader, budget, mode, bound, placed))
            if mode is Mode.isolated and made[-1].predicted_ms <= bound * (1 + NEAR):
                return made[-1]
    if mode is Mode.back_to_back and (paper := algorithm1.place(workload, budget)) is not None:
        made.append(_priced(workload, reader, budget, mode, bound, paper))
    if not made:
        return None
    fastest = min(planned.predicted_ms for planned in made)
    if mode is Mode.isolated:
        return min(made, key=lambda planned: planned.predicted_ms)
    # What is read again in every inference costs energy, too.
    as_fast = [planned for planned in made if planned.predicted_ms <= fastest * (1 + NEAR)]
    return min(as_fast, key=lambda planned: (planned.loaded_bytes, planned.predicted_ms))


def _placements(workload: Workload, reader: Reader, budget: int, mode: Mode, offsets: Ints) -> Iterator[Placement]:
    rules = (skyline.TIGHTEST, skyline.LOWEST, skyline.HIGHEST) if mode is Mode.isolated else (skyline.TIGHTEST,)
    for rule in rules:
        placed = skyline.place(workload, offsets, budget, rule=rule)
        if placed is None:
            return  # whether there is a window does not depend on the rule
        yield placed
        if mode is Mode.isolated:
            continue
        timeline = simulate.run(workload, reader, placed, REPEATS)
        for pinned in residents.candidates(workload, budget, timeline):
            if (kept := skyline.place(workload, offsets, budget, pinned)) is not None:
                yield kept


def _priced(workload: Workload, reader: Reader, budget: int, mode: Mode, bound: float, placed: Placement) -> Planned:
    loads = placed.weight_offset >= 0
    if mode is Mode.isolated:
        predicted = simulate.run(workload, reader, placed).latency_ms
        loads &= placed.after >= 0
    else:
        predicted = simulate.run(workload, reader, placed, REPEATS).period_ms
        loads &= ~placed.stays
    if bound * (1 - _ROUNDING) <= predicted < bound:
        predicted = bound
    return Planned(placed, budget, mode, predicted, bound, int(workload.weight_bytes[loads].sum()))
