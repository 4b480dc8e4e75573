"""Processes that hold a worker of each kind until they are killed: `python lifeline_holders.py KIND FOLDER`.

The folder holds what the fixture of `test_lifeline.py` writes.
"""

# ruff: noqa: PLC0415  a holder begins with what its kind needs

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from edgeplan.support.subprocesses import program_command, run, start

if TYPE_CHECKING:
    from edgeplan.profiling.streaming import RunSettings

MODEL, INPUT, SCHEDULE, PLAN = "plain.onnx", "input", "schedule.json", "plan"
_LONG, _SECONDS = 100_000, 300


def forked(folder: Path) -> None:
    """A plan's, in a child of a process that has imported everything."""
    from edgeplan.measurement.process.job import RunJob
    from edgeplan.measurement.process.starts import Forks, prepared_plan

    own = {"setting": "edgeplan", "artefact": prepared_plan(folder / PLAN).artefact}
    with Forks() as forks:
        forks.run_cold(RunJob(threads=1, inputs={"input": (1, 3, 32, 32)}, state="cached", warm_runs=_LONG, **own))


def _streamed(folder: Path) -> RunSettings:
    from edgeplan.profiling.streaming import RunSettings

    return RunSettings({"input": folder / INPUT}, runs=_LONG, isolated=False)


def streamed(folder: Path) -> None:
    """A plan whose weights are streamed."""
    from edgeplan.profiling.streaming import run_apart

    run_apart(folder, [json.loads((folder / SCHEDULE).read_text())], _streamed(folder))


def in_cgroup(folder: Path) -> None:
    """The same in a memory cgroup."""
    from edgeplan.measurement.process.memory_group import run_limited

    gate = folder / "gate"
    gate.unlink(missing_ok=True)
    job = _streamed(folder).job(folder, [json.loads((folder / SCHEDULE).read_text())]) | {"gate": str(gate)}
    run_limited("edgeplan.measurement.process.streaming", json.dumps(job).encode(), gate, 1 << 28)


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
    kind.__name__: kind for kind in (forked, streamed, in_cgroup, background, converter, from_a_thread)
}


if __name__ == "__main__":
    KINDS[sys.argv[1]](Path(sys.argv[2]))
