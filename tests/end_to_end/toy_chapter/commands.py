"""The chapter's own command: `edgeplan sort`."""

from __future__ import annotations

from typing import Annotated

import typer

from edgeplan.terminal import say


def register(app: typer.Typer, _plan_app: typer.Typer) -> None:
    """Add the command to the command line."""
    app.command("sort")(sort)


def sort(size: Annotated[int, typer.Argument(min=1, help="How many numbers are sorted.")]) -> None:
    """Time how long sorting random numbers takes."""
    from edgeplan.chapters.toy.stages.toy import sort_ms  # noqa: PLC0415  `edgeplan --help` should not wait for numpy

    say(f"{size} numbers sorted in {sort_ms(size, seed=0):.3f} ms")
