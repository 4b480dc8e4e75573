"""Steps on an OpenCL device compute what ONNX Runtime does, however memory is shared; waits end, and failures are told."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest

from depth import by_day
from edgeplan.engines.base import EngineSettings
from edgeplan.engines.gpu import opencl
from edgeplan.engines.gpu.opencl import OpenclProcessor
from edgeplan.engines.gpu.session import Opencl
from edgeplan.errors import DeviceError
from edgeplan.graph.builder import GraphBuilder
from edgeplan.graph.onnx.write import save_onnx
from edgeplan.opencl.launch import GpuNumbers
from edgeplan.opencl.platforms import OpenclOptions
from edgeplan.runtime.dnnl import Dnnl
from edgeplan.runtime.executable import Executable
from edgeplan.runtime.program import default_program
from edgeplan.testing.engines import everything, executed, outputs_of, reference_outputs, require_close

_TOLERANCE = 1e-5


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


# Kernels


def _pools(b: GraphBuilder) -> Sequence[str]:
    x = b.relu(b.input)
    return b.relu(b.maxpool(x, 3, 2, 1)), b.relu(b.avgpool(x, (2, 3), (1, 2), 1)), b.relu(b.gap(x))


def _joined(b: GraphBuilder) -> Sequence[str]:
    """Parts that begin and end within blocks."""
    x = b.relu(b.input)
    left, right = b.split(x, (5, 8))
    whole = b.concat([b.activation(right, "hswish"), x, left, b.activation(x, "sigmoid")])
    return (b.relu(whole),)


def _shuffled(b: GraphBuilder) -> Sequence[str]:
    x = b.relu(b.concat([b.input, b.relu(b.input)]))
    return (b.relu(b.channel_shuffle(x, 2)), b.relu(b.lrn(x)), b.relu(b.lrn(x, 9)))


def _resized(b: GraphBuilder) -> Sequence[str]:
    x = b.relu(b.input)
    return b.relu(b.upsample(x)), b.relu(b.upsample(x, 3, mode="linear"))


def _reshaped(b: GraphBuilder) -> Sequence[str]:
    x = b.relu(b.input)
    _, channels, height, width = b.shape(x)
    turned = b.reshape(x, (1, height, channels, width))
    rows = b.relu(b.reshape(x, (channels, height * width)))
    return b.relu(turned), b.transpose(rows, (1, 0)), b.softmax(rows), b.relu(b.transpose(x, (0, 2, 1, 3)))


def _arithmetic(b: GraphBuilder) -> Sequence[str]:
    """Operands of a value for each channel, of each pixel, and behind others."""
    x, y = b.relu(b.input), b.activation(b.input, "sigmoid")
    means = b.gap(x)
    gated = b.mul(b.add(x, y), b.activation(means, "hsigmoid"))
    return b.relu(b.bn(gated)), b.activation(b.add(means, gated), "hswish"), b.activation(b.bn(x), "relu6")


def _at_the_border(b: GraphBuilder) -> Sequence[str]:
    """From the model's input to its outputs, which are not in blocks."""
    return b.maxpool(b.input, 3, 1, 1), b.lrn(b.input), b.concat([b.input, b.input]), b.bn(b.input), b.upsample(b.input)


_FORMS = {"pool": _pools, "concat": _joined, "shuffle": _shuffled, "resize": _resized}
_FORMS |= {"reshape": _reshaped, "pointwise": _arithmetic, "border": _at_the_border}


@pytest.mark.parametrize("vector", by_day(["8", "4"]))
@pytest.mark.parametrize("shape", [(1, 13, 9, 7), (1, 16, 40, 33), (1, 3, 1, 5)], ids=str)
@pytest.mark.parametrize("form", _FORMS)
def test_kernels_compute_what_onnx_runtime_does(
    form: str, shape: tuple[int, int, int, int], vector: str, tmp_path: Path
) -> None:
    """All on the device: none of their steps runs on the host."""
    shape = (1, 13, *shape[2:]) if form == "concat" else shape
    b = GraphBuilder(form, shape)
    graph = b.build(*_FORMS[form](b))
    engine = _engine(vector=vector)
    with engine.load_profiled(save_onnx(graph, tmp_path / "model.onnx"), graph) as session:
        session.run()
        require_close(session.outputs(), reference_outputs(graph), _TOLERANCE)
        nodes, _ = session.profile([(0, 1)])
    assert not [node for node in nodes if node.implementation.startswith("host.")]


def _grouped(b: GraphBuilder) -> Sequence[str]:
    """Convolutions of windows, strides, groups and channels that fill tiles and do not, with sums and bounds behind them."""
    x = b.conv_bn(b.conv_bn(b.input, 72, 3, 2), 64, 1)
    y = b.add(b.conv_bn(x, 64, 1, act=""), x)
    z = b.conv_bn(b.conv_bn(b.relu(y), 128, 5, 2, groups=4), 20, 3, 2, act="hswish")
    return b.relu(z), b.conv_bn(y, 64, 3, groups=64), b.conv_bn(b.conv_bn(z, 16, (3, 1)), 40, 1, act="relu6")


def _rows(b: GraphBuilder) -> Sequence[str]:
    """Products of few rows and of many, whose sums and columns do not fill tiles."""
    return b.relu(b.fc(b.relu(b.fc(b.input, 70)), 130)), b.fc(b.input, 6, bias=False)


@pytest.mark.parametrize(
    ("form", "shape"),
    [(_grouped, (1, 3, 65, 61)), (_grouped, (1, 16, 20, 20)), (_rows, (1, 36)), (_rows, (7, 18)), (_rows, (150, 50))],
)
def test_kernels_of_work_groups_compute_what_onnx_runtime_does(
    form: Callable[[GraphBuilder], Sequence[str]], shape: tuple[int, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tiles in local memory, which GPUs are given; a device of the CPU has local memory, too."""
    numbers = opencl.device_numbers
    monkeypatch.setattr(opencl, "device_numbers", lambda *given: GpuNumbers(**asdict(numbers(*given))))
    b = GraphBuilder("groups", shape)
    graph = b.build(*form(b))
    engine = _engine(vector="4")
    with engine.load_profiled(save_onnx(graph, tmp_path / "model.onnx"), graph) as session:
        session.run()
        require_close(session.outputs(), reference_outputs(graph), _TOLERANCE)
        nodes, _ = session.profile([(0, 1)])
    assert {"conv.tiled", "linear.tiled", "linear.row"} & {node.implementation for node in nodes}
    assert not [node for node in nodes if node.implementation.startswith("host.")]


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
