"""Starts MNN cold on the CPU, f32 (its "high" precision)."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from edgeplan.engines.cold import Array, Artefact, Baseline, BaselineSession, UnsupportedError, model_outputs
from edgeplan.engines.mnn.convert import convert


class Mnn(Baseline):
    """This setting opens the converted model; its weights are transformed at every start."""

    def load_library(self, threads: int) -> None:
        del threads
        try:
            import MNN
        except ImportError as error:
            raise UnsupportedError(f"MNN is not installed: {error}") from error
        self._mnn = MNN

    def version(self) -> str:
        return version("MNN")

    def prepare(self, model: Path, inputs: Mapping[str, tuple[int, ...]], folder: Path, threads: int) -> Artefact:
        del threads
        converted = convert(model, folder)
        return Artefact(main=converted, files=(converted,), input_names=tuple(inputs), outputs=model_outputs(model))

    def prepare_inputs(self, inputs: Mapping[str, Array]) -> Mapping[str, Any]:
        return {name: self._tensor(value) for name, value in inputs.items()}

    def _tensor(self, value: Array) -> Any:
        mnn = self._mnn
        return mnn.Tensor(value.shape, mnn.Halide_Type_Float, value, mnn.Tensor_DimensionType_Caffe)

    def open(self, artefact: Artefact, inputs: Mapping[str, Any], threads: int) -> BaselineSession:
        interpreter = self._mnn.Interpreter(str(artefact.main))
        session = interpreter.createSession({"backend": "CPU", "numThread": threads, "precision": "high"})
        results = {name: self._tensor(np.empty(shape, np.float32)) for name, shape in artefact.outputs.items()}
        return _Session(interpreter, session, inputs, results, artefact.outputs)


class _Session(BaselineSession):
    def __init__(
        self,
        interpreter: Any,
        session: Any,
        inputs: Mapping[str, Any],
        results: Mapping[str, Any],
        shapes: Mapping[str, tuple[int, ...]],
    ) -> None:
        self._interpreter, self._session, self._shapes = interpreter, session, shapes
        self._inputs = [(interpreter.getSessionInput(session, name), value) for name, value in inputs.items()]
        self._outputs = [(name, interpreter.getSessionOutput(session, name), host) for name, host in results.items()]

    def run(self) -> None:
        for tensor, value in self._inputs:
            tensor.copyFrom(value)
        self._interpreter.runSession(self._session)
        for _, tensor, host in self._outputs:
            tensor.copyToHostTensor(host)

    def outputs(self) -> Mapping[str, Array]:
        return {name: np.array(host.getNumpyData()).reshape(self._shapes[name]) for name, _, host in self._outputs}
