"""Constants without tensors, sums of any number of inputs, and models that are not of float32."""

from __future__ import annotations

from collections.abc import Mapping
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
from edgeplan.runtime.dnnl import Dnnl

IMAGE = {"x": (1, 3, 6, 6)}


def _held(name: str, **attributes: object) -> onnx.NodeProto:
    return helper.make_node("Constant", [], [name], **attributes)


_W = {"w": values(2, 3, 3, 3)}
NUMBERS: dict[str, tuple[list[onnx.NodeProto], Mapping[str, Any]]] = {
    "a factor": ([_held("k", value_float=0.5), node("Mul", "x k")], {}),
    "a summand": ([_held("k", value_floats=[0.1, -0.2, 0.3, 0.4, 0.5, 0.6]), node("Add", "k x")], {}),
    "a list of one": ([_held("k", value_floats=[0.7]), node("Mul", "x k")], {}),
    "a bias": ([_held("b", value_floats=[0.1, -0.2]), node("Conv", "x w b")], _W),
    "a bias behind a name": ([_held("b", value_floats=[0.1, -0.2]), node("Identity", "b", "c"), node("Conv", "x w c")], _W),
    "a shape": ([_held("s", value_ints=[1, -1]), node("Relu", "x", "h"), node("Reshape", "h s")], {}),
    "axes": ([_held("a", value_ints=[0]), node("Relu", "x", "h"), node("Unsqueeze", "h a")], {}),
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
    assert_runs(dnnl, path)
    assert_starts(dnnl, planned, path, tmp_path / "plans")


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
    assert_runs(dnnl, path, like)
    assert_starts(dnnl, planned, path, tmp_path / "plans", like)
    names = [op.name for op in load_onnx(path).operators]
    assert len(set(names)) == len(names) == 3 + max(0, count - 1)


def test_a_sum_with_constants_and_broadcasting(dnnl: Dnnl, tmp_path: Path) -> None:
    constants = {"c": values(1, 3, 1, 1), "d": values(1, 3, 6, 6), "w": values(3, 3, 1, 1)}
    nodes = [node("Conv", "x w", "h"), node("GlobalAveragePool", "x", "g"), node("Sum", "c d h g")]
    assert_runs(dnnl, write(made(nodes, IMAGE, constants), tmp_path / "m.onnx"))


def test_a_sum_of_all_outputs_is_written_under_its_name(dnnl: Dnnl, tmp_path: Path) -> None:
    model = made([node("Relu", "x", "r"), helper.make_node("Sum", ["x", "r", "r"], ["y"], name="total")], IMAGE)
    assert [op.name for op in from_onnx(model).operators][-1] == "total"
    assert_runs(dnnl, write(model, tmp_path / "m.onnx"))


# Element types.


def _of(kind: int, op_type: str = "Conv") -> onnx.ModelProto:
    dtype = helper.tensor_dtype_to_np_dtype(kind)
    weight = values(5, 3, 3, 3) if op_type == "Conv" else values(6, 4)
    nodes = [node(op_type, "x w", "h"), node("Relu", "h")]
    return made(nodes, IMAGE, {"w": weight.astype(dtype)}, kind=kind, opset=22)


@pytest.mark.parametrize("kind", [TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.DOUBLE])
@pytest.mark.parametrize("op_type", ["Conv", "MatMul"])
def test_models_of_other_types_are_said_to_be_so(tmp_path: Path, kind: int, op_type: str) -> None:
    name = {TensorProto.FLOAT16: "float16", TensorProto.BFLOAT16: "bfloat16", TensorProto.DOUBLE: "float64"}[kind]
    with pytest.raises(ModelError, match=f"^the model is of {name}: export it in float32"):
        read_model(write(_of(kind, op_type), tmp_path / "m.onnx"))


def test_halves_between_casts_are_said_to_be_so(tmp_path: Path) -> None:
    """As converters write them that keep the types of inputs and outputs."""
    nodes = [node("Cast", "x", "c", to=TensorProto.FLOAT16), node("Conv", "c w", "h"), node("Cast", "h", to=TensorProto.FLOAT)]
    model = made(nodes, IMAGE, {"w": values(5, 3, 3, 3).astype(np.float16)})
    with pytest.raises(ModelError, match="float16"):
        read_model(write(model, tmp_path / "m.onnx"))


def test_a_mixed_model_names_the_odd_nodes(tmp_path: Path) -> None:
    model = made([node("Relu", "x"), helper.make_node("Relu", ["h"], ["z"], name="half")], IMAGE)
    model.graph.input.append(helper.make_tensor_value_info("h", TensorProto.FLOAT16, (1, 3)))
    model.graph.output.append(helper.make_tensor_value_info("z", TensorProto.FLOAT16, None))
    with pytest.raises(ModelError, match=r"half \(Relu\): not float32 but float16"):
        read_model(write(model, tmp_path / "m.onnx"))


def _quantised() -> dict[str, list[onnx.NodeProto]]:
    return {
        "QuantizeLinear": [node("QuantizeLinear", "x k z", "q"), node("DequantizeLinear", "q k z")],
        "DequantizeLinear": [node("DequantizeLinear", "w8 k z8", "w"), node("Conv", "x w")],
        "DynamicQuantizeLinear": [node("DynamicQuantizeLinear", "x", "q s p"), node("ConvInteger", "q w8", "y")],
    }


@pytest.mark.parametrize("name", _quantised())
def test_quantised_models_are_read_or_sent_to_preparation(tmp_path: Path, name: str) -> None:
    constants = {
        "k": np.float32(0.1), "z": np.uint8(128), "z8": np.int8(0), "w8": np.ones((5, 3, 3, 3), np.int8),
    }  # fmt: skip
    path = write(made(_quantised()[name], IMAGE, constants), tmp_path / "m.onnx")
    if name == "QuantizeLinear":
        assert {op.op_type for op in load_onnx(path).operators} == {"QuantizeLinear", "DequantizeLinear"}
        return
    told = "DynamicQuantizeLinear" if name == "DynamicQuantizeLinear" else "Conv whose W is no initialiser"
    with pytest.raises(ModelError, match=told) as caught:
        load_onnx(path)
    assert caught.value.next_step
