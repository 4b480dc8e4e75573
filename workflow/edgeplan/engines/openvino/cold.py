"""Starts OpenVINO cold on the CPU, held to f32 (its default on this hardware is bf16)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from edgeplan.engines.cold import Array, Artefact, Baseline, BaselineSession, UnsupportedError


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
