"""Computes references of a run in a process of its own: the one that runs a plan loads neither onnx nor ONNX Runtime."""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from edgeplan.engines.onnxruntime.reference import Verdict, judged
from edgeplan.errors import EdgeplanError, ModelError
from edgeplan.runtime.folder import read_folder
from edgeplan.support.subprocesses import module_command, run

Array = npt.NDArray[Any]


def model_apart(folder: Path, given: Path | None) -> Path:
    """Find the ONNX file that a plan was made from (`PlanFolder.require_model`)."""
    return Path(_asked("model", str(folder), str(given or "")))


def reference_apart(model: Path, inputs: Mapping[str, Array], found: Sequence[Mapping[str, Array]]) -> Verdict:
    """Hold outputs against ONNX Runtime's (`judged`), and return the verdict on the worst.

    Args:
        model: the ONNX file.
        inputs: arrays by name.
        found: outputs of each run by name, all of the same ones.
    """
    with tempfile.TemporaryDirectory(prefix="edgeplan-reference-") as folder:
        files = [Path(folder) / f"{number}.npz" for number in range(1 + len(found))]
        for file, arrays in zip(files, (inputs, *found), strict=True):
            _write(file, arrays)
        return Verdict(*map(float, _asked("outputs", str(model), *map(str, files)).split()))


def _asked(*words: str) -> str:
    command = module_command("edgeplan.checking", *words)
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


def main() -> None:
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
    main()
