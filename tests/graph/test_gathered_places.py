"""Elements and slices that indices name, for seeded shapes, axes and batches; limits of what inputs may name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import pytest
from model_file_runs import made, node, onnxruntime_outputs, own_outputs, values, write
from onnx import TensorProto
from tiny_profiled import QUICK, cores, own_state  # noqa: F401  a fixture

from edgeplan import plan_memory
from edgeplan.engines.base import random_inputs
from edgeplan.errors import EdgeplanError, ModelError
from edgeplan.graph.index_limits import index_limits
from edgeplan.graph.onnx.read import load_onnx
from edgeplan.measurement.process.stock import inputs_of
from edgeplan.profiling.profiler import profile_model
from edgeplan.runs import run
from edgeplan.runtime.dnnl import Dnnl
from edgeplan.runtime.folder import read_folder

Array = npt.NDArray[Any]
_KINDS = {"float32": TensorProto.FLOAT, "int64": TensorProto.INT64, "int32": TensorProto.INT32, "bool": TensorProto.BOOL}


FLOAT, INT32, INT64 = TensorProto.FLOAT, TensorProto.INT32, TensorProto.INT64
Inputs = Mapping[str, tuple[int, tuple[int, ...]]]


def _save(
    path: Path,
    nodes: list[onnx.NodeProto],
    inputs: Inputs,
    constants: Mapping[str, npt.ArrayLike],
    kind: int = FLOAT,
    opset: int = 18,
) -> Path:
    model = made(nodes, inputs, constants, opset=opset)
    model.graph.output[0].type.tensor_type.elem_type = kind
    return write(model, path)


def _saved(path: Path, picked: onnx.NodeProto, given: Mapping[str, Array], opset: int = 18) -> Path:
    inputs = {name: (_KINDS[str(value.dtype)], value.shape) for name, value in given.items()}
    return _save(path, [picked], inputs, {}, _KINDS[str(given["x"].dtype)], opset)


def _case(op_type: str, rng: np.random.Generator) -> tuple[onnx.NodeProto, dict[str, Array]]:
    """A node of any shapes, axes and batches, and what it is given."""
    shape = tuple(int(size) for size in rng.integers(1, 6, rng.integers(1, 5)))
    data, attributes = (rng.standard_normal(shape) * 9).astype(rng.choice(list(_KINDS))), dict[str, Any]()
    if op_type.endswith("Elements"):
        axis = attributes["axis"] = int(rng.integers(-len(shape), len(shape)))
        loop = [int(rng.integers(1, size + 1)) for size in shape]
        loop[axis] = int(rng.integers(1, 9))
        indices, rest = rng.integers(-shape[axis], shape[axis], loop).astype(rng.choice(["int32", "int64"])), ()
    else:
        batch = int(rng.integers(0, len(shape))) if op_type == "GatherND" else 0
        attributes |= {"batch_dims": batch} if batch else {}
        depth = int(rng.integers(1, len(shape) - batch + 1))
        loop = [*shape[:batch], *rng.integers(1, 5, rng.integers(not batch, 3))]
        indices = np.stack([rng.integers(-size, size, loop) for size in shape[batch : batch + depth]], axis=-1)
        rest = shape[batch + depth :]
    given = {"x": data, "i": indices}
    if op_type.startswith("Scatter"):
        given["u"] = (rng.standard_normal((*loop, *rest)) * 9).astype(data.dtype)
        words = ["none"] if data.dtype == bool else ["none", "add", "mul", "max", "min"]
        attributes["reduction"] = str(rng.choice(words))
    return node(op_type, " ".join(given), **attributes), given


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("op_type", ["GatherElements", "GatherND", "ScatterElements", "ScatterND"])
def test_places_are_read_and_written_as_by_onnx_runtime(dnnl: Dnnl, tmp_path: Path, op_type: str, seed: int) -> None:
    picked, given = _case(op_type, np.random.default_rng([seed, len(op_type)]))
    path = _saved(tmp_path / "m.onnx", picked, given)
    np.testing.assert_allclose(own_outputs(dnnl, path, given)["y"], onnxruntime_outputs(path, given)[0], rtol=1e-6)


def test_a_scatter_of_an_old_opset_is_one_of_elements(dnnl: Dnnl, tmp_path: Path) -> None:
    given = {"x": np.zeros((3, 3), np.float32), "i": np.array([[1, 0, 2]]), "u": np.float32([[1, 2, 3]])}
    path = _saved(tmp_path / "m.onnx", node("Scatter", "x i u"), given, opset=9)
    np.testing.assert_array_equal(own_outputs(dnnl, path, given)["y"], [[0, 2, 0], [1, 0, 0], [0, 0, 3]])


def _zeros(indices: Array, updates: tuple[int, ...] | None) -> dict[str, Array]:
    more = {} if updates is None else {"u": np.zeros(updates, np.float32)}
    return {"x": np.zeros((2, 5), np.float32), "i": indices, **more}


@pytest.mark.parametrize(
    ("picked", "indices", "updates"),
    [
        (node("ScatterElements", "x i u", axis=1), [[0, 5]], (1, 2)),
        (node("ScatterND", "x i u"), [[0, -6], [2, 0]], (2,)),
        (node("GatherElements", "x i", axis=1), [[0, 5]], None),
        (node("GatherND", "x i"), [[0, -6], [2, 0]], None),
    ],
)
def test_an_index_outside_its_axis_is_an_error(
    dnnl: Dnnl, tmp_path: Path, picked: onnx.NodeProto, indices: list[list[int]], updates: tuple[int, ...] | None
) -> None:
    given = _zeros(np.array(indices), updates)
    path = _saved(tmp_path / "m.onnx", picked, given)
    with pytest.raises(EdgeplanError, match="an index lies outside the axis"):
        own_outputs(dnnl, path, given)


@pytest.mark.parametrize(
    ("picked", "indices", "updates", "told"),
    [
        (node("ScatterElements", "x i u", axis=1), (2, 3), (2, 2), "of \\(2, 2\\) by indices"),
        (node("ScatterElements", "x i u", axis=0), (2, 7), (2, 7), "along axis 0"),
        (node("ScatterElements", "x i u", reduction="mean"), (2, 5), (2, 5), "unknown reduction 'mean'"),
        (node("ScatterND", "x i u"), (2, 1), (2, 4), "of \\(2, 4\\) to"),
        (node("GatherND", "x i", batch_dims=1), (3, 1), None, "by indices"),
        (node("GatherND", "x i"), (0, 2), None, "no static shape"),
    ],
)
def test_indices_and_updates_that_do_not_fit_are_refused(
    tmp_path: Path, picked: onnx.NodeProto, indices: tuple[int, ...], updates: tuple[int, ...] | None, told: str
) -> None:
    given = _zeros(np.zeros(indices, np.int64), updates)
    with pytest.raises(ModelError, match=told) as caught:
        load_onnx(_saved(tmp_path / "m.onnx", picked, given))
    assert caught.value.next_step


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
    of_batches = {"x": (INT64, (4, 1))}
    yield "slices in batches", [node("GatherND", "w x", batch_dims=1)], of_batches, {"w": values(4, 9)}, FLOAT, {"x": 9}
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
    assert inputs_of(path)["below"] == limits
    for seed in range(5):
        drawn = random_inputs(graph, seed)
        assert all(drawn[given].max() < limit for given, limit in limits.items())


@pytest.mark.parametrize(("rows", "kind"), [(1, INT64), (300, INT32)])
def test_a_plan_of_memory_runs_on_indices_of_the_table(tmp_path: Path, rows: int, kind: int) -> None:
    model = _table(tmp_path / "m.onnx", rows, kind)
    plan_memory(model, tmp_path / "plan", "64MiB", threads=1)
    run(tmp_path / "plan", check=True).require_checked()
    assert [border.below for border in read_folder(tmp_path / "plan").head.inputs] == [rows]


def _late() -> list[onnx.NodeProto]:
    """Indices that are there long before they are read, or are computed; what has candidates of its own follows the gathering,
    and what lies behind takes the room of the indices."""
    return [
        node("Cast", "x", "i", to=INT64), node("MatMul", "z k", "a"), node("Softmax", "a", "b"), node("MatMul", "b k", "c"),
        node("Gather", "w i", "h"), node("MatMul", "h k", "d"), node("Add", "c d", "e"),
        node("ArgMax", "e", "j", axis=-1, keepdims=0), node("Softmax", "e", "f"), node("MatMul", "f k", "g"),
        node("Gather", "w j", "l"), node("MatMul", "l k", "m"), node("Add", "m g"),
    ]  # fmt: skip


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
