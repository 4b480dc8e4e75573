"""Shares of a budget: the split with the least sum of latencies, held to all splits."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from edgeplan.planning.joint.shares import fastest_shares

CHOICES = st.lists(st.tuples(st.integers(1, 20), st.integers(1, 50).map(float)), min_size=1, max_size=5)


@given(st.lists(CHOICES, min_size=1, max_size=4), st.integers(0, 80))
def test_no_other_split_of_a_budget_is_faster(models: list[list[tuple[int, float]]], budget: int) -> None:
    splits = [split for split in itertools.product(*models) if sum(size for size, _ in split) <= budget]
    found = fastest_shares(models, budget)
    if not splits:
        assert found is None
        return
    assert found is not None
    chosen = [choices[number] for choices, number in zip(models, found, strict=True)]
    assert sum(size for size, _ in chosen) <= budget
    least_ms = min(sum(ms for _, ms in split) for split in splits)
    assert sum(ms for _, ms in chosen) == least_ms
    as_fast = [sum(size for size, _ in split) for split in splits if sum(ms for _, ms in split) == least_ms]
    assert sum(size for size, _ in chosen) == min(as_fast)
