"""Opens a plan folder: `open_plan` hands over a session, whatever the kind of the plan.

What the native library runs is opened with next to nothing imported; else what the kind needs is, where the kind is known.
"""

# ruff: noqa: PLC0415, PTH110, PTH118  see above

from __future__ import annotations

import os

from edgeplan.errors import FormatError, InfeasibleError
from edgeplan.runtime.plan_session import Session, in_fork

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from edgeplan.runtime.folder import PlanFolder
    from edgeplan.runtime.native_session import NativeSession

#: Of plans that the native library runs; `later` is the folder of a plan that takes over (`edgeplan.handover`).
_PROGRAM_NAME, _LATER_PLAN = "program.bin", os.path.join("later", "plan.json")
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
    folder = os.fspath(plan) if isinstance(plan, (str, os.PathLike)) else str(plan.path)
    if _forked:
        raise in_fork(folder)
    if not _hooked:
        os.register_at_fork(after_in_child=_mark_fork)
        _hooked.append(True)
    if not os.path.exists(os.path.join(folder, _PROGRAM_NAME)):
        return _open_here(plan)
    if not os.path.exists(os.path.join(folder, _LATER_PLAN)):
        return _open_native(folder, processors, continuous, budgets)
    from edgeplan.handover import HandoverSession

    return HandoverSession(folder, lambda: _open_native(folder, processors, continuous, ()), open_plan)


def _open_native(folder: str, processors: Sequence[int], continuous: bool | None, budgets: Sequence[int]) -> NativeSession:
    """Open what the native library runs, within the first budget that is enough."""
    from edgeplan.runtime.native_session import open_session

    refused: InfeasibleError | None = None
    for budget in budgets or (0,):
        try:
            return open_session(folder, processors=processors, continuous=continuous, budget=budget)
        except InfeasibleError as error:
            refused = refused or error
    assert refused is not None  # noqa: S101  there was a budget
    raise refused


def _open_here(plan: Path | str | PlanFolder) -> Session:
    """Open a plan of a pair, of a GPU or of a stock engine, which Python runs, or say what is wrong."""
    from pathlib import Path

    from edgeplan.runtime.folder import ENGINE, GPU_START, PARTITION, PlanFolder, plan_again, read_folder

    found = plan if isinstance(plan, PlanFolder) else read_folder(Path(plan))
    if found.kind == GPU_START:
        from edgeplan.gpu_start.session import open_gpu_start

        return open_gpu_start(found)
    if found.kind == PARTITION:
        from edgeplan.engines.pair import open_pair

        return open_pair(found)
    if found.kind == ENGINE:
        from edgeplan.engines.serving import EngineSession

        return EngineSession(found)
    what = f"the plan is damaged: {_PROGRAM_NAME} is missing"
    raise FormatError(what, where=str(found.path), next_step=plan_again(found.kind))
