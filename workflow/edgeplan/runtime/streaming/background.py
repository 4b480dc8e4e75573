"""A process beside the one that runs makes a plan for all of a budget: what is stored for smaller ones leaves memory over.

It runs `runtime.streaming.anew`, when nobody else wants a processor, and its memory is no part of the budget.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import tempfile
from pathlib import Path

from edgeplan.support import subprocesses

_MODULE = "edgeplan.runtime.streaming.anew"
_LOWEST_PRIORITY = 19


class BackgroundPlan:
    """A plan in the making, for one budget of a plan folder.

    Args:
        folder: of the plan.
        budget: bytes over idle.

    Attributes:
        path: where the schedule lies once it is made, if it is faster than what is stored.
    """

    def __init__(self, folder: str, budget: int) -> None:
        self._place = tempfile.TemporaryDirectory(prefix="edgeplan-again-")
        self.path = Path(self._place.name) / "schedule"
        command = subprocesses.module_command(_MODULE, folder, str(budget), str(self.path))
        self._process = subprocesses.start(command, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        with contextlib.suppress(OSError):  # from its first instruction on, not from when it could do so itself
            os.setpriority(os.PRIO_PROCESS, self._process.pid, _LOWEST_PRIORITY)
            os.sched_setscheduler(self._process.pid, os.SCHED_IDLE, os.sched_param(0))

    @property
    def is_made(self) -> bool:
        """Tell whether the process has ended, by one system call."""
        return self._process.poll() is not None

    def close(self) -> None:
        """End the process, and forget what it made."""
        subprocesses.end(self._process)
        self._place.cleanup()
