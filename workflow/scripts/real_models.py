"""Try ONNX files from elsewhere: `python workflow/scripts/real_models.py LIST FOLDER -o RESULTS`.

LIST and FOLDER are those of `real_files.py`, which fetches the files.
Each is prepared, lowered and run step by step on one thread, under the home layout that is fastest, against ONNX Runtime on
the file as it came; then both are timed in turns, copies of inputs and outputs included.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter

import numpy as np
import onnxruntime as ort
from onnx import helper

from csv_rows import write_rows
from edgeplan import predict
from edgeplan.chapters.cold_start.plan import read_model
from edgeplan.errors import EdgeplanError
from edgeplan.graph.ir import Graph
from edgeplan.graph.model_file import read_model as read_file
from edgeplan.graph.onnx.prepare import Preparation, given_values, prepare_file
from edgeplan.measurement.process.inputs import Array, random_inputs
from edgeplan.runtime.dnnl import Dnnl
from edgeplan.runtime.layouts import HOMES
from edgeplan.runtime.program import default_program
from edgeplan.runtime.session import SequentialSession
from edgeplan.support.tensors import OUTPUT_TOLERANCE, relative_error
from real_files import read_list, require

_INPUTS = 5
_TURNS, _TURNS_OF_HOMES, _WARMUP = 15, 3, 1
_MS = 1e3


@dataclass
class Result:
    """A result tells how one file fared.

    Attributes:
        file: its path in the list.
        task: what it is for.
        runs: whether its outputs are ONNX Runtime's up to rounding on all inputs.
        largest_difference: over the largest magnitude of each output, on inputs from -1 to 1, as sound and images come.
        on_positive_inputs: the same on inputs from 0.05 to 1.
        onnxruntime_itself: of ONNX Runtime from itself without its optimisations, on all of these inputs.
        over_onnxruntime: warm time over that of ONNX Runtime.
        refused_because: the first message about it, of preparing, running or predicting.
    """

    file: str
    task: str
    runs: bool = False
    largest_difference: str = ""
    on_positive_inputs: str = ""
    onnxruntime_itself: str = ""
    over_onnxruntime: str = ""
    refused_because: str = ""


@dataclass(frozen=True)
class _Reference:
    """ONNX Runtime on the file as it came, on one thread; `plain` optimises nothing."""

    session: ort.InferenceSession
    plain: ort.InferenceSession
    types: Mapping[str, np.dtype]
    fixed: Mapping[str, Array]

    def feed(self, given: Mapping[str, Array]) -> dict[str, Array]:
        return {name: value.astype(self.types[name], copy=False) for name, value in given.items()} | dict(self.fixed)


def _reference(path: Path, wanted: Preparation) -> _Reference:
    options = ort.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 3
    session = ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    plain = ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    model = read_file(path)
    types = {i.name: helper.tensor_dtype_to_np_dtype(i.type.tensor_type.elem_type) for i in model.graph.input}
    return _Reference(session, plain, types, given_values(model, wanted.values, str(path)))


def _draw(graph: Graph, seed: int) -> dict[str, Array]:
    return random_inputs({n: graph.shape(n) for n in graph.inputs}, seed, {n: graph.tensors[n].dtype for n in graph.inputs})


def _signed(inputs: Mapping[str, Array]) -> dict[str, Array]:
    """From -1 to 1 what is from 0.05 to 1; integers as they are."""
    return {n: (v - np.float32(0.525)) / np.float32(0.475) if v.dtype == np.float32 else v for n, v in inputs.items()}


def _seconds(turns: int, *runs: partial[object]) -> list[float]:
    """Median time of each, in turns."""
    times: list[list[float]] = [[] for _ in runs]
    for turn in range(_WARMUP + turns):
        for run, taken in zip(runs, times, strict=True):
            start = perf_counter()
            run()
            if turn >= _WARMUP:
                taken.append(perf_counter() - start)
    return [median(taken) for taken in times]


def _tried(dnnl: Dnnl, path: Path, wanted: Preparation, result: Result, folder: Path) -> str:
    """Fill a result in; the prediction as text."""
    made = prepare_file(path, wanted, folder / "prepared.onnx")
    graph, _ = read_model(made)
    sessions = [SequentialSession(dnnl, default_program(dnnl, made, graph, home), made.parent) for home in HOMES]
    inputs = _draw(graph, 0)
    taken = _seconds(_TURNS_OF_HOMES, *(partial(session.run, inputs) for session in sessions))
    session = sessions[taken.index(min(taken))]
    reference = _reference(path, wanted)
    worst, itself = {"signed": 0.0, "positive": 0.0}, 0.0
    for seed in range(_INPUTS):
        positive = _draw(graph, seed)
        for kind, given in (("signed", _signed(positive)), ("positive", positive)):
            expected = reference.session.run(None, reference.feed(given))
            worst[kind] = max(worst[kind], relative_error(list(session.run(given).values()), expected))
            itself = max(itself, relative_error(expected, reference.plain.run(None, reference.feed(given))))
    result.largest_difference, result.on_positive_inputs = (f"{worst[kind]:.1e}" for kind in ("signed", "positive"))
    result.onnxruntime_itself, result.runs = f"{itself:.1e}", worst["signed"] <= OUTPUT_TOLERANCE
    theirs = partial(reference.session.run, None, reference.feed(inputs))
    our_seconds, their_seconds = _seconds(_TURNS, partial(session.run, inputs), theirs)
    result.over_onnxruntime = f"{our_seconds / their_seconds:.2f}"
    return f"{our_seconds * _MS:.2f} ms, ONNX Runtime {their_seconds * _MS:.2f} ms, predicted {predict(made).latency_ms:.2f} ms"


def main() -> None:
    """Try each model of the list, and write the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("list", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("-o", "--output", type=Path, required=True, help="CSV to write")
    arguments = parser.parse_args()
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    dnnl, results = Dnnl(), []
    dnnl.set_threads(1)
    for file in read_list(arguments.list):
        result, told = Result(file.path, file.task), ""
        try:
            with TemporaryDirectory() as folder:
                told = _tried(dnnl, require(file, arguments.folder), file.wanted, result, Path(folder))
        except EdgeplanError as error:
            result.refused_because = error.what + (f" ({error.where})" if error.where and "/" not in error.where else "")
        results.append(result)
        write_rows(Result, results, arguments.output)
        differences = f"{result.largest_difference or 'refused'} {result.on_positive_inputs} {result.onnxruntime_itself}"
        found = f"{differences} {result.over_onnxruntime} {told or result.refused_because}"
        print(f"{file.path}: {found}", flush=True)  # noqa: T201  what the script is for


if __name__ == "__main__":
    main()
