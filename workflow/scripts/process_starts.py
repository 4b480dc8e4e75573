"""Times whole processes, from exec to the end of one that wrote its answer: python workflow/scripts/process_starts.py WORK.

Each model is run by its plan (the executable `edgeplan-run`, and `open_plan` in Python), by ONNX Runtime from C and from Python
(the model as it comes, saved optimised, mapped in its own format), all on two threads, in turns; a start is evicted
where the files of its model were dropped from the page cache before. WORK keeps plans, artefacts and `starts.csv`: models that
are there are not measured again. `--table` writes the medians (docs/process-starts.csv).
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import onnxruntime
import pandas as pd

import edgeplan
from edgeplan.engines.onnxruntime.reference import onnxruntime_reference
from edgeplan.graph.onnx.write import save_onnx
from edgeplan.measurement.process import stock
from edgeplan.measurement.process.inputs import random_inputs
from edgeplan.measurement.process.page_cache import evict, read_through
from edgeplan.runtime.library import open_library
from edgeplan.support.tensors import relative_error
from edgeplan.zoo.cold_start_models import COLD_START_MODELS

HERE = Path(__file__).parent
RUNNER = Path(edgeplan.__file__).with_name("edgeplan-run")
MODELS = "mobilenetv2 squeezenet resnet50 resnet18 shufflenetv2 googlenet"
THREADS = 2
_APART = 1e-3  # of the largest output
_MAPPED = (
    "session.use_memory_mapped_ort_model",
    "session.use_ort_model_bytes_for_initializers",
    "session.prepack.enable_parallel",
)
_OPEN_PLAN = """
import sys
import numpy as np
import edgeplan
with edgeplan.open_plan(sys.argv[1]) as session:
    found = session.run({name: np.load(path) for name, path in zip(sys.argv[3::2], sys.argv[4::2])})
with open(sys.argv[2], "wb") as file:
    for value in found.values():
        file.write(value.tobytes())
"""
_ONNXRUNTIME = """
import sys
import numpy as np
import onnxruntime as ort
ort.set_default_logger_severity(3)
options = ort.SessionOptions()
options.intra_op_num_threads = int(sys.argv[3])
if sys.argv[4] == "0":
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
session = ort.InferenceSession(sys.argv[1], options, ["CPUExecutionProvider"])
found = session.run(None, {name: np.load(path) for name, path in zip(sys.argv[5::2], sys.argv[6::2])})
with open(sys.argv[2], "wb") as file:
    for value in found:
        file.write(value.tobytes())
