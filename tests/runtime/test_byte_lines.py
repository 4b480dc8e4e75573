"""Sums, products, means, joins and tables of bytes: one step from bytes to bytes, right to a step of the scale."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from depth import MANY, by_day
from edgeplan.chapters.cold_start.plan import read_model
from edgeplan.graph.onnx.prepare import Preparation, prepare_file
from edgeplan.graph.steps import INT8_LINE, INT8_POOL
from edgeplan.runtime.dnnl import Dnnl
from edgeplan.runtime.layouts import BLOCKED
from edgeplan.runtime.program import default_program
from edgeplan.runtime.session import SequentialSession

LANE = "numerics"
Array = npt.NDArray[Any]
_IMAGE, _ROWS = (2, 19, 5, 4), (2, 5, 33)
_TYPES = ("uint8", "int8")


class Line(NamedTuple):
    """What is computed between bytes.

    Attributes:
        nodes: operators with their operands and attributes; `x0` and so on are numbers of what is read, the last is rounded.
        shapes: of what is read.
        steps: kinds of the steps that it becomes.
    """

    nodes: tuple[tuple[str, str, dict[str, Any]], ...]
    shapes: tuple[tuple[int, ...], ...]
    steps: tuple[str, ...] = (INT8_LINE,)


def _of_two(kind: str, *shapes: tuple[int, ...], behind: tuple[tuple[str, dict[str, Any]], ...] = ()) -> Line:
    return Line(((kind, "x0 x1", {}), *((name, "", attributes) for name, attributes in behind)), shapes)


def _of_one(shape: tuple[int, ...], kind: str, **attributes: Any) -> Line:
    return Line(((kind, "x0", attributes),), (shape,))


_CURVES: dict[str, dict[str, Any]] = {
    **{kind: {} for kind in ("Relu", "HardSwish", "HardSigmoid", "Sigmoid", "Tanh", "Elu", "Softplus", "Mish", "Gelu", "Abs")},
    "LeakyRelu": {"alpha": 0.2},
    "Exp": {},
}
_GATES = (_IMAGE, (2, 19, 1, 1))
_LINES = {
    "sum": _of_two("Add", _IMAGE, _IMAGE),
    "sum of rows": _of_two("Add", _ROWS, _ROWS),
    "sum, relu": _of_two("Add", _IMAGE, _IMAGE, behind=(("Relu", {}),)),
    "difference": _of_two("Sub", _IMAGE, _IMAGE),
    "product": _of_two("Mul", _IMAGE, _IMAGE),
    "gated": _of_two("Mul", *_GATES),
    "gate first": _of_two("Mul", *reversed(_GATES)),
    "sum by channel": _of_two("Add", *_GATES),
    "sum of rows and one": _of_two("Add", _ROWS, (33,)),
    "join": Line((("Concat", "x0 x1 x2", {"axis": 1}),), ((1, 3, 4, 5), (1, 40, 4, 5), (1, 16, 4, 5))),
    "join of rows": Line((("Concat", "x0 x1", {"axis": 2}),), ((2, 3, 4, 5), (2, 3, 2, 5))),
    "join with itself": Line((("Concat", "x0 x1 x0", {"axis": -1}),), ((3, 5), (3, 4))),
    "join, relu": Line((("Concat", "x0 x1", {"axis": 1}), ("Relu", "", {})), (_IMAGE, _IMAGE)),
    "mean of an image": _of_one(_IMAGE, "GlobalAveragePool"),
    "mean of a signal": _of_one((1, 7, 40), "GlobalAveragePool"),
    "mean of axes": _of_one(_IMAGE, "ReduceMean", axes=[2, 3], keepdims=0),
    "mean of tokens": _of_one(_ROWS, "ReduceMean", axes=[1], keepdims=0),
    "mean of features": _of_one(_ROWS, "ReduceMean", axes=[-1], keepdims=1),
    **{kind: _of_one(_IMAGE, kind, **attributes) for kind, attributes in _CURVES.items()},
    "curve after curve": Line((("Sigmoid", "x0", {}), ("Relu", "", {}), ("Tanh", "", {})), (_ROWS,)),
    "swish of rounded gates": Line((("HardSigmoid", "x0", {}), ("rounded", "", {}), ("Mul", "x0 ", {})), (_IMAGE,)),
    "another scale": Line((), (_ROWS,)),
    "largest, another scale": Line((("MaxPool", "x0", {"kernel_shape": [2, 2]}),), (_IMAGE,), (INT8_POOL, INT8_LINE)),
}


class _Drawing:
    """A model being written."""

    def __init__(self, rng: np.random.Generator) -> None:
        self.rng, self.nodes, self.constants = rng, list[onnx.NodeProto](), dict[str, Array]()

    def scaling(self, scale: float) -> str:
        """A scale near one, and a zero point that may lie anywhere; their names."""
        name, dtype = f"c{len(self.constants)}", str(self.rng.choice(_TYPES))
        bounds = np.iinfo(dtype)
        self.constants[f"{name}s"] = np.float32(scale * (0.7 + 0.6 * self.rng.random()))
        self.constants[f"{name}z"] = self.rng.integers(bounds.min, bounds.max + 1, dtype=dtype)
        return f"{name}s {name}z"

    def dtype(self, scaling: str) -> np.dtype[Any]:
        return self.constants[scaling.split()[1]].dtype

    def node(self, kind: str, reads: str, written: str, **attributes: Any) -> None:
        self.nodes.append(helper.make_node(kind, reads.split(), [written], name=f"{kind}_{written}", **attributes))


def _made(line: Line, folder: Path, seed: int, *, images: bool, extreme: bool = False) -> tuple[Path, dict[str, Array], Array]:
    """Write a model; its file, inputs, and what ONNX's reference says. `images`: channels lie side by side in what is read."""
    drawing = _Drawing(np.random.default_rng(seed))
    inputs: dict[str, Array] = {}
    for place, shape in enumerate(line.shapes):
        scaling, given = drawing.scaling(0.03), f"b{place}"
        bounds, dtype = np.iinfo(drawing.dtype(scaling)), drawing.dtype(scaling)
        values = drawing.rng.integers(bounds.min, bounds.max + 1, shape)
        if extreme:
            values = drawing.rng.choice([bounds.min, bounds.max], shape)
        inputs[given] = values.astype(dtype)
        drawing.node("DequantizeLinear", f"{given} {scaling}", f"x{place}")
        if images and len(shape) == 4:
            drawing.node("MaxPool", f"x{place}", f"m{place}", kernel_shape=[1, 1])
            drawing.node("QuantizeLinear", f"m{place} {scaling}", f"q{place}")
            drawing.nodes[-3].output[0] = f"f{place}"
            drawing.nodes[-2].input[0] = f"f{place}"
            drawing.node("DequantizeLinear", f"q{place} {scaling}", f"x{place}")
    last = "x0"
    for number, (kind, reads, attributes) in enumerate(line.nodes):
        read, last = reads + last if not reads or reads.endswith(" ") else reads, f"n{number}"
        if kind == "rounded":
            scaling = drawing.scaling(0.006)
            drawing.node("QuantizeLinear", f"{read} {scaling}", f"{last}q")
            drawing.node("DequantizeLinear", f"{last}q {scaling}", last)
            continue
        if kind == "ReduceMean":
            axes = f"axes{number}"
            drawing.constants[axes] = np.array(attributes["axes"])
            read = f"{read} {axes}"
        drawing.node(kind, read, last, **{key: value for key, value in attributes.items() if key != "axes"})
    scaling = drawing.scaling(0.05)
    drawing.node("QuantizeLinear", f"{last} {scaling}", "y")

    def value(name: str, dtype: np.dtype[Any], shape: tuple[int, ...] | None) -> onnx.ValueInfoProto:
        return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(dtype), shape)

    body = helper.make_graph(
        drawing.nodes,
        "line",
        [value(name, given.dtype, given.shape) for name, given in inputs.items()],
        [value("y", drawing.dtype(scaling), None)],
        [numpy_helper.from_array(np.asarray(given), name) for name, given in drawing.constants.items()],
    )
    model = helper.make_model(body, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    if any(kind == "Mish" for kind, _, _ in line.nodes):
        model = onnx.shape_inference.infer_shapes(model)
    path = folder / "line.onnx"
    onnx.save(model, path)
    (wanted,) = ReferenceEvaluator(model).run(None, inputs)
    return path, inputs, wanted


@pytest.mark.parametrize(
    ("form", "images"), by_day([(form, side) for form in _LINES for side in (False, True)], len(_LINES), 2)
)
def test_a_line_of_bytes_is_within_a_step_of_the_reference(dnnl: Dnnl, tmp_path: Path, form: str, images: bool) -> None:
    line = _LINES[form]
    for seed in range(24 if MANY else 8):
        given, inputs, wanted = _made(line, tmp_path, seed, images=images, extreme=seed % 4 == 3)
        path = prepare_file(given, Preparation(), tmp_path / "ready.onnx")
        graph, lowered = read_model(path)
        session = SequentialSession(dnnl, default_program(dnnl, path, graph, BLOCKED), tmp_path)
        found = session.run(inputs)["y"]
        assert (found.dtype, found.shape) == (wanted.dtype, wanted.shape)
        assert np.abs(found.astype(int) - wanted.astype(int)).max() <= 1, seed
        if dnnl.info.exact_bytes:
            before = [INT8_POOL] * sum(images and len(shape) == 4 for shape in line.shapes)
            assert sorted(step.kind for step in lowered.steps) == sorted([*before, *line.steps]), seed


def test_a_mean_that_makes_an_image_of_something_else_is_no_step_of_bytes(dnnl: Dnnl, tmp_path: Path) -> None:
    """Images may lie with channels last, and what they are made of does not."""
    line = _of_one((1, 3, 8, 8, 4), "ReduceMean", axes=[4], keepdims=0)
    given, inputs, wanted = _made(line, tmp_path, 0, images=False, extreme=False)
    path = prepare_file(given, Preparation(), tmp_path / "ready.onnx")
    graph, lowered = read_model(path)
    found = SequentialSession(dnnl, default_program(dnnl, path, graph, BLOCKED), tmp_path).run(inputs)["y"]
    assert np.abs(found.astype(int) - wanted.astype(int)).max() <= 1
    assert INT8_LINE not in {step.kind for step in lowered.steps}


@pytest.mark.parametrize("length", [5, 40])
def test_differences_of_a_byte_and_itself_take_no_longer_than_their_number(dnnl: Dnnl, tmp_path: Path, length: int) -> None:
    """Each doubles the terms of the one before, as a tree; a table of too many is none."""
    chain = tuple(("Sub" if k % 2 else "Add", f"n{k - 1} n{k - 1}" if k else "x0 x0", {}) for k in range(length))
    nodes = (*chain, ("Add", "x0 ", {}))
    given, inputs, wanted = _made(Line(nodes, ((3, 5),)), tmp_path, 0, images=False, extreme=False)
    path = prepare_file(given, Preparation(), tmp_path / "ready.onnx")
    graph, _ = read_model(path)
    found = SequentialSession(dnnl, default_program(dnnl, path, graph, BLOCKED), tmp_path).run(inputs)["y"]
    assert np.abs(found.astype(int) - wanted.astype(int)).max() <= 1


_MOVES: dict[str, dict[str, Any]] = {
    "Transpose": {"perm": [0, 3, 1, 2]},
    "Flatten": {"axis": 2},
    "Reshape": {"more": [2, 19, 20]},
    "Slice": {"more": [[1], [17], [1], [2]]},
    "Unsqueeze": {"more": [[1]]},
    "Gather": {"more": [[3, 0, 2]], "axis": 2},
    "Split": {"axis": 1, "num_outputs": 2},
}


@pytest.mark.parametrize("dtype", _TYPES)
@pytest.mark.parametrize("kind", _MOVES)
@pytest.mark.parametrize("images", [False, True])
def test_bytes_are_moved_as_they_are(dnnl: Dnnl, tmp_path: Path, kind: str, dtype: str, images: bool) -> None:
    """Scales and zero points before and behind are equal and have names of their own."""
    drawing, attributes = _Drawing(np.random.default_rng(7)), dict(_MOVES[kind])
    for name in ("a", "b", "c"):
        drawing.constants |= {f"{name}s": np.float32(0.1), f"{name}z": np.array(3, dtype)}
    more = attributes.pop("more", [])
    more = [more] if kind == "Reshape" else more
    drawing.constants |= {f"m{place}": np.array(value) for place, value in enumerate(more)}
    bounds = np.iinfo(dtype)
    x = drawing.rng.integers(bounds.min, bounds.max + 1, _IMAGE).astype(dtype)
    drawing.node("DequantizeLinear", "x as az", "f")
    if images:
        drawing.node("MaxPool", "f", "p", kernel_shape=[1, 1])
        drawing.node("QuantizeLinear", "p as az", "q")
        drawing.node("DequantizeLinear", "q bs bz", "g")
    names = ["y", "second"][: attributes.get("num_outputs", 1)]
    reads = ["g" if images else "f", *(f"m{place}" for place in range(len(more)))]
    drawing.nodes.append(helper.make_node(kind, reads, [f"n{name}" for name in names], name="move", **attributes))
    for name in names:
        drawing.node("QuantizeLinear", f"n{name} cs cz", name)
    body = helper.make_graph(
        drawing.nodes,
        "moves",
        [helper.make_tensor_value_info("x", helper.np_dtype_to_tensor_dtype(x.dtype), x.shape)],
        [helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(x.dtype), None) for name in names],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in drawing.constants.items()],
    )
    model = helper.make_model(body, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    onnx.save(model, tmp_path / "m.onnx")
    path = prepare_file(tmp_path / "m.onnx", Preparation(), tmp_path / "ready.onnx")
    graph, lowered = read_model(path)
    found = SequentialSession(dnnl, default_program(dnnl, path, graph, BLOCKED), tmp_path).run({"x": x})
    for name, wanted in zip(names, ReferenceEvaluator(model).run(None, {"x": x}), strict=True):
        np.testing.assert_array_equal(found[name], wanted)
    assert [name for step in lowered.steps for name in step.members] == [op.name for op in graph.operators]
    if dnnl.info.exact_bytes:
        assert all(lowered.types.get(name) == dtype for step in lowered.steps for name in (*step.reads, *step.outputs))


def test_what_something_else_reads_is_no_part_of_a_table(dnnl: Dnnl, tmp_path: Path) -> None:
    """Numbers within a chain that are an output, too, are made."""
    constants = {"s": np.float32(0.02), "z": np.uint8(100)}
    nodes = [
        helper.make_node("DequantizeLinear", ["x", "s", "z"], ["f"], name="f"),
        helper.make_node("Sigmoid", ["f"], ["g"], name="g"),
        helper.make_node("Mul", ["f", "g"], ["h"], name="h"),
        helper.make_node("QuantizeLinear", ["h", "s", "z"], ["y"], name="y"),
    ]
    x = np.arange(256, dtype=np.uint8).reshape(4, 64)
    body = helper.make_graph(
        nodes,
        "shared",
        [helper.make_tensor_value_info("x", TensorProto.UINT8, x.shape)],
        [helper.make_tensor_value_info(n, t, x.shape) for n, t in (("y", TensorProto.UINT8), ("g", TensorProto.FLOAT))],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()],
    )
    model = helper.make_model(body, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    onnx.save(model, tmp_path / "m.onnx")
    path = prepare_file(tmp_path / "m.onnx", Preparation(), tmp_path / "ready.onnx")
    graph, lowered = read_model(path)
    found = SequentialSession(dnnl, default_program(dnnl, path, graph, BLOCKED), tmp_path).run({"x": x})
    wanted = dict(zip(("y", "g"), ReferenceEvaluator(model).run(None, {"x": x}), strict=True))
    assert not any(step.kind == INT8_LINE for step in lowered.steps)
    assert np.abs(found["y"].astype(int) - wanted["y"].astype(int)).max() <= 1
    np.testing.assert_allclose(found["g"], wanted["g"], rtol=1e-5, atol=1e-6)
