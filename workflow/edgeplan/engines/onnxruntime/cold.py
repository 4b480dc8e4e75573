"""Starts ONNX Runtime cold on its CPU execution provider, f32: its default, and what it offers for a faster start."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from edgeplan.engines.cold import Array, Artefact, Baseline, BaselineSession, UnsupportedError
from edgeplan.support.lazy import lazily

onnx = lazily("onnx")  # preparing alone needs it

_ERRORS_ONLY = 3


class OnnxRuntimeDefault(Baseline):
    """This setting opens the ONNX file with all graph optimisations."""

    def load_library(self, threads: int) -> None:
        del threads
        try:
            import onnxruntime as ort
        except ImportError as error:
            raise UnsupportedError(f"onnxruntime is not installed: {error}") from error
        self._ort = ort
        ort.set_default_logger_severity(_ERRORS_ONLY)  # creates the environment

    def version(self) -> str:
        return str(self._ort.__version__)

    def _options(self, threads: int) -> Any:
        options = self._ort.SessionOptions()
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
        options.execution_mode = self._ort.ExecutionMode.ORT_SEQUENTIAL
        return options

    def open(self, artefact: Artefact, inputs: Mapping[str, Array], threads: int) -> BaselineSession:
        return StartedSession(
            self._ort.InferenceSession(str(artefact.main), self._options(threads), ["CPUExecutionProvider"]), inputs
        )


class OnnxRuntimeOptimised(OnnxRuntimeDefault):
    """This setting saves the optimised model once, its weights as external data, and opens it with the optimisations off."""

    #: Whether the weights are saved in the layouts the kernels pack them into.
    prepacked = False

    def prepare(self, model: Path, inputs: Mapping[str, tuple[int, ...]], folder: Path, threads: int) -> Artefact:
        del inputs
        optimised, weights = folder / "optimised.onnx", folder / "weights.bin"
        options = self._options(threads)
        options.optimized_model_filepath = str(optimised)
        options.add_session_config_entry("session.optimized_model_external_initializers_file_name", weights.name)
        options.add_session_config_entry("session.optimized_model_external_initializers_min_size_in_bytes", "1024")
        if self.prepacked:
            options.add_session_config_entry("session.save_external_prepacked_constant_initializers", "1")
        self._ort.InferenceSession(str(model), options, ["CPUExecutionProvider"])
        files = tuple(path for path in (optimised, weights) if path.is_file())
        return Artefact(main=optimised, files=files, note="blocked layouts of this machine: not portable")

    def open(self, artefact: Artefact, inputs: Mapping[str, Array], threads: int) -> BaselineSession:
        options = self._options(threads)
        options.graph_optimization_level = self._ort.GraphOptimizationLevel.ORT_DISABLE_ALL
        return StartedSession(self._ort.InferenceSession(str(artefact.main), options, ["CPUExecutionProvider"]), inputs)


class OnnxRuntimePrepacked(OnnxRuntimeOptimised):
    """This setting saves the packed weights of the optimised model, too."""

    prepacked = True


class OnnxRuntimeFrugal(OnnxRuntimeOptimised):
    """This setting maps weights and never copies them: nothing is packed beforehand, and no arena keeps what was freed."""

    def prepare(self, model: Path, inputs: Mapping[str, tuple[int, ...]], folder: Path, threads: int) -> Artefact:
        del inputs, threads
        external, weights = folder / "external.onnx", folder / "weights.bin"
        options = {"save_as_external_data": True, "location": weights.name, "size_threshold": 1024}
        onnx.save_model(onnx.load(model), external, **options)
        return Artefact(main=external, files=tuple(path for path in (external, weights) if path.is_file()))

    def open(self, artefact: Artefact, inputs: Mapping[str, Array], threads: int) -> BaselineSession:
        options = self._options(threads)
        options.graph_optimization_level = self._ort.GraphOptimizationLevel.ORT_DISABLE_ALL
        options.add_session_config_entry("session.disable_prepacking", "1")
        options.enable_cpu_mem_arena = False
        options.enable_mem_pattern = False
        return StartedSession(self._ort.InferenceSession(str(artefact.main), options, ["CPUExecutionProvider"]), inputs)


class StartedSession(BaselineSession):
    """A started session holds a model and its inputs; its outputs are on the host."""

    def __init__(self, session: Any, inputs: Mapping[str, Array]) -> None:
        self._session, self._inputs = session, inputs
        self._outputs: list[Array] = []

    def run(self) -> None:
        self._outputs = self._session.run(None, self._inputs)

    def outputs(self) -> Mapping[str, Array]:
        return dict(zip((o.name for o in self._session.get_outputs()), self._outputs, strict=True))
