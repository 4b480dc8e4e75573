"""Checks of layouts and memory plans hold them to what no two buffers may do: share memory while both live."""

from __future__ import annotations

import numpy as np

from edgeplan.planning.layout import Buffers, Ints, buffers
from edgeplan.planning.memory.document import MemoryPlan


def overlapping(all_of: Buffers, offsets: Ints) -> tuple[int, int] | None:
    """Two buffers that live at the same time and share memory; None if there are none."""
    shown = np.flatnonzero(all_of.size)
    lower, upper, low = all_of.lower[shown], all_of.upper[shown], offsets[shown]
    high = low + all_of.size[shown]
    both_live = (lower < upper[:, None]) & (lower[:, None] < upper)
    found = np.argwhere(np.triu(both_live & (low < high[:, None]) & (low[:, None] < high), 1))
    return (int(shown[found[0, 0]]), int(shown[found[0, 1]])) if len(found) else None


def assert_consistent(plan: MemoryPlan) -> None:
    """Hold a plan to its own numbers: steps that exist, an arena within the budget, and memory that nothing shares."""
    n = len(plan.steps)
    assert {len(plan.weight_bytes), len(plan.weight_offset), len(plan.after), len(plan.again)} == {n}
    for k in range(n):
        assert (plan.weight_offset[k] < 0) == (plan.weight_bytes[k] == 0)
        assert plan.after[k] < k
        assert plan.again[k] < n
        assert (plan.again[k] >= k) == (plan.after[k] < 0 <= plan.weight_offset[k])
    assert plan.arena_bytes <= plan.budget_bytes
    assert plan.predicted_ms >= plan.lower_bound_ms - 1e-6
    assert shared_memory(plan) is None


def shared_memory(plan: MemoryPlan) -> tuple[str, str] | None:
    """Names of two things of a plan that live at the same time and share memory; None if there are none."""
    found = list(plan.held())
    assert all(held.offset + held.size <= plan.arena_bytes for held in found)
    alive = buffers([held.lower for held in found], [held.upper for held in found], [held.size for held in found])
    both = overlapping(alive, np.array([held.offset for held in found], dtype=np.int64))
    return None if both is None else (found[both[0]].name, found[both[1]].name)
