"""Has plans run by edgeplan-run (`native/run`), the program beside the native library, which needs no Python.

Who starts a plan waits for this module: it imports next to nothing.
"""

# ruff: noqa: PTH110  pathlib takes longer to be imported than a plan to be handed over

from __future__ import annotations

import os
import sys

from edgeplan.runtime.installed import MOST_RUNS, PROGRAM, runs_natively, words_for

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import NoReturn


def main() -> NoReturn:
    """Become edgeplan-run with the words of the command line."""
    if not os.access(PROGRAM, os.X_OK):
        from edgeplan.cli.ending import guarded  # noqa: PLC0415  errors should not wait for it

        guarded(require_built)
    become(sys.argv[1:])


def is_of_memory(folder: str) -> bool:
    """Tell whether a folder that edgeplan-run runs is one of memory."""
    return os.path.exists(f"{folder}/weights.bin")


def hand_over(words: Sequence[str]) -> None:
    """Become edgeplan-run where that does all that the words behind `edgeplan run` ask for; else return."""
    match words:
        case [folder]:
            repeat = "1"
        case [folder, "--repeat", repeat] | ["--repeat", repeat, folder]:
            pass
        case _:
            return
    fits = repeat.isdecimal() and 1 <= int(repeat) <= MOST_RUNS and not folder.startswith("-")
    if fits and runs_natively(folder) and os.access(PROGRAM, os.X_OK):
        become(words_for(folder, repeat))


def become(words: Sequence[str]) -> NoReturn:
    """Run edgeplan-run in place of this process; DeviceError where it was not built."""
    require_built()
    os.execv(PROGRAM, [PROGRAM, *words])  # noqa: S606  no shell


def require_built() -> None:
    """Refuse, as a DeviceError, to run where there is no edgeplan-run."""
    if not os.access(PROGRAM, os.X_OK):
        from edgeplan.errors import DeviceError  # noqa: PLC0415  errors should not wait for it

        raise DeviceError("edgeplan-run was not built", where=PROGRAM, next_step="make native")
