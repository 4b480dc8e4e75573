"""The command `edgeplan compile` compiles ahead what other commands would wait for, on two processors where there are two."""

from __future__ import annotations

import logging
import os
import subprocess
import time

from edgeplan.cli.ahead import loads
from edgeplan.support.subprocesses import end, module_command, start
from edgeplan.terminal import say

_TOGETHER = 2  # a processor more would mostly compile once more what all have in common


def compile_ahead() -> None:
    """Compile the runtime for this processor once, in a minute or less, so that no other command has to wait for it."""
    started = time.monotonic()
    logging.getLogger("edgeplan.support.machine_code").setLevel(logging.WARNING)  # that it compiles is no news here
    helper = None
    if len(os.sched_getaffinity(0)) >= _TOGETHER:
        # It begins at the end of the list. They meet somewhere, and from there on each finds what the other kept.
        helper = start(module_command("edgeplan.cli.ahead"), stdin=subprocess.DEVNULL)
    try:
        for load in loads():
            load()
    finally:
        if helper is not None:
            end(helper)
    say(f"compiled for this processor ({time.monotonic() - started:.0f} s)")
