"""Several plans of memory in one process, under one budget and on one library. Nothing heavy is imported, to save memory.

Each plan holds schedules for budgets from its least on, with the latency that is predicted of each from measured steps. The
budget is split so that these latencies add up to the least (`planning.joint.shares`). Inferences run one at a time.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import ExitStack
from types import TracebackType
from typing import Self

from edgeplan.errors import InfeasibleError, ParamsError
from edgeplan.planning.joint.shares import fastest_shares
from edgeplan.runtime.dnnl import Dnnl
from edgeplan.runtime.folder import MEMORY, PlanFolder
from edgeplan.runtime.streaming.memory_session import MemorySession, by_coarseness, schedules_of
from edgeplan.runtime.streaming.schedules import StoredSchedule

_MIB = 1 << 20


def shares(plans: Sequence[PlanFolder], budget: int) -> tuple[StoredSchedule, ...]:
    """Split a budget over plans of memory.

    Args:
        plans: of memory, with schedules for other budgets.
        budget: bytes over idle for all of them.

    Returns:
        The schedule that each plan gets.

    Raises:
        ParamsError: one is a plan of another kind, or has no schedules.
        InfeasibleError: the budget is below the sum of the least ones.
        FormatError: schedules are damaged.
    """
    stored = [_stored(plan) for plan in plans]
    chosen = fastest_shares([[(one.budget_bytes, one.predicted_ms) for one in found] for found in stored], budget)
    if chosen is None:
        least = [min(one.budget_bytes for one in found) for found in stored]
        told = " + ".join(f"{size / _MIB:.2f}" for size in least)
        raise InfeasibleError(
            f"{budget / _MIB:.2f} MiB is not enough for {len(plans)} models: their least budgets are {told} = "
            f"{sum(least) / _MIB:.2f} MiB over idle",
            where="--budget",
            next_step=f"give --budget {-(-sum(least) // _MIB)}MiB or more, or run fewer models at a time",
            proven=False,
        )
    return tuple(found[number] for found, number in zip(stored, chosen, strict=True))


def _stored(plan: PlanFolder) -> list[StoredSchedule]:
    """List the schedules of a plan, and for budgets below them those of its finer parts.

    Raises:
        ParamsError: there are none.
    """
    if plan.kind != MEMORY:
        raise ParamsError(
            f"a plan of the kind {plan.kind!r} holds no budget",
            where=str(plan.path),
            next_step="plan the model with edgeplan plan memory, or run the plan by itself",
        )
    found: list[StoredSchedule] = []
    for each in by_coarseness(plan):
        if (file := schedules_of(each)) is not None:
            least = min((one.budget_bytes for one in found), default=sys.maxsize)
            found += [one for one in file.stored if one.budget_bytes < least]
    if not found:
        raise ParamsError(
            "the plan has no schedules for other budgets",
            where=str(plan.path),
            next_step="plan the model again with edgeplan plan memory",
        )
    return found


class TogetherSession:
    """Several plans of memory that are open in one process.

    Args:
        plans: of memory.
        budget: bytes over idle for all of them.
        dnnl: the library; None: it is loaded.

    Attributes:
        sessions: one a plan, each within its share.
        shares: see `shares`.

    Raises:
        EdgeplanError: see `shares` and `MemorySession`.
    """

    def __init__(self, plans: Sequence[PlanFolder], budget: int, dnnl: Dnnl | None = None) -> None:
        self.shares = shares(plans, budget)
        library = dnnl or Dnnl()
        with ExitStack() as opened:
            self.sessions = tuple(
                opened.enter_context(MemorySession(plan, library, share.budget_bytes))
                for plan, share in zip(plans, self.shares, strict=True)
            )
            self._opened = opened.pop_all()

    @property
    def predicted_ms(self) -> float:
        """Return the sum of the latencies that are predicted."""
        return sum(share.predicted_ms for share in self.shares)

    def close(self) -> None:
        """Free the memory of all of them."""
        self._opened.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()
