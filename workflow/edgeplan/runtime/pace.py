"""This module sets the interpreter's pace during a cold start."""

from __future__ import annotations

import gc
import sys

#: A thread back from a C call should not wait for another one's Python for long.
SWITCH_SECONDS = 1e-4


class Pace:
    """A pace changes the interpreter during a cold start: threads change often, and garbage is not looked for.

    A collection goes through every object that imported packages hold, which takes longer than a small model's cold start. It
    would come as soon as collecting is allowed again, so those objects are left out of it until the session is closed.
    """

    def __init__(self) -> None:
        self._interval, self._collecting = sys.getswitchinterval(), gc.isenabled()
        sys.setswitchinterval(SWITCH_SECONDS)
        gc.disable()
        gc.freeze()
        self._changed = True

    def restore(self) -> None:
        """Back to what it was."""
        if self._changed:
            sys.setswitchinterval(self._interval)
            if self._collecting:
                gc.freeze()  # what the cold start made would be gone through before its outputs are handed over
                gc.enable()
        self._changed = False

    def end(self) -> None:
        """Back to what it was, also for collections."""
        self.restore()
        gc.unfreeze()
