"""Runs and times models by ONNX Runtime on an NVIDIA GPU: a black box, f32 without TF32.

Inputs and outputs lie in the GPU's memory, so a run is the GPU's work and the call. ONNX Runtime's own counters of nodes are
no times of the GPU: its wheels are built without CUPTI, and they count how long the host takes to launch a node. So kernels
are measured in copies, and copies of a small one tell the cost of the call. Times add up where a model is recorded as a CUDA
graph (option `enable_cuda_graph`): else launches hide behind kernels, or kernels behind launches, as it happens.
"""

from __future__ import annotations

import ctypes
import logging
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar

import numpy as np
import onnxruntime as ort

from edgeplan.cuda.driver import Driver, gpu_name
from edgeplan.engines.base import Array, Engine, EngineSettings, Session, random_inputs
from edgeplan.engines.onnxruntime import CUDA_OPTIONS, ON_GPU
from edgeplan.errors import DeviceError, ModelError
from edgeplan.graph.builder import GraphBuilder
from edgeplan.graph.ir import Graph
from edgeplan.graph.onnx.compare import session_options
from edgeplan.graph.onnx.write import save_onnx
from edgeplan.support.scratch import ScratchFolder
from edgeplan.support.tensors import OUTPUT_TOLERANCE

log = logging.getLogger(__name__)
_WHERE = "the device file, field options"
_SEARCH = "cudnn_conv_algo_search"
#: Options of a device file, with their values where it has none and with what fits. The last two are the provider's own.
_OPTIONS = MappingProxyType(
    {
        "device": ("0", r"[0-9]{1,3}", "the number of a GPU, as nvidia-smi lists them"),
        _SEARCH: (CUDA_OPTIONS[_SEARCH], "DEFAULT|EXHAUSTIVE|HEURISTIC", "DEFAULT, EXHAUSTIVE or HEURISTIC"),
        "enable_cuda_graph": ("0", "[01]", "'0' or '1'"),
    }
)
#: The first run sets kernels up, the second is recorded, and the third is the first that is like those after it.
_RUNS_AFTER_FIRST = 2


def chosen_options(given: Mapping[str, str]) -> dict[str, str]:
    """Return the options of a device file, those that it leaves out included."""
    if unknown := sorted(given.keys() - _OPTIONS.keys()):
        raise DeviceError(f"unknown option {unknown[0]!r}", where=_WHERE, next_step="known: " + ", ".join(_OPTIONS))
    for name, value in given.items():
        _, pattern, fits = _OPTIONS[name]
        if not re.fullmatch(pattern, value):
            raise DeviceError(f"{name} is {value!r}", where=_WHERE, next_step=f"{name}: {fits}")
    return {name: given.get(name, default) for name, (default, _, _) in _OPTIONS.items()}


