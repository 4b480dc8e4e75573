"""Parses and runs the commands of edgeplan. `edgeplan run` starts without typer and rich: their memory counts."""

from __future__ import annotations

import os
import sys
from typing import Any

__all__ = ["app", "main"]


def main() -> None:
    """Run the command that the arguments name."""
    if sys.argv[1:] == ["worker"]:
        if sys.version_info < (3, 11):  # noqa: UP036  a board may have an older one, and is told so
            sys.exit(f"edgeplan needs Python 3.11 or newer, this is {sys.version.split()[0]}")
        from edgeplan.measurement.board.worker import main as command  # noqa: PLC0415  see above
    elif sys.argv[1:2] == ["run"]:
        if any(map(_is_of_memory, sys.argv[2:])):
            from edgeplan.runtime import preloading  # noqa: PLC0415  see above

            preloading.begin()
        from edgeplan.cli.run import main as command  # noqa: PLC0415  see above
    else:
        from edgeplan.cli.commands import main as command  # noqa: PLC0415  likewise
    command()


def _is_of_memory(word: str) -> bool:
    """Tell whether a plan of memory lies there, which this process will run."""
    return os.path.exists(f"{word}/weights.bin")  # noqa: PTH110  pathlib takes time to be imported


def __getattr__(name: str) -> Any:
    if name != "app":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from edgeplan.cli.commands import app  # noqa: PLC0415  see above

    return app
