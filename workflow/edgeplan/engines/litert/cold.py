"""Prepares models for LiteRT (TensorFlow Lite) through XNNPACK, f32.

The public converters need TensorFlow, so models are converted by `lowering.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from edgeplan.engines.cold import Artefact, model_outputs
from edgeplan.engines.litert.lowering import convert


def converted(model: Path, inputs: Mapping[str, tuple[int, ...]], folder: Path, threads: int) -> Artefact:
    """Convert the model; XNNPACK packs its weights at every start."""
    del inputs, threads
    found = folder / "model.tflite"
    convert(model, found)
    return Artefact(main=found, files=(found,), outputs=model_outputs(model))


def cached(model: Path, inputs: Mapping[str, tuple[int, ...]], folder: Path, threads: int) -> Artefact:
    """Convert the model, and name the cache that a start beforehand fills with packed weights."""
    return converted(model, inputs, folder, threads).model_copy(update={"companions": {"cache": folder / "weights.xnnpack"}})
