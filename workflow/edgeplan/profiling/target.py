"""This module identifies the target of a plan: the model's contents, the library, the machine."""

from __future__ import annotations

from pathlib import Path

from edgeplan.errors import ModelError
from edgeplan.planning.document import Target
from edgeplan.runtime import plan_folder
from edgeplan.runtime.dnnl import Dnnl
from edgeplan.support.machine import fingerprint

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
        return plan_folder.model_sha256(plan_folder.files_of(model))
    except OSError as error:
        raise ModelError(
            f"cannot read the model: {error.strerror}",
            where=str(error.filename),
            next_step="keep external data beside the model",
        ) from error
