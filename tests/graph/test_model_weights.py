"""Weights wherever and however ONNX files may hold them: read, or refused with what is wrong."""

from __future__ import annotations

import shlex
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from model_file_runs import assert_runs, assert_starts, made, node, values, write
from onnx import TensorProto, helper, numpy_helper

from edgeplan.chapters.cold_start.api import read_model
from edgeplan.errors import ModelError
from edgeplan.graph.onnx.read import load_onnx
from edgeplan.runtime.dnnl import Dnnl
from edgeplan.runtime.weights import locate_weights

IMAGE = {"x": (1, 3, 6, 6)}
WEIGHT, BIAS = values(5, 3, 3, 3), values(5, seed=1)


def _model() -> onnx.ModelProto:
    return made([node("Conv", "x w b", "h"), node("Relu", "h")], IMAGE, {"w": WEIGHT, "b": BIAS})


def _outside(model: onnx.ModelProto, file: str = "w.bin", *, keys: tuple[str, ...] = ("offset", "length")) -> bytes:
    """Move all weights to another file, whose bytes are returned; of offset and length only these keys are written."""
    content = b"" if "offset" not in keys else b"\0" * 64
    for tensor in model.graph.initializer:
        raw = tensor.raw_data
        entries = {"location": file, "offset": str(len(content)), "length": str(len(raw))}
        tensor.ClearField("raw_data")
        tensor.data_location = TensorProto.EXTERNAL
        for key, value in entries.items():
            if key == "location" or key in keys:
                tensor.external_data.add(key=key, value=value)
        content += raw
    return content


def _plain(path: Path) -> Path:
    return write(_model(), path / "plain.onnx")


# Links.


def _linked(root: Path, blob: str, name: str, content: bytes) -> Path:
    """A file as huggingface_hub's cache lays it."""
    for folder in (root / "blobs", root / "snapshots" / "1"):
        folder.mkdir(parents=True, exist_ok=True)
    (root / "blobs" / blob).write_bytes(content)
    (root / "snapshots" / "1" / name).symlink_to(f"../../blobs/{blob}")
    return root / "snapshots" / "1" / name


def test_a_model_behind_a_link(dnnl: Dnnl, planned: object, tmp_path: Path) -> None:
    path = _linked(tmp_path, "aaa", "m.onnx", _model().SerializeToString())
    assert_runs(dnnl, path)
    assert_starts(dnnl, planned, path, tmp_path / "plans")


def test_external_data_behind_links_beside_a_linked_model(dnnl: Dnnl, planned: object, tmp_path: Path) -> None:
    model = _model()
    content = _outside(model, "m.onnx_data")
    path = _linked(tmp_path, "aaa", "m.onnx", model.SerializeToString())
    _linked(tmp_path, "bbb", "m.onnx_data", content)
    plain = _plain(tmp_path)
    assert_runs(dnnl, path, plain)
    assert_starts(dnnl, planned, path, tmp_path / "plans", plain)


def test_a_link_within_the_folder(dnnl: Dnnl, tmp_path: Path) -> None:
    model = _model()
    content = _outside(model)
    path = write(model, tmp_path / "m.onnx")
    (tmp_path / "parts").mkdir()
    (tmp_path / "parts" / "data").write_bytes(content)
    (tmp_path / "w.bin").symlink_to("parts/data")
    assert_runs(dnnl, path, _plain(tmp_path))


def _refused(path: Path, said: str) -> ModelError:
    with pytest.raises(ModelError, match=said) as caught:
        locate_weights(path, read_model(path)[1])
    assert caught.value.where
    assert caught.value.next_step
    return caught.value


def test_links_out_of_the_folder_are_refused(tmp_path: Path) -> None:
    model = _model()
    (tmp_path / "elsewhere").write_bytes(_outside(model))
    path = write(model, tmp_path / "inner" / "m.onnx")
    (tmp_path / "inner" / "w.bin").symlink_to(tmp_path / "elsewhere")
    assert "cp -rL" in _refused(path, "is a symbolic link to .*elsewhere, outside").next_step
    (tmp_path / "inner" / "w.bin").unlink()
    (tmp_path / "inner" / "w.bin").symlink_to("w.bin")
    _refused(path, "cannot be read")


# External data.


