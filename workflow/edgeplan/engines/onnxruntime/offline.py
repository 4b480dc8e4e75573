"""ONNX Runtime with the least anonymous memory that it offers at full speed: optimised beforehand, its weights mapped.

All optimisations, those for blocked layouts among them, are applied once and saved, with weights as kernels take them. So
nothing is packed when the model is opened, and weights stay pages of their file.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from edgeplan.engines.cold import Artefact
from edgeplan.engines.onnxruntime.cold import OnnxRuntimeFrugal

_NO_PACKING = ("session.disable_prepacking", "1")
_EXTERNAL = "session.optimized_model_external_initializers"
_ERRORS_ONLY = 3
_LEAST_BYTES = 1024  # smaller weights stay in the model's own file


class OnnxRuntimeOffline(OnnxRuntimeFrugal):
    """This setting saves the model with all optimisations applied, weights apart, and opens it with nothing left to do."""

    def prepare(self, model: Path, inputs: Mapping[str, tuple[int, ...]], folder: Path, threads: int) -> Artefact:
        del inputs
        optimised, weights = folder / "offline.onnx", folder / "weights.bin"
        options: Any = self._options(threads)
        options.log_severity_level = _ERRORS_ONLY  # it warns that the saved model is for this machine alone
        options.graph_optimization_level = self._ort.GraphOptimizationLevel.ORT_ENABLE_ALL
        options.optimized_model_filepath = str(optimised)
        options.add_session_config_entry(*_NO_PACKING)
        options.add_session_config_entry(f"{_EXTERNAL}_file_name", weights.name)
        options.add_session_config_entry(f"{_EXTERNAL}_min_size_in_bytes", str(_LEAST_BYTES))
        self._ort.InferenceSession(str(model), options, ["CPUExecutionProvider"])
        files = tuple(path for path in (optimised, weights) if path.is_file())
        return Artefact(main=optimised, files=files, note="blocked layouts of this machine: not portable")
