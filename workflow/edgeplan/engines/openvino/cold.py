"""Starts OpenVINO cold on the CPU, held to f32 (its default on this hardware is bf16), with and without its model cache."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from edgeplan.engines.cold import Array, Artefact, Baseline, BaselineSession, UnsupportedError, beside
from edgeplan.graph.model_file import model_files


class OpenVinoBaseline(Baseline):
    """This setting compiles the ONNX file at every start."""

    def load_library(self, threads: int) -> None:
        del threads
        try:
            import openvino.frontend
        except ImportError as error:
            raise UnsupportedError(f"openvino is not installed: {error}") from error
        self._ov = openvino
        self._core = openvino.Core()
        self._core.get_property("CPU", "FULL_DEVICE_NAME")  # loads the plugin of the device
        # And the reader of ONNX files: libraries, not the model.
        self._frontend = openvino.frontend.FrontEndManager().load_by_framework("onnx")

    def version(self) -> str:
        return str(self._ov.get_version())

    def _config(self, threads: int) -> dict[str, Any]:
        return {"INFERENCE_PRECISION_HINT": "f32", "PERFORMANCE_HINT": "LATENCY", "INFERENCE_NUM_THREADS": threads}

    def open(self, artefact: Artefact, inputs: Mapping[str, Array], threads: int) -> BaselineSession:
        return _Session(self._ov, self._core.compile_model(str(artefact.main), "CPU", self._config(threads)), inputs)


class OpenVinoCached(OpenVinoBaseline):
    """This setting compiles once; every start imports the blob from the folder of the cache."""

    def prepare(self, model: Path, inputs: Mapping[str, tuple[int, ...]], folder: Path, threads: int) -> Artefact:
        del inputs
        # The cache knows a model by its path and time stamp: a copy of our own keeps both when the model is written again. No
        # hard link: it changes the ctime of the model, by which plan folders know it, and each of their starts would hash it.
        files = tuple(Path(shutil.copy2(path, beside(path, model, folder))) for path in model_files(model))
        cache = folder / "cache"
        self._core.compile_model(str(files[0]), "CPU", self._cached_config(threads, cache))
        blobs = tuple(sorted(path for path in cache.rglob("*") if path.is_file()))
        if not blobs:
            raise UnsupportedError("OpenVINO stored nothing in its cache for this model")
        # the ONNX file may be looked at beside the blob, so it belongs to what is evicted
        return Artefact(main=files[0], files=(*files, *blobs), companions={"cache": cache})

    def _cached_config(self, threads: int, cache: Path) -> dict[str, Any]:
        # OPTIMIZE_SIZE leaves the weights out and then compiles ONNX models again
        return self._config(threads) | {"CACHE_DIR": str(cache), "CACHE_MODE": "OPTIMIZE_SPEED"}

    def open(self, artefact: Artefact, inputs: Mapping[str, Array], threads: int) -> BaselineSession:
        config = self._cached_config(threads, artefact.companions["cache"])
        compiled = self._core.compile_model(str(artefact.main), "CPU", config)
        if not compiled.get_property("LOADED_FROM_CACHE"):  # microseconds
            raise UnsupportedError("OpenVINO compiled the model again instead of taking it from its cache")
        return _Session(self._ov, compiled, inputs)


class _Session(BaselineSession):
    def __init__(self, ov: Any, compiled: Any, inputs: Mapping[str, Array]) -> None:
        self._compiled, self._inputs = compiled, inputs
        self._request = compiled.create_infer_request()
        for name, value in inputs.items():
            self._request.set_tensor(name, ov.Tensor(value, shared_memory=True))

    def run(self) -> None:
        self._request.infer()

    def outputs(self) -> Mapping[str, Array]:
        return {
            port.get_any_name(): np.array(self._request.get_output_tensor(index).data)
            for index, port in enumerate(self._compiled.outputs)
        }
