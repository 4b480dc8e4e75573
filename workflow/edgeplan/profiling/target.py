"""Identifies the target of a plan: the model's contents, the library, the machine."""

from __future__ import annotations

from pathlib import Path

from edgeplan.graph.model_file import model_sha256
from edgeplan.planning.document import Target
from edgeplan.runtime.dnnl import Dnnl
from edgeplan.support.machine import fingerprint

LIBRARY = "onednn"


def target_of(model: Path, dnnl: Dnnl, threads: int) -> Target:
    """Return the target of plans of a model on this machine.

    Args:
        model: the ONNX file.
        dnnl: the library.
        threads: cores that execute.
    """
    return Target(model.name, model_sha256(model), LIBRARY, dnnl.info.version, dnnl.info.isa, fingerprint(), threads)
