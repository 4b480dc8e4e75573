"""Finds a cold start that had its processors for itself, if there was one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from edgeplan.measurement.process.child import run_cold
from edgeplan.measurement.process.clock import least
from edgeplan.measurement.process.interference import LIMIT, Interference
from edgeplan.measurement.process.job import RunJob, RunResult
from edgeplan.measurement.references import ReferenceTimes

#: How often a start is made whose processors were disturbed, or whose pages came or went between the preparation of the page
#: cache and the clock.
ATTEMPTS = 4


@dataclass(frozen=True, slots=True)
class ObservedStart:
    """Holds a cold start and what was seen around it.

    Attributes:
        result: result of the worker.
        references: least times of two looks, before and after.
    """

    result: RunResult
    references: ReferenceTimes


def start_cold(
    job: RunJob,
    look: Callable[[], ReferenceTimes],
    watch: Interference | None,
    timeout_seconds: float = 300.0,
    attempts: int = ATTEMPTS,
) -> ObservedStart:
    """Start cold until a start was not disturbed.

    What disturbs is looked for beside the start, never in its own time, so that this favours no engine.

    Args:
        job: the job of the start.
        look: times the references.
        watch: watch over the job's processors, or more; None where they are loaded on purpose.
        timeout_seconds: bound on one process.
        attempts: most starts.

    Returns:
        The first start that was not disturbed, or one that cannot count for another reason; of disturbed ones, the least
        disturbed.
    """
    made: list[ObservedStart] = []
    for _ in range(attempts):
        if watch:
            watch.look()  # the worker waits: processors that are free now may not be when it is ready
        before = look()
        result = run_cold(job.model_copy(update={"usual_us": watch.usual_us if watch else 0.0}), timeout_seconds)
        made.append(ObservedStart(result, least((before, look()))))
        if result.reason or (result.state_reached and result.interference <= LIMIT):
            return made[-1]
    reached = [attempt for attempt in made if attempt.result.state_reached]
    return min(reached or made, key=lambda attempt: attempt.result.interference)
