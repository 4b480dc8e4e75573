"""The command `edgeplan run` executes a plan folder of any kind."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from edgeplan.errors import FormatError, ParamsError
from edgeplan.terminal import say
from edgeplan.workspace import WorkspaceOption

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
    from edgeplan.api import run as run_plan  # noqa: PLC0415  `edgeplan --help` should not wait for the runtime
    from edgeplan.chapters.memory.inference import is_memory_plan  # noqa: PLC0415  likewise
    from edgeplan.planning.partition.plan import ABOUT_NAME  # noqa: PLC0415  likewise
    from edgeplan.support.tensors import require_npz, write_outputs  # noqa: PLC0415  likewise

    if output is not None:
        if cold:
            raise ParamsError(
                "the outputs of a fresh process stay there", where="--output", next_step="leave out --cold, or --output"
            )
        require_npz(output)
    _require_there(folder)
    memory, partition = is_memory_plan(folder), (folder / ABOUT_NAME).is_file()
    kind = "memory" if memory else "partition" if partition else ""
    _require_fitting(kind, cold=cold or evicted, budgets=bool(budgets))
    if partition:
        _run_partition(folder, given, output, repeat, model, check=check)
        return
    if memory:
        _run_memory(folder, given, output, repeat, tuple(filter(None, budgets.split(","))), model, check=check)
        return
    found = run_plan(folder, given, repeat=repeat, device=device, check=check, model=model, cold=cold, evicted=evicted)
    program = found.program
    say(
        f"{program.model}: {program.step_count} steps, layout {program.layout}, {program.threads} threads, "
        f"weight cache {program.cache_bytes / _MB:.1f} MB"
    )
    _report("cold", found.cold_ms)
    if found.stages_ms:
        say("core-milliseconds: " + ", ".join(f"{stage} {ms:.2f}" for stage, ms in found.stages_ms.items()))
    if found.continuous and not cold:
        for line in switch_table([*found.cold_ms, *found.warm_ms]):
            say(line)
    _report("warm", found.warm_ms)
    if output is not None:
        write_outputs(output, found.outputs)
        say(f"outputs: {', '.join(found.outputs)} in {output}")
    if found.difference is not None:
        say(f"largest difference from ONNX Runtime: {found.difference:.1e} of the largest magnitude")
        found.require_checked()


def _require_there(folder: Path) -> None:
    if not folder.is_dir():
        again = "make one: edgeplan plan cold-start, plan memory or plan partition"
        raise FormatError("there is no plan folder", where=str(folder), next_step=again)


def _require_fitting(kind: str, *, cold: bool, budgets: bool) -> None:
    """Options are those of the plan, which is of memory, a partition or, "", a cold start."""
    if kind and cold:
        what = f"a plan of {'memory' if kind == 'memory' else 'a pair'} has no cold starts"
        raise ParamsError(what, where="--cold, --evicted", next_step="leave the option out")
    if budgets and kind != "memory":
        what = f"a plan of {'a pair' if kind else 'a cold start'} has no budget"
        raise ParamsError(what, where="--budgets", next_step="plan with edgeplan plan memory, or leave it out")


def _run_partition(
    folder: Path, given: Path | None, output: Path | None, repeat: int, model: Path | None, *, check: bool
) -> None:
    from edgeplan.api import require_checked, run_partition  # noqa: PLC0415  see `run`
    from edgeplan.cli.partition import run_lines  # noqa: PLC0415  likewise
    from edgeplan.support.tensors import write_outputs  # noqa: PLC0415  likewise

    found = run_partition(folder, given, repeat=repeat, check=check, model=model)
    for line in run_lines(found):
        say(line)
    if output is not None:
        write_outputs(output, found.outputs)
        say(f"outputs: {', '.join(found.outputs)} in {output}")
    if found.difference is not None:
        say(f"largest difference from ONNX Runtime: {found.difference:.1e} of the largest magnitude")
        require_checked(found.difference, found.plan.model, found.not_finite)


def _run_memory(
    folder: Path,
    given: Path | None,
    output: Path | None,
    repeat: int,
    budgets: Sequence[str],
    model: Path | None,
    *,
    check: bool,
) -> None:
    from edgeplan.api import require_checked, run_memory  # noqa: PLC0415  see `run`
    from edgeplan.cli.memory import run_lines  # noqa: PLC0415  likewise
    from edgeplan.support.tensors import write_outputs  # noqa: PLC0415  likewise

    found = run_memory(folder, given, repeat=repeat, budgets=budgets, check=check, model=model)
    for line in run_lines(found):
        say(line)
    if output is not None:
        write_outputs(output, found.outputs)
        say(f"outputs: {', '.join(found.outputs)} in {output}")
    if found.difference is not None:
        say(f"largest difference from ONNX Runtime: {found.difference:.1e} of the largest magnitude")
        require_checked(found.difference, found.program.model, found.not_finite)


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


def _report(what: str, times_ms: Sequence[float]) -> None:
    if times_ms:
        middle = f", median {statistics.median(times_ms):.2f} ms of {len(times_ms)}" if len(times_ms) > 1 else ""
        say(f"{what}: {min(times_ms):.2f} ms{middle}")
