"""Prepares models for ncnn, f32: the engine that NNV12 extends."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from edgeplan.engines.cold import Artefact, model_outputs
from edgeplan.engines.description import UnsupportedError
from edgeplan.engines.ncnn.convert import convert, converter_version


def converted(model: Path, inputs: Mapping[str, tuple[int, ...]], folder: Path, threads: int) -> Artefact:
    """Convert the model by pnnx.

    Raises:
        UnsupportedError: it cannot be converted, or is not of a batch of one.
    """
    del threads
    if any(shape[0] != 1 or len(shape) == 1 for shape in inputs.values()):
        raise UnsupportedError("ncnn has no batch axis: only batches of one")
    param, weights = convert(model, inputs, folder)
    return Artefact(
        main=param,
        files=(param, weights),
        companions={"weights": weights},
        outputs={f"out{index}": shape for index, shape in enumerate(model_outputs(model).values())},
        note=f"converted by pnnx {converter_version()}",
    )
