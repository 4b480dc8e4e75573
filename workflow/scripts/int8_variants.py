"""Compare models in float32 and in eight bits: `python workflow/scripts/int8_variants.py FOLDER -o TABLE`.

The published models of six families are written to FOLDER, each as it is and in eight bits by static quantisation. Of both are
measured: the size of the prepared file, the time of cold starts, the least memory over an idle process that a plan runs in, and
the time of warm inferences by turns with ONNX Runtime, on one thread. A row is written when it is measured, and what TABLE has
already is not measured again: after an interruption the same command goes on.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import shutil
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from time import perf_counter

import numpy as np
import onnxruntime as ort

from csv_rows import write_rows
from edgeplan import plan_cold_start, plan_memory
from edgeplan.chapters.cold_start.plan import read_model
from edgeplan.chapters.memory.plan import TooSmallError
from edgeplan.graph.onnx.prepare import Preparation, prepare_file
from edgeplan.graph.onnx.write import save_onnx
from edgeplan.measurement.process.inputs import random_inputs
from edgeplan.runs import run
from edgeplan.runtime.dnnl import Dnnl
from edgeplan.runtime.layouts import LIKELY
from edgeplan.runtime.program import default_program
from edgeplan.runtime.session import SequentialSession
from edgeplan.support import subprocesses
from edgeplan.zoo.eight_bits import QUANTISED_FAMILIES, quantised
from edgeplan.zoo.registry import FAMILIES

_PROCESSES, _STARTS, _WARMUP, _RUNS = 5, 11, 20, 51
_TRIES, _MORE = 12, 1.02
_MS, _MIB = 1e3, 1 << 20
_TYPES = ("f32", "int8")


@dataclass(frozen=True)
class Row:
    """A row holds what was measured of one model in one type.

    Attributes:
        model: its name.
        type: `f32` or `int8`.
        file_mib: size of the prepared file.
        cold_ms: median time of cold starts, each in a fresh process, with files in memory.
        least_mib: the least memory over an idle process that a plan of memory runs in.
        warm_ms: of fresh processes the median of their median times, after some runs.
        onnxruntime_ms: the same of ONNX Runtime.
        error: largest difference of the outputs from those of ONNX Runtime in f32, relative to their largest magnitude.
        onnxruntime_error: the same of ONNX Runtime's outputs in this type.
    """

    model: str
    type: str
    file_mib: str
    cold_ms: str
    least_mib: str
    warm_ms: str
    onnxruntime_ms: str
    error: str
    onnxruntime_error: str


def _inputs(path: Path) -> dict[str, np.ndarray]:
    graph, _ = read_model(path)
    return random_inputs({name: graph.shape(name) for name in graph.inputs}, 0)


def _onnxruntime(path: Path) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 3
    return ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def _warm(ready: Path, given: Path) -> tuple[float, float]:
    """Measure warm inferences by turns, in milliseconds: ours, under the home layout that is faster, and ONNX Runtime's."""
    inputs, dnnl, theirs = _inputs(ready), Dnnl(), _onnxruntime(given)
    graph, _ = read_model(ready)
    own = [SequentialSession(dnnl, default_program(dnnl, ready, graph, home), ready.parent) for home in LIKELY]
    runs = [*(lambda one=one: one.run(inputs) for one in own), lambda: theirs.run(None, inputs)]
    taken: list[list[float]] = [[] for _ in runs]
    for turn in range(_WARMUP + _RUNS):
        for execute, times in zip(runs, taken, strict=True):
            start = perf_counter()
            execute()
            if turn >= _WARMUP:
                times.append(_MS * (perf_counter() - start))
    *ours, other = map(median, taken)
    return min(ours), other


def _warm_apart(ready: Path, given: Path) -> list[float]:
    command = subprocesses.program_command(sys.executable, __file__, "--warm", str(ready), str(given))
    found = []
    for _ in range(_PROCESSES):
        done = subprocesses.run(command)
        if done.returncode:
            raise SystemExit(f"{' '.join(command)}: {subprocesses.ending(done.returncode)}\n{done.stderr.decode()}")
        found.append(json.loads(done.stdout))
    return [median(times) for times in zip(*found, strict=True)]


def _least(ready: Path, folder: Path) -> int:
    """Find the least budget that a plan runs in: each refusal says what is enough, as far as is known."""
    budget = 1
    for _ in range(_TRIES):
        try:
            return plan_memory(ready, folder, budget, threads=1).budget
        except TooSmallError as refusal:
            budget = max(refusal.enough, int(budget * _MORE) + 1)
    raise SystemExit(f"{ready}: no budget up to {budget} bytes is enough: measure on a quieter machine")


def _measured(name: str, kind: str, given: Path, plain: Path, work: Path) -> Row:
    ready = prepare_file(given, Preparation(), work / f"{name}-{kind}-ready.onnx")
    cold = plan_cold_start(ready, work / "cold")
    started = run(cold, cold=True, repeat=_STARTS).cold_ms
    inputs = _inputs(ready)
    wanted, theirs = (_onnxruntime(path).run(None, inputs) for path in (plain, given))
    own = run(cold, inputs).outputs.values()
    largest = [np.abs(one).max() for one in wanted]
    errors = [
        max(float(np.abs(a - b).max() / size) for a, b, size in zip(found, wanted, largest, strict=True))
        for found in (own, theirs)
    ]
    times = _warm_apart(ready, given)
    numbers = (ready.stat().st_size / _MIB, median(started), _least(ready, work / "memory") / _MIB, *times)
    return Row(name, kind, *(f"{number:.2f}" for number in numbers), *(f"{error:.1e}" for error in errors))


def _known(table: Path) -> list[Row]:
    if not table.exists():
        return []
    with table.open(newline="") as file:
        return [Row(**row) for row in csv.DictReader(file)]


def main() -> None:
    """Measure each model in both types, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, nargs="+", help="where models go, and plans while they are measured")
    parser.add_argument("-o", "--output", type=Path, help="CSV to write")
    parser.add_argument("--families", nargs="+", choices=list(FAMILIES), default=list(QUANTISED_FAMILIES))
    parser.add_argument("--warm", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.warm:
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
        print(json.dumps(_warm(*arguments.folder)))  # noqa: T201  read by the process that started this one
        return
    if arguments.output is None:
        parser.error("-o TABLE is missing")
    (arguments.folder,) = arguments.folder
    arguments.folder.mkdir(parents=True, exist_ok=True)
    rows = _known(arguments.output)
    for name in arguments.families:
        plain = arguments.folder / f"{name}-f32.onnx"
        made = {"f32": plain, "int8": arguments.folder / f"{name}-int8.onnx"}
        if not plain.exists():
            save_onnx(FAMILIES[name].base(), plain)
        if not made["int8"].exists():
            quantised(plain, made["int8"])
        for kind in _TYPES:
            if any((row.model, row.type) == (name, kind) for row in rows):
                continue
            work = arguments.folder / "work"
            work.mkdir(exist_ok=True)
            rows.append(_measured(name, kind, made[kind], plain, work))
            shutil.rmtree(work)
            write_rows(Row, rows, arguments.output)
            print(*asdict(rows[-1]).values(), flush=True)  # noqa: T201  what the script is for


if __name__ == "__main__":
    main()