"""


@dataclass
class Way:
    """A way to start a model: its command, which files it reads, and where its outputs go."""

    name: str
    command: list[str]
    files: Sequence[Path]
    output: Path
    times: dict[str, list[float]] = field(default_factory=dict)

    def start(self) -> tuple[float, int]:
        """Run one process; milliseconds from exec to its end, and its peak of resident memory in bytes."""
        began = time.perf_counter()
        silent = [(os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0)]
        process = os.posix_spawn(self.command[0], self.command, os.environ, file_actions=silent)
        _, status, used = os.wait4(process, 0)
        took = (time.perf_counter() - began) * 1e3
        if status:
            sys.exit(f"{self.name} ended with {status}: {' '.join(self.command)}")
        return took, used.ru_maxrss << 10


def ways_of(model: str, work: Path) -> list[Way]:
    """Prepare a model for every way."""
    folder, path = work / model, work / model / "model.onnx"
    folder.mkdir(parents=True, exist_ok=True)
    graph = COLD_START_MODELS[model]()
    if not path.is_file():
        save_onnx(graph, path, seed=0)
    values = random_inputs({name: graph.shape(name) for name in graph.inputs}, 0)
    words: list[str] = []
    raw: list[str] = []
    for number, (name, value) in enumerate(values.items()):
        np.save(folder / f"in{number}.npy", value)
        (folder / f"in{number}.bin").write_bytes(value.tobytes())
        words += name, str(folder / f"in{number}.npy")
        raw += name, str(folder / f"in{number}.bin"), *map(str, value.shape)
    plans = {}
    for state, planner in (("cached", "optimal"), ("evicted", "evicted")):
        plans[state] = folder / f"plan-{state}"
        if not (plans[state] / "plan.json").is_file():
            edgeplan.plan_cold_start(path, plans[state], planner=planner, rows=work / "rows")
    stocks = {"": path, "optimised": folder / "optimised", "mapped": folder / "mapped"}
    made = {}
    for name, setting in (("optimised", "onnxruntime-optimised"), ("mapped", "onnxruntime-mapped")):
        stocks[name].mkdir(exist_ok=True)
        made[name] = stock.prepared(setting, path, stock.inputs_of(path), stocks[name], THREADS)
    expected = onnxruntime_reference(path, values)
    (folder / "expected.bin").write_bytes(b"".join(value.tobytes() for value in expected.values()))
    runner = folder / "ort_start"
    if not runner.is_file():
        subprocess.run([shutil.which("cc") or "gcc", "-O2", str(HERE / "ort_start.c"), "-o", str(runner), "-ldl"], check=True)  # noqa: S603
    library = next(Path(onnxruntime.__file__).parent.glob("capi/libonnxruntime.so*"))
    python, output, outputs = sys.executable, folder / "out.bin", list(expected)
    named = [word for name, file in zip(words[::2], words[1::2], strict=True) for word in ("-i", f"{name}={file}")]

    def c(name: str, main: Path, files: Sequence[Path], level: str, entries: Sequence[str] = ()) -> Way:
        given = [str(library), str(main), str(output), level, str(THREADS), *entries, "--", *raw, "--", *outputs]
        return Way(f"ONNX Runtime, C{name}", [str(runner), *given], files, output)

    def of_python(name: str, main: Path, files: Sequence[Path], level: str) -> Way:
        given = [str(main), str(output), str(THREADS), level, *words]
        return Way(f"ONNX Runtime, Python{name}", [python, "-c", _ONNXRUNTIME, *given], files, output)

    found = []
    for state, plan in plans.items():
        files = [file for file in plan.iterdir() if file.is_file()]
        target, onednn = folder / "out", ["--library", open_library()[1].path]
        runs = [str(RUNNER), str(plan), *named, "-o", str(target), *onednn]
        found.append(Way(f"edgeplan-run ({state})", runs, files, target))
        found.append(Way(f"open_plan ({state})", [python, "-c", _OPEN_PLAN, str(plan), str(output), *words], files, output))
    level, all_of_them = "0", "99"
    return [
        *found,
        c("", path, [path], all_of_them),
        c(", optimised", made["optimised"].main, made["optimised"].files, level),
        c(", mapped", made["mapped"].main, made["mapped"].files, all_of_them, _MAPPED),
        of_python("", path, [path], all_of_them),
        of_python(", optimised", made["optimised"].main, made["optimised"].files, level),
    ]


def checked(way: Way, expected: Path, names: Sequence[str]) -> None:
    """Refuse a way that answers wrongly."""
    if way.output.is_dir():
        found = np.concatenate([np.load(file).ravel() for file in (way.output / f"{name}.npy" for name in names)])
    else:
        found = np.fromfile(way.output, np.float32)
    apart = relative_error([found], [np.fromfile(expected, np.float32)])
    if not apart <= _APART:
        sys.exit(f"{way.name}: outputs are {apart:.1e} apart")


def measure(model: str, work: Path, turns: int) -> pd.DataFrame:
    """Start a model by all ways in turns, warm and evicted; a row a start."""
    graph, ways = COLD_START_MODELS[model](), ways_of(model, work)
    for way in ways:
        way.start()
        checked(way, work / model / "expected.bin", graph.outputs)
    rows = []
    for state in ("cached", "evicted"):
        now = [way for way in ways if "(" not in way.name or f"({state})" in way.name]
        for turn in range(turns):
            for way in now[turn % len(now) :] + now[: turn % len(now)]:
                (evict if state == "evicted" else read_through)(way.files)
                ms, peak = way.start()
                rows.append((model, way.name.partition(" (")[0], state, turn, ms, peak))
    return pd.DataFrame(rows, columns=["model", "way", "state", "turn", "ms", "peak_bytes"])


def main() -> None:
    """Measure what is missing and print medians."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("work", type=Path)
    parser.add_argument("--models", default=MODELS)
    parser.add_argument("--turns", type=int, default=15)
    parser.add_argument("--table", type=Path, help="file for the medians, .csv")
    given = parser.parse_args()
    work, rows = given.work.resolve(), given.work.resolve() / "starts.csv"
    work.mkdir(parents=True, exist_ok=True)
    known = pd.read_csv(rows) if rows.is_file() else pd.DataFrame({"model": []})
    for model in given.models.split():
        if model not in set(known["model"]):
            known = pd.concat([known, measure(model, work, given.turns)], ignore_index=True)
            known.to_csv(rows, index=False)
    table = known.pivot_table("ms", ["state", "way"], "model", "median").round(1)
    ours = table.xs("edgeplan-run", level="way")
    others = table[table.index.get_level_values("way").str.startswith("ONNX Runtime, C")]
    table["geomean"] = np.exp(np.log(table).mean(axis=1)).round(1)
    sys.stdout.write(f"{table.to_string()}\n")
    for state in ours.index:
        ratio = ours.loc[state] / others.xs(state, level="state").min()
        mean = statistics.geometric_mean(ratio)
        sys.stdout.write(f"{state}: edgeplan-run over the best of ONNX Runtime from C {mean:.3f}\n")
    if given.table:
        table.to_csv(given.table)


if __name__ == "__main__":
    main()
