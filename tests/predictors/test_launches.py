"""Features of launches are those of the kernels that the executor prepares, and what is known of other launches is refused."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from edgeplan.predictors.configs import ConfigTable
from edgeplan.predictors.distilled import load_distilled, save_distilled
from edgeplan.predictors.features import FEATURES
from edgeplan.predictors.kernel_tables import KernelTables, ModelKernels
from edgeplan.predictors.launches import LAUNCH_FEATURES, LAUNCH_VERSION, launch_features, launch_values, launched
from edgeplan.predictors.predictor import DevicePredictor
from edgeplan.predictors.training import train_predictor
from law_of_latency import ABOUT, SETTINGS, conv, rows
from pydantic import ValidationError

from edgeplan.chapters.prediction.stages.sampling import require_numbers
from edgeplan.devices.config import DeviceFile
from edgeplan.engines.base import EngineSettings
from edgeplan.engines.opencl.dispatching import Loaded, program_of
from edgeplan.engines.opencl.session import Opencl
from edgeplan.errors import DeviceError, FormatError
from edgeplan.graph.builder import GraphBuilder
from edgeplan.graph.ir import Graph
from edgeplan.graph.kernels import KernelConfig, make_kernel
from edgeplan.graph.onnx.write import save_onnx
from edgeplan.opencl.dispatch import dispatch
from edgeplan.opencl.launch import FEATURES as DISPATCHED
from edgeplan.opencl.launch import GpuNumbers
from edgeplan.predictors.settings import TrainingSettings
from edgeplan.runtime.dnnl import Dnnl
from edgeplan.runtime.layouts import BLOCKED, NCHW
from edgeplan.runtime.processor import Kernel

GPU = GpuNumbers(8, 4, 16, 1024, 49152, 65536)
#: Kinds of steps whose launches are features.
KNOWN = {"conv", "fc", "pool", "concat", "split", "scale"}


def _network() -> Graph:
    """One step of every kind that has launches, in whole blocks and not; convolutions of each implementation."""
    b = GraphBuilder("launched", (1, 3, 41, 41))
    x = b.relu(b.conv(b.input, 24, 5, stride=2))
    x = b.concat([b.conv(x, 40, 1), b.relu(b.conv(x, 24, 3))])
    x = b.relu(b.conv(x, 64, 3))
    x = b.relu(b.bn(b.maxpool(x, 3, 2)))
    x = b.conv(b.relu(b.conv(x, 64, 3, groups=64)), 72, 1)
    left, right = b.split(x, (40, 32))
    x = b.avgpool(b.concat([b.conv(left, 36, 3), right]), 2, 2)
    x = b.gap(b.conv(x, 96, 1))
    return b.build(b.fc(b.flatten(x), 50))


def _row(config: KernelConfig, layout: str, implementation: str, numbers: dict[str, int]) -> np.ndarray:
    (found,) = launch_features(ConfigTable.of([config]), [layout], [implementation], numbers)
    return np.asarray(found)


def test_features_are_those_of_the_kernels_that_an_opencl_device_runs(tmp_path: Path) -> None:
    graph = _network()
    try:
        engine = Opencl(EngineSettings())
    except DeviceError as error:
        pytest.skip(error.what)
    loaded: Loaded = engine._loaded(save_onnx(graph, tmp_path / "model.onnx"), graph, profiling=False)
    try:
        seen = set()
        for step, ready in zip(loaded.program.steps, loaded.steps, strict=True):
            if step.kind not in KNOWN or not step.members:
                continue
            assert isinstance(ready, Kernel)
            config = make_kernel(graph, step.members).config
            layout = loaded.program.layouts[step.inputs[0]]
            found = _row(config, layout, ready.implementation, dict(loaded.processor.numbers))
            assert dict(zip(DISPATCHED, found, strict=False)) == ready.features, step.name
            seen.add(step.kind)
        assert seen == KNOWN
    finally:
        loaded.close()


def test_features_are_those_that_a_gpu_is_given(tmp_path: Path) -> None:
    graph = _network()
    program = program_of(Dnnl(), save_onnx(graph, tmp_path / "model.onnx"), graph, 1)
    seen = set()
    for step in program.steps:
        if step.kind not in KNOWN or not step.members:
            continue
        layouts = dict(program.layouts) | {output: BLOCKED for output in step.outputs if len(program.shapes[output]) == 4}
        given = dispatch(step, program.shapes, layouts, GPU)
        config, layout = make_kernel(graph, step.members).config, layouts[step.inputs[0]]
        found = _row(config, layout, given.implementation, asdict(GPU))
        np.testing.assert_array_equal(found, launch_values(given), err_msg=step.name)
        assert not _row(config, layout, "host.brgemm", asdict(GPU)).any()  # what the host ran was not launched
        seen.add(given.implementation)
    assert seen >= {"conv.first", "conv.tiled", "conv.winograd", "conv.depthwise", "linear.row", "pool.blocked", "concat.move"}


def test_the_layout_that_is_read_decides_the_kernel() -> None:
    first, tiled = (launched(conv(24, 64, 28, 1), layout, GPU) for layout in (NCHW, BLOCKED))
    assert (first and first.implementation, tiled and tiled.implementation) == ("conv.first", "conv.tiled")


def _rows() -> pd.DataFrame:
    """Labels of convolutions that take as long as their waves of work groups do, which no feature of a configuration tells."""
    table = rows(500)
    table = table[table["kind"] == "conv"]
    found = []
    for text in table["config"]:
        dispatched = launched(KernelConfig.from_json(text), BLOCKED, GPU)
        assert dispatched is not None
        values = dict(zip(LAUNCH_FEATURES, launch_values(dispatched), strict=True))
        found.append((dispatched.implementation, 3.0 + values["launch.wave_work"] / 1e5 + 4.0 * values["launch.launches"]))
    names, us = zip(*found, strict=True)
    layouts = dict.fromkeys(("input_state", "input_layout", "output_layout"), BLOCKED)
    return table.assign(implementation=names, latency_us=us, **layouts).reset_index(drop=True)


@pytest.fixture(scope="module")
def both() -> tuple[DevicePredictor, pd.DataFrame, pd.DataFrame]:
    settings = SETTINGS.model_copy(update={"dispatch_numbers": asdict(GPU)})
    (_, without), (predictor, held) = (train_predictor(_rows(), each, **ABOUT) for each in (SETTINGS, settings))
    return predictor, held, without


def _errors(held: pd.DataFrame) -> pd.Series:
    frozen = held[held["split"] == "frozen"]
    return (frozen["predicted_us"] / frozen["measured_us"] - 1).abs()


def test_predictors_learn_what_launches_take(both: tuple[DevicePredictor, pd.DataFrame, pd.DataFrame]) -> None:
    predictor, held, without = both
    assert predictor.card.features == FEATURES + LAUNCH_FEATURES
    assert predictor.card.launch_version == LAUNCH_VERSION
    assert _errors(held).median() < 0.02 < _errors(without).median()


def test_stored_predictors_know_their_launches(
    both: tuple[DevicePredictor, pd.DataFrame, pd.DataFrame], tmp_path: Path
) -> None:
    predictor, held, _ = both
    predictor.save(tmp_path / "texts")
    save_distilled(predictor, tmp_path / "distilled", 0.0)
    asked = [KernelConfig.from_json(text) for text in held[held["split"] == "frozen"]["config"]]
    shape = KernelConfig("reorder", "reorder", in_channels=8, out_channels=8)
    models = [ModelKernels(str(i), ("k",), (c,), ((0,),), (shape,) * 2, (4, 4), (-1, 0), (1,)) for i, c in enumerate(asked)]
    tables = KernelTables.of(models)
    expected = predictor.predict_many(tables, allow_partial=True).latency_ms
    assert (DevicePredictor.load(tmp_path / "texts").predict_many(tables, allow_partial=True).latency_ms == expected).all()
    distilled = load_distilled(tmp_path / "distilled").predict_many(tables, allow_partial=True).latency_ms
    np.testing.assert_allclose(distilled, expected, rtol=2e-3)
    measured = held[held["split"] == "frozen"]["measured_us"].to_numpy()
    assert np.median(np.abs(expected * 1e3 - ABOUT["call_us"] - measured) / measured) < 0.02  # as they were trained


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"launch_version": LAUNCH_VERSION + 1}, f"launches of version {LAUNCH_VERSION + 1}, and {LAUNCH_VERSION} "),
        ({"launch_version": 0}, "launches of version 0"),
        ({"dispatch_numbers": {}}, f"launches of version {LAUNCH_VERSION}, and 0"),
        ({"dispatch_numbers": {**asdict(GPU), "tiled": 2}}, "rules 1 here, not 2"),
        ({"dispatch_numbers": {"units": 8}}, "a device has units, vector"),
        ({"features": list(FEATURES)}, "other features"),
    ],
)
def test_predictors_of_other_launches_are_refused(
    both: tuple[DevicePredictor, pd.DataFrame, pd.DataFrame], tmp_path: Path, changes: dict[str, object], said: str
) -> None:
    both[0].save(tmp_path / "texts")
    save_distilled(both[0], tmp_path / "distilled", 0.0)
    for folder, load in (("texts", DevicePredictor.load), ("distilled", load_distilled)):
        path = tmp_path / folder / "card.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | changes))
        with pytest.raises(FormatError, match=said):
            load(tmp_path / folder)


def _told(device: DeviceFile, numbers: dict[str, int]) -> DeviceFile:
    return device.model_copy(update={"settings": {"training": {"dispatch_numbers": numbers}}})


def test_a_device_that_launches_otherwise_is_not_measured() -> None:
    device = DeviceFile(format_version=2, name="dev", engine="opencl")
    try:
        engine = device.load_engine()
    except DeviceError as error:
        pytest.skip(error.what)
    numbers = dict(engine.dispatch_numbers())
    require_numbers(device)
    require_numbers(_told(device, numbers))
    with pytest.raises(DeviceError, match="kernels are launched by") as caught:
        require_numbers(_told(device, {**numbers, "units": numbers["units"] + 1}))
    assert json.dumps(numbers) in caught.value.next_step
    with pytest.raises(DeviceError, match=r"kernels are launched by \{\} here") as caught:
        require_numbers(_told(device, numbers).model_copy(update={"engine": "onnxruntime"}))
    assert "this engine has none" in caught.value.next_step


def test_numbers_of_no_device_are_refused() -> None:
    with pytest.raises(ValidationError, match="a device has units"):
        TrainingSettings(dispatch_numbers={"units": 8})
    with pytest.raises(ValidationError, match="no kernels of vectors of 5"):
        TrainingSettings(dispatch_numbers={**asdict(GPU), "vector": 5})


def _drawn(count: int) -> list[KernelConfig]:
    """Convolutions of all sorts, most as models have them; few are of groups, of two images, or larger than kernels take."""
    rng, found = np.random.default_rng(5), list[KernelConfig]()
    for number in range(count):
        side, window = int(rng.integers(1, 120)), int(rng.choice([1, 3, 3, 5]))
        read, written, groups = int(rng.integers(1, 300)), int(rng.integers(1, 700)), 1
        if number % 4 == 0:
            written = groups = read
        elif number % 9 == 0:
            read, written, groups = 32 * 4, 64 * 4, 4
        if number % 50 == 1:
            side = 20_000
        stride, dilation, pad = (int(rng.integers(low, 3)) for low in (1, 1, 0))
        out = max(1, (side + 2 * pad - dilation * (window - 1) - 1) // stride + 1)
        sizes = {f"{name}_{axis}": size for axis in ("height", "width") for name, size in (("in", side), ("out", out))}
        sizes |= {
            f"{name}_{axis}": n for axis in "hw" for name, n in (("kernel", window), ("stride", stride), ("dilation", dilation))
        }
        found.append(
            KernelConfig(
                "dwconv" if groups == read > 1 else "conv", "conv", batch=2 if number % 40 == 3 else 1, in_channels=read,
                out_channels=written, groups=groups, pad_top=pad, pad_left=pad, activation=("", "relu")[number % 2], **sizes,
            )
        )  # fmt: skip
    return found


@pytest.mark.parametrize("numbers", [GPU, GpuNumbers(132, 4, 16, 1024, 49152, 65536), GpuNumbers(8, 8, 16, 1024)])
def test_many_convolutions_in_one_pass_have_the_features_of_each_by_itself(numbers: GpuNumbers) -> None:
    configs = _drawn(600)
    layouts = [NCHW if number % 7 == 0 else BLOCKED for number in range(len(configs))]
    alone = [launched(config, layout, numbers) for config, layout in zip(configs, layouts, strict=True)]
    names = ["" if one is None or number % 3 else one.implementation for number, one in enumerate(alone)]
    names = ["conv.other" if number % 11 == 0 else name for number, name in enumerate(names)]
    wanted = [
        (0.0,) * len(LAUNCH_FEATURES) if one is None or name not in ("", one.implementation) else launch_values(one)
        for one, name in zip(alone, names, strict=True)
    ]
    found = launch_features(ConfigTable.of(configs), layouts, names, asdict(numbers))
    np.testing.assert_array_equal(found, np.array(wanted))
    kinds = {one.implementation for one in alone if one is not None}
    assert kinds >= {"conv.depthwise", "conv.winograd", "conv.first"}
    assert any(one is None for one in alone)
