"""Weights wherever and however ONNX files may hold them: read, or refused with what is wrong."""

from __future__ import annotations

import shlex
import struct
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from model_file_runs import assert_runs, assert_starts, made, node, values, write
from onnx import TensorProto, helper, numpy_helper

from depth import by_day
from edgeplan.chapters.cold_start.api import read_model
from edgeplan.errors import ModelError
from edgeplan.graph.onnx.read import from_onnx, load_onnx
from edgeplan.graph.onnx.write import _varint
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


def _assert_same(dnnl: Dnnl, planned: object, path: Path, like: Path | None = None) -> None:
    """A model runs, and starts from a plan, as another that means the same."""
    assert_runs(dnnl, path, like)
    assert_starts(dnnl, planned, path, path.parent / "plans", like)


def _linked(root: Path, blob: str, name: str, content: bytes) -> Path:
    """A file as huggingface_hub's cache lays it."""
    for folder in (root / "blobs", root / "snapshots" / "1"):
        folder.mkdir(parents=True, exist_ok=True)
    (root / "blobs" / blob).write_bytes(content)
    (root / "snapshots" / "1" / name).symlink_to(f"../../blobs/{blob}")
    return root / "snapshots" / "1" / name


def test_external_data_behind_links_beside_a_linked_model(dnnl: Dnnl, planned: object, tmp_path: Path) -> None:
    model = _model()
    content = _outside(model, "m.onnx_data")
    path = _linked(tmp_path, "aaa", "m.onnx", model.SerializeToString())
    _linked(tmp_path, "bbb", "m.onnx_data", content)
    _assert_same(dnnl, planned, path, _plain(tmp_path))


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
    _assert_same(dnnl, planned, path, _plain(tmp_path))


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


# Encodings.


def _bytes_field(number: int, content: bytes) -> bytes:
    return _varint(number << 3 | 2) + _varint(len(content)) + content


def _with_graph(model: onnx.ModelProto, more: bytes) -> bytes:
    """A model's bytes, with further fields of its graph."""
    graph = model.graph.SerializeToString() + more
    model.ClearField("graph")
    return model.SerializeToString() + _bytes_field(7, graph)


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
    path.write_bytes(_with_graph(model, extra))
    return path


@pytest.mark.parametrize("holder", ["initialiser", "constant", "identity"])
@pytest.mark.parametrize("how", READ)
def test_encodings_that_are_read(dnnl: Dnnl, planned: object, tmp_path: Path, how: str, holder: str) -> None:
    path = _encoded(READ[how], tmp_path / "m.onnx", holder)
    _assert_same(dnnl, planned, path)


@pytest.mark.parametrize("how", JOINED)
def test_encodings_that_are_joined_as_told(dnnl: Dnnl, tmp_path: Path, how: str) -> None:
    path = _encoded(JOINED[how], tmp_path / "m.onnx")
    command = shlex.split(_refused(path, "in several pieces").next_step.removeprefix("join them: "))
    subprocess.run([sys.executable, *command[1:]], cwd=tmp_path, check=True)
    assert_runs(dnnl, tmp_path / "packed.onnx", path)


def test_a_million_values_apart_are_found_at_once(tmp_path: Path) -> None:
    """By a look at many at once: one by one they would take seconds for each million."""
    count = 1 << 20
    block = np.zeros((count, 5), np.uint8)
    block[:, 0] = 4 << 3 | 5
    block[:, 1:] = np.arange(count, dtype="<f4").view(np.uint8).reshape(count, 4)
    head = onnx.TensorProto(name="w", dims=[1024, 1024], data_type=TensorProto.FLOAT).SerializeToString()
    model, path = made([node("MatMul", "x w")], {"x": (1, 1024)}), tmp_path / "m.onnx"
    path.write_bytes(_with_graph(model, _bytes_field(5, head + block.tobytes())))
    place = locate_weights(path, read_model(path)[1])["w"]
    assert (place.stride, place.size) == (5, 5 * count - 1)


def _held(name: str, **attributes: object) -> onnx.NodeProto:
    return helper.make_node("Constant", [], [name], **attributes)


