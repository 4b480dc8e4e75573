"""Ends a command with its output written, or with one message and an exit code. Nothing heavy is imported."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import suppress
from typing import NoReturn

from edgeplan.errors import EdgeplanError
from edgeplan.support.termination import end_orderly
from edgeplan.terminal import CLOSED, flush_failure, prepare_streams, say
from edgeplan.writable import expected


def guarded(work: Callable[[], object]) -> NoReturn:
    """Do a command's work, which prints, and end the process; errors a user can correct end with message and exit code."""
    prepare_streams()
    end_orderly()
    output, code = sys.stdout, 0
    try:
        work()
    except EdgeplanError as error:
        code = _reported(error)
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else 0
        if sys.stdout is not output:  # what typer does when the reader has left
            code = CLOSED
    except OSError as error:
        if (full := flush_failure(output, suspected=True)) is None:
            if (message := expected(error)) is None:
                raise
            code = _reported(message)
        else:
            sys.exit(_unwritten(*full))
    if (full := flush_failure(output)) is not None:
        code = _unwritten(*full)
    sys.exit(code)


def _reported(error: EdgeplanError) -> int:
    with suppress(OSError):  # nobody can be told where the error stream is full or closed
        say(f"error: {error}", err=True)
    return error.exit_code


def _unwritten(message: str, code: int) -> int:
    """Print why the output did not take what was printed, if anybody has to know. Returns the exit code."""
    with suppress(OSError):
        if message:
            say(message, err=True)
    return code
