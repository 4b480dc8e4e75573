"""ONNX Runtime's outputs are the reference that outputs of plans are checked against.

`reference_apart` computes them in a process of their own (`python -m`): the one that runs a plan loads neither onnx nor ONNX
Runtime.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from edgeplan.errors import EdgeplanError, ModelError
from edgeplan.runtime.folder import read_folder
from edgeplan.support.lazy import lazily
from edgeplan.support.subprocesses import module_command, run
from edgeplan.support.tensors import OUTPUT_TOLERANCE, QUANTISED_TOLERANCE, Array, allowed_error, relative_error

compare = lazily("edgeplan.graph.onnx.compare")  # who runs plans compares none

#: How many inputs near to those of a run say how far ONNX Runtime is from itself, and how near they are.
_AGAIN, _NEAR = 4, 1e-3


class Verdict(NamedTuple):
    """Differences of outputs from ONNX Runtime's, and how far they may go: shares of each output's largest magnitude."""

    difference: float
    tolerance: float


def onnxruntime_reference(model: Path, inputs: Mapping[str, Array]) -> dict[str, Array]:
    """Return outputs of ONNX Runtime on one thread, by name; of models that round to bytes operator by operator."""
    return _outputs(model, [inputs], optimised=not compare.is_rounding(model))[0]


def judged(model: Path, inputs: Mapping[str, Array], found: Sequence[Mapping[str, Array]]) -> list[Verdict]:
    """Hold outputs of runs, by name, on the same inputs against ONNX Runtime's.

    How much differences grow on their way depends on the model: where one is further away than rounding brings it, what ONNX
    Runtime with optimisations is from itself without says how far it may be (`allowed_error`).
    """
    rounds = compare.is_rounding(model)
    tolerance, reference = QUANTISED_TOLERANCE if rounds else OUTPUT_TOLERANCE, onnxruntime_reference(model, inputs)
    expected = [reference[name] for name in found[0]]
    verdicts = [Verdict(relative_error([run[name] for name in found[0]], expected), tolerance) for run in found]
    if all(one.difference <= tolerance for one in verdicts):
        return verdicts
    rng = np.random.default_rng(0)
    near = [inputs, *({name: _moved(value, rng) for name, value in inputs.items()} for _ in range(_AGAIN))]
    usual, others = ([[one[n] for n in found[0]] for one in _outputs(model, near, optimised=o)] for o in (not rounds, rounds))
    own = [*zip(usual, others, strict=True)]
    return [
        one._replace(tolerance=allowed_error([run[name] for name in found[0]], expected, own, tolerance))
        for one, run in zip(verdicts, found, strict=True)
    ]


def _moved(value: Array, rng: np.random.Generator) -> Array:
    if value.dtype.kind != "f":
        return value
    return np.asarray(value * (1 + _NEAR * rng.uniform(-1, 1, value.shape)), value.dtype)


def _outputs(model: Path, each: Sequence[Mapping[str, Array]], *, optimised: bool) -> list[dict[str, Array]]:
    try:
        session = compare.opened_session(model, optimised=optimised)
        names = [output.name for output in session.get_outputs()]
        return [dict(zip(names, session.run(names, dict(inputs)), strict=True)) for inputs in each]
    except Exception as error:  # the types that ONNX Runtime raises derive from nothing else
        reason = str(error).strip().splitlines()[0]
        raise ModelError(
            f"ONNX Runtime cannot run the model: {reason}", where=str(model), next_step="run without --check"
        ) from error


def model_apart(folder: Path, given: Path | None) -> Path:
    """Find the ONNX file that a plan was made from (`PlanFolder.require_model`)."""
    return Path(_asked("model", str(folder), str(given or "")))


def reference_apart(model: Path, inputs: Mapping[str, Array], found: Sequence[Mapping[str, Array]]) -> Verdict:
    """Hold outputs against ONNX Runtime's (`judged`) in a process of its own, and return the verdict on the worst."""
    with tempfile.TemporaryDirectory(prefix="edgeplan-reference-") as folder:
        files = [Path(folder) / f"{number}.npz" for number in range(1 + len(found))]
        for file, arrays in zip(files, (inputs, *found), strict=True):
            _write(file, arrays)
        return Verdict(*map(float, _asked("outputs", str(model), *map(str, files)).split()))


def _asked(*words: str) -> str:
    command = module_command("edgeplan.engines.onnxruntime.reference", *words)
    ended = run(command)
    try:
        answer = json.loads(ended.stdout)
    except ValueError:
        last = ended.stderr.decode(errors="replace").strip().splitlines()[-1:] or [f"exit code {ended.returncode}"]
        answer = {"what": f"the comparison with ONNX Runtime failed: {last[0]}", "where": words[1], "next_step": "run it again"}
    if "what" in answer:
        raise ModelError(answer["what"], where=answer["where"], next_step=answer["next_step"])
    return str(answer["found"])


def _write(path: Path, arrays: Mapping[str, Array]) -> None:
    """Write arrays of any names: they are numbered, behind a list of the names."""
    np.savez(path, np.array(list(arrays), dtype=np.str_), *arrays.values())


def _read(path: Path) -> dict[str, Array]:
    with np.load(path) as found:
        return {str(name): found[f"arr_{k}"] for k, name in enumerate(found["arr_0"], start=1)}


def answer() -> None:
    """Answer in JSON what the command line asks: `model FOLDER GIVEN`, or `outputs MODEL INPUTS OUTPUTS ...`."""
    what, first, *others = sys.argv[1:]
    try:
        if what == "model":
            found = str(read_folder(Path(first)).require_model(Path(others[0]) if others[0] else None))
        else:
            given, *outputs = (_read(Path(file)) for file in others)
            verdicts = judged(Path(first), given, outputs)
            worst = max(verdicts, key=lambda one: one.difference / one.tolerance)
            found = f"{worst.difference} {worst.tolerance}"
    except EdgeplanError as error:
        sys.stdout.write(json.dumps({"what": error.what, "where": error.where, "next_step": error.next_step}))
    else:
        sys.stdout.write(json.dumps({"found": found}))


if __name__ == "__main__":
    answer()