_W = {"w": values(2, 3, 3, 3)}
NUMBERS: dict[str, tuple[list[onnx.NodeProto], Mapping[str, Any]]] = {
    "a factor": ([_held("k", value_float=0.5), node("Mul", "x k")], {}),
    "a summand": ([_held("k", value_floats=[0.1, -0.2, 0.3, 0.4, 0.5, 0.6]), node("Add", "k x")], {}),
    "a bias behind a name": ([_held("b", value_floats=[0.1, -0.2]), node("Identity", "b", "c"), node("Conv", "x w c")], _W),
    "a shape": ([_held("s", value_ints=[1, -1]), node("Relu", "x", "h"), node("Reshape", "h s")], {}),
    "bounds": ([_held("lo", value_float=-0.25), _held("hi", value_float=0.5), node("Clip", "x lo hi")], {}),
    "scales": (
        [_held("k", value_floats=[1.0, 1.0, 2.0, 2.0]), node("Resize", "x - k", mode="nearest", nearest_mode="floor",
                                                            coordinate_transformation_mode="asymmetric")],
        {},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", NUMBERS)
def test_constants_that_hold_numbers(dnnl: Dnnl, planned: object, tmp_path: Path, name: str) -> None:
    nodes, constants = NUMBERS[name]
    path = write(made(nodes, IMAGE, constants), tmp_path / "m.onnx")
    _assert_same(dnnl, planned, path)


def test_constants_that_hold_no_numbers_name_their_output() -> None:
    for attributes in ({"value_string": b"a"}, {"value_strings": [b"a", b"b"]}):
        with pytest.raises(ModelError, match="a Constant node without numbers") as caught:
            from_onnx(made([_held("k", **attributes), node("Mul", "x k")], IMAGE), "m.onnx")
        assert caught.value.where == "m.onnx, node 'k'"
    one = values(1)
    sparse = helper.make_sparse_tensor(numpy_helper.from_array(one, "v"), numpy_helper.from_array(np.array([2]), "i"), [6])
    with pytest.raises(ModelError, match="a Constant node without numbers"):
        from_onnx(made([_held("k", sparse_value=sparse), node("Mul", "x k")], IMAGE), "m.onnx")


# Sums.


@pytest.mark.parametrize("opset", by_day([17, 6, 8, 13], least=2))
@pytest.mark.parametrize("count", [1, 2, 3, 5])
def test_sums_of_any_number(dnnl: Dnnl, planned: object, tmp_path: Path, count: int, opset: int) -> None:
    pair = [node("Conv", "x w", "h", pads=[1] * 4), node("Relu", "x", "r")]
    reads = ("h", "r", "h", "x", "r")[:count]
    nodes = [*pair, node("Sum", " ".join(reads), "s"), node("Tanh", "s")]
    constants = {"w": values(3, 3, 3, 3)}
    path = write(made(nodes, IMAGE, constants, opset=opset), tmp_path / "m.onnx")
    # ONNX Runtime runs no Sum of opset 6
    like = write(made(nodes, IMAGE, constants, opset=13), tmp_path / "like.onnx")
    _assert_same(dnnl, planned, path, like)
    names = [op.name for op in load_onnx(path).operators]
    assert len(set(names)) == len(names) == 3 + max(0, count - 1)


def test_a_sum_of_all_outputs_is_written_under_its_name(dnnl: Dnnl, tmp_path: Path) -> None:
    model = made([node("Relu", "x", "r"), helper.make_node("Sum", ["x", "r", "r"], ["y"], name="total")], IMAGE)
    assert [op.name for op in from_onnx(model).operators][-1] == "total"
    assert_runs(dnnl, write(model, tmp_path / "m.onnx"))


# Element types.


@pytest.mark.parametrize(("kind", "name"), [("FLOAT16", "float16"), ("BFLOAT16", "bfloat16"), ("DOUBLE", "float64")])
def test_models_of_other_types_are_said_to_be_so(tmp_path: Path, kind: str, name: str) -> None:
    number = TensorProto.DataType.Value(kind)
    weight = values(5, 3, 3, 3).astype(helper.tensor_dtype_to_np_dtype(number))
    model = made([node("Conv", "x w", "h"), node("Relu", "h")], IMAGE, {"w": weight}, kind=number, opset=22)
    with pytest.raises(ModelError, match=f"^the model is of {name}: export it in float32"):
        read_model(write(model, tmp_path / "m.onnx"))


def test_a_mixed_model_names_the_odd_nodes(tmp_path: Path) -> None:
    model = made([node("Relu", "x"), helper.make_node("Relu", ["h"], ["z"], name="half")], IMAGE)
    model.graph.input.append(helper.make_tensor_value_info("h", TensorProto.FLOAT16, (1, 3)))
    model.graph.output.append(helper.make_tensor_value_info("z", TensorProto.FLOAT16, None))
    with pytest.raises(ModelError, match=r"half \(Relu\): not float32 but float16"):
        read_model(write(model, tmp_path / "m.onnx"))
