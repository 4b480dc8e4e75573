"""What a worker costs: batches here and through a worker, and two boards side by side against the slower alone.

python tests/end_to_end/farm_walls.py --output results/farm.json    (as root, on two quiet cores)

`farm.worker_overhead` is the wall time of batches through a worker over that of the same ones in the host's own process, less
one; `farm.worker_times_ratio` is the median ratio of their rows' times. `farm.wall_over_slower` is the wall time of two boards,
each behind an ssh server in a network namespace and bound to a core, over that of the slower one alone while a busy loop
loads the other core; `farm.wall_over_slower_waiting` is the same with boards that wait the recorded seconds and hand over
the recorded rows: what the host and the links cost. Medians of rounds in turns; engines' starts are left out.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import yaml
from ssh_board import ROOT, SshBoard, lacking, ssh_board

from edgeplan.devices.config import load_device
from edgeplan.graph.builder import GraphBuilder
from edgeplan.measurement.bench import Bench
from edgeplan.measurement.records import Measurement, Subject
from edgeplan.measurement.settings import MeasurementSettings, ReferenceExponents
from edgeplan.support.files import write_json
from edgeplan.terminal import say

_BATCH = 8
_SETTINGS = MeasurementSettings(
    blocks=5, min_runs=3, max_runs=40, block_ms=20.0, reference_runs=3, batch_size=_BATCH, batch_weight_mb=500,
    min_gap_seconds=0.05, max_noise=1.0, extra_blocks=0, max_noisy_share=1.0, retries=0,
    reference_exponents=ReferenceExponents(compute=1.0, bandwidth=0.0),
)  # fmt: skip
#: A board that waits what its rows took and answers them: `{recording}` is a file of rows by name.
_WAITING = """#!/bin/sh
{variables}
exec {python} -c '
import json, time
from pathlib import Path
import numpy as np
from edgeplan.measurement import local, lock, nominal
from edgeplan.measurement.board import worker
from edgeplan.measurement.records import Measurement
nominal._SECONDS = 0.02
lock.FOLDER = Path("{folder}")
recorded = json.loads(Path("{recording}").read_text())
def waited(engine, subjects, settings, references, nominal, sample, *, clock):
    rows = [recorded[subject.id] for subject in subjects]
    time.sleep(sum(row["seconds"] for row in rows))
    now = clock()
    arrays = ("least_us", "median_us", "compute_us", "bandwidth_us")
    return [
        Measurement(
            subject.id, sample, **{{name: np.array(row[name]) for name in arrays}},
            measured_at=np.full(len(row["least_us"]), now), nodes=(), node_us=np.zeros((len(row["least_us"]), 0)),
            nominal=nominal, exponents=settings.reference_exponents,
        )
        for subject, row in zip(subjects, rows)
    ]
local.measure_batch = waited
worker.main()
'
"""


def subjects(count: int) -> list[Subject]:
    """Networks of three convolutions, each another."""
    found = []
    for number in range(count):
        b = GraphBuilder(f"wall-{number}", (1, 32, 56, 56))
        x = b.input
        for channels in (32 + 4 * number, 64, 64):
            x = b.relu(b.conv(x, channels, 3))
        found.append(Subject(b.build(x)))
    return found


def host(device: Path, rows: Path, count: int) -> None:
    """Measure as a stage does; prints the seconds, and writes the rows beside."""
    with Bench(load_device(device), _SETTINGS, rows, quiet_seconds=0.5) as bench:
        everything = subjects(count)
        began = time.monotonic()
        found = [m for k in range(0, count, _BATCH) for m in bench.measure(everything[k : k + _BATCH])]
        seconds = time.monotonic() - began
    write_json(rows.with_suffix(".json"), {m.subject: _plain(m) for m in found})
    say(f"took {seconds:.4f}")


def _plain(m: Measurement) -> dict[str, Any]:
    kept = {field.name: getattr(m, field.name) for field in dataclasses.fields(m)}
    arrays = ("least_us", "median_us", "compute_us", "bandwidth_us")
    return {name: kept[name].tolist() for name in arrays} | {"seconds": m.seconds, "latency_us": m.latency_us}


class Rounds:
    """Hosts are started in fresh folders, one for each round.

    Args:
        folder: of all rounds.
        count: subjects of a host.
    """

    def __init__(self, folder: Path, count: int) -> None:
        self._folder, self._count, self._round = folder, count, 0

    def run(self, devices: Sequence[Path], boards: Sequence[SshBoard] = ()) -> list[tuple[float, dict[str, Any]]]:
        """Run hosts at once; gives the seconds and the rows of each."""
        self._round += 1
        here, hosts, rows = self._folder / f"round-{self._round}", [], []
        for board in boards:  # rows of its journal would be sent, and none measured
            shutil.rmtree(board.folder / "disk/edgeplan/worker", ignore_errors=True)
        for number, device in enumerate(devices):
            rows.append(here / f"rows-{number}")
            command = [sys.executable, __file__, "--host", str(device), "--rows", str(rows[-1]), "--count", str(self._count)]
            if boards:
                command = ["nsenter", "-t", str(boards[number].here.pid), "-n", *command]
            environment = {**os.environ, "PYTHONPATH": str(ROOT / "workflow"), "XDG_STATE_HOME": str(here / f"state-{number}")}
            hosts.append(subprocess.Popen(command, text=True, stdout=subprocess.PIPE, env=environment))
        found = []
        for one, path in zip(hosts, rows, strict=True):
            said, _ = one.communicate(timeout=600)
            if one.returncode:
                raise RuntimeError(f"a host failed: {said}")
            seconds = float(said.rpartition("took ")[2].split()[0])
            found.append((seconds, json.loads(path.with_suffix(".json").read_text())))
        return found


def _written(path: Path, **more: Any) -> Path:
    document = yaml.safe_load(path.read_text()) if path.is_file() else {}
    path.write_text(yaml.safe_dump({"format_version": 2, "name": path.stem, "engine": "onnxruntime", **document, **more}))
    return path


def worker_costs(folder: Path, count: int, rounds: int) -> dict[str, float]:
    """Measure the same batches in the host's process and through a worker, in turns."""
    core = max(os.sched_getaffinity(0))
    here = _written(folder / "here.yaml", cores=[core])
    argv = [sys.executable, "-m", "edgeplan", "worker"]
    there = _written(folder / "there.yaml", cores=[core], transport={"kind": "command", "argv": argv})
    runs, walls, times = Rounds(folder, count), [], []
    for number in range(rounds):
        pair = {}
        for device in (here, there) if number % 2 == 0 else (there, here):
            pair[device.stem] = runs.run([device])
        (local, local_rows), (worker, worker_rows) = pair["here"][0], pair["there"][0]
        walls.append(worker / local)
        times += [worker_rows[name]["latency_us"] / row["latency_us"] for name, row in local_rows.items()]
        say(f"round {number + 1} of {rounds}: {local:.2f} s here, {worker:.2f} s through a worker")
    return {"farm.worker_overhead": statistics.median(walls) - 1, "farm.worker_times_ratio": statistics.median(times)}


