"""Starts ONNX Runtime cold on an NVIDIA GPU through its CUDA execution provider, f32."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from edgeplan.engines.cold import Array, Artefact, BaselineSession, UnsupportedError
from edgeplan.engines.onnxruntime.cold import OnnxRuntimeDefault, StartedSession
from edgeplan.engines.onnxruntime.cuda_provider import OPTIONS, PROVIDER, is_there
from edgeplan.support.lazy import lazily

onnx = lazily("onnx")

_ERRORS_ONLY = 3


class OnnxRuntimeCuda(OnnxRuntimeDefault):
    """This setting computes on the GPU alone; the CUDA context is made with the library, as ours is before a start."""

    def load_library(self, threads: int) -> None:
        super().load_library(threads)
        if not is_there(self._ort):
            raise UnsupportedError("the CUDA provider of onnxruntime is not installed: it is in the package onnxruntime-gpu")
        self._require_gpu(self._session(_one_step(), threads)).run(None, {"x": np.zeros(1, np.float32)})

    def open(self, artefact: Artefact, inputs: Mapping[str, Array], threads: int) -> BaselineSession:
        return StartedSession(self._require_gpu(self._session(str(artefact.main), threads)), inputs)

    def _session(self, model: str | bytes, threads: int) -> Any:
        options = self._options(threads)
        options.log_severity_level = _ERRORS_ONLY
        return self._ort.InferenceSession(model, options, [(PROVIDER, dict(OPTIONS)), "CPUExecutionProvider"])

    @staticmethod
    def _require_gpu(session: Any) -> Any:
        if PROVIDER not in session.get_providers():
            raise UnsupportedError("the CUDA provider of onnxruntime does not load here: its CUDA and cuDNN are missing")
        return session


def _one_step() -> bytes:
    """A model that adds its input to itself."""
    value = [onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [1]) for name in ("x", "y")]
    graph = onnx.helper.make_graph([onnx.helper.make_node("Add", ["x", "x"], ["y"])], "one", value[:1], value[1:])
    made = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 13)], ir_version=8)
    return bytes(made.SerializeToString())
