"""The command `edgeplan plan layout` places buffers of known lifetimes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from edgeplan.errors import InfeasibleError, UndecidedError
from edgeplan.planning.layout import csv_files
from edgeplan.planning.layout.buffers import BufferLayout, Verdict
from edgeplan.planning.layout.solve import solve
from edgeplan.terminal import say


def plan_layout(
    buffers: Annotated[Path, typer.Argument(help="CSV with the columns id,lower,upper,size and optionally alignment.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="CSV to write: the same rows with their offset.")],
    capacity: Annotated[
        int | None, typer.Option(min=0, help="Address that no buffer may end above. Default: the least is searched.")
    ] = None,
    timeout: Annotated[float, typer.Option(min=0, max=86400, help="Seconds to search.")] = 60.0,
) -> None:
    """Lay out buffers of known lifetimes [lower, upper): none that live at the same time overlap."""
    table = csv_files.read(buffers)
    found = solve(table.buffers, capacity, timeout)
    if found.offsets is None:
        raise _failure(found, buffers, output, timeout)
    csv_files.write(table, found.offsets, output)
    for line in summary(found, len(table.buffers), buffers, output):
        say(line)


def summary(found: BufferLayout, count: int, path: Path, output: Path) -> list[str]:
    """List the lines that the command prints of a layout."""
    if found.capacity is not None:
        verdict = f"{found.verdict}: {found.height} of {found.capacity}"
    elif found.proven:
        verdict = f"{found.verdict} in {found.height}, proven to be the least"
    else:
        gap = 100 * ((found.height or 0) / max(found.lower_bound, 1) - 1)
        verdict = f"{found.verdict} in {found.height}, at most {gap:.2f} % above the least"
    return [
        f"{path.name}: {count} buffers, {verdict}",
        f"  lower bound     {found.lower_bound}",
        f"  time            {found.seconds:.2f} s",
        f"  written to      {output}",
    ]


def _failure(found: BufferLayout, path: Path, output: Path, timeout: float) -> InfeasibleError | UndecidedError:
    command = f"edgeplan plan layout {path} -o {output}"
    if found.verdict is Verdict.unknown:
        what = f"{found.verdict}: whether the buffers fit is undecided after {found.seconds:.1f} s"
        more = f" --capacity {found.capacity} --timeout {max(600, round(10 * timeout))}"
        return UndecidedError(what, where=str(path), next_step=command + more)
    what = f"{found.verdict}: capacity {found.capacity}, the least is {found.lower_bound} or more"
    return InfeasibleError(what, where=str(path), next_step=f"look for the least: {command}")