@contextlib.contextmanager
def _busy(core: int) -> Iterator[None]:
    command = [sys.executable, "-c", f"import os\nos.sched_setaffinity(0, {{{core}}})\nwhile True: pass"]
    loop = subprocess.Popen(command)
    try:
        yield
    finally:
        loop.kill()
        loop.wait()


def side_by_side(folder: Path, count: int, rounds: int) -> dict[str, float]:
    """Measure two boards at once and each alone, the boards real, then waiting."""
    cores = sorted(os.sched_getaffinity(0))[:2]
    runs, walls, waits = Rounds(folder, count), [], []
    for number in range(2):
        (folder / f"board-{number}").mkdir()
    with ssh_board(folder / "board-0") as one, ssh_board(folder / "board-1") as two:
        boards = (one, two)
        devices = [_written(b.device(folder / f"board{k}.yaml"), cores=[cores[k]]) for k, b in enumerate(boards)]
        for number in range(rounds):
            together = runs.run(devices, boards)
            alone = []
            for k in range(2):
                with _busy(cores[1 - k]):
                    alone += runs.run([devices[k]], [boards[k]])
            walls.append(max(s for s, _ in together) / max(s for s, _ in alone))
            waiting = []
            for k, board in enumerate(boards):
                write_json(board.folder / "recording.json", alone[k][1])
                told = "\n".join(f"export {name}='{value}'" for name, value in board.variables.items())
                text = _WAITING.format(
                    variables=told, python=sys.executable, folder=board.folder, recording=board.folder / "recording.json"
                )
                path = board.folder / "waiting"
                path.write_text(text)
                path.chmod(0o755)
                waiting.append(_written(board.device(folder / f"waiting{k}.yaml", python=str(path)), cores=[cores[k]]))
            apart = [runs.run([waiting[k]], [boards[k]])[0][0] for k in range(2)]
            waits.append(max(s for s, _ in runs.run(waiting, boards)) / max(apart))
            say(f"round {number + 1} of {rounds}: together over the slower alone {walls[-1]:.3f}, waiting {waits[-1]:.3f}")
    return {
        "farm.wall_over_slower": statistics.median(walls),
        "farm.wall_over_slower_waiting": statistics.median(waits),
        "farm.wall_rounds": rounds,
    }


def main() -> None:
    """Run hosts, or one of them, and print or write the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--count", type=int, default=24)
    parser.add_argument("--output", type=Path)
    parser.add_argument("--host", type=Path, help="a device file: measure on it, and say how long that took")
    parser.add_argument("--rows", type=Path)
    given = parser.parse_args()
    if given.host is not None:
        host(given.host, given.rows, given.count)
        return
    if reason := lacking():
        sys.exit(reason)
    with tempfile.TemporaryDirectory(prefix="edgeplan-walls-") as made:
        found = worker_costs(Path(made), given.count, given.rounds) | side_by_side(Path(made), given.count, given.rounds)
    say(json.dumps(found, indent=2))
    if given.output:
        known = json.loads(given.output.read_text()) if given.output.is_file() else {}
        write_json(given.output, {**known, **found})


if __name__ == "__main__":
    main()
