"""Handles SIGTERM in processes that run others, and the end of what started them: they end after what they run."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

from edgeplan.support import lifeline

#: Names the process that a command of make is run by, and is to end with.
STARTED_BY = "EDGEPLAN_STARTED_BY"
#: What DVC names the stage by to the command that it runs, and to all that this starts.
DVC_STAGE = "DVC_STAGE"
#: How long what a process runs has to end when it is asked to; in the second case nobody waits for it any more.
_ASKED_SECONDS, _ORPHANED_SECONDS = 6.0, 1.2
#: The share of it that scripts have before those that run them: Snakemake deletes what is half written.
_SHARE_OF_SCRIPTS = 0.7
#: After it a process that was started by what has ended is ended by the kernel.
_LAST_SECONDS = 1.5

_orphaned = threading.Event()


def end_orderly() -> None:
    """Have SIGTERM end this process as an error does: workers are ended, rows stored, temporary files deleted."""
    signal.signal(signal.SIGTERM, _leave)


def _leave(number: int, _frame: FrameType | None) -> None:
    signal.signal(number, lambda *_: None)  # whoever sends it to all processes does not interrupt what is put away
    sys.exit(128 + number)


def end_with_starter() -> None:
    """Send this process SIGTERM when the ancestor that started it has ended, or has already.

    It is the one that the environment names, or the DVC that runs this process as the command of a stage.
    """
    named = os.environ.pop(STARTED_BY, "") or _dvc()
    if named:
        try:
            starter = os.pidfd_open(int(named))
        except ProcessLookupError:
            starter = -1
        except (OSError, ValueError):
            return  # a kernel before 5.3, or a shell without $PPID
        if int(named) not in ancestors():  # looked at second: the number may be that of another process since
            os.kill(os.getpid(), signal.SIGTERM)
        else:
            threading.Thread(target=_wait_for_end, args=(starter,), name="starter", daemon=True).start()


def _dvc() -> str:
    """Return the number of the DVC process that runs this one: of the nearest ancestor outside its stage, behind shells."""
    if DVC_STAGE not in os.environ:
        return ""
    mark = f"{DVC_STAGE}=".encode()
    for process in ancestors():
        try:
            variables = Path(f"/proc/{process}/environ").read_bytes().split(b"\0")
        except OSError:  # of another user
            variables = []
        if not any(variable.startswith(mark) for variable in variables):
            return str(process)
    return ""


def _wait_for_end(starter: int) -> None:
    select.select([starter], [], [])
    _orphaned.set()
    signal.setitimer(signal.ITIMER_REAL, _LAST_SECONDS)  # SIGALRM, which nobody handles
    os.kill(os.getpid(), signal.SIGTERM)


def ancestors() -> Iterator[int]:
    """Yield the numbers of the processes above this one, the nearest first."""
    process = os.getppid()
    while process > 1:
        yield process
        with contextlib.suppress(OSError):
            stat = Path(f"/proc/{process}/stat").read_bytes()
            process = int(stat.rpartition(b")")[2].split()[1])  # the name in front may hold anything
            continue
        return


def end_descendants_on_sigterm() -> None:
    """End the processes that end with this one, then it, at SIGTERM; Snakemake's own handler would wait for them.

    A process without a handler of its own is just ended, and they with it.
    """
    told, tell = os.pipe()
    os.set_blocking(tell, False)
    signal.set_wakeup_fd(tell, warn_on_full_buffer=False)
    threading.Thread(target=_wait_for_sigterm, args=(told,), name="sigterm", daemon=True).start()


def _wait_for_sigterm(told: int) -> None:
    while signal.SIGTERM not in os.read(told, 64):
        pass
    # By the kernel, where other work leaves this thread no turn; with this process what has not ended by then is killed.
    signal.setitimer(signal.ITIMER_REAL, seconds())
    lifeline.end_descendants(_SHARE_OF_SCRIPTS * seconds())


def seconds() -> float:
    """Return the seconds that processes have to end once they are asked to."""
    return _ORPHANED_SECONDS if _orphaned.is_set() else _ASKED_SECONDS
