"""A plan folder, opened: `open_plan` hands over a session, whatever the kind of the plan.

Only what the kind needs is imported when a plan is opened, so each import stands where the kind is known.
"""

# ruff: noqa: PLC0415  see above

from __future__ import annotations

import os
import threading
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from edgeplan.errors import DeviceError
from edgeplan.runtime.folder import COLD_START, MEMORY, PlanFolder, read_folder

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from edgeplan.support.tensors import Border

    Array = npt.NDArray[np.generic]

_forked = False
_hooked: list[bool] = []  # whether forks are noticed


def _mark_fork() -> None:
    global _forked  # noqa: PLW0603  a fact of the process
    _forked = True


class Session(ABC):
    """A plan that is open, and can be run.

    It is opened once and closed once, best by `with`. Between the two it is run any number of times, one inference at a time:
    what several threads ask of it is done one after the other. It belongs to the process that opened it: threads of the
    libraries do not follow into a fork, where it is refused.

    Attributes:
        inputs: of the model: names, shapes and element types.
    """

    def __init__(self, inputs: Sequence[Border], folder: Path) -> None:
        self.inputs = tuple(inputs)
        self._lock, self._process, self._where, self._is_closed = threading.Lock(), os.getpid(), str(folder), False
        self.affinity_before: set[int] = set()  # where the thread that opened it returns to

    def run(self, inputs: Mapping[str, npt.ArrayLike] | npt.ArrayLike) -> dict[str, Any]:
        """One inference.

        Args:
            inputs: arrays by name; of a model with one input the array alone will do.

        Returns:
            The outputs, by name.

        Raises:
            InputError: an input is missing, or of another name, type or shape.
            DeviceError: the session was closed, or is of the process that this one was forked from.
        """
        from edgeplan.support.tensors import checked_inputs

        values = checked_inputs(inputs, self.inputs)
        self._require_usable()
        with self._lock:
            return self._run(values)

    def _require_usable(self) -> None:
        if self._is_closed:
            raise DeviceError("the session was closed", where=self._where, next_step="open the plan again")
        if os.getpid() != self._process:
            raise _in_fork(self._where)

    @abstractmethod
    def _run(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """One inference on inputs that fit."""

    def close(self) -> None:
        """Free everything. Closing again does nothing."""
        if self._is_closed or os.getpid() != self._process:
            return
        self._is_closed = True
        try:
            self._close()
        finally:
            if self.affinity_before:
                os.sched_setaffinity(0, self.affinity_before)

    @abstractmethod
    def _close(self) -> None:
        """Free everything, once."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


def open_plan(plan: Path | str | PlanFolder, processors: Sequence[int] = (), *, continuous: bool | None = None) -> Session:
    """Open a plan folder of any kind.

    Args:
        plan: the folder, or what `read_folder` read of it.
        processors: of a cold start, those that execute first and, on asymmetric chips, those that prepare behind them; without,
            the lowest-numbered ones that this process may use. Plans of memory and of pairs name their own.
        continuous: of a cold start, whether idle processors prepare the kernels of later runs; None: as it was planned.

    Raises:
        FormatError: there is no plan, a damaged one, or one for another machine, library, driver or processor.
        ModelError: weights are missing or damaged.
        DeviceError: a processor is not there, or this process was forked from one that had opened plans.
    """
    if _forked:
        raise _in_fork(str(plan.path if isinstance(plan, PlanFolder) else plan))
    if not _hooked:
        os.register_at_fork(after_in_child=_mark_fork)
        _hooked.append(True)
    found = plan if isinstance(plan, PlanFolder) else read_folder(Path(plan))
    if found.kind == COLD_START:
        from edgeplan.runtime.cold_executor import open_cold

        return open_cold(found, processors, continuous=continuous)
    if found.kind == MEMORY:
        from edgeplan.runtime.streaming.memory_session import open_memory

        return open_memory(found)
    from edgeplan.runtime.partitioned.opened import open_pair

    return open_pair(found)


def _in_fork(where: str) -> DeviceError:
    return DeviceError(
        "a process that opened a plan was forked: threads of the libraries did not follow",
        where=where,
        next_step="start a fresh process, as multiprocessing does by 'spawn', and open the plan there",
    )
