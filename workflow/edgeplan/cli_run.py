"""The commands of cold starts: `edgeplan run`."""

from __future__ import annotations

import os
import statistics
import time
from pathlib import Path
from typing import Annotated

import typer

_MB = 1e6


def register(app: typer.Typer) -> None:
    """Add the commands to the command line."""
    app.command()(run)


def run(
    folder: Annotated[Path, typer.Argument(help="Plan folder, from `edgeplan plan cold-start`.")],
    cold: Annotated[bool, typer.Option("--cold", help="A fresh process for each run.")] = False,
    evicted: Annotated[bool, typer.Option("--evicted", help="With --cold: drop the plan's files from the page cache.")] = False,
    repeat: Annotated[int, typer.Option(min=1, max=10_000, help="How many runs.")] = 1,
) -> None:
    """Run a plan: its cold start, and warm runs after it; or cold starts only, each in a fresh process."""
    # imported here: `edgeplan --help` should not wait for the runtime
    from edgeplan.runtime.linked import read_linked  # noqa: PLC0415
    from edgeplan.runtime.plan_folder import PROGRAM_NAME  # noqa: PLC0415

    program = read_linked(folder / PROGRAM_NAME)
    typer.echo(
        f"{program.model}: {program.step_count} steps, layout {program.layout}, {program.threads} threads, "
        f"weight cache {program.cache_bytes / _MB:.1f} MB"
    )
    if not cold:
        _report("warm", _run_here(folder, repeat))
        return
    _report("cold", [_run_apart(folder, evicted) for _ in range(repeat)])


def _run_here(folder: Path, repeat: int) -> list[float]:
    """A cold start and `repeat - 1` warm runs in this process; times in ms of the warm ones."""
    from edgeplan.cold.inputs import random_inputs  # noqa: PLC0415
    from edgeplan.devices.machine import fingerprint  # noqa: PLC0415
    from edgeplan.runtime.cold_executor import ColdSession  # noqa: PLC0415
    from edgeplan.runtime.dnnl import Dnnl  # noqa: PLC0415
    from edgeplan.runtime.linked import read_linked  # noqa: PLC0415
    from edgeplan.runtime.memory import share_heap  # noqa: PLC0415
    from edgeplan.runtime.plan_folder import PROGRAM_NAME  # noqa: PLC0415

    program = read_linked(folder / PROGRAM_NAME)
    inputs = random_inputs({border.name: border.shape for border in program.inputs}, 0)
    cores = tuple(sorted(os.sched_getaffinity(0)))[: program.threads]
    dnnl, machine = Dnnl(), fingerprint()
    share_heap()
    start = time.perf_counter()
    with ColdSession(dnnl, folder, threads=program.threads, machine=machine, cores=cores) as session:
        session.run(inputs)
        _report("cold", [(time.perf_counter() - start) * 1e3])
        typer.echo("core-milliseconds: " + ", ".join(f"{stage} {ms:.2f}" for stage, ms in session.stages_ms().items()))
        times = []
        for _ in range(repeat - 1):
            start = time.perf_counter()
            session.run(inputs)
            times.append((time.perf_counter() - start) * 1e3)
    return times


def _run_apart(folder: Path, evicted: bool) -> float:
    """A cold start in a fresh process, in ms."""
    from edgeplan.cold.baselines.edgeplan import prepared  # noqa: PLC0415
    from edgeplan.cold.jobs import RunJob  # noqa: PLC0415
    from edgeplan.cold.process import run_cold  # noqa: PLC0415
    from edgeplan.runtime.linked import read_linked  # noqa: PLC0415
    from edgeplan.runtime.plan_folder import PROGRAM_NAME  # noqa: PLC0415

    program = read_linked(folder / PROGRAM_NAME)
    fields = {
        "setting": "edgeplan",
        "threads": program.threads,
        "cpus": sorted(os.sched_getaffinity(0))[: program.threads],
        "inputs": {border.name: border.shape for border in program.inputs},
        "state": "evicted" if evicted else "cached",
    }
    for _ in range(2):
        result = run_cold(RunJob.model_validate(fields | {"artefact": prepared(folder).artefact}))
        if result.cold_ms is not None:
            return result.cold_ms
        _run_here(folder, 1)  # says what is wrong, and mends the weight cache if it is that
    typer.echo(f"cannot start cold: {result.reason}", err=True)
    raise typer.Exit(1)


def _report(what: str, times_ms: list[float]) -> None:
    if times_ms:
        middle = f", median {statistics.median(times_ms):.2f} ms of {len(times_ms)}" if len(times_ms) > 1 else ""
        typer.echo(f"{what}: {min(times_ms):.2f} ms{middle}")
