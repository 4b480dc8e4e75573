"""Measure files from elsewhere as their users would: `python workflow/scripts/real_truth.py LIST FOLDER -o RESULTS`.

LIST and FOLDER are those of `real_files.py`. What a run takes is the median of five fresh processes, each the median of its
runs of the file itself after the first 20, so that all weights were touched; nothing is divided out. Predictions of all files
are written before any is measured, and again with five seconds of measured kernels a file (`--measure`). A second turn, after
all files' first, tells how far such a figure repeats. RESULTS is a CSV with a row for each file and turn, written after each;
what is in it is not measured again. At the end the figures are printed:

    real.within_10pct, real.within_20pct   share of the listed files predicted so near; what is refused counts as a failure
    real.packages_within_10pct, _20pct     likewise, where the files of each package count as one
    real.measured_within_10pct, _20pct     likewise, with measured kernels
    real.repeat_within_10pct               share of the measured files whose two turns agree so
    real.interval_coverage_90, _width_90   of the predicted intervals, of the files that have one
"""

from __future__ import annotations

import argparse
import csv
import io
import json
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path

import numpy as np

from edgeplan import predict
from edgeplan.devices.config import DeviceFile, load_device
from edgeplan.errors import EdgeplanError
from edgeplan.measurement.lock import machine_lock
from edgeplan.reporting.metrics import coverage
from edgeplan.support.files import write_text
from edgeplan.support.machine import fingerprint
from edgeplan.support.subprocesses import program_command, run
from real_files import RealFile, read_list, require

_PROCESSES, _TURNS = 5, 2
_UNCOUNTED, _LEAST_RUNS = 20, 20
#: A process counts runs for so long, if these are more than the least.
_COUNTED_S = 1.0
#: Of a process beside its runs: imports, reading, preparation.
_START_S, _LONGEST_S = 3.0, 900.0
_MS = 1e3
#: Seconds of kernels measured for the second prediction of a file.
_MEASURE_S = 5.0


@dataclass(frozen=True)
class Row:
    """A row holds one turn of one file on one device.

    Attributes:
        file, sha256: the file.
        device, engine, engine_version, machine: the device, and the fingerprint of the machine.
        turn: 0 or 1.
        predicted_ms, low_ms, high_ms: what was predicted before; 0 without.
        guessed: share of the prediction that is guessed.
        with_kernels_ms, with_kernels_low_ms, with_kernels_high_ms: the same with measured kernels.
        process_ms: what a run took in each process.
        measured_ms: the median of these; 0 without.
        refused_because: why there is no prediction or no measurement.
    """

    file: str
    sha256: str
    device: str
    engine: str
    engine_version: str
    machine: str
    turn: int
    predicted_ms: float = 0.0
    low_ms: float = 0.0
    high_ms: float = 0.0
    guessed: float = 0.0
    with_kernels_ms: float = 0.0
    with_kernels_low_ms: float = 0.0
    with_kernels_high_ms: float = 0.0
    process_ms: str = ""
    measured_ms: float = 0.0
    refused_because: str = ""

    @property
    def key(self) -> tuple[str, str, str, str, str, int]:
        """Return what a stored row has to agree in to stand for this one."""
        return self.file, self.sha256, self.device, self.engine_version, self.machine, self.turn


def predicted(row: Row, file: RealFile, folder: Path, seconds: float) -> Row:
    """Return the row with its prediction, or with why there is none."""
    try:
        found = predict(require(file, folder), row.device, measure=seconds, preparation=file.wanted)
    except EdgeplanError as error:
        return replace(row, refused_because=f"predict: {error.what}")
    times = [round(ms or 0.0, 6) for ms in (found.latency_ms, found.low_ms, found.high_ms)]
    names = ("predicted_ms", "low_ms", "high_ms")
    if seconds:
        names = ("with_kernels_ms", "with_kernels_low_ms", "with_kernels_high_ms")
        return replace(row, **dict(zip(names, times, strict=True)))
    return replace(row, **dict(zip(names, times, strict=True)), guessed=round(found.shares["guessed"], 4))


