"""What a process tells of itself: answers, and its memory. Imports nothing heavy: what it says is not changed by asking."""

from __future__ import annotations

import os
import sys
import time

_KIB = 1024
_WANTED = {"VmRSS": "rss", "VmHWM": "peak", "RssAnon": "anonymous", "RssFile": "file", "RssShmem": "shared"}


def take_stdout() -> int:
    """Return a descriptor of the standard output for answers alone: whatever else is printed goes to the error output."""
    own = os.dup(1)
    os.dup2(2, 1)
    return own


def resident(process: int | str = "self") -> dict[str, int]:
    """Return bytes of resident memory: all (`rss`), the peak so far, and the parts that are anonymous, of files, and shared."""
    found = dict.fromkeys(_WANTED.values(), 0)
    with open(f"/proc/{process}/status") as file:  # noqa: PTH123  pathlib is not imported for this
        for line in file:
            key, _, value = line.partition(":")
            if key in _WANTED:
                found[_WANTED[key]] = int(value.split()[0]) * _KIB
    return found


def page_table_bytes() -> int:
    """Return bytes of page tables, which the kernel holds for this process and a control group counts."""
    with open("/proc/self/status") as file:  # noqa: PTH123  likewise
        return next((int(line.split()[1]) * _KIB for line in file if line.startswith("VmPTE:")), 0)


def reset_peak() -> None:
    """Start the peak of resident memory afresh (proc(5), clear_refs)."""
    with open("/proc/self/clear_refs", "w") as file:  # noqa: PTH123  likewise
        file.write("5")


def wait_at(gate: str) -> None:
    """Tell whoever started this process that it is ready, and wait until `gate`, if any, exists: a limit may be set."""
    if gate:
        sys.stderr.write("ready\n")
        sys.stderr.flush()
        while not os.path.exists(gate):  # noqa: PTH110  likewise
            time.sleep(0.005)
