"""Opens a plan folder: `open_plan` hands over a session, whatever the kind of the plan.

Only what the kind needs is imported when a plan is opened, so each import stands where the kind is known.
"""

# ruff: noqa: PLC0415  see above

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from edgeplan.runtime.folder import COLD_START, GPU_START, LATER_NAME, MEMORY, PLAN_NAME, PlanFolder, read_folder
from edgeplan.runtime.plan_session import Session, in_fork

_forked = False
_hooked: list[bool] = []  # whether forks are noticed


def _mark_fork() -> None:
    global _forked  # noqa: PLW0603  a fact of the process
    _forked = True


def open_plan(
    plan: Path | str | PlanFolder,
    processors: Sequence[int] = (),
    *,
    continuous: bool | None = None,
    budgets: Sequence[int] = (),
) -> Session:
    """Open a plan folder of any kind.

    Args:
        plan: the folder, or what `read_folder` read of it.
        processors: of a cold start, those that execute first and, on asymmetric chips, those that prepare behind them; without,
            the lowest-numbered ones that this process may use. Plans of memory and of pairs name their own.
        continuous: of a cold start, whether idle processors prepare the kernels of later runs; None: as it was planned.
        budgets: of memory, bytes over idle that will be asked for: it opens within the first one; empty: as it was planned.

    Raises:
        FormatError: there is no plan, a damaged one, or one for another machine, library, driver or processor.
        ModelError: weights are missing or damaged.
        DeviceError: a processor is not there, or this process was forked from one that had opened plans.
        InfeasibleError: all budgets are too small.
    """
    if _forked:
        raise in_fork(str(plan.path if isinstance(plan, PlanFolder) else plan))
    if not _hooked:
        os.register_at_fork(after_in_child=_mark_fork)
        _hooked.append(True)
    found = plan if isinstance(plan, PlanFolder) else read_folder(Path(plan))
    if found.kind == COLD_START:
        from edgeplan.runtime.cold_executor import open_cold

        if (found.path / LATER_NAME / PLAN_NAME).exists():
            from edgeplan.handover import HandoverSession

            return HandoverSession(found, lambda: open_cold(found, processors, continuous=continuous), open_plan)
        return open_cold(found, processors, continuous=continuous)
    if found.kind == MEMORY:
        from edgeplan.runtime.streaming.memory_session import MemorySession

        return MemorySession(found, budgets=budgets)
    if found.kind == GPU_START:
        from edgeplan.gpu_start.opened import open_gpu_start

        return open_gpu_start(found)
    from edgeplan.engines.pair import open_pair

    return open_pair(found)
