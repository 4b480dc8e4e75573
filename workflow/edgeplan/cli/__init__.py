"""The command line. `edgeplan run` starts without typer and rich: what it takes counts beside a small budget of memory."""

from __future__ import annotations

import sys
from typing import Any

__all__ = ["app", "main"]


def main() -> None:
    """Run the command line."""
    if sys.argv[1:2] == ["run"]:
        from edgeplan.cli.run import main as command  # noqa: PLC0415  see above
    else:
        from edgeplan.cli.commands import main as command  # noqa: PLC0415  likewise
    command()


def __getattr__(name: str) -> Any:
    if name != "app":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from edgeplan.cli.commands import app  # noqa: PLC0415  see above

    return app
