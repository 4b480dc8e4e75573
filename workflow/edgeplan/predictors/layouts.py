"""Propagates layouts: which layout every tensor of a model has, and where the engine has to insert conversions.

Works on many models at once: kernels at the same position of different models do not depend on each other.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from edgeplan.predictors.configs import Integers
from edgeplan.predictors.kernel_tables import KernelTables, levels

#: Codes of the first two states: layout not known, inputs that disagree. Further codes are layouts.
UNKNOWN, MIXED = 0, 1
FIRST_STATES = ("", "mixed")


@dataclass(frozen=True)
class ImplementationChoices:
    """Choices say which implementation each configuration gets in each state of its inputs; states and layouts are codes.

    Attributes:
        choice: the implementation chosen (configurations, states).
        reads, writes: layouts by choice (choices,).
        plain: layout of graph inputs and outputs by rank.
        states: number of states.
    """

    choice: Integers
    reads: Integers
    writes: Integers
    plain: Mapping[int, int]
    states: int


@dataclass(frozen=True)
class Layouts:
    """Holds the layouts of all kernels, as a propagation found them.

    Attributes:
        state: state of each kernel's inputs (k,).
        choice: implementation of each kernel (k,).
        reorder_tensor, reorder_from, reorder_to: the conversions, one a tensor and target layout (r,).
    """

    state: Integers
    choice: Integers
    reorder_tensor: Integers
    reorder_from: Integers
    reorder_to: Integers


def propagate(tables: KernelTables, choices: ImplementationChoices) -> Layouts:
    """Propagate layouts through all models, in topological order.

    Graph inputs come in the plain layout of their rank. A kernel's implementation follows from its configuration and the state
    of its inputs, its output layout from its implementation. Where a tensor's layout differs from the layout a consumer reads,
    or from the plain layout at a graph output, the engine converts it, once a tensor and target.
    """
    plain = _plain_by_tensor(tables.tensor_rank, choices.plain)
    layout = np.where(tables.tensor_producer < 0, plain, UNKNOWN)
    count = len(tables.config)
    state, choice = np.zeros(count, dtype=np.int64), np.zeros(count, dtype=np.int64)
    reads = np.zeros(count, dtype=np.int64)
    position = levels(tables)
    order = np.argsort(position, kind="stable")
    steps = np.cumsum(np.bincount(position)) if count else np.zeros(0, dtype=np.int64)
    inputs_of = np.diff(tables.input_start)
    edges, edge_start = _gather(tables.input_start[:-1][order], inputs_of[order])
    edge_tensor = tables.input_tensor[edges]
    written = np.argsort(tables.tensor_producer, kind="stable")
    output_start = np.searchsorted(tables.tensor_producer[written], np.arange(count + 1))
    outputs, output_bounds = _gather(output_start[:-1][order], np.diff(output_start)[order])
    output_tensor = written[outputs]
    output_kernel = tables.tensor_producer[output_tensor]
    begin = 0
    for end in steps:
        kernels = order[begin:end]
        seen = layout[edge_tensor[edge_start[begin] : edge_start[end]]]
        starts = edge_start[begin:end] - edge_start[begin]
        low, high = np.minimum.reduceat(seen, starts), np.maximum.reduceat(seen, starts)
        now = np.where(low == UNKNOWN, UNKNOWN, np.where(low == high, low, MIXED))
        picked = choices.choice[tables.config[kernels], now]
        state[kernels], choice[kernels], reads[kernels] = now, picked, choices.reads[picked]
        produced = slice(output_bounds[begin], output_bounds[end])
        producer = output_kernel[produced]
        layout[output_tensor[produced]] = choices.writes[choice[producer]]
        begin = end
    tensor = np.concatenate([tables.input_tensor, tables.outputs])
    target = np.concatenate([np.repeat(reads, inputs_of), plain[tables.outputs]])
    return Layouts(state, choice, *_conversions(tensor, layout[tensor], target, choices.states))


def _conversions(tensor: Integers, have: Integers, target: Integers, states: int) -> tuple[Integers, Integers, Integers]:
    needed = (have != target) & (have > MIXED) & (target > MIXED)
    key, first = np.unique(tensor[needed] * states + target[needed], return_index=True)
    return key // states, have[needed][first], key % states


def _plain_by_tensor(ranks: Integers, plain: Mapping[int, int]) -> Integers:
    by_rank = np.zeros(max([*plain, int(ranks.max(initial=0))]) + 1, dtype=np.int64)
    for rank, code in plain.items():
        by_rank[rank] = code
    return by_rank[ranks]


def _gather(start: Integers, count: Integers) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return the indices of ragged slices put one after the other, and where each begins (with the end appended)."""
    bounds = np.concatenate([[0], np.cumsum(count)]).astype(np.int64)
    return np.repeat(start - bounds[:-1], count) + np.arange(bounds[-1]), bounds
