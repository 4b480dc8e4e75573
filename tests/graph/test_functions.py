"""Operators that are made up of others: what ONNX defines by a function, and what ONNX Runtime fuses."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime as ort
import pytest
from model_file_runs import made, onnxruntime_outputs, own_outputs, prepared_outputs, unprepared, write
from onnx import TensorProto, helper
from written_forms import IMAGE, Form, drawn_inputs, node, one, value

from edgeplan import plan_memory
from edgeplan.graph.onnx.compare import session_options
from edgeplan.graph.onnx.prepare import Preparation, load_prepared, needs_preparation, prepare_file
from edgeplan.graph.onnx.read import load_onnx
from edgeplan.runs import run
from edgeplan.runtime.dnnl import Dnnl
from edgeplan.runtime.lowering import lower
from edgeplan.workloads.registry import save_workload
from edgeplan.workloads.sequences import bert

_MS = "com.microsoft"
_TOKENS, _QUERIES = (2, 5, 12), (2, 3, 5, 4)
_LONG, _INT = TensorProto.INT64, TensorProto.INT32
_HEAD = {"c": (9, 2), "s": (9, 2)}
_ROW, _PAIR = dict.fromkeys("gb", (12,)), dict.fromkeys("xz", _TOKENS)
_THERE = [[1, 1, 1, 0, 0], [1, 0, 1, 1, 1]]


def _fused(op_type: str, reads: str = "x", shapes: object = _TOKENS, constants: object = None, **attributes: object) -> Form:
    """Whole numbers of fused operators are of 32 bits, but for positions."""
    form = one(op_type, reads, shapes, constants, domain=_MS, **attributes)  # type: ignore[arg-type]
    return replace(form, constants={k: v.astype(np.int32) if k == "m" else v for k, v in form.constants.items()})


_SIMPLE: Mapping[str, Form] = {
    "Mean, broadcast": one("Mean", "x z w", {"x": IMAGE, "z": (8, 1), "w": (1,)}),
    "LpNormalization of nothing": Form((node("Relu", "x", "a", "first"), node("LpNormalization", "a")), {"x": (40, 2)}, {}),
    "LpNormalization of opset 22": one("LpNormalization", opset=22),
    **{f"Hardmax of opset 11, {more}": one("Hardmax", opset=11, **more) for more in ({}, {"axis": 2})},
    "OneHot of computed values": Form(
        (node("OneHot", "x d v"),), {"x": (3, 4), "v": (2,)}, {"d": np.array(3)}, types={"x": _LONG}
    ),
    "EyeLike": Form((node("EyeLike", "x", "e", k=1), node("Mul", "x e", name="last")), {"x": (4, 6)}, {}),
    "ReverseSequence of given lengths": Form(
        (node("ReverseSequence", "x n"),), {"x": (3, 2, 3), "n": (2,)}, {}, types={"n": _LONG}
    ),
    "GroupNormalization of opset 18": one(
        "GroupNormalization", "x s b", constants={"s": (3,), "b": (3,)}, opset=18, num_groups=3
    ),
    **{
        f"DFT of opset 17, {more}": one("DFT", "x", (2, 9, 3, 1), **more) for more in ({"axis": 2}, {"onesided": 1})
    },
    "DFT of a length": one("DFT", "x n", (2, 9, 1), {"n": np.array(6)}),
    "DFT of more than there is": one("DFT", "x n", (2, 9, 1), {"n": np.array(12)}, onesided=1),
    "DFT of opset 20": one("DFT", "x - a", (2, 9, 3, 1), {"a": np.array(-2)}, opset=20),
    **{
        f"GridSample, {mode}, {padding}, {aligned}": Form(
            (
                node("Mul", "g k", "grid", "wider"),
                node("GridSample", "x grid", mode=mode, padding_mode=padding, align_corners=aligned),
            ),
            {"x": IMAGE, "g": (1, 5, 7, 2)}, {"k": value([1.3])}, opset=opset,
        )
        for opset, mode, padding, aligned in (
            (16, "bilinear", "reflection", 1), (16, "nearest", "zeros", 0), (20, "linear", "border", 1)
        )
    },
    "CastLike": one("CastLike", "x z", {"x": IMAGE, "z": IMAGE}),
}  # fmt: skip
_ATTENTIONS: Mapping[str, Form] = {
    "Attention of grouped queries": one(
        "Attention", "q k v", {"q": (2, 4, 5, 4), "k": (2, 2, 6, 4), "v": (2, 2, 6, 4)}, opset=23
    ),
    **{
        f"MultiHeadAttention, {name}": _fused(
            "MultiHeadAttention", reads, {**dict.fromkeys("qkv", _TOKENS), **more}, constants, num_heads=3
        )
        for name, reads, more, constants in (
            ("plain", "q k v", {}, {}),
            ("with a bias", "q k v b", {}, {"b": (36,)}),
            ("of some tokens", "q k v - m", {}, {"m": np.array(_THERE)}),
            ("with an addend", "q k v - - a", {"a": (1, 3, 5, 5)}, {}),
        )
    },
    **{
        f"Attention as fused, {name}": _fused(
            "Attention", reads, _TOKENS, {"w": (12, 36), "b": (36,), **more}, num_heads=3, **attributes
        )
        for name, reads, more, attributes in (
            ("plain", "x w b", {}, {}),
            ("of the first tokens", "x w b m", {"m": np.array([3, 5])}, {}),
            ("of some tokens", "x w b m", {"m": np.array(_THERE)}, {}),
            ("causal", "x w b", {}, {"unidirectional": 1}),
        )
    },
    **{
        f"RotaryEmbedding as fused, {name}": _fused("RotaryEmbedding", "x p c s", shape, {**_HEAD, "p": places}, **attributes)
        for name, shape, places, attributes in (
            ("of tokens", _TOKENS, np.arange(10).reshape(2, 5) % 9, {}),
            ("from a token on", _TOKENS, np.array([3]), {"interleaved": 1}),
            ("by heads", _QUERIES, np.array([0]), {}),
        )
    },
}  # fmt: skip
_FUSED: Mapping[str, Form] = {
    **{
        f"FusedConv, {name}": _fused(
            "FusedConv", reads, {"x": IMAGE, **more}, {"w": (4, 6, 3, 3), "b": (4,)}, pads=[1] * 4, **given
        )
        for name, reads, more, given in (
            ("Relu", "x w b", {}, {"activation": "Relu"}),
            ("Clip", "x w", {}, {"activation": "Clip", "activation_params": [-0.2, 0.3]}),
            ("LeakyRelu", "x w", {}, {"activation": "LeakyRelu", "activation_params": [0.2]}),
            ("a sum", "x w b z", {"z": (1, 4, 8, 10)}, {"activation": "Relu"}),
        )
    },
    "FusedGemm": _fused("FusedGemm", "x w b", (3, 12), {"w": (7, 12), "b": (7,)}, transB=1, alpha=0.7, activation="Tanh"),
    "FusedGemm, LeakyRelu": _fused("FusedGemm", "x w", (3, 12), {"w": (12, 7)}, activation="LeakyRelu", activation_alpha=0.3),
    **{
        f"FusedMatMul, {given}": _fused("FusedMatMul", "x z", {"x": x, "z": z}, **given)
        for x, z, given in (
            ((2, 3, 4), (2, 5, 4), {"transB": 1, "alpha": 0.5}), ((2, 4, 3), (2, 4, 5), {"transA": 1}),
            ((4, 3), (5, 4), {"transA": 1, "transB": 1}), ((2, 3, 4), (4, 5), {"alpha": 2.0}),
        )
    },
    "FusedMatMul of weights": _fused("FusedMatMul", "x w", _TOKENS, {"w": (7, 12)}, transB=1),
    **{op: _fused(op) for op in ("Gelu", "FastGelu", "QuickGelu")},
    **{f"{op}, biased": _fused(op, "x b", constants={"b": (12,)}) for op in ("BiasGelu", "FastGelu")},
    "SkipLayerNormalization": _fused("SkipLayerNormalization", "x z g b", _PAIR, _ROW, epsilon=1e-3),
    "SkipLayerNormalization, its sum handed out": _fused(
        "SkipLayerNormalization", "x z g b k", _PAIR, {**_ROW, "k": (12,)}, writes="y - - t"
    ),
    **{
        f"{op} of small numbers, whose epsilon is smaller": Form(
            (node("Mul", "x c", "s", "small"), node(op, "s s g", "y", domain=_MS)),
            {"x": _TOKENS}, {"c": np.full(1, 1e-3, np.float32), "g": value((12,))},
        )
        for op in ("SkipLayerNormalization", "SkipSimplifiedLayerNormalization")
    },
    "SimplifiedLayerNormalization": one("SimplifiedLayerNormalization", "x g", _TOKENS, {"g": (12,)}, axis=-1, epsilon=1e-3),
    **{
        f"LayerNormalization of opset 14, axis {axis}": one(
            "LayerNormalization", "x g b", _TOKENS, dict.fromkeys("gb", shape), opset=14, axis=axis
        )
        for axis, shape in ((-1, (12,)), (1, (5, 12)))
    },
    "EmbedLayerNormalization": Form(
        (node("EmbedLayerNormalization", "i g w p s a b m", "y n", domain=_MS), node("Cast", "n", "z", "last", to=1)),
        {"i": (2, 5), "g": (2, 5), "m": (2, 5)},
        {name: value((*rows, 12)) / 1000 for name, *rows in (("w", 9), ("p", 7), ("s", 3), ("a",), ("b",))},
        outputs=("y", "z"), types=dict.fromkeys("igm", _INT),
    ),
}  # fmt: skip
_ALL = _SIMPLE | _ATTENTIONS | _FUSED


def _model(form: Form) -> onnx.ModelProto:
    model = form.model()
    model.ir_version = 8 if form.opset < 21 else 10
    return model


@pytest.mark.parametrize("name", _ALL)
def test_what_is_made_up_of_others_is_computed_as_onnx_runtime_does(dnnl: Dnnl, tmp_path: Path, name: str) -> None:
    model = _model(_ALL[name])
    given = drawn_inputs(model, least=0)
    dnnl.set_threads(1)
    found = prepared_outputs(dnnl, model, given, tmp_path)
    for output, right in zip(_ALL[name].outputs, onnxruntime_outputs(model, given), strict=True):
        assert found[output].shape == right.shape
        np.testing.assert_allclose(found[output], right, rtol=1e-3, atol=2e-5)


@pytest.mark.parametrize(
    ("name", "kinds"),
    [
        ("BiasGelu, biased", ["binary"]),
        ("FastGelu", ["eltwise"]),
        ("SkipLayerNormalization", ["binary", "layer_norm"]),
        ("FusedConv, Relu", ["conv"]),
        ("FusedMatMul of weights", ["fc"]),
    ],
)
def test_fused_layers_are_layers(tmp_path: Path, name: str, kinds: list[str]) -> None:
    path = write(_model(_ALL[name]), tmp_path / "form.onnx")
    steps = [step.kind for step in lower(load_prepared(path, Preparation())).steps]
    assert [kind for kind in steps if kind != "reshape"] == kinds


@pytest.mark.parametrize(
    ("form", "message", "next_step"),
    [
        (_fused("GroupQueryAttention", "x x x"), "com.microsoft::GroupQueryAttention", "ORT_ENABLE_BASIC"),
        (_fused("FusedMatMul", "x x", transBatchA=1), "transBatchA", "ORT_ENABLE_BASIC"),
        (_fused("MultiHeadAttention", "x x x - m", constants={"m": [1] * 8}, num_heads=3), "a mask", "ORT_ENABLE_BASIC"),
        (_fused("FusedConv", "x w", IMAGE, {"w": (4, 6, 1, 1)}, activation="Mish"), "activation Mish", "ORT_ENABLE_BASIC"),
        (
            one("Compress", "x c", dict.fromkeys("xc", (4,)), types={"c": TensorProto.BOOL}),
            "whose condition is no constant", "depends on data",
        ),
    ],
)  # fmt: skip
def test_other_forms_are_refused_with_what_helps(tmp_path: Path, form: Form, message: str, next_step: str) -> None:
    assert next_step in unprepared(_model(form), tmp_path, message).next_step


def _saved_by_onnxruntime(folder: Path) -> onnx.ModelProto:
    """An encoder of one layer, as ONNX Runtime writes it when it is asked for an optimised model."""
    encoder = bert(tokens=9, layers=1, width=24, heads=3, hidden=40, vocabulary=97)
    plain, path = save_workload(encoder, folder / "plain.onnx"), folder / "fused.onnx"
    options = session_options(1)
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    options.optimized_model_filepath = str(path)
    ort.InferenceSession(str(plain), options, providers=["CPUExecutionProvider"])
    return onnx.load(path)


def test_they_are_planned_and_checked(tmp_path: Path) -> None:
    model = _saved_by_onnxruntime(tmp_path)
    assert {"FusedGemm", "FusedMatMul", "SkipLayerNormalization", "Gelu"} <= {one.op_type for one in model.graph.node}
    plan_memory(write(model, tmp_path / "model.onnx"), tmp_path / "plan", "64MiB", threads=1)
    run(tmp_path / "plan", check=True).require_checked()


Array = npt.NDArray[Any]


def _prepared(folder: Path, model: onnx.ModelProto) -> Path:
    path = write(model, folder / "m.onnx")
    assert needs_preparation(onnx.load(path))
    return prepare_file(path, Preparation(), folder / "prepared.onnx")


_EQUATIONS = [
    "ij,jk", "ij,kj->ki", "bqhd,bkhd->bhqk", "bhqk,bkhd->bqhd", "i,i->", "i,j->ij", "ij->", "ij->ji", "...ij,...jk->...ik",
    "...a,ab->...b", "ab...,b->a...", "ijk,ikl,lm->im", "a,a,a->a", "ij,jk,kl,lm->im", "abc,cd,db->a", "bi,ijk,bj->bk",
    "abcd,acde->abe", "ij,i->ij", "b...,b...->b...", "ba,ca", "abc->cba", " i j , j k -> i k ", "ab,cd->cadb",
    "abcde,cd->abe", "...,...->...",
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
        found = prepared_outputs(dnnl, model, inputs, tmp_path)["y"]
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-4)
        assert found.shape == wanted.shape


def test_weights_are_turned_once_and_multiplied_by_a_layer(dnnl: Dnnl, tmp_path: Path) -> None:
    rng = np.random.default_rng(2)
    x, weight = rng.standard_normal((2, 7, 8)).astype(np.float32), rng.standard_normal((4, 3, 8)).astype(np.float32)
    model = made([node("Einsum", "x w", equation="btd,hkd->bthk")], {"x": x.shape}, {"w": weight})
    path = _prepared(tmp_path, model)
    graph, found = load_onnx(path), own_outputs(dnnl, path, {"x": x})["y"]
    assert {op.op_type for op in graph.operators} == {"MatMul", "Reshape"}
    np.testing.assert_allclose(found, np.einsum("btd,hkd->bthk", x, weight), rtol=1e-4, atol=1e-5)


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
    unprepared(made([node("Einsum", "a b", equation=equation)], {"a": (2, 3), "b": (3, 4)}), tmp_path, told)


@pytest.mark.parametrize("kind", [TensorProto.FLOAT, TensorProto.INT64])
@pytest.mark.parametrize("count", [1, 4])
def test_scalers_are_differences_and_products(dnnl: Dnnl, tmp_path: Path, kind: int, count: int) -> None:
    offset, scale = [0.5, -1.0, 2.0, 3.0][:count], [2.0, 0.25, -1.0, 0.1][:count]
    model = made(
        [node("Scaler", "x", "s", domain="ai.onnx.ml", offset=offset, scale=scale), node("Relu", "s")], {"x": (3, 4)}, kind=kind
    )
    model.graph.output[0].CopyFrom(helper.make_tensor_value_info("y", TensorProto.FLOAT, None))
    model.opset_import.append(helper.make_opsetid("ai.onnx.ml", 1))
    x = np.arange(-6, 6).reshape(3, 4).astype(helper.tensor_dtype_to_np_dtype(kind))
    path = _prepared(tmp_path, model)
    graph, found = load_onnx(path), own_outputs(dnnl, path, {"x": x})["y"]
    assert {"Sub", "Mul", "Relu"} <= {op.op_type for op in graph.operators}
    np.testing.assert_allclose(found, np.maximum(0, (x - np.float32(offset)) * np.float32(scale)), rtol=1e-6)
