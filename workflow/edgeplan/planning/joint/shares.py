"""Shares of one budget of memory for several models: those whose latencies add up to the least.

Each model has some budgets that it was planned for, each with a latency. The split is exact: of all sums of budgets those are
kept that no other one beats in bytes and time. Plain Python alone: the process that runs the models chooses by it.
"""

from __future__ import annotations

from collections.abc import Sequence


def fastest_shares(models: Sequence[Sequence[tuple[int, float]]], budget: int) -> tuple[int, ...] | None:
    """Choose one of its budgets for each model.

    Args:
        models: of each, its budgets in bytes with their latencies in ms.
        budget: bytes for all of them.

    Returns:
        Which of its budgets each model gets, by number; None where even the least do not fit. Of splits as fast it is one with
        the fewest bytes.
    """
    sums: list[tuple[int, float, tuple[int, ...]]] = [(0, 0.0, ())]
    for choices in models:
        grown = [
            (size + more, ms + own_ms, (*chosen, number))
            for size, ms, chosen in sums
            for number, (more, own_ms) in enumerate(choices)
            if size + more <= budget
        ]
        sums = []
        for one in sorted(grown):
            if not sums or one[1] < sums[-1][1]:
                sums.append(one)
    return min(sums, key=lambda one: (one[1], one[0]))[2] if sums else None
