"""Prepares models for OpenVINO with its weights mapped."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import openvino

from edgeplan.engines.cold import Artefact


def mapped(model: Path, inputs: Mapping[str, tuple[int, ...]], folder: Path, threads: int) -> Artefact:
    """Save the model in OpenVINO's own format, which it maps, and still packs what its kernels want packed."""
    del inputs, threads
    found, weights = folder / "mapped.xml", folder / "mapped.bin"
    openvino.save_model(openvino.Core().read_model(str(model)), str(found), compress_to_fp16=False)
    return Artefact(main=found, files=(found, weights))
