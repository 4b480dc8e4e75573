"""Parses and runs the commands of edgeplan. Nothing is imported that `edgeplan run` does without: starts wait for it."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command that the arguments name."""
    if sys.argv[1:] == ["worker"]:
        if sys.version_info < (3, 11):  # noqa: UP036  a board may have an older one, and is told so
            sys.exit(f"edgeplan needs Python 3.11 or newer, this is {sys.version.split()[0]}")
        from edgeplan.measurement.board.worker import main as command  # noqa: PLC0415  see above
    elif sys.argv[1:2] == ["run"]:
        from edgeplan.cli.native_run import hand_over  # noqa: PLC0415  see above

        hand_over(sys.argv[2:])
        from edgeplan.cli.run import main as command  # noqa: PLC0415  see above
    else:
        from edgeplan.cli.commands import main as command  # noqa: PLC0415  likewise
    command()
