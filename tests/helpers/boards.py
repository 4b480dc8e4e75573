"""Devices whose worker is a child process of the test: the real one, one that talks nonsense, or the real one spoilt."""

from __future__ import annotations

import sys
import textwrap
from pathlib import Path
from typing import Any

from edgeplan.devices.config import DeviceFile

#: The real worker, whose references settle at once, and which leaves other measurements on this machine alone.
WORKER = """
import sys
from pathlib import Path
from edgeplan.measurement import lock, references
from edgeplan.measurement.board import worker
references._SECONDS = 0.02
lock.FOLDER = Path(sys.argv[1])
{more}
worker.main()
"""


def board(folder: Path, more: str = "", **fields: Any) -> DeviceFile:
    """A device reached by a command that runs the worker, after some more code."""
    program = WORKER.format(more=textwrap.dedent(more))
    return scripted(program, str(folder), **fields)


def scripted(program: str, *arguments: str, **fields: Any) -> DeviceFile:
    """A device reached by a command that runs a program of Python."""
    argv = [sys.executable, "-c", textwrap.dedent(program), *arguments]
    seconds = fields.pop("reconnect_seconds", 60.0)
    transport = {"kind": "command", "argv": argv, "reconnect_seconds": seconds}
    return DeviceFile.model_validate(
        {"format_version": 2, "name": "dev", "engine": "onnxruntime", "transport": transport, **fields}
    )
