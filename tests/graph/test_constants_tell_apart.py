"""Operators that differ in a constant are never taken for one, and what is taken for one has the same values."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from model_file_runs import made, node, onnxruntime_outputs
from onnx import TensorProto, helper, numpy_helper

from depth import examples
from edgeplan.graph.fusion_rules import FusionRules
from edgeplan.graph.ir import Graph
from edgeplan.graph.kernels import split
from edgeplan.graph.onnx.read import from_onnx
from edgeplan.graph.onnx.write import to_onnx
from edgeplan.graph.simplify import simplify
from edgeplan.profiling.subjects import signature
from edgeplan.runtime.creation import Creator
from edgeplan.runtime.dnnl import Dnnl
from edgeplan.runtime.layouts import NCHW
from edgeplan.runtime.lowering import lower
from edgeplan.runtime.program import activation_layouts

Numbers = tuple[float, ...]

_MANY = 140  # places along the axis: more than any list of sizes that might be cut short


@st.composite
def _cuts(draw: st.DrawFn, parts: int) -> Numbers:
    inner = draw(st.lists(st.integers(1, _MANY - 1), min_size=parts - 1, max_size=parts - 1, unique=True))
    return tuple(np.diff([0, *sorted(inner), _MANY]).tolist())


def _constants() -> st.SearchStrategy[tuple[str, tuple[Numbers, Numbers]]]:
    """An operator type and two constants for it."""

    def two(kind: str, values: st.SearchStrategy[Numbers]) -> st.SearchStrategy[tuple[str, tuple[Numbers, Numbers]]]:
        return st.tuples(st.just(kind), st.tuples(values, values))

    splits = st.integers(2, 130).flatmap(lambda parts: two("Split", _cuts(parts)))
    shapes = st.sampled_from(
        [(1, 2, 70, 4), (1, 140, 4, 1), (4, 140, 1, 1), (1, 140, 1, 4), *((1,) * n + (560,) for n in (3, 7))]
    )
    permutations = st.permutations(range(4)).map(tuple)
    numbers = st.floats(-1, 1, width=32).map(lambda x: (x,))
    factors = st.sampled_from([(1.0, 1.0, 1.0, 1.5), (1.0, 1.0, 2.0, 1.5), (1.0, 1.0, 2.05, 2.05), (1.0, 1.0, 2.0, 2.0)])
    axes = st.lists(st.integers(0, 3), min_size=1, max_size=4, unique=True).map(lambda found: tuple(sorted(found)))
    return st.one_of(
        splits, two("Reshape", shapes), two("Transpose", permutations), two("Clip", numbers), two("Resize", factors),
        two("ReduceMean", axes),
    )  # fmt: skip


def _nodes(kind: str, which: str, constant: Sequence[float]) -> tuple[onnx.NodeProto, list[TensorProto], list[str]]:
    """A node that reads `x`; its constants, and what it writes."""
    integers = numpy_helper.from_array(np.array(constant, np.int64), f"c{which}")
    floats = numpy_helper.from_array(np.array(constant, np.float32), f"c{which}")
    outputs = [f"{which}{i}" for i in range(len(constant) if kind == "Split" else 1)]
    reads = {"Split": ["x", f"c{which}"], "Reshape": ["x", f"c{which}"], "Resize": ["x", "", f"c{which}"]}.get(kind, ["x"])
    given = {"Split": {"axis": 1}, "Transpose": {"perm": constant}, "ReduceMean": {"axes": constant}}.get(kind, {})
    if kind == "Resize":
        given = {"mode": "linear"}
    if kind == "Clip":
        floats = numpy_helper.from_array(np.array(constant[0], np.float32), f"c{which}")
        reads = ["x", f"c{which}"]
    stored = {"Split": [integers], "Reshape": [integers], "Clip": [floats], "Resize": [floats]}.get(kind, [])
    return helper.make_node(kind, reads, outputs, name=f"n{which}", **given), stored, outputs


def _model(kind: str, both: tuple[Numbers, Numbers]) -> onnx.ModelProto:
    """Two operators of one type on one input, with a Relu behind every output."""
    nodes, stored, written = [], [], []
    for which, constant in zip("ab", both, strict=True):
        first, constants, outputs = _nodes(kind, which, constant)
        nodes += [first, *(helper.make_node("Relu", [o], [f"y{o}"], name=f"r{o}") for o in outputs)]
        stored += constants
        written += [f"y{o}" for o in outputs]
    model = made(nodes, {"x": (1, _MANY, 2, 2)}, output=" ".join(written))
    model.graph.initializer.extend(stored)
    return model


def _values(model: onnx.ModelProto) -> list[np.ndarray]:
    x = np.random.default_rng(3).standard_normal((1, _MANY, 2, 2)).astype(np.float32)
    return onnxruntime_outputs(model, {"x": x})


def _kept(graph: Graph, kind: str) -> int:
    return sum(op.op_type == kind for op in graph.operators)


@settings(max_examples=examples(60), deadline=None)
@given(pair=_constants())
def test_operators_that_differ_in_a_constant_stay_apart(pair: tuple[str, tuple[Numbers, Numbers]]) -> None:
    kind, both = pair
    model = _model(kind, both)
    graph = from_onnx(model)
    plain = simplify(graph)
    assert _kept(plain, kind) == (1 if both[0] == both[1] else 2)
    for found, wanted in zip(_values(to_onnx(plain)), _values(model), strict=True):
        np.testing.assert_array_equal(found, wanted)
    rules = FusionRules(pairs={}, merges_duplicates=True)
    runs = [kernel for kernel in split(graph, rules) if {"na", "nb"} & set(kernel.members)]
    assert len(runs) == _kept(plain, kind)


@settings(max_examples=examples(40), deadline=None)
@given(pair=_constants())
def test_steps_that_differ_in_a_constant_have_other_rows(pair: tuple[str, tuple[Numbers, Numbers]]) -> None:
    kind, both = pair
    dnnl = Dnnl()
    signed = []
    for constant in both:
        lowered = lower(from_onnx(_model(kind, (constant, constant))))
        creator = Creator(dnnl, lowered.shapes, activation_layouts(lowered, NCHW), {}, lowered.types)
        signed.append([signature(creator, step) for step in lowered.steps])
    assert (signed[0] == signed[1]) == (both[0] == both[1])


@pytest.mark.parametrize("parts", [64, 65, 66, 200])
def test_two_splits_into_many_parts(parts: int) -> None:
    first, second = [1, 3, 2] + [1] * (parts - 3), [2, 1, 2, 2] + [1] * (parts - 4)  # the third part has 2 channels in both
    nodes = [
        node("Split", "x s", [f"a{i}" for i in range(parts)], axis=1),
        node("Split", "x t", [f"b{i}" for i in range(parts)], axis=1),
        node("Relu", "a2", "p"),
        node("Relu", "b2"),
    ]
    sizes = {"s": np.array(first), "t": np.array(second)}
    graph = simplify(from_onnx(made(nodes, {"x": (1, sum(first), 2, 2)}, sizes, output="p y")))
    assert [op.attributes["split"] for op in graph.operators if op.op_type == "Split"] == [tuple(first), tuple(second)]


def test_a_split_of_which_parts_have_no_names_keeps_them_apart() -> None:
    nodes = [
        node("Split", "x", ["", "h"], name="s", axis=1),
        node("Split", "x", ["k", ""], name="t", axis=1),
        node("Relu", "h"),
        node("Relu", "k", "z"),
    ]
    graph = simplify(from_onnx(made(nodes, {"x": (1, 4, 2, 2)}, output="y z", opset=13)))
    (op,) = (op for op in graph.operators if op.op_type == "Split")
    assert [graph.shape(name) for name in op.outputs] == [(1, 2, 2, 2)] * 2
    relus = [op.inputs[0] for op in graph.operators if op.op_type == "Relu"]
    assert relus == [op.outputs[1], op.outputs[0]]
