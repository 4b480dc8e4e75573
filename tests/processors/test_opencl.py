"""Steps on an OpenCL device compute what ONNX Runtime does, however memory is shared; waits end, and failures are told."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from edgeplan.engines.base import EngineSettings
from edgeplan.engines.gpu import opencl
from edgeplan.engines.gpu.opencl import OpenclProcessor
from edgeplan.engines.gpu.session import Opencl
from edgeplan.errors import DeviceError
from edgeplan.graph.builder import GraphBuilder
from edgeplan.graph.onnx.write import save_onnx
from edgeplan.opencl.platforms import OpenclOptions
from edgeplan.runtime.dnnl import Dnnl
from edgeplan.runtime.executable import Executable
from edgeplan.runtime.program import default_program
from edgeplan.testing.engines import everything, executed, outputs_of, reference_outputs, require_close


def _processor(**options: str) -> OpenclProcessor:
    try:
        return OpenclProcessor(OpenclOptions.of(options), Dnnl().info.block)
    except DeviceError as error:
        pytest.skip(error.what)


@pytest.fixture
def processor() -> Iterator[OpenclProcessor]:
    """On memory as fine as the first device has."""
    with _processor() as found:
        yield found


@pytest.fixture
def polling(processor: OpenclProcessor) -> OpenclProcessor:
    """One whose kernels see the host's stores."""
    if not processor.capabilities.atomics:
        pytest.skip("no fine-grained memory with atomics")
    return processor


def _engine(**options: str) -> Opencl:
    try:
        return Opencl(EngineSettings(options=options))
    except DeviceError as error:
        pytest.skip(error.what)


# Engine


def test_what_has_no_kernel_runs_on_the_host_and_says_so(tmp_path: Path) -> None:
    graph = everything()
    engine = _engine()
    require_close(outputs_of(engine, graph, tmp_path), reference_outputs(graph), 1e-4)
    nodes = executed(engine, graph, tmp_path)
    on_host = {node.name for node in nodes if node.implementation.startswith("host.")}
    assert on_host == {"conv_7"}, "the grouped convolution"


def test_memory_that_is_moved_gives_equal_outputs(tmp_path: Path) -> None:
    """Also to the host in the middle of a model, and back."""
    graph = everything()
    wanted = outputs_of(_engine(), graph, tmp_path)
    for name, found in outputs_of(_engine(sharing="mirrored"), graph, tmp_path).items():
        np.testing.assert_array_equal(found, wanted[name])


# Waits


def test_a_kernel_gives_up_waiting_and_the_next_run_starts_anew(polling: OpenclProcessor) -> None:
    buffer = polling.allocate(128)
    polling._looks = 1000
    for value in (1, 2):  # the second waits no more
        polling.enqueue_wait(buffer.address, value)
    with pytest.raises(DeviceError, match="a kernel has waited for the host longer"):
        polling.finish()
    buffer.tensor(0, (1,), "int32")[0] = 1
    polling.enqueue_wait(buffer.address, 1)
    polling.finish()
    polling.enqueue_wait(buffer.address, 2)
    with pytest.raises(DeviceError, match="a kernel has waited for the host longer"):
        polling.finish()


def test_the_host_stops_waiting_for_a_device_that_does_not_answer(polling: OpenclProcessor) -> None:
    buffer = polling.allocate(128)
    polling.enqueue_wait(buffer.address, 1)
    with pytest.raises(DeviceError, match=r"has not finished within 0\.1 s"):
        polling.finish(0.1)
    polling.give_up()
    with pytest.raises(DeviceError, match="a kernel has waited"):
        polling.finish()
    polling.finish()


@pytest.mark.usefixtures("polling")
def test_looks_are_as_many_as_fill_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """As it was calibrated on this device: a kernel gives up long before the host does."""
    monkeypatch.setattr(opencl, "LIMIT_SECONDS", 0.2)
    with _processor() as processor:
        buffer = processor.allocate(128)
        processor.enqueue_wait(buffer.address, 1)
        with pytest.raises(DeviceError, match="a kernel has waited for the host longer"):
            processor.finish(60.0)


def test_a_counter_lies_in_memory_of_the_processor(polling: OpenclProcessor) -> None:
    with pytest.raises(DeviceError, match="a counter lies in memory that this processor has not allocated"):
        polling.enqueue_wait(polling.allocate(128).address + 126, 1)


# Memory that is not there


def test_more_memory_than_the_device_allocates_is_refused(processor: OpenclProcessor) -> None:
    with pytest.raises(DeviceError, match="are more than this device allocates at once"):
        processor.allocate(1 << 50)


def test_activations_lie_in_memory_of_the_processor(processor: OpenclProcessor, tmp_path: Path) -> None:
    b, dnnl = GraphBuilder("relu", (1, 8, 4, 4)), Dnnl()
    graph = b.build(b.relu(b.input))
    model = save_onnx(graph, tmp_path / "model.onnx")
    program = default_program(dnnl, model, graph, "blocked16")
    wrong = pytest.raises(DeviceError, match="memory that this processor has not allocated")
    with Executable(dnnl, program, tmp_path) as executable, wrong:
        processor.prepare(executable, 0)
