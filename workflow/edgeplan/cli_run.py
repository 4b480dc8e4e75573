"""The commands of cold starts: `edgeplan run`."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from edgeplan.errors import DeviceError, ParamsError
from edgeplan.terminal import say
from edgeplan.workspace import WorkspaceOption

if TYPE_CHECKING:
    from edgeplan.cold.profiling.settings import Cores
    from edgeplan.runtime.linked import LinkedProgram

_MB = 1e6
_TABLE_ROWS = 10  # inferences that are shown one by one


def register(app: typer.Typer) -> None:
    """Add the commands to the command line."""
    app.command()(run)


def run(
    folder: Annotated[Path, typer.Argument(help="Plan folder, from `edgeplan plan cold-start`.")],
    cold: Annotated[bool, typer.Option("--cold", help="A fresh process for each run.")] = False,
    evicted: Annotated[bool, typer.Option("--evicted", help="With --cold: drop the plan's files from the page cache.")] = False,
    repeat: Annotated[int, typer.Option(min=1, max=10_000, help="How many runs.")] = 1,
    device: Annotated[
        str,
        typer.Option(
            "--device",
            "-d",
            help="The device it was planned for, whose cores to take: its name, or path of its file. "
            "Without, the first processors this process may use.",
        ),
    ] = "",
    workspace: WorkspaceOption = None,  # noqa: ARG001  see `WorkspaceOption`
) -> None:
    """Run a plan: its cold start, and warm runs after it; or cold starts only, each in a fresh process.

    Of a plan made with --continuous, idle cores prepare the kernels that later inferences switch to.
    """
    # imported here: `edgeplan --help` should not wait for the runtime
    from edgeplan.planning.cold_start.plan import read_plan  # noqa: PLC0415
    from edgeplan.runtime.linked_file import read_linked  # noqa: PLC0415
    from edgeplan.runtime.plan_folder import PLAN_NAME, PROGRAM_NAME  # noqa: PLC0415

    if evicted and not cold:
        raise ParamsError(
            "only a cold start can begin with an evicted page cache", where="--evicted", next_step="add --cold, or leave it out"
        )
    program = read_linked(folder / PROGRAM_NAME)
    say(
        f"{program.model}: {program.step_count} steps, layout {program.layout}, {program.threads} threads, "
        f"weight cache {program.cache_bytes / _MB:.1f} MB"
    )
    continuous = bool(read_plan(folder / PLAN_NAME).later)
    cores = _processors(program, device)
    if cold:
        _require_sorted(cores, device)
    with _kept_on(cores):
        if cold:
            _report("cold", [_run_apart(folder, evicted, cores, continuous=continuous) for _ in range(repeat)])
        else:
            _run_here(folder, repeat, cores, continuous=continuous)


def _processors(program: LinkedProgram, device: str = "") -> Cores:
    """The processors that a program takes: those that execute, and on asymmetric chips as many little ones as it has queues.

    Args:
        program: of a plan folder.
        device: name or path of a device file; "" takes the lowest-numbered processors that this process may use, little ones
            after those that execute, as a measured run does.

    Raises:
        DeviceError: there are too few of either, or the device is unknown or executes on another number of cores.
    """
    from edgeplan.cold.profiling.settings import Cores, cores_of  # noqa: PLC0415  see `run`
    from edgeplan.devices.config import load_device  # noqa: PLC0415

    executing, preparing = program.threads, 0 if program.equal_cores else len(program.queues)
    if device:
        found, where = cores_of(load_device(device)), f"device {device!r}"
    else:
        usable = tuple(sorted(os.sched_getaffinity(0)))
        found, where = Cores(usable[:executing], usable[executing:]), "processors that this process may use"
    if len(found.big) != executing or len(found.little) < preparing:
        raise DeviceError(
            f"the plan needs {executing} processors to execute and {preparing} beside them to prepare, "
            f"there are {len(found.big)} and {len(found.little)}",
            where=where,
            next_step="name the device that it was planned for with --device, allow more processors, or plan the model again",
        )
    # sorted, as a fresh process takes them: cores of one class stand for each other
    return Cores(tuple(sorted(found.big)), tuple(sorted(found.little[:preparing])))


def _require_sorted(cores: Cores, device: str) -> None:
    """A fresh process is told which processors it has, and takes the lowest-numbered ones to execute."""
    if cores.little and cores.little[0] < cores.big[-1]:
        raise DeviceError(
            f"little core {cores.little[0]} is numbered below big core {cores.big[-1]}: a fresh process would execute on it",
            where=f"device {device!r}, fields big_cores and little_cores",
            next_step="run without --cold, which takes the cores as they are named",
        )


@contextmanager
def _kept_on(cores: Cores) -> Iterator[None]:
    """Keep this thread, and those it starts, on some cores and no others, as a fresh process is."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores.all)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def _run_here(folder: Path, repeat: int, cores: Cores, *, continuous: bool) -> None:
    """A cold start and `repeat - 1` warm runs in this process, reported."""
    from edgeplan.cold.inputs import random_inputs  # noqa: PLC0415
    from edgeplan.devices.machine import fingerprint  # noqa: PLC0415
    from edgeplan.runtime.cold_executor import ColdSession  # noqa: PLC0415
    from edgeplan.runtime.dnnl import Dnnl  # noqa: PLC0415
    from edgeplan.runtime.linked_file import read_linked  # noqa: PLC0415
    from edgeplan.runtime.plan_folder import PROGRAM_NAME  # noqa: PLC0415
    from edgeplan.runtime.process import prepare_process  # noqa: PLC0415

    program = read_linked(folder / PROGRAM_NAME)
    inputs = random_inputs({border.name: border.shape for border in program.inputs}, 0)
    dnnl, machine = Dnnl(), fingerprint()
    prepare_process(dnnl)
    start = time.perf_counter()
    with ColdSession(
        dnnl,
        folder,
        threads=program.threads,
        machine=machine,
        cores=cores.big,
        little=cores.little,
        continuous=continuous,
    ) as session:
        session.run(inputs)
        times = [(time.perf_counter() - start) * 1e3]
        for _ in range(repeat - 1):  # nothing in between: time to spare would be spent on the kernels of later runs
            start = time.perf_counter()
            session.run(inputs)
            times.append((time.perf_counter() - start) * 1e3)
        stages = session.stages_ms()
    _report("cold", times[:1])
    say("core-milliseconds: " + ", ".join(f"{stage} {ms:.2f}" for stage, ms in stages.items()))
    if continuous:
        for line in switch_table(times):
            say(line)
    _report("warm", times[1:])


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


