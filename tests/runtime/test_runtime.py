"""Lowering, weights by offset, preparation apart from execution, and whole families."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from edgeplan.errors import DeviceError, ModelError
from edgeplan.graph.builder import GraphBuilder
from edgeplan.graph.ir import Attribute, Graph, Operator, Tensor
from edgeplan.graph.onnx.read import load_onnx
from edgeplan.graph.onnx.write import save_onnx, to_onnx
from edgeplan.runtime.candidates import candidates
from edgeplan.runtime.creation import Creator
from edgeplan.runtime.dnnl import Dnnl
from edgeplan.runtime.executable import Executable, Worker
from edgeplan.runtime.layouts import HOMES
from edgeplan.runtime.lowering import lower
from edgeplan.runtime.program import activation_layouts, default_program, step_candidates
from edgeplan.runtime.session import PreparedSteps
from edgeplan.runtime.weights import locate_weights


def _block() -> Graph:
    b = GraphBuilder("block", (1, 16, 10, 10))
    x = b.relu(b.bn(b.conv(b.input, 16, 3, name="c1"), name="b1"), name="r1")
    y = b.bn(b.conv(b.conv(x, 16, 3, name="c0"), 16, 3, name="c2"), name="b2")
    y = b.relu(b.add(y, x, name="a"), name="r2")
    return b.build(b.fc(b.flatten(b.gap(y, name="g"), name="f"), 10, name="fc"))


def test_a_residual_block_becomes_five_steps() -> None:
    steps = lower(_block()).steps
    assert [s.members for s in steps] == [("c1", "b1", "r1"), ("c0",), ("c2", "b2", "a", "r2"), ("g",), ("f", "fc")]
    assert [(p.kind, p.tensor) for p in steps[2].post_ops] == [("sum", "r1"), ("eltwise", "")]


def test_a_sum_whose_operand_is_read_again_is_not_in_place() -> None:
    b = GraphBuilder("kept", (1, 16, 10, 10))
    x = b.conv(b.input, 16, 3)
    y = b.add(b.conv(x, 16, 3), x)
    steps = lower(b.build(b.conv(b.concat([y, x]), 4, 1))).steps
    assert [p.kind for s in steps for p in s.post_ops] == ["binary"]


def test_lacking_operators_are_named_together() -> None:
    graph = _block()
    strange = [Operator(f"s{i}", f"Strange{i}", ("r1",), (f"s{i}",)) for i in range(2)]
    tensors = {**graph.tensors, "s0": graph.tensors["r1"], "s1": graph.tensors["r1"]}
    graph = replace(graph, operators=(*graph.operators, *strange), tensors=MappingProxyType(tensors))
    with pytest.raises(ModelError, match=r"s0 \(Strange0\).*s1 \(Strange1\)"):
        lower(graph)


def _one(op_type: str, shapes: list[tuple[int, ...]], output: tuple[int, ...], **attributes: Attribute) -> Graph:
    names = [f"x{i}" for i in range(len(shapes))]
    tensors = {n: Tensor(n, s) for n, s in zip(names, shapes, strict=True)} | {"y": Tensor("y", output)}
    op = Operator("op", op_type, tuple(names), ("y",), (), MappingProxyType(attributes))
    return Graph("one", (op,), tuple(names), ("y",), MappingProxyType(tensors))


@pytest.mark.parametrize(
    ("graph", "message"),
    [
        (_one("LSTM", [(5, 1, 7), (1, 1, 8)], (5, 1, 1, 8), hidden_size=8), "initial states"),
        (_one("Conv", [(1, 3, 4), (2, 3, 1)], (1, 2, 4)), "weights computed"),
        (_one("LRN", [(1, 3, 4)], (1, 3, 4), size=3), "4-D"),
    ],
)
def test_settings_that_are_lacking_are_named_before_any_work(graph: Graph, message: str) -> None:
    with pytest.raises(ModelError, match=message) as caught:
        lower(graph)
    assert "op" in caught.value.what


@pytest.mark.parametrize("how", ["raw", "floats", "external"])
def test_weights_are_found_in_the_file(tmp_path: Path, how: str) -> None:
    graph, path = _block(), tmp_path / "m.onnx"
    model = to_onnx(graph)
    values = {i.name: numpy_helper.to_array(i) for i in model.graph.initializer}
    if how == "floats":
        for tensor in model.graph.initializer:
            array = values[tensor.name]
            tensor.ClearField("raw_data")
            tensor.float_data.extend(array.ravel().tolist())
    onnx.save(model, path, save_as_external_data=how == "external", location="w.bin", size_threshold=0)
    found = locate_weights(path, lower(graph))
    assert len(found) == 13
    for name, place in found.items():
        held = np.fromfile(tmp_path / place.file, np.float32, place.size // 4, offset=place.offset)
        np.testing.assert_array_equal(held, values[name].ravel())


def test_a_truncated_model_is_refused(tmp_path: Path) -> None:
    graph, path = _block(), tmp_path / "m.onnx"
    whole = save_onnx(graph, path).read_bytes()
    for tenth in range(10):
        path.write_bytes(whole[: len(whole) * tenth // 10])
        with pytest.raises(ModelError):
            locate_weights(path, lower(graph))


@pytest.mark.parametrize("place", ["w.bin", "./w.bin"])
def test_weights_beside_a_model_are_read_and_a_file_cut_short_is_told(dnnl: Dnnl, tmp_path: Path, place: str) -> None:
    path = save_onnx(_block(), tmp_path / "m.onnx")
    whole, beside = onnx.load(path), {"save_as_external_data": True, "location": "w.bin", "size_threshold": 0}
    onnx.save(whole, path, **beside)
    named = onnx.load(path, load_external_data=False)
    for entry in (entry for tensor in named.graph.initializer for entry in tensor.external_data if entry.key == "location"):
        entry.value = place
    onnx.save(named, path)
    with Executable(dnnl, default_program(dnnl, path, load_onnx(path), "nchw"), tmp_path) as executable:
        values = [*executable.read(0).values()]
        assert values
        os.truncate(tmp_path / "w.bin", values[0].nbytes // 2)
        with pytest.raises(ModelError, match="ends before byte"):
            executable.read(0)


def test_preparing_leaves_the_arena_alone_and_needs_the_scratch_that_was_planned(dnnl: Dnnl, tmp_path: Path) -> None:
    """Creating a memory must not clear the padding of blocked layouts: another step may be using those bytes."""
    b = GraphBuilder("padded", (1, 19, 9, 9))
    graph = b.build(b.conv(b.conv(b.input, 21, 3), 5, 1))
    program = default_program(dnnl, save_onnx(graph, tmp_path / "m.onnx"), graph, "blocked16")
    with Executable(dnnl, program, tmp_path) as executable:
        executable.arena.data[:] = 7
        PreparedSteps(executable, Worker(dnnl))
        assert (executable.arena.data == 7).all()
    cut = replace(program, arena_bytes=program.scratch_offset - 64)
    with Executable(dnnl, cut, tmp_path) as executable, pytest.raises(DeviceError, match="scratch"):
        PreparedSteps(executable, Worker(dnnl), steps=(0,))


def test_candidates_are_those_of_a_fresh_process_whatever_was_made_before() -> None:
    """OneDNN's cache takes descriptors that differ in strides of axes of size 1 for equal."""
    b = GraphBuilder("single", (1, 1, 1, 1))
    lowered, dnnl = lower(b.build(b.conv(b.gap(b.conv(b.input, 2, 1)), 1, 1))), Dnnl()
    dnnl.set_threads(1)
    dnnl.set_primitive_cache(1024)  # profiles of other tests have none

    def creator(home: str) -> Creator:
        return Creator(dnnl, lowered.shapes, activation_layouts(lowered, home), {}, lowered.types)

    fresh = {home: step_candidates(dnnl, lowered, home) for home in HOMES}
    for home in HOMES:
        for step in lowered.steps:
            for candidate in candidates(creator(home), step):
                creator(home).create(step, candidate)
    warm = {home: tuple(candidates(creator(home), step) for step in lowered.steps) for home in HOMES}
    assert {home: step_candidates(dnnl, lowered, home) for home in HOMES} == fresh
    assert warm != fresh, "the cache makes no difference any more"
