"""Variants of models in eight bits, by ONNX Runtime's static quantisation with seeded images to calibrate by.

Batch normalisations are folded first, as whoever quantises a model does. Weights are int8 with a scale for each channel,
activations uint8 with zero points, written as QuantizeLinear and DequantizeLinear around each operator.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
from onnxruntime import quantization

from edgeplan.support.scratch import ScratchFolder

_IMAGES = 8


def quantised(model: Path, target: Path, seed: int = 0) -> Path:
    """Write a model of one image in eight bits; the same file from the same seed.

    Args:
        model: an ONNX file in float32 of one input.
        target: the file to write.
        seed: of the images that decide the scales of activations.

    Raises:
        OSError: the file cannot be written.
    """
    with ScratchFolder(f".{target.name}.", target.parent) as folder:
        folded, made = Path(folder) / "folded.onnx", Path(folder) / target.name
        options = ort.SessionOptions()
        options.log_severity_level = 3
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_BASIC
        options.optimized_model_filepath = str(folded)
        session = ort.InferenceSession(str(model), options, providers=["CPUExecutionProvider"])
        (given,) = session.get_inputs()
        level = logging.root.manager.disable
        logging.disable(logging.WARNING)  # it advises to optimise the model before, which has been done
        try:
            quantization.quantize_static(
                str(folded),
                str(made),
                _Images(given.name, tuple(given.shape), seed),
                quant_format=quantization.QuantFormat.QDQ,
                per_channel=True,
                weight_type=quantization.QuantType.QInt8,
                activation_type=quantization.QuantType.QUInt8,
            )
        finally:
            logging.disable(level)
        return made.replace(target)


class _Images:
    """Images are read by calibration one after the other."""

    def __init__(self, name: str, shape: tuple[int, ...], seed: int) -> None:
        self._images = _drawn(name, shape, seed)

    def get_next(self) -> dict[str, Any] | None:
        """Return the next image by the name of the input; None after the last."""
        return next(self._images, None)

    def __iter__(self) -> _Images:
        return self

    def __next__(self) -> dict[str, Any]:
        return next(self._images)

    def set_range(self, start_index: int, end_index: int) -> None:
        """Refuse to read a part: all images are read at once."""
        raise NotImplementedError(f"images {start_index} to {end_index} alone")


def _drawn(name: str, shape: tuple[int, ...], seed: int) -> Iterator[dict[str, Any]]:
    rng = np.random.default_rng(seed)
    for _ in range(_IMAGES):
        yield {name: rng.standard_normal(shape).astype(np.float32)}
