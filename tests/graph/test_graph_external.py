"""Constants that lie in a file beside the model."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from onnx_models import IMAGE, integers, write_model
from plan_starts import start_right

from edgeplan.chapters.cold_start.api import read_model
from edgeplan.engines.base import random_inputs
from edgeplan.errors import ModelError
from edgeplan.graph.builder import GraphBuilder
from edgeplan.graph.model_file import model_sha256
from edgeplan.graph.onnx.prepare import Preparation, prepare_file
from edgeplan.graph.onnx.read import load_onnx
from edgeplan.graph.onnx.write import save_onnx, to_onnx
from edgeplan.planning.document import Plan
from edgeplan.runtime.dnnl import Dnnl
from edgeplan.runtime.layouts import NCHW
from edgeplan.runtime.plan_folder import build_plan_folder
from edgeplan.runtime.program import default_program
from edgeplan.runtime.session import SequentialSession


def test_heavy_weights_go_beside_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edgeplan.graph.onnx.write.EXTERNAL_DATA_THRESHOLD_BYTES", 1000)
    b = GraphBuilder("net", (1, 64))
    graph = b.build(b.fc(b.input, 64))
    path = save_onnx(graph, tmp_path / "net.onnx")
    assert (tmp_path / "net.onnx.data").stat().st_size >= 64 * 64 * 4
    assert path.stat().st_size < 4000
    (tmp_path / "net.onnx.data").unlink()  # shapes alone are read
    assert load_onnx(path).operators == graph.operators


def _external_shape(folder: Path, location: str = "m.data", **entries: str) -> Path:
    """A model whose Reshape's shape lies in another file, after 8 other bytes."""
    path = write_model(folder / "m.onnx", [helper.make_node("Reshape", ["x", "s"], ["y"], name="r")], [integers("s", 1, 256)])
    model = onnx.load(path)
    (shape,) = model.graph.initializer
    (folder / "m.data").write_bytes(b"\0" * 8 + shape.raw_data)
    shape.ClearField("raw_data")
    shape.data_location = TensorProto.EXTERNAL
    for key, text in ({"location": location, "offset": "8", "length": "16"} | entries).items():
        shape.external_data.add(key=key, value=text)
    path.write_bytes(model.SerializeToString())
    return path


def test_small_constants_beside_the_model_are_read_from_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "model").mkdir()
    path = _external_shape(tmp_path / "model")
    (tmp_path / "m.data").write_bytes(b"\1" * 24)  # in the working directory, and none of the model's
    for folder in (tmp_path, tmp_path / "model"):
        monkeypatch.chdir(folder)
        graph = load_onnx(path)
        assert graph.operators[0].integers("shape", ()) == (1, 256)
        assert graph.shape("y") == (1, 256)


def test_a_model_whose_constants_are_all_beside_it_is_read(tmp_path: Path) -> None:
    b = GraphBuilder("net", IMAGE)
    left, right = b.split(b.activation(b.conv(b.input, 4, 3, bias=True), "relu6"), (1, 3))
    graph = b.build(b.reshape(b.concat([b.upsample(left), b.upsample(right)]), (1, 1024)))
    path = tmp_path / "net.onnx"
    onnx.save(to_onnx(graph), path, save_as_external_data=True, location="net.data", size_threshold=0)
    assert load_onnx(path).operators == graph.operators


@pytest.mark.parametrize(
    ("location", "entries", "said"),
    [
        ("other.data", {}, "is missing"),
        ("m.data", {"offset": "16"}, "ends at byte 24, before byte 32"),
        ("m.data", {"length": "8"}, "holds 8 bytes"),
        ("m.data", {"offset": "-8"}, "does not say where"),
        ("m.data", {"offset": "some"}, "does not say where"),
    ],
)
def test_constants_elsewhere_are_refused(tmp_path: Path, location: str, entries: dict[str, str], said: str) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "m.data").write_bytes(b"\0" * 24)
    path = _external_shape(tmp_path / "model", location, **entries)
    with pytest.raises(ModelError, match=f"constant 's'.*{said}") as caught:
        load_onnx(path)
    assert caught.value.where in (str(path), str(path.parent / "m.data"))
    assert caught.value.next_step


def test_a_link_out_of_the_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    path = _external_shape(tmp_path / "model", "link.data")
    (tmp_path / "m.data").write_bytes(b"\0" * 24)
    (tmp_path / "model" / "link.data").symlink_to(tmp_path / "m.data")
    with pytest.raises(ModelError, match="symbolic link"):
        load_onnx(path)


def _far(folder: Path, open_batch: bool = False) -> tuple[Path, np.ndarray]:
    """A model whose one weight lies behind 2 GiB of nothing, which take no room on the disk."""
    weight = np.random.default_rng(3).standard_normal((4, 3)).astype(np.float32)
    offset = (1 << 31) + 4096
    tensor = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=weight.shape, data_location=TensorProto.EXTERNAL)
    for key, value in (("location", "far.bin"), ("offset", str(offset)), ("length", str(weight.nbytes))):
        tensor.external_data.add(key=key, value=value)
    body = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        "far",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N" if open_batch else 1, 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [tensor],
    )
    path = folder / "far.onnx"
    path.write_bytes(helper.make_model(body, opset_imports=[helper.make_opsetid("", 17)], ir_version=8).SerializeToString())
    with (folder / "far.bin").open("wb") as file:
        file.seek(offset)
        file.write(weight.tobytes())
    return path, weight


@pytest.mark.parametrize("open_batch", [False, True])
def test_weights_behind_two_gibibytes_are_read(dnnl: Dnnl, tmp_path: Path, open_batch: bool) -> None:
    path, weight = _far(tmp_path, open_batch)
    path = prepare_file(path, Preparation(), tmp_path / "ready.onnx")
    graph, _ = read_model(path)
    x = np.ones((1, 4), np.float32)
    found = SequentialSession(dnnl, default_program(dnnl, path, graph, NCHW), path.parent).run({"x": x})
    np.testing.assert_allclose(found["y"], x @ weight, rtol=1e-5)


@pytest.mark.long
def test_a_plan_starts_from_weights_behind_two_gibibytes(dnnl: Dnnl, tmp_path: Path, planned: Callable[..., Plan]) -> None:
    path, weight = _far(tmp_path)
    graph, _ = read_model(path)
    plan = planned(path, graph, sources=("raw",), model_sha256=model_sha256(path))
    inputs = random_inputs(graph)
    start_right(build_plan_folder(dnnl, path, plan, tmp_path / "plan"), graph, {"y": inputs["x"] @ weight})
