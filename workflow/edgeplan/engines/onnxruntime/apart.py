"""Reference outputs from a process of its own: the one that runs a plan loads no ONNX Runtime."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from edgeplan.errors import EdgeplanError, ModelError
from edgeplan.support.subprocesses import module_command

Array = npt.NDArray[Any]


def reference_apart(model: Path, inputs: Mapping[str, Array]) -> dict[str, Array]:
    """ONNX Runtime's outputs, by name.

    Args:
        model: the ONNX file.
        inputs: arrays by name.

    Raises:
        ModelError: ONNX Runtime cannot run the model.
    """
    with tempfile.TemporaryDirectory(prefix="edgeplan-reference-") as folder:
        given, found = Path(folder) / "inputs.npz", Path(folder) / "outputs.npz"
        write_arrays(given, inputs)
        command = [*module_command("edgeplan.engines.onnxruntime.apart"), str(model), str(given), str(found)]
        ended = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)  # noqa: S603
        if ended.returncode:
            why = ended.stderr.strip() or f"the process ended with {ended.returncode}"
            raise ModelError(f"ONNX Runtime cannot run the model: {why}", where=str(model), next_step="check the model")
        return read_arrays(found)


def write_arrays(path: Path, arrays: Mapping[str, Array]) -> None:
    """Write arrays of any names to a file."""
    names = np.array(list(arrays), dtype=np.str_)
    np.savez(path, names, *arrays.values())


def read_arrays(path: Path) -> dict[str, Array]:
    """Read what `write_arrays` wrote."""
    with np.load(path) as found:
        return {str(name): found[f"arr_{k}"] for k, name in enumerate(found["arr_0"], start=1)}


def main() -> None:
    """Run a model: its path, a file of inputs and one for the outputs are named on the command line."""
    from edgeplan.engines.onnxruntime.reference import reference_outputs

    model, given, found = map(Path, sys.argv[1:])
    try:
        write_arrays(found, reference_outputs(model, read_arrays(given)))
    except EdgeplanError as error:
        sys.exit(error.what)


if __name__ == "__main__":
    main()
