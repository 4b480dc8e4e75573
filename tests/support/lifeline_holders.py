"""Processes that hold a worker of each kind until they are killed: `python lifeline_holders.py KIND FOLDER`.

The folder is a plan's.
"""

# ruff: noqa: PLC0415  a holder begins with what its kind needs

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from edgeplan.support.subprocesses import program_command, run, start

if TYPE_CHECKING:
    from edgeplan.measurement.process.job import RunJob

_LONG, _SECONDS = 100_000, 300


def _job(folder: Path) -> RunJob:
    """A start of the plan, and more inferences than the test waits for."""
    from edgeplan.measurement.process.job import RunJob
    from edgeplan.measurement.process.starts import prepared_plan

    artefact = prepared_plan(folder).artefact
    return RunJob(
        setting="edgeplan", artefact=artefact, threads=1, inputs={"input": (1, 3, 32, 32)}, state="cached", warm_runs=_LONG
    )


def forked(folder: Path) -> None:
    """A plan's, in a child of a process that has imported everything."""
    from edgeplan.measurement.process.starts import Forks

    with Forks() as forks:
        forks.run_cold(_job(folder))


def in_cgroup(folder: Path) -> None:
    """The same in a memory cgroup."""
    from edgeplan.measurement.process.memory_group import run_limited

    job = _job(folder).model_dump_json().encode()
    run_limited("edgeplan.measurement.process.worker", job, folder / "gate", 1 << 28)


def background(folder: Path) -> None:  # noqa: ARG001  all are called alike
    """A load on a core."""
    from edgeplan.measurement.process.background import background_load

    with background_load(0, 50):
        time.sleep(_SECONDS)


def converter(folder: Path) -> None:
    """A program with children of its own that know nothing of it, which an engine's converter may be."""
    run(program_command("sh", "-c", "sleep 300 & (sleep 300; true) & sleep 300"), cwd=folder)


def from_a_thread(folder: Path) -> None:  # noqa: ARG001
    """A program started from a thread that ends, and one that inherits all that is not closed on exec."""
    thread = threading.Thread(target=start, args=(program_command("sleep", "300"),))
    thread.start()
    thread.join()
    print("ended", flush=True)  # noqa: T201  the test waits for it
    subprocess.Popen(["/bin/sleep", "15"], close_fds=False, env={}, stdout=subprocess.DEVNULL).wait()


KINDS: dict[str, Callable[[Path], None]] = {
    kind.__name__: kind for kind in (forked, in_cgroup, background, converter, from_a_thread)
}


if __name__ == "__main__":
    KINDS[sys.argv[1]](Path(sys.argv[2]))
