"""What a plan is for: the model's contents, the library, the machine."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import onnx
from onnx.external_data_helper import uses_external_data

from edgeplan.devices.machine import fingerprint
from edgeplan.errors import ModelError
from edgeplan.planning.cold_start.plan import Target
from edgeplan.runtime import plan_folder
from edgeplan.runtime.dnnl import Dnnl

LIBRARY = "onednn"


def target_of(model: Path, dnnl: Dnnl, threads: int) -> Target:
    """The target of plans of a model on this machine.

    Args:
        model: the ONNX file.
        dnnl: the library.
        threads: cores that execute.

    Raises:
        ModelError: the file, or external data of it, cannot be read.
    """
    return Target(model.name, model_sha256(model), LIBRARY, dnnl.info.version, dnnl.info.isa, fingerprint(), threads)


def model_sha256(model: Path) -> str:
    """SHA-256 of a model: of its file, followed by its external data files in the order of their names.

    Raises:
        ModelError: a file cannot be read.
    """
    try:
        return plan_folder.model_sha256((model, *sorted(set(_external(model)))))
    except OSError as error:
        raise ModelError(
            f"cannot read the model: {error.strerror}",
            where=str(error.filename),
            next_step="keep external data beside the model",
        ) from error


def _external(model: Path) -> Iterator[Path]:
    """The external data files that a model's initialisers name."""
    try:
        document = onnx.load(model, load_external_data=False)
    except OSError:
        raise
    except Exception as error:  # protobuf's own error types differ between its implementations
        raise ModelError(
            f"not an ONNX model: {error}", where=str(model), next_step="the file may be damaged: copy or export it again"
        ) from error
    for tensor in document.graph.initializer:
        if uses_external_data(tensor):
            entries = {entry.key: entry.value for entry in tensor.external_data}
            yield model.parent / entries.get("location", "")
