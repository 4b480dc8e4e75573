"""Einsum with fixed equations: as numpy computes it, for seeded sizes; and Scaler, which becomes a difference and a product."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import pytest
from model_file_runs import made, node, write
from onnx import TensorProto, helper

from edgeplan import predict
from edgeplan.chapters.cold_start.api import read_model
from edgeplan.errors import ModelError
from edgeplan.graph.ir import Graph
from edgeplan.graph.onnx.prepare import Preparation, load_prepared, needs_preparation, prepare_file
from edgeplan.runtime.dnnl import Dnnl
from edgeplan.runtime.layouts import NCHW
from edgeplan.runtime.program import default_program
from edgeplan.runtime.session import SequentialSession

Array = npt.NDArray[Any]


def _prepared(folder: Path, model: onnx.ModelProto) -> Path:
    path = write(model, folder / "m.onnx")
    assert needs_preparation(onnx.load(path))
    return prepare_file(path, Preparation(), folder / "prepared.onnx")


def _run(dnnl: Dnnl, path: Path, inputs: dict[str, Array]) -> tuple[Graph, Array]:
    graph, _ = read_model(path)
    return graph, SequentialSession(dnnl, default_program(dnnl, path, graph, NCHW), path.parent).run(inputs)["y"]


_EQUATIONS = [
    "ij,jk->ik", "ij,jk", "ij,kj->ki", "bij,bjk->bik", "bqhd,bkhd->bhqk", "bhqk,bkhd->bqhd", "i,i->", "i,j->ij",
    "ij->", "ij->ji", "ij->i", "...ij,...jk->...ik",
    "...a,ab->...b", "ab...,b->a...", "ijk,ikl,lm->im", "a,a,a->a", "ij,jk,kl,lm->im", "abc,cd,db->a",
    "bi,ijk,bj->bk", "abcd,acde->abe", "ij,ij->ij", "ij,i->ij", "b...,b...->b...", "ba,ca", "abc->cba",
    " i j , j k -> i k ", "ab,cd->cadb", "abcde,cd->abe", "...,...->...",
]  # fmt: skip


def _shapes(equation: str, rng: np.random.Generator) -> list[tuple[int, ...]]:
    sizes = {label: int(rng.integers(1, 6)) for label in "abcdefghijklmq"}
    more = tuple(rng.integers(1, 4, rng.integers(0, 3)))
    terms = equation.replace(" ", "").split("->")[0].split(",")

    def shape(term: str) -> tuple[int, ...]:
        before, dots, after = term.partition("...")
        return (*(sizes[x] for x in before), *(more if dots else ()), *(sizes[x] for x in after))

    return [shape(term) for term in terms]


@pytest.mark.parametrize("equation", _EQUATIONS)
def test_equations_are_computed_as_by_numpy(dnnl: Dnnl, tmp_path: Path, equation: str) -> None:
    for seed in range(2):
        rng = np.random.default_rng([seed, len(equation)])
        operands = [rng.standard_normal(shape).astype(np.float32) for shape in _shapes(equation, rng)]
        names = [f"x{k}" for k in range(len(operands))]
        inputs = dict(zip(names, operands, strict=True))
        model = made(
            [node("Einsum", " ".join(names), equation=equation)], {name: x.shape for name, x in inputs.items()}, opset=12 + seed
        )
        wanted = np.einsum(equation.replace(" ", ""), *(x.astype(np.float64) for x in operands))
        _, found = _run(dnnl, _prepared(tmp_path, model), inputs)
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-4)
        assert found.shape == wanted.shape


def test_axes_of_an_ellipsis_are_broadcast(dnnl: Dnnl, tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    inputs = {"a": rng.standard_normal((2, 1, 3, 4)), "b": rng.standard_normal((5, 4, 6))}
    inputs = {name: value.astype(np.float32) for name, value in inputs.items()}
    equation = "...ij,...jk->...ik"
    model = made([node("Einsum", "a b", equation=equation)], {name: x.shape for name, x in inputs.items()})
    _, found = _run(dnnl, _prepared(tmp_path, model), inputs)
    np.testing.assert_allclose(found, np.einsum(equation, *inputs.values()), rtol=1e-4, atol=1e-5)


def test_weights_are_turned_once_and_multiplied_by_a_layer(dnnl: Dnnl, tmp_path: Path) -> None:
    rng = np.random.default_rng(2)
    x, weight = rng.standard_normal((2, 7, 8)).astype(np.float32), rng.standard_normal((4, 3, 8)).astype(np.float32)
    model = made([node("Einsum", "x w", equation="btd,hkd->bthk")], {"x": x.shape}, {"w": weight})
    graph, found = _run(dnnl, _prepared(tmp_path, model), {"x": x})
    assert {op.op_type for op in graph.operators} == {"MatMul", "Reshape"}
    np.testing.assert_allclose(found, np.einsum("btd,hkd->bthk", x, weight), rtol=1e-4, atol=1e-5)


def test_products_of_an_equation_are_predicted(tmp_path: Path) -> None:
    model = made([node("Einsum", "a b", equation="bqhd,bkhd->bhqk")], {"a": (1, 64, 4, 32), "b": (1, 64, 4, 32)})
    path = write(model, tmp_path / "m.onnx")
    assert predict(path, "cpu-onednn").latency_ms
    assert [op.op_type for op in load_prepared(path, Preparation()).operators].count("MatMul") == 1


@pytest.mark.parametrize(
    ("equation", "told"),
    [
        ("ij,jk->iz", "has one of its own"),
        ("ij,jk->ii", "repeats a label"),
        ("ii,jk->ik", "takes a diagonal"),
        ("ij->ij", "of 2 operands"),
        ("ij,jkl->ik", "labels for 2 axes|rank"),
        ("ij,ki->k", "axis 'i'"),
        ("i$,jk->ik", "of 2 operands|[Ee]quation|Einsum"),
    ],
)
def test_equations_that_are_none_are_refused(tmp_path: Path, equation: str, told: str) -> None:
    path = write(made([node("Einsum", "a b", equation=equation)], {"a": (2, 3), "b": (3, 4)}), tmp_path / "m.onnx")
    with pytest.raises(ModelError, match=told) as caught:
        load_prepared(path, Preparation())
    assert caught.value.next_step


@pytest.mark.parametrize("kind", [TensorProto.FLOAT, TensorProto.INT64, TensorProto.DOUBLE])
@pytest.mark.parametrize("count", [1, 4])
def test_scalers_are_differences_and_products(dnnl: Dnnl, tmp_path: Path, kind: int, count: int) -> None:
    offset, scale = [0.5, -1.0, 2.0, 3.0][:count], [2.0, 0.25, -1.0, 0.1][:count]
    model = made(
        [node("Scaler", "x", "s", domain="ai.onnx.ml", offset=offset, scale=scale), node("Relu", "s")], {"x": (3, 4)}, kind=kind
    )
    model.graph.output[0].CopyFrom(helper.make_tensor_value_info("y", TensorProto.FLOAT, None))
    model.opset_import.append(helper.make_opsetid("ai.onnx.ml", 1))
    x = np.arange(-6, 6).reshape(3, 4).astype(helper.tensor_dtype_to_np_dtype(kind))
    if kind == TensorProto.DOUBLE:
        with pytest.raises(ModelError, match="float64"):
            read_model(_prepared(tmp_path, model))
        return
    graph, found = _run(dnnl, _prepared(tmp_path, model), {"x": x})
    assert {"Sub", "Mul", "Relu"} <= {op.op_type for op in graph.operators}
    np.testing.assert_allclose(found, np.maximum(0, (x - np.float32(offset)) * np.float32(scale)), rtol=1e-6)
