"""Starts LiteRT (TensorFlow Lite) cold on the CPU through XNNPACK, f32, with and without XNNPACK's weight cache.

The public converters need TensorFlow, so the model is converted by `lowering.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from edgeplan.engines.cold import Array, Artefact, Baseline, BaselineSession, UnsupportedError, model_outputs


class LiteRt(Baseline):
    """This setting opens the converted model; XNNPACK packs its weights at every start."""

    def load_library(self, threads: int) -> None:
        del threads
        try:
            from ai_edge_litert import compiled_model, cpu_options, environment, options
        except ImportError as error:
            raise UnsupportedError(f"ai-edge-litert is not installed: {error}") from error
        self._model, self._options, self._cpu = compiled_model.CompiledModel, options.Options, cpu_options.CpuOptions
        self._environment = environment.Environment.create()

    def version(self) -> str:
        return version("ai-edge-litert")

    def prepare(self, model: Path, inputs: Mapping[str, tuple[int, ...]], folder: Path, threads: int) -> Artefact:
        del threads
        from edgeplan.engines.litert.lowering import convert

        converted = folder / "model.tflite"
        convert(model, converted)
        return Artefact(main=converted, files=(converted,), input_names=tuple(inputs), outputs=model_outputs(model))

    def prepare_inputs(self, inputs: Mapping[str, Array]) -> Mapping[str, Array]:
        return {name: np.ascontiguousarray(_channels_last(value)) for name, value in inputs.items()}

    def _compile(self, model: Path, threads: int, cache: str) -> Any:
        cpu = self._cpu(num_threads=threads, xnnpack_weight_cache_path=cache)
        return self._model.from_file(str(model), environment=self._environment, options=self._options(cpu_options=cpu))

    def open(self, artefact: Artefact, inputs: Mapping[str, Any], threads: int) -> BaselineSession:
        cache = artefact.companions.get("cache")
        return _Session(self._compile(artefact.main, threads, str(cache) if cache else ""), inputs, artefact.outputs)


class LiteRtCached(LiteRt):
    """This setting maps packed weights from XNNPACK's cache."""

    def prepare(self, model: Path, inputs: Mapping[str, tuple[int, ...]], folder: Path, threads: int) -> Artefact:
        plain = super().prepare(model, inputs, folder, threads)
        cache = folder / "weights.xnnpack"
        zeros = self.prepare_inputs({name: np.zeros(shape, np.float32) for name, shape in inputs.items()})
        _Session(self._compile(plain.main, threads, str(cache)), zeros, plain.outputs).run()
        if not cache.is_file():
            raise UnsupportedError("XNNPACK stored no packed weights for this model")
        return plain.model_copy(update={"files": (*plain.files, cache), "companions": {"cache": cache}})


class _Session(BaselineSession):
    def __init__(self, model: Any, inputs: Mapping[str, Array], shapes: Mapping[str, tuple[int, ...]]) -> None:
        self._model, self._shapes = model, shapes
        self._inputs = [(model.create_input_buffer_by_name(_SIGNATURE, name), value) for name, value in inputs.items()]
        self._outputs = {name: model.create_output_buffer_by_name(_SIGNATURE, name) for name in shapes}
        self._bound = {name: buffer for name, (buffer, _) in zip(inputs, self._inputs, strict=True)}

    def run(self) -> None:
        for buffer, value in self._inputs:
            buffer.write(value)
        self._model.run_by_name(_SIGNATURE, self._bound, self._outputs)
        self._results = {
            name: buffer.read(int(np.prod(self._shapes[name])), np.float32) for name, buffer in self._outputs.items()
        }

    def outputs(self) -> Mapping[str, Array]:
        return {name: _channels_first(np.array(value), self._shapes[name]) for name, value in self._results.items()}


_SIGNATURE = "serving_default"
_IMAGE_AXES = 4


def _channels_last(value: Array) -> Array:
    return value.transpose(0, 2, 3, 1) if value.ndim == _IMAGE_AXES else value


def _channels_first(value: Array, shape: tuple[int, ...]) -> Array:
    """Return the flat values of a channels-last tensor in the shape of the ONNX model."""
    if len(shape) != _IMAGE_AXES:
        return value.reshape(shape)
    n, c, h, w = shape
    return value.reshape(n, h, w, c).transpose(0, 3, 1, 2)
