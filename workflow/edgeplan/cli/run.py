"""The command `edgeplan run` executes a plan folder of any kind."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, cast

import typer

from edgeplan.cli import memory, partition
from edgeplan.errors import ParamsError
from edgeplan.terminal import say
from edgeplan.workspace import WorkspaceOption

if TYPE_CHECKING:
    from edgeplan.runs import Run
    from edgeplan.runtime.linked import LinkedProgram

_MB = 1e6
_TABLE_ROWS = 10  # inferences that are shown one by one


def register(app: typer.Typer) -> None:
    """Add the commands to the command line."""
    app.command()(run)


def run(
    folder: Annotated[Path, typer.Argument(help="Plan folder, from `edgeplan plan cold-start`, `memory` or `partition`.")],
    given: Annotated[
        Path | None,
        typer.Option("--input", "-i", help="File of inputs: .npz by name, or .npy for a single one. Default: random values."),
    ] = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="File to write the outputs to, .npz.")] = None,
    check: Annotated[bool, typer.Option("--check", help="Compare the outputs with ONNX Runtime's on the same inputs.")] = False,
    model: Annotated[
        Path | None, typer.Option(help="ONNX file to compare with, where it has moved since it was planned (--check).")
    ] = None,
    cold: Annotated[bool, typer.Option("--cold", help="Start a fresh process for each run.")] = False,
    evicted: Annotated[
        bool, typer.Option("--evicted", help="Drop the plan's files from the page cache before each run (--cold).")
    ] = False,
    repeat: Annotated[int, typer.Option(min=1, max=10_000, help="Number of runs.")] = 1,
    device: Annotated[
        str,
        typer.Option(
            "--device",
            "-d",
            help="Device that the plan was made for, whose cores are taken: its name, or the path of its file. "
            "Default: the first processors that this process may use.",
        ),
    ] = "",
    budgets: Annotated[
        str, typer.Option(help="Budgets that a memory plan runs under, one after the other: 300MB,100MB,200MB.")
    ] = "",
    workspace: WorkspaceOption = None,  # noqa: ARG001  see `WorkspaceOption`
) -> None:
    """Run a plan folder: a first inference and warm ones after it, or cold starts alone, each in a fresh process.

    While a plan made with --continuous runs, idle cores prepare the kernels that later inferences switch to.
    """
    from edgeplan.runs import run as run_plan  # noqa: PLC0415  `edgeplan --help` should not wait for the runtime
    from edgeplan.support.tensors import require_npz, write_outputs  # noqa: PLC0415  likewise

    if output is not None:
        if cold:
            raise ParamsError(
                "the outputs of a fresh process stay there", where="--output", next_step="leave out --cold, or --output"
            )
        require_npz(output)
    found = run_plan(
        folder, given,
        repeat=repeat, budgets=tuple(filter(None, budgets.split(","))), device=device,
        check=check, model=model, cold=cold, evicted=evicted,
    )  # fmt: skip
    for line in _LINES[found.plan.kind](found):
        say(line)
    if output is not None:
        write_outputs(output, found.outputs)
        say(f"outputs: {', '.join(found.outputs)} in {output}")
    if found.difference is not None:
        say(f"largest difference from ONNX Runtime: {found.difference:.1e} of the largest magnitude")
        found.require_checked()


def _cold_lines(found: Run) -> list[str]:
    """What a user wants to know about cold starts."""
    program = cast("LinkedProgram", found.plan.program)
    of, cache = f"{program.step_count} steps, layout {program.layout}, {program.threads} threads", program.cache_bytes / _MB
    lines = [f"{program.model}: {of}, weight cache {cache:.1f} MB", *_times("cold", found.cold_ms)]
    if found.stages_ms:
        lines.append("core-milliseconds: " + ", ".join(f"{stage} {ms:.2f}" for stage, ms in found.stages_ms.items()))
        if found.continuous:
            lines += switch_table([*found.cold_ms, *found.warm_ms])
    return [*lines, *_times("warm", found.warm_ms)]


_LINES: Mapping[str, Callable[[Run], list[str]]] = MappingProxyType(
    {"cold-start": _cold_lines, "memory": memory.run_lines, "partition": partition.run_lines}
)


def switch_table(times_ms: Sequence[float]) -> list[str]:
    """The inferences of a plan with kernels for later runs, how long each took.

    Args:
        times_ms: by inference, the cold start first.
    """
    kernels = ("cold", "warm, what was left of them prepared first", *["warm"] * len(times_ms))
    rows = zip(times_ms[:_TABLE_ROWS], kernels, strict=False)
    lines = ["inference        ms  kernels", *(f"{k:>9}  {ms:>8.2f}  {name}" for k, (ms, name) in enumerate(rows, start=1))]
    if len(times_ms) > _TABLE_ROWS:
        lines.append(f"          and {len(times_ms) - _TABLE_ROWS} more, warm")
    return lines


def _times(what: str, times_ms: Sequence[float]) -> list[str]:
    if not times_ms:
        return []
    middle = f", median {statistics.median(times_ms):.2f} ms of {len(times_ms)}" if len(times_ms) > 1 else ""
    return [f"{what}: {min(times_ms):.2f} ms{middle}"]
