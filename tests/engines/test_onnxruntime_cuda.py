"""ONNX Runtime on an NVIDIA GPU: all but the GPU is tested by its CPU provider, and the GPU where there is one."""

from __future__ import annotations

import itertools
import re
import sys
from pathlib import Path
from types import MappingProxyType

import numpy as np
import onnxruntime as ort
import pytest

from edgeplan.engines.base import Engine, EngineSettings
from edgeplan.engines.cold import Artefact
from edgeplan.engines.onnxruntime.on_gpu import OnnxRuntimeOnGpu, _CudaSession
from edgeplan.engines.program import words_of
from edgeplan.engines.registry import version_of
from edgeplan.errors import DeviceError
from edgeplan.graph.ir import Graph
from edgeplan.measurement.references import References
from edgeplan.testing.engines import EngineContract, everything, outputs_of, reference_outputs, require_close

RECORDED = EngineSettings(options=MappingProxyType({"enable_cuda_graph": "1"}))
pytestmark = pytest.mark.filterwarnings("ignore:Duplicate provider", "ignore:Specified provider")
NO_GPU = "CUDAExecutionProvider" not in ort.get_available_providers()


class _OnTheCpu(OnnxRuntimeOnGpu):
    """All of the engine, on the provider that is everywhere."""

    provider, memory = "CPUExecutionProvider", "cpu"


class TestOnTheCpu(EngineContract):
    """Sessions with inputs and outputs bound to memory of the provider."""

    @pytest.fixture
    def engine(self) -> Engine:
        return _OnTheCpu(EngineSettings())

    def test_an_engine_knows_its_version(self, engine: Engine) -> None:
        """It is the GPU's, too; without one it says what is lacking."""
        try:
            told, known = engine.version(), r"\d"
        except DeviceError as error:  # of the provider, or of the driver
            told, known = error.what if error.next_step else "", r"(?i).*(cuda|cuInit|NVIDIA)"
        assert re.match(known, told), told


class TestRecorded(EngineContract):
    """Models as CUDA graphs, on the first NVIDIA GPU; `test_conformance.py` holds those that are launched to the suite."""

    @pytest.fixture
    def engine(self) -> Engine:
        try:
            return OnnxRuntimeOnGpu(RECORDED)
        except DeviceError as error:
            pytest.skip(error.what)

    def test_its_version_names_the_card(self, engine: Engine) -> None:
        assert "+cudnn." in engine.version()
        assert "NVIDIA" in engine.version()


def test_runs_write_the_bound_outputs(tmp_path: Path) -> None:
    """What is bound stays bound: a run after the outputs were read computes them again, at the same place."""
    graph = everything()
    outputs_of(_OnTheCpu(EngineSettings()), graph, tmp_path)
    with _OnTheCpu(EngineSettings()).load(tmp_path / "model.onnx", graph) as session:
        assert isinstance(session, _CudaSession)
        (value,) = session._binding.get_outputs()
        before, place = np.array(value.numpy()), value.data_ptr()
        session.run()
        (value,) = session._binding.get_outputs()
        assert value.data_ptr() == place
        np.testing.assert_array_equal(value.numpy(), before)


class _Unrecordable(_OnTheCpu):
    """ONNX Runtime refuses to record models some of whose nodes the GPU does not take."""

    def _loaded(self, model: Path, graph: Graph, *, recorded: bool) -> _CudaSession:
        if recorded:
            ort.InferenceSession(b"no model", providers=["CPUExecutionProvider"])  # raises as it raises there
        return super()._loaded(model, graph, recorded=recorded)


class _Misrecorded(_OnTheCpu):
    """A recorded graph that reads what was freed since computes something else; launched, the model is as it was."""

    def _loaded(self, model: Path, graph: Graph, *, recorded: bool) -> _CudaSession:
        if not recorded:
            return super()._loaded(model, graph, recorded=False)
        run, runs = _CudaSession.run, itertools.count()

        def spoilt(session: _CudaSession) -> None:
            run(session)
            if next(runs):
                (value,) = session._binding.get_outputs()
                value.update_inplace(np.zeros(value.shape(), np.float32))

        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(_CudaSession, "run", spoilt)
            return super()._loaded(model, graph, recorded=True)


@pytest.mark.parametrize(
    ("kind", "told"),
    [(_Unrecordable, "everything is not recorded as a CUDA graph"), (_Misrecorded, "computes something else")],
)
def test_what_cannot_be_recorded_or_computes_something_else_is_launched(
    kind: type[_OnTheCpu], told: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    found = outputs_of(kind(RECORDED), everything(), tmp_path)
    require_close(found, reference_outputs(everything()), 1e-4)
    assert told in caplog.text


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ({"cores": "1"}, "unknown option 'cores'"),
        ({"device": "-1"}, "device is '-1'"),
        ({"device": "0\n"}, r"device is '0\\n'"),
        ({"device": "\u0661"}, "device is"),
        ({"cudnn_conv_algo_search": "heuristic"}, "cudnn_conv_algo_search is"),
        ({"enable_cuda_graph": "yes"}, "enable_cuda_graph is 'yes'"),
    ],
)
def test_options_that_do_not_fit_are_refused(options: dict[str, str], what: str) -> None:
    with pytest.raises(DeviceError, match=what) as caught:
        _OnTheCpu(EngineSettings(options=options))
    assert caught.value.where
    assert caught.value.next_step


@pytest.mark.skipif(not NO_GPU, reason="this onnxruntime has the provider")
@pytest.mark.parametrize("ask", [lambda: OnnxRuntimeOnGpu(EngineSettings()), OnnxRuntimeOnGpu.version])
def test_an_onnxruntime_without_the_provider_names_the_package(ask: object) -> None:
    assert callable(ask)
    with pytest.raises(DeviceError, match="has no CUDAExecutionProvider") as caught:
        ask()
    assert "'onnxruntime-gpu[cuda,cudnn]'" in (caught.value.next_step or "")


class _Unloadable(OnnxRuntimeOnGpu):
    """ONNX Runtime leaves out a provider that it cannot load, and goes on with the CPU."""

    @classmethod
    def _require_provider(cls) -> None:
        return


@pytest.mark.skipif(not NO_GPU, reason="this onnxruntime has the provider")
@pytest.mark.parametrize("settings", [EngineSettings(), RECORDED], ids=["launched", "recorded"])
def test_the_cpu_never_stands_in_for_the_gpu(tmp_path: Path, settings: EngineSettings) -> None:
    with pytest.raises(DeviceError, match="does not load here") as caught:
        outputs_of(_Unloadable(settings), everything(), tmp_path)
    assert "LD_LIBRARY_PATH" in (caught.value.next_step or "")


def test_loads_of_the_processor_follow_it() -> None:
    """They are made once, and those of the host stand for none of them."""
    engine = _OnTheCpu(EngineSettings())
    assert engine.reference_loads() == engine.reference_loads()
    found = References(engine.reference_loads()).time(2)
    assert min(found.compute_us, found.bandwidth_us) > 100


def test_the_engine_may_have_an_environment_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho 9.8.7\n")
    python.chmod(0o755)
    monkeypatch.setenv("EDGEPLAN_CUDA_PYTHON", str(python))
    assert version_of("onnxruntime-cuda") == "9.8.7"
    assert version_of("onnxruntime") == ort.__version__
    artefact = Artefact(main=tmp_path, files=(tmp_path,))
    assert words_of("onnxruntime-cuda", artefact, 1, tmp_path, tmp_path)[0] == str(python)
    assert words_of("onnxruntime", artefact, 1, tmp_path, tmp_path)[0] == sys.executable
