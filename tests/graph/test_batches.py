"""A batch that is asked for is the one that is computed, or it is refused, by every command that takes one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import edgeplan
from edgeplan.errors import EdgeplanError, ModelError
from edgeplan.graph.onnx.prepare import Preparation, load_prepared, prepare_file

Axes = tuple[int | str, ...]
FIXED: Axes = (1, 3, 8, 8)
OPEN: Axes = ("N", 3, 8, 8)


def _model(path: Path, *inputs: Axes) -> Path:
    """A file whose inputs x0, x1 ... each go through a rectifier of its own."""
    nodes = [helper.make_node("Relu", [f"x{k}"], [f"y{k}"]) for k in range(len(inputs))]
    given = [helper.make_tensor_value_info(f"x{k}", TensorProto.FLOAT, list(axes)) for k, axes in enumerate(inputs)]
    made = [helper.make_tensor_value_info(f"y{k}", TensorProto.FLOAT, None) for k in range(len(inputs))]
    onnx.save(helper.make_model(helper.make_graph(nodes, "g", given, made), opset_imports=[helper.make_opsetid("", 17)]), path)
    return path


@pytest.mark.parametrize(
    ("inputs", "shapes", "message"),
    [
        ((FIXED,), (), "the batch of x0 is fixed at 1"),
        (((4, 3, 8, 8),), (), "the batch of x0 is fixed at 4"),
        (((1, "height"),), ("x0=1,5",), "the batch of x0 is fixed at 1"),
        ((FIXED, FIXED), (), "the batch of x0 is fixed at 1"),
        (((8, 3), (1, 3)), (), "the batch of x1 is fixed at 1"),
        ((OPEN,), ("x0=2,3,8,8",), "the batch of x0 is 2 by its shape and 8 by --batch"),
        ((("batch_size", 3), ("N", 3)), ("x1=2,3",), "the batch of x1 is 2 by its shape and 8 by --batch"),
        ((("N", 3), ("N", 5)), ("x0=2,3",), "the batch of x0 is 2 by its shape and 8 by --batch"),
        (((3, "batch"),), ("x0=3,2",), "the batch of x0 is 2 by its shape and 8 by --batch"),
        (((),), (), "no input has a batch"),
    ],
)
def test_a_batch_that_cannot_be_had_is_refused(
    tmp_path: Path, inputs: tuple[Axes, ...], shapes: tuple[str, ...], message: str
) -> None:
    with pytest.raises(ModelError) as caught:
        load_prepared(_model(tmp_path / "m.onnx", *inputs), Preparation.parsed(shapes, (), 8))
    assert caught.value.what == message
    assert "--batch 8" in caught.value.where


@pytest.mark.parametrize(
    ("inputs", "shapes", "wanted"),
    [
        ((OPEN,), (), [(8, 3, 8, 8)]),
        (((8, 3, 8, 8),), (), [(8, 3, 8, 8)]),  # it is what the file says anyway
        ((OPEN,), ("x0=8,3,8,8",), [(8, 3, 8, 8)]),
        ((OPEN, ("N", 5)), ("x1=8,5",), [(8, 3, 8, 8), (8, 5)]),
        (((3, "batch"),), (), [(3, 8)]),
        ((("N", 3), (1, 5)), (), [(8, 3), (1, 5)]),
    ],
)
def test_a_batch_that_can_be_had_is_computed(
    tmp_path: Path, inputs: tuple[Axes, ...], shapes: tuple[str, ...], wanted: list[tuple[int, ...]]
) -> None:
    graph = load_prepared(_model(tmp_path / "m.onnx", *inputs), Preparation.parsed(shapes, (), 8))
    assert [graph.shape(name) for name in graph.inputs] == wanted


@pytest.mark.parametrize("batch", [0, -1])
def test_no_batch_is_below_one(batch: int) -> None:
    with pytest.raises(ModelError, match=f"a batch of {batch}"):
        Preparation(batch=batch)
    with pytest.raises(ModelError, match="is no shape for the input 'x'"):
        Preparation(shapes={"x": (batch, 3)})


def _commands(folder: Path) -> dict[str, Callable[[Path, Preparation], Any]]:
    plan = folder / "plan"
    return {
        "predict": lambda model, how: edgeplan.predict(model, preparation=how),
        "measure": lambda model, how: edgeplan.measure(model, seconds=1, preparation=how),
        "prepare": lambda model, how: prepare_file(model, how, folder / "prepared.onnx"),
        "plan cold-start": lambda model, how: edgeplan.plan_cold_start(model, plan, preparation=how),
        "plan memory": lambda model, how: edgeplan.plan_memory(model, plan, "8MiB", preparation=how),
    }


@pytest.mark.parametrize("name", list(_commands(Path())))
def test_every_function_refuses_a_batch_that_is_fixed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv("EDGEPLAN_WORKSPACE", str(tmp_path))
    with pytest.raises(EdgeplanError, match="the batch of x0 is fixed at 1"):
        _commands(tmp_path)[name](_model(tmp_path / "m.onnx", FIXED), Preparation(batch=8))
    assert {path.name for path in tmp_path.iterdir()} == {"m.onnx"}


def test_a_batch_behind_a_value_that_steers_the_graph_is_seen(tmp_path: Path) -> None:
    body = helper.make_graph(
        [helper.make_node("Mul", ["x", "scale"], ["y"])],
        "g",
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in (("x", ["N", 3]), ("scale", [1]))],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(np.ones(1, np.float32), "unused")],
    )
    path = tmp_path / "m.onnx"
    onnx.save(helper.make_model(body, opset_imports=[helper.make_opsetid("", 17)]), path)
    graph = load_prepared(path, Preparation.parsed((), ("scale=2",), 4))
    assert [graph.shape(name) for name in graph.inputs] == [(4, 3)]