def _run_apart(folder: Path, evicted: bool, cores: Cores, *, continuous: bool) -> float:
    """A cold start in a fresh process, in ms."""
    from edgeplan.cold.baselines.edgeplan import prepared  # noqa: PLC0415
    from edgeplan.cold.jobs import RunJob  # noqa: PLC0415
    from edgeplan.cold.process import run_cold  # noqa: PLC0415
    from edgeplan.runtime.linked_file import read_linked  # noqa: PLC0415
    from edgeplan.runtime.plan_folder import PROGRAM_NAME  # noqa: PLC0415

    program = read_linked(folder / PROGRAM_NAME)
    fields = {
        "setting": "edgeplan-continuous" if continuous else "edgeplan",
        "threads": program.threads,
        "cpus": cores.all,
        "inputs": {border.name: border.shape for border in program.inputs},
        "state": "evicted" if evicted else "cached",
    }
    for _ in range(2):
        result = run_cold(RunJob.model_validate(fields | {"artefact": prepared(folder).artefact}))
        if result.cold_ms is not None:
            return result.cold_ms
        _run_here(folder, 1, cores, continuous=continuous)  # says what is wrong, and mends the weight cache if it is that
    say(f"cannot start cold: {result.reason}", err=True)
    raise typer.Exit(1)


def _report(what: str, times_ms: list[float]) -> None:
    if times_ms:
        middle = f", median {statistics.median(times_ms):.2f} ms of {len(times_ms)}" if len(times_ms) > 1 else ""
        say(f"{what}: {min(times_ms):.2f} ms{middle}")