class OnnxRuntimeOnGpu(Engine):
    """This engine is ONNX Runtime with its CUDA provider; the options are those of `chosen_options`.

    What the provider does not take runs on the CPU, as for anybody; inputs and outputs lie in `memory`, as ONNX Runtime names
    it.
    """

    name = ON_GPU.name
    provider: ClassVar[str] = "CUDAExecutionProvider"
    memory: ClassVar[str] = "cuda"

    def __init__(self, settings: EngineSettings) -> None:
        super().__init__(settings)
        self._chosen = chosen_options(settings.options)
        self._require_provider()
        self._references: tuple[Session, Session] | None = None

    @classmethod
    def version(cls) -> str:
        return cls.version_for(EngineSettings())

    @classmethod
    def version_for(cls, settings: EngineSettings) -> str:
        """Return the versions of ONNX Runtime and cuDNN, and the GPU's name: rows of one card are none of another's."""
        cls._require_provider()
        driver, device = Driver(), int(chosen_options(settings.options)["device"])
        name = gpu_name(driver, driver.call("cuDeviceGet", device))
        return f"{ort.__version__}+cudnn.{_cudnn_version()}+{'_'.join(name.split())}"

    @classmethod
    def _require_provider(cls) -> None:
        if cls.provider not in ort.get_available_providers():
            what = f"this onnxruntime {ort.__version__} has no {cls.provider}"
            raise DeviceError(what, where="onnxruntime", next_step=ON_GPU.install)
        if preload := getattr(ort, "preload_dlls", None):  # since 1.21
            preload()  # of NVIDIA's packages; where they lie elsewhere, the loader's path finds them

    def load(self, model: Path, graph: Graph) -> Session:
        """Load a model; one that cannot be recorded as a CUDA graph, as ONNX Runtime says, is launched node by node."""
        if self._chosen["enable_cuda_graph"] == "1":
            try:
                return self._loaded(model, graph, recorded=True)
            except DeviceError:
                raise
            except Exception as error:  # noqa: BLE001  the types that ONNX Runtime raises derive from nothing else
                log.info("%s is not recorded as a CUDA graph: %s", graph.name, str(error).strip().partition("\n")[0])
        return self._loaded(model, graph, recorded=False)

    def _loaded(self, model: Path, graph: Graph, *, recorded: bool) -> _CudaSession:
        options = session_options(self.settings.threads)
        given = [(self.provider, self._provider_options(recorded=recorded)), "CPUExecutionProvider"]
        # without fallback: else ONNX Runtime tries the CPU alone where the GPU refuses, and tells it on the terminal
        session = ort.InferenceSession(str(model), options, providers=given, enable_fallback=0)
        if self.provider not in session.get_providers():
            raise DeviceError(
                f"the {self.provider} of onnxruntime {ort.__version__} does not load here",
                where="its CUDA and cuDNN libraries",
                next_step=f"{ON_GPU.install}; or name their folders in LD_LIBRARY_PATH",
            )
        return _CudaSession(session, graph, self.memory, int(self._chosen["device"]), recorded=recorded)

    def _provider_options(self, *, recorded: bool) -> dict[str, str]:
        return {
            "device_id": self._chosen["device"],
            **CUDA_OPTIONS,
            _SEARCH: self._chosen[_SEARCH],
            "enable_cuda_graph": str(int(recorded)),
        }

    def reference_loads(self) -> tuple[Callable[[], None], Callable[[], None]]:
        """Return two loads of the GPU: a convolution follows its clock, an activation of 64 MB its memory."""
        if self._references is None:
            with ScratchFolder("references") as folder:
                first, second = (
                    self.load(save_onnx(graph, Path(folder) / f"{graph.name}.onnx"), graph) for graph in _reference_graphs()
                )
            self._references = first, second
        return self._references[0].run, self._references[1].run


def _reference_graphs() -> tuple[Graph, Graph]:
    """Return loads of a whole GPU that take several times what a call costs."""
    b = GraphBuilder("compute", (1, 256, 56, 56))
    compute = b.build(b.conv(b.input, 256, 3))
    b = GraphBuilder("bandwidth", (1, 256, 256, 256))
    return compute, b.build(b.relu(b.input))


class _CudaSession(Session):
    """This session keeps inputs and outputs in the GPU's memory, at the same addresses in each run."""

    def __init__(self, session: ort.InferenceSession, graph: Graph, memory: str, device: int, *, recorded: bool) -> None:
        self._session: Any = session
        self._names = [output.name for output in session.get_outputs()]
        self._binding: Any = session.io_binding()
        for name, value in random_inputs(graph).items():
            self._binding.bind_ortvalue_input(name, ort.OrtValue.ortvalue_from_numpy(value, memory, device))
        for name in self._names:
            tensor = graph.tensors[name]
            place = np.zeros(tensor.shape, tensor.dtype)
            self._binding.bind_ortvalue_output(name, ort.OrtValue.ortvalue_from_numpy(place, memory, device))
        self.run()
        launched = self.outputs() if recorded else {}
        for _ in range(_RUNS_AFTER_FIRST):
            self.run()
        found = self.outputs() if recorded else {}
        if not all(np.allclose(found[name], value, OUTPUT_TOLERANCE, OUTPUT_TOLERANCE) for name, value in launched.items()):
            self.close()
            raise ModelError("the recorded graph computes something else than its launches", where=graph.name)

    def run(self) -> None:
        self._session.run_with_iobinding(self._binding)
        self._binding.synchronize_outputs()

    def outputs(self) -> Mapping[str, Array]:
        return dict(zip(self._names, self._binding.copy_outputs_to_cpu(), strict=True))

    def close(self) -> None:
        self._binding = self._session = None


def _cudnn_version() -> str:
    """Return the version of the cuDNN that was loaded: its kernels are what convolutions take."""
    try:
        return str(ctypes.CDLL("libcudnn.so.9").cudnnGetVersion())
    except OSError as error:
        raise DeviceError(f"there is no cuDNN 9: {error}", where="libcudnn.so.9", next_step=ON_GPU.install) from error
