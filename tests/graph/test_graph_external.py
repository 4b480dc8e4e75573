"""Constants that lie in a file beside the model."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest
from onnx import TensorProto, helper
from onnx_models import IMAGE, integers, write_model

from edgeplan.errors import ModelError
from edgeplan.graph.builder import GraphBuilder
from edgeplan.graph.onnx.read import load_onnx
from edgeplan.graph.onnx.write import save_onnx, to_onnx


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
        ("../m.data", {}, "outside"),
        ("inner/../../m.data", {}, "outside"),
        ("{folder}/model/m.data", {}, "outside"),
        ("other.data", {}, "is missing"),
        ("", {}, "outside"),
        ("m.data", {"offset": "16"}, "ends at byte 24, before byte 32"),
        ("m.data", {"length": "8"}, "holds 8 bytes"),
        ("m.data", {"offset": "-8"}, "does not say where"),
        ("m.data", {"offset": "some"}, "does not say where"),
    ],
)
def test_constants_elsewhere_are_refused(tmp_path: Path, location: str, entries: dict[str, str], said: str) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "m.data").write_bytes(b"\0" * 24)
    path = _external_shape(tmp_path / "model", location.format(folder=tmp_path), **entries)
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