@pytest.mark.parametrize("keys", [("offset", "length"), ("offset",), ("length",), ()])
def test_external_data_that_say_less(dnnl: Dnnl, planned: object, tmp_path: Path, keys: tuple[str, ...]) -> None:
    """Without an offset each tensor has a file of its own."""
    model = _model()
    path = tmp_path / "m.onnx"
    if "offset" in keys:
        (tmp_path / "w.bin").write_bytes(_outside(model, keys=keys))
    else:
        for tensor in model.graph.initializer:
            alone = onnx.ModelProto(graph=onnx.GraphProto(initializer=[tensor]))
            (tmp_path / f"{tensor.name}.bin").write_bytes(_outside(alone, f"{tensor.name}.bin", keys=keys))
            tensor.CopyFrom(alone.graph.initializer[0])
    write(model, path)
    plain = _plain(tmp_path)
    assert_runs(dnnl, path, plain)
    assert_starts(dnnl, planned, path, tmp_path / "plans", plain)


@pytest.mark.parametrize(
    ("location", "content", "said"),
    [
        ("w.bin", None, "which is missing"),
        ("w.bin", b"\0" * 100, "ends at byte 100, before byte"),
        ("w.bin", b"", "is an empty file"),
        ("w.bin", b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 660\n", "is a Git LFS pointer"),
        ("parts", None, "is a folder"),
    ],
)
def test_external_data_that_are_not_there(tmp_path: Path, location: str, content: bytes | None, said: str) -> None:
    model = _model()
    _outside(model, location)
    path = write(model, tmp_path / "inner" / "m.onnx")
    (tmp_path / "inner" / "parts").mkdir()
    if content is not None:
        (tmp_path / "inner" / location).resolve().write_bytes(content)
    assert load_onnx(path).operators  # shapes are known without
    assert "'w' lies in" in _refused(path, said).what


@pytest.mark.parametrize("keys", [("offset", "length"), ("offset",)])
def test_shapes_in_external_data(tmp_path: Path, keys: tuple[str, ...]) -> None:
    model = made([node("Reshape", "x s")], IMAGE, {"s": np.array([3, -1], np.int64), "t": np.zeros(3, np.int64)})
    (tmp_path / "w.bin").write_bytes(_outside(model, keys=keys))
    assert load_onnx(write(model, tmp_path / "m.onnx")).shape("y") == (3, 36)


def test_constant_nodes_in_external_data(dnnl: Dnnl, planned: object, tmp_path: Path) -> None:
    model = _model()
    content = _outside(model)
    for tensor in model.graph.initializer:
        model.graph.node.insert(0, helper.make_node("Constant", [], [tensor.name], value=tensor))
    del model.graph.initializer[:]
    path = write(model, tmp_path / "m.onnx")
    (tmp_path / "w.bin").write_bytes(content)
    plain = _plain(tmp_path)
    assert_runs(dnnl, path, plain)
    assert_starts(dnnl, planned, path, tmp_path / "plans", plain)


# Encodings.


def _varint(value: int) -> bytes:
    found = b""
    while value > 127:
        found, value = found + bytes([value & 127 | 128]), value >> 7
    return found + bytes([value])


def _bytes_field(number: int, content: bytes) -> bytes:
    return _varint(number << 3 | 2) + _varint(len(content)) + content


def _packed(numbers: np.ndarray) -> bytes:
    return _bytes_field(4, numbers.astype("<f4").tobytes())


def _apart(numbers: np.ndarray) -> bytes:
    return b"".join(_varint(4 << 3 | 5) + struct.pack("<f", v) for v in numbers)


def _head(tensor: TensorProto) -> bytes:
    bare = TensorProto()
    bare.CopyFrom(tensor)
    bare.ClearField("raw_data")
    return bare.SerializeToString()


Encoding = Callable[[TensorProto, np.ndarray], bytes]
READ: dict[str, Encoding] = {
    "packed": lambda t, v: _head(t) + _packed(v),
    "value by value": lambda t, v: _head(t) + _apart(v),
    "value by value, before the rest": lambda t, v: _apart(v) + _head(t),
    "raw, before the rest": lambda t, v: _bytes_field(9, v.tobytes()) + _head(t),
}
JOINED: dict[str, Encoding] = {
    "two chunks": lambda t, v: _head(t) + _packed(v[:3]) + _packed(v[3:]),
    "a chunk and values": lambda t, v: _head(t) + _packed(v[:3]) + _apart(v[3:]),
    "values around the rest": lambda t, v: _apart(v[:3]) + _head(t) + _apart(v[3:]),
}


def _encoded(how: Encoding, path: Path, holder: str = "initialiser") -> Path:
    """The model with weights in an encoding: as initialisers, of Constant nodes, or behind an Identity."""
    model = _model()
    if holder == "identity":
        for name in ("w", "b"):
            model.graph.node.insert(0, helper.make_node("Identity", [name], [f"{name}2"]))
        conv = next(n for n in model.graph.node if n.op_type == "Conv")
        conv.input[1:] = ["w2", "b2"]
    extra = b""
    for tensor in model.graph.initializer:
        body = how(tensor, numpy_helper.to_array(tensor).ravel())
        if holder == "constant":
            attribute = _bytes_field(1, b"value") + b"\xa0\x01\x04" + _bytes_field(5, body)
            extra += _bytes_field(
                1, _bytes_field(2, tensor.name.encode()) + _bytes_field(4, b"Constant") + _bytes_field(5, attribute)
            )
        else:
            extra += _bytes_field(5, body)
    del model.graph.initializer[:]
    graph = model.graph.SerializeToString() + extra
    model.ClearField("graph")
    path.write_bytes(model.SerializeToString() + _bytes_field(7, graph))
    return path


@pytest.mark.parametrize("holder", ["initialiser", "constant", "identity"])
@pytest.mark.parametrize("how", READ)
def test_encodings_that_are_read(dnnl: Dnnl, planned: object, tmp_path: Path, how: str, holder: str) -> None:
    path = _encoded(READ[how], tmp_path / "m.onnx", holder)
    assert_runs(dnnl, path)
    assert_starts(dnnl, planned, path, tmp_path / "plans")


@pytest.mark.parametrize("how", JOINED)
def test_encodings_that_are_joined_as_told(dnnl: Dnnl, tmp_path: Path, how: str) -> None:
    path = _encoded(JOINED[how], tmp_path / "m.onnx")
    command = shlex.split(_refused(path, "in several pieces").next_step.removeprefix("join them: "))
    subprocess.run([sys.executable, *command[1:]], cwd=tmp_path, check=True)
    assert_runs(dnnl, tmp_path / "packed.onnx", path)


@pytest.mark.parametrize("field", ["int64_data", "raw_data"])
def test_numbers_of_shapes_in_both_fields(tmp_path: Path, field: str) -> None:
    """Unpacked, too: `int64_data` of a file is read by protobuf, which takes both."""
    head = onnx.TensorProto(name="s", dims=[2], data_type=TensorProto.INT64).SerializeToString()
    apart = b"".join(_varint(7 << 3) + _varint(v % (1 << 64)) for v in (3, -1))
    body = head + (apart if field == "int64_data" else _bytes_field(9, np.array([3, -1], "<i8").tobytes()))
    model = made([node("Reshape", "x s")], IMAGE)
    graph = model.graph.SerializeToString() + _bytes_field(5, body)
    model.ClearField("graph")
    path = tmp_path / "m.onnx"
    path.write_bytes(model.SerializeToString() + _bytes_field(7, graph))
    assert load_onnx(path).shape("y") == (3, 36)


def test_a_million_values_apart_are_found_at_once(tmp_path: Path) -> None:
    """By a look at many at once: one by one they would take seconds for each million."""
    count = 1 << 20
    block = np.zeros((count, 5), np.uint8)
    block[:, 0] = 4 << 3 | 5
    block[:, 1:] = np.arange(count, dtype="<f4").view(np.uint8).reshape(count, 4)
    head = onnx.TensorProto(name="w", dims=[1024, 1024], data_type=TensorProto.FLOAT).SerializeToString()
    model = made([node("MatMul", "x w")], {"x": (1, 1024)})
    graph = model.graph.SerializeToString() + _bytes_field(5, head + block.tobytes())
    model.ClearField("graph")
    path = tmp_path / "m.onnx"
    path.write_bytes(model.SerializeToString() + _bytes_field(7, graph))
    place = locate_weights(path, read_model(path)[1])["w"]
    assert (place.stride, place.size) == (5, 5 * count - 1)