def measured(row: Row, file: RealFile, folder: Path) -> Row:
    """Return the row with what five fresh processes took, or with why they took nothing."""
    times = []
    command = program_command(sys.executable, __file__, "--once", row.device, str(folder / file.path), *file.options)
    for _ in range(_PROCESSES):
        try:
            done = run(command, timeout=_LONGEST_S)
        except subprocess.TimeoutExpired:
            return replace(row, refused_because=row.refused_because or f"measure: longer than {_LONGEST_S:.0f} s")
        if done.returncode:
            told = done.stderr.decode(errors="replace").strip().splitlines() or ["the process died"]
            return replace(row, refused_because=row.refused_because or f"measure: {told[-1]}")
        times.append(float(json.loads(done.stdout.decode().splitlines()[-1])["ms"]))
    return replace(row, process_ms=" ".join(f"{ms:.5g}" for ms in times), measured_ms=round(statistics.median(times), 6))


def once(device: str, model: Path, shape: Sequence[str], values: Sequence[str]) -> float:
    """Measure a file in this process: the median of its runs after the first ones, ms."""
    file, wanted = load_device(device), RealFile("", "", "", "", "", tuple(shape), tuple(values)).wanted
    with machine_lock():
        file.pin()
        with file.load_engine().load_file(model, wanted) as session:
            for _ in range(_UNCOUNTED):
                session.run()
            times, end = list[float](), time.perf_counter() + _COUNTED_S
            while len(times) < _LEAST_RUNS or time.perf_counter() < end:
                start = time.perf_counter()
                session.run()
                times.append(time.perf_counter() - start)
    return statistics.median(times) * _MS


def figures(rows: Iterable[Row], files: Sequence[RealFile], device: str) -> dict[str, float]:
    """Return the figures of merit of one device's predictions, over all listed files."""
    turns = [{row.file: row for row in rows if row.device == device and row.turn == turn} for turn in range(_TURNS)]
    known = [row for file in files if (row := turns[0].get(file.path)) and row.measured_ms and row.predicted_ms]
    found = {"real.files": float(len(files)), "real.predicted": len(known) / max(1, len(files))}
    of_package = Counter(file.package for file in files)
    weight = {file.path: 1 / of_package[file.package] / len(of_package) for file in files}
    for name, ms, low, high in (
        ("", "predicted_ms", "low_ms", "high_ms"),
        ("measured_", "with_kernels_ms", "with_kernels_low_ms", "with_kernels_high_ms"),
    ):
        told = [row for row in known if getattr(row, ms)]
        if not told:
            continue
        error = np.abs([getattr(row, ms) / row.measured_ms - 1 for row in told])
        for percent in (10, 20):
            near = [row.file for row, off in zip(told, error, strict=True) if off <= percent / 100]
            found[f"real.{name}within_{percent}pct"] = len(near) / len(files)
            found[f"real.{name}packages_within_{percent}pct"] = sum(weight[file] for file in near)
        found[f"real.{name}median_error"] = float(np.median(error))
        bounded = [
            (row.measured_ms, getattr(row, low), getattr(row, high), getattr(row, ms)) for row in told if getattr(row, low)
        ]
        if bounded:
            truth, least, most, guess = np.array(bounded).T
            found[f"real.{name}interval_coverage_90"] = coverage(truth, least, most)
            found[f"real.{name}interval_width_90"] = float(np.median((most - least) / guess))
    both = [(turns[0][name], turns[1][name]) for name in turns[0] if name in turns[1]]
    pairs = [(one.measured_ms, two.measured_ms) for one, two in both if one.measured_ms and two.measured_ms]
    if pairs:
        found["real.repeat_within_10pct"] = sum(abs(two / one - 1) <= 0.1 for one, two in pairs) / len(pairs)
    return found


