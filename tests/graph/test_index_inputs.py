"""Inputs that are indices: they stay inside of the axes that they pick from, wherever a model is timed or run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx
import pytest
from model_file_runs import node, values
from onnx import TensorProto, helper, numpy_helper
from tiny_profiled import QUICK, cores, own_state  # noqa: F401  a fixture

from edgeplan import plan_memory
from edgeplan.engines.base import random_inputs
from edgeplan.graph.index_limits import index_limits
from edgeplan.graph.onnx.read import load_onnx
from edgeplan.measurement.process.stock import inputs_of
from edgeplan.profiling.profiler import profile_model
from edgeplan.runs import run
from edgeplan.runtime.dnnl import Dnnl
from edgeplan.runtime.folder import read_folder

FLOAT, INT32, INT64 = TensorProto.FLOAT, TensorProto.INT32, TensorProto.INT64
Inputs = Mapping[str, tuple[int, tuple[int, ...]]]


def _save(
    path: Path, nodes: list[onnx.NodeProto], inputs: Inputs, constants: Mapping[str, npt.ArrayLike], kind: int = FLOAT
) -> Path:
    body = helper.make_graph(
        nodes,
        "ids",
        [helper.make_tensor_value_info(name, *known) for name, known in inputs.items()],
        [helper.make_tensor_value_info("y", kind, None)],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()],
    )
    path.write_bytes(helper.make_model(body, opset_imports=[helper.make_opsetid("", 17)], ir_version=8).SerializeToString())
    return path


def _table(path: Path, rows: int, kind: int) -> Path:
    nodes = [node("Gather", "w x", "h"), node("MatMul", "h k")]
    return _save(path, nodes, {"x": (kind, (1, 6))}, {"w": values(rows, 8), "k": values(8, 3)})


def _forms() -> Iterator[tuple[str, list[onnx.NodeProto], Inputs, Mapping[str, npt.ArrayLike], int, Mapping[str, int]]]:
    """Name, nodes, inputs, constants, type of the output, and the limits."""
    ids, picked = {"x": (INT64, (2, 3))}, [node("Gather", "w x")]
    yield "table", picked, ids, {"w": values(300, 8)}, FLOAT, {"x": 300}
    yield "one row", picked, ids, {"w": values(1, 8)}, FLOAT, {"x": 1}
    yield "last axis", [node("Gather", "w x", axis=-1)], ids, {"w": values(300, 8)}, FLOAT, {"x": 8}
    yield "an activation", picked, ids | {"w": (FLOAT, (7, 5))}, {}, FLOAT, {"x": 7}
    two = [node("Gather", "w x", "a"), node("Gather", "v x", "b"), node("Add", "a b")]
    yield "the smaller of two", two, ids, {"w": values(30, 8), "v": values(9, 8)}, FLOAT, {"x": 9}
    flat = [node("Reshape", "x s", "f"), node("Cast", "f", "i", to=INT32), node("Gather", "w i")]
    yield "reshaped and cast", flat, ids, {"w": values(30, 8), "s": np.array([6])}, FLOAT, {"x": 30}
    chosen = [node("Where", "m x z", "i"), node("Gather", "w i")]
    masked = ids | {"z": (INT64, (2, 3)), "m": (TensorProto.BOOL, (2, 3))}
    yield "of two inputs", chosen, masked, {"w": values(30, 8)}, FLOAT, {"x": 30, "z": 30}
    joined = [node("Concat", "x z", "i", axis=1), node("Gather", "w i")]
    yield "joined", joined, ids | {"z": (INT64, (2, 1))}, {"w": values(30, 8)}, FLOAT, {"x": 30, "z": 30}
    elements = {"x": (INT64, (2, 3)), "w": (FLOAT, (2, 7))}
    yield "elements", [node("GatherElements", "w x", axis=1)], elements, {}, FLOAT, {"x": 7}
    yield "slices", [node("GatherND", "w x")], {"x": (INT64, (4, 2))}, {"w": values(30, 8, 2)}, FLOAT, {"x": 8}
    yield (
        "slices in batches",
        [node("GatherND", "w x", batch_dims=1)],
        {"x": (INT64, (4, 1))},
        {"w": values(4, 9)},
        FLOAT,
        {"x": 9},
    )
    places = {"p": np.zeros((2, 1), np.int64), "w": values(30, 8)}
    put = [node("ScatterElements", "x p z", "i", axis=1), node("Gather", "w i")]
    yield "written over", put, ids | {"z": (INT64, (2, 1))}, places, FLOAT, {"x": 30, "z": 30}
    yield "no index", [node("Add", "x z")], ids | {"z": (INT64, (2, 3))}, {}, INT64, {}


FORMS = {name: form for name, *form in _forms()}


@pytest.mark.parametrize("name", FORMS)
def test_limits_follow_from_the_axes(tmp_path: Path, name: str) -> None:
    nodes, inputs, constants, kind, limits = FORMS[name]
    path = _save(tmp_path / "m.onnx", nodes, inputs, constants, kind)  # type: ignore[arg-type]
    graph = load_onnx(path)
    assert index_limits(graph) == limits
    assert inputs_of(path).below == limits
    for seed in range(5):
        drawn = random_inputs(graph, seed)
        assert all(drawn[given].max() < limit for given, limit in limits.items())


@pytest.mark.parametrize(("rows", "kind"), [(1, INT64), (300, INT32)])
def test_a_plan_of_memory_runs_on_indices_of_the_table(tmp_path: Path, rows: int, kind: int) -> None:
    model = _table(tmp_path / "m.onnx", rows, kind)
    plan_memory(model, tmp_path / "plan", "64MiB", threads=1)
    found = run(tmp_path / "plan", check=True)
    assert found.difference is not None
    assert found.difference < 1e-5
    assert [border.below for border in read_folder(tmp_path / "plan").head.inputs] == [rows]


def _late() -> list[onnx.NodeProto]:
    """Indices that are there long before they are read, or are computed; what has candidates of its own follows the gathering,
    and what lies behind takes the room of the indices."""
    return [
        node("Cast", "x", "i", to=INT64),
        node("MatMul", "z k", "a"),
        node("Softmax", "a", "b"),
        node("MatMul", "b k", "c"),
        node("Gather", "w i", "h"),
        node("MatMul", "h k", "d"),
        node("Add", "c d", "e"),
        node("ArgMax", "e", "j", axis=-1, keepdims=0),
        node("Softmax", "e", "f"),
        node("MatMul", "f k", "g"),
        node("Gather", "w j", "l"),
        node("MatMul", "l k", "m"),
        node("Add", "m g"),
    ]


@pytest.mark.parametrize("model", ["1-int64", *(pytest.param(more, marks=pytest.mark.long) for more in ("300-int32", "late"))])
def test_steps_are_profiled_on_indices(dnnl: Dnnl, tmp_path: Path, model: str) -> None:
    if model == "late":
        constants = {"w": values(64, 64), "k": values(64, 64)}
        path = _save(tmp_path / "m.onnx", _late(), {"x": (INT32, (1, 64)), "z": (FLOAT, (1, 64, 64))}, constants)
    else:
        rows, kind = model.split("-")
        path = _table(tmp_path / "m.onnx", int(rows), {"int32": INT32, "int64": INT64}[kind])
    graph = load_onnx(path)
    quick = QUICK.model_copy(update={"thorough": False, "budget_seconds": 0.01})  # few whole programs are started
    found = profile_model(dnnl, path, graph, quick, cores=cores(), name="m", layouts=("nchw",))
    assert all(min(c.execute_ms.values()) >= 0 for layer in found[0].layers for c in layer.candidates)
