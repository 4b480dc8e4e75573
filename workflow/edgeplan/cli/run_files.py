"""Converts files of tensors around a run of a plan of memory, in a process: `python -m edgeplan.cli.run_files`.

`inputs` checks the options and writes the bytes of each input to a file, `outputs` makes of the bytes of each output what
`edgeplan run` writes and compares. Both take the options as JSON.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from edgeplan.cli.ending import guarded
from edgeplan.engines.onnxruntime.reference import judged
from edgeplan.measurement.process.inputs import random_inputs_of
from edgeplan.runs import Run, budget_sizes, named_not_finite
from edgeplan.runtime.folder import PlanFolder, read_folder
from edgeplan.runtime.streaming.program import StreamProgram
from edgeplan.support.tensors import read_inputs, write_outputs
from edgeplan.terminal import say

if TYPE_CHECKING:
    from collections.abc import Sequence

    from edgeplan.support.tensors import Array, ModelInput


def main() -> None:
    """Do the work that the command line names: `inputs` or `outputs`."""
    work = {"inputs": _inputs, "outputs": _outputs}[sys.argv[1]]
    guarded(lambda: work(json.loads(sys.argv[2])))


def _inputs(job: Mapping[str, Any]) -> None:
    plan, expected = _plan(job)
    sizes = budget_sizes(tuple(filter(None, job["budgets"].split(","))))
    if job["check"]:
        _model(plan, job)
    values = read_inputs(Path(job["given"]), expected) if job["given"] else random_inputs_of(expected)
    named_not_finite(values)
    for k, border in enumerate(expected):
        (Path(job["work"]) / f"{k}.in").write_bytes(np.ascontiguousarray(values[border.name], border.dtype).tobytes())
    say(json.dumps(sizes))


def _outputs(job: Mapping[str, Any]) -> None:
    plan, expected = _plan(job)
    outputs = _arrays(job, plan.program_of(StreamProgram).outputs, "out")
    if job["output"]:
        write_outputs(Path(job["output"]), outputs)
        say(f"outputs: {', '.join(outputs)} in {job['output']}")
    if job["check"]:
        inputs = _arrays(job, expected, "in")
        model = _model(plan, job)
        ((difference, tolerance),) = judged(model, inputs, [outputs])
        odd = named_not_finite(inputs, say=False)
        held = Run(plan, difference=difference, tolerance=tolerance, not_finite=odd)
        say(held.compared)
        held.require_checked()


def _plan(job: Mapping[str, Any]) -> tuple[PlanFolder, Sequence[ModelInput]]:
    plan = read_folder(Path(job["folder"]))
    return plan, plan.program.inputs


def _model(plan: PlanFolder, job: Mapping[str, Any]) -> Path:
    return plan.require_model(Path(job["model"]) if job["model"] else None)


def _arrays(job: Mapping[str, Any], borders: Sequence[ModelInput], kind: str) -> dict[str, Array]:
    files = {border.name: Path(job["work"]) / f"{k}.{kind}" for k, border in enumerate(borders)}
    return {b.name: np.frombuffer(files[b.name].read_bytes(), b.dtype).reshape(b.shape) for b in borders}


if __name__ == "__main__":
    main()
