"""Inferences of a plan of memory, budget by budget. Nothing heavy is imported."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from edgeplan.errors import InfeasibleError
from edgeplan.runtime.native_session import NativeSession

Taken = TypeVar("Taken")
_LATE, _SLOWER = 0.5, 1.5  # share of waiting, and of what was predicted, from which on a run is told to be late
_MB_PER_S = 1e3  # in bytes a millisecond


@dataclass(frozen=True)
class Phase:
    """Inferences by one budget of memory.

    Attributes:
        budget: bytes over idle.
        predicted_ms: of an inference.
        replan_ms: to take another schedule for the budget; 0 for the one that was stored.
        pause_ms: until the first inference could begin: memory filled.
        run_ms: of each inference, until its outputs were there.
        read_bytes: during all of them.
        wait_ms: of each inference, how long steps waited for their weights.
    """

    budget: int
    predicted_ms: float
    replan_ms: float
    pause_ms: float
    run_ms: tuple[float, ...]
    read_bytes: int
    wait_ms: tuple[float, ...] = ()


def lateness(phase: Phase, bytes_per_ms: float) -> str:
    """Tell that weights came late because they were read more slowly than when the plan was made; "" where that is not so.

    Args:
        phase: inferences.
        bytes_per_ms: of reading, when the plan was made; 0: nobody knows.
    """
    ran_ms, waited_ms, expected_ms = sum(phase.run_ms), sum(phase.wait_ms), phase.predicted_ms * len(phase.run_ms)
    rate = phase.read_bytes / max(ran_ms, 1e-9)  # steps wait most of the time, so reads are at work nearly all of it
    if waited_ms < _LATE * ran_ms or ran_ms < _SLOWER * expected_ms or rate * _SLOWER > bytes_per_ms:
        return ""
    waiting, now, then = 100 * waited_ms / ran_ms, rate / _MB_PER_S, bytes_per_ms / _MB_PER_S
    return (
        f"weights came late: steps waited for them {waiting:.0f} % of the time; they were read at {now:.0f} MB/s, "
        f"{then:.0f} MB/s when the plan was made: give more memory, or plan again"
    )


def run_budgets(
    session: NativeSession,
    inputs: Mapping[str, object],
    repeat: int,
    budgets: Sequence[int],
    take: Callable[[str, memoryview], Taken],
) -> tuple[list[Phase], dict[str, Taken], InfeasibleError | None]:
    """Run by one budget after the other; one that is refused leaves the results of the others.

    Args:
        session: the plan, opened.
        inputs: buffers of values, row-major, by name.
        repeat: inferences of each budget.
        budgets: bytes over idle; empty: the one that it was planned for.
        take: see `NativeSession.run_taking`.

    Returns:
        The inferences by budget, what was taken of the last outputs, and why the first of the budgets that are too small
        was refused.
    """
    phases: list[Phase] = []
    outputs: dict[str, Taken] = {}
    refused: InfeasibleError | None = None
    isolated = session.fact("isolated") == 1
    for budget in budgets or (int(session.fact("budget_bytes")),):
        began = time.perf_counter()
        try:
            predicted_ms = session.set_budget(budget) if budgets else session.fact("predicted_ms")
        except InfeasibleError as error:
            refused = refused or error
            continue
        chosen = time.perf_counter()
        session.prepare_later()
        pause_ms, replan_ms = (time.perf_counter() - chosen) * 1e3, (chosen - began) * 1e3 if budgets else 0.0
        begun, times, waits = session.fact("bytes_read"), [], []
        if not isolated:
            session.expect(repeat)
        for _ in range(repeat):
            if isolated:
                session.prepare_later()
            began_ns = time.perf_counter_ns()
            outputs = session.run_taking(inputs, take)
            times.append((session.fact("ended_ns") - began_ns) / 1e6)
            waits.append(session.fact("waited_ns") / 1e6)
        ran = tuple(times), int(session.fact("bytes_read") - begun), tuple(waits)
        phases.append(Phase(budget, predicted_ms, replan_ms, pause_ms, *ran))
    if refused is not None and not phases:
        raise refused
    return phases, outputs, refused