def read_rows(target: Path) -> list[Row]:
    """Read the rows that were written before; none where there is no such file."""
    if not target.is_file():
        return []
    of_type = {field.name: {"float": float, "int": int}.get(str(field.type), str) for field in fields(Row)}
    with target.open(newline="", encoding="utf-8") as listed:
        return [Row(**{name: of_type[name](text) for name, text in row.items()}) for row in csv.DictReader(listed)]


def write_rows(rows: Iterable[Row], target: Path) -> None:
    """Write rows, a column for each field."""
    text = io.StringIO()
    table = csv.DictWriter(text, [field.name for field in fields(Row)], lineterminator="\n")
    table.writeheader()
    table.writerows(asdict(row) for row in rows)
    write_text(target, text.getvalue())


def minutes(rows: Iterable[Row]) -> float:
    """Estimate how long it takes to measure these rows, by their predictions."""
    runs_s = (max(_COUNTED_S, _LEAST_RUNS * row.predicted_ms / _MS) + _UNCOUNTED * row.predicted_ms / _MS for row in rows)
    return _PROCESSES * sum(_START_S + each for each in runs_s) / 60


def main() -> None:
    """Predict, then measure what is not in the results yet."""
    if sys.argv[1:2] == ["--once"]:
        _once()
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("list", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("-o", "--output", type=Path, required=True, help="CSV to write")
    parser.add_argument("-d", "--device", default="cpu-onnxruntime", help="device whose engine reads files")
    parser.add_argument("--minutes", action="store_true", help="predict, say how long measuring would take, and end")
    arguments = parser.parse_args()
    files, stored = read_list(arguments.list), {row.key: row for row in read_rows(arguments.output)}
    device = load_device(arguments.device)
    wanted = [(_asked(file, device, turn), file) for turn in range(_TURNS) for file in files]
    for row, file in wanted:  # all of them before the first is measured
        if row.key not in stored:
            stored[row.key] = predicted(row, file, arguments.folder, 0.0)
    write_rows(stored.values(), arguments.output)
    for row, file in wanted:
        if row.turn == 0 and stored[row.key].predicted_ms and not stored[row.key].with_kernels_ms:
            stored[row.key] = predicted(stored[row.key], file, arguments.folder, _MEASURE_S)
    write_rows(stored.values(), arguments.output)
    left = [(stored[row.key], file) for row, file in wanted if not _ended(stored[row.key])]
    about = minutes(row for row, _ in left)
    print(f"{len(left)} of {len(wanted)} rows are to be measured: about {about:.0f} minutes", flush=True)  # noqa: T201
    for row, file in () if arguments.minutes else left:
        stored[row.key] = found = measured(row, file, arguments.folder)
        write_rows(stored.values(), arguments.output)
        told = found.refused_because if _ended(found) and not found.measured_ms else f"{found.predicted_ms:.3f} predicted, "
        print(f"{row.file} {row.turn}: {told}{found.measured_ms:.3f} ms", flush=True)  # noqa: T201
    print(figures(stored.values(), files, device.name))  # noqa: T201


def _asked(file: RealFile, device: DeviceFile, turn: int) -> Row:
    return Row(file.path, file.sha256, device.name, device.engine, device.engine_version(), fingerprint(), turn)


def _ended(row: Row) -> bool:
    """Tell whether nothing is left to measure of a row: it was, or could not be."""
    return bool(row.measured_ms) or row.refused_because.startswith("measure:")


def _once() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--once", required=True)
    parser.add_argument("model", type=Path)
    parser.add_argument("--shape", action="append", default=[])
    parser.add_argument("--set", action="append", default=[])
    arguments = parser.parse_args()
    try:
        ms = once(arguments.once, arguments.model, arguments.shape, arguments.set)
    except EdgeplanError as error:
        sys.exit(f"{error.what}")
    print(json.dumps({"ms": ms}))  # noqa: T201


if __name__ == "__main__":
    main()
