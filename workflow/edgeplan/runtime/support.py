"""What the runtime lacks, found before any work is done."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType

from edgeplan.graph.element_types import FLOAT32
from edgeplan.graph.ir import Graph, Operator
from edgeplan.runtime.operators import LOWERERS, window_pads

_FOUR = 4


def problem(graph: Graph, op: Operator) -> str:
    """What the runtime lacks for an operator, or ""."""
    if op.op_type not in LOWERERS:
        return "no such operator"
    if odd := {graph.tensors[t].dtype for t in (*op.inputs, *op.outputs, *op.weights)} - {FLOAT32}:
        return f"not {FLOAT32} but {' and '.join(sorted(odd))}"
    checked = _CHECKS.get(op.op_type)
    return checked(graph, op) if checked else ""


def _check_spatial(graph: Graph, op: Operator) -> str:
    if len(graph.shape(op.inputs[0])) != _FOUR:
        return "only 2-D windows"
    if op.op_type == "Conv" and len(op.inputs) != 1:
        return "weights computed by the model"
    if op.op_type == "MaxPool" and len(op.outputs) > 1:
        return "indices of the maxima"
    if op.op_type != "Conv":
        kernel, dilations = op.integers("kernel_shape", ()), op.integers("dilations", (1, 1))
        spans = [d * (k - 1) + 1 for k, d in zip(kernel, dilations, strict=True)]
        before, after = window_pads(op, graph.shape(op.inputs[0])[2:], graph.shape(op.outputs[0])[2:], kernel)
        if any(pad >= span for pads in (before, after) for pad, span in zip(pads, spans, strict=True)):
            return "windows that see nothing but padding"
    included = op.integer("count_include_pad", 0) and op.integer("ceil_mode", 0)
    return "ceil_mode together with count_include_pad" if included else ""


def _check_global(graph: Graph, op: Operator) -> str:
    rank = len(graph.shape(op.inputs[0]))
    axes = {a % rank for a in op.integers("axes", (2, 3))}
    return "" if rank == _FOUR and axes == {2, 3} else "only a mean over the height and width of a 4-D activation"


def _check_fc(graph: Graph, op: Operator) -> str:
    if len(op.inputs) != 1 or not op.weights or len(graph.shape(op.weights[0])) != 2:  # noqa: PLR2004
        return "only one activation times a 2-D weight"
    if op.op_type == "Gemm" and op.integer("transA", 0):
        return "transA"
    columns = graph.shape(op.outputs[0])[-1]
    biased = len(op.weights) > 1 and math.prod(graph.shape(op.weights[1])) != columns
    return "a bias that is not one value for each column" if biased else ""


def _check_binary(graph: Graph, op: Operator) -> str:
    out = graph.shape(op.outputs[0])
    shapes = [graph.shape(t) for t in (*op.inputs, *op.weights)]
    return "" if len(shapes) == 2 and out in shapes else "both operands broadcast"  # noqa: PLR2004


def _check_norm(graph: Graph, op: Operator) -> str:
    if len(op.weights) != 4:  # noqa: PLR2004
        return "statistics computed by the model"
    return "" if len(graph.shape(op.inputs[0])) in (2, _FOUR) else "only 2-D and 4-D activations"


def _check_lrn(graph: Graph, op: Operator) -> str:
    return "" if len(graph.shape(op.inputs[0])) == _FOUR else "only 4-D activations"


def _check_transpose(graph: Graph, op: Operator) -> str:
    return "" if len(graph.shape(op.inputs[0])) <= 5 else "more than 5 axes"  # noqa: PLR2004


def _check_resize(graph: Graph, op: Operator) -> str:
    before, after = graph.shape(op.inputs[0]), graph.shape(op.outputs[0])
    mode, coordinates = (
        str(op.attributes.get("mode", "nearest")),
        op.attributes.get("coordinate_transformation_mode", "half_pixel"),
    )
    if len(before) != _FOUR or before[:2] != after[:2]:
        return "only height and width of a 4-D activation"
    whole = all(b % a == 0 for a, b in zip(before[2:], after[2:], strict=True))
    if mode == "nearest":
        return "" if whole and coordinates in ("asymmetric", "half_pixel", "pytorch_half_pixel") else "nearest by a fraction"
    half = coordinates in ("half_pixel", "pytorch_half_pixel")
    return "" if mode == "linear" and half else f"mode {mode!r} with {coordinates} coordinates"


def _check_lstm(graph: Graph, op: Operator) -> str:
    read = [o for o in op.outputs[1:] if o in graph.outputs or graph.consumers.get(o)]
    if read:
        return "final states that are read"
    default = {"activations", "activation_alpha", "activation_beta", "clip", "input_forget", "layout"} & set(op.attributes)
    plain = len(op.inputs) == 1 and len(op.weights) in (2, 3)
    return "" if plain and not default else "initial states, peepholes, lengths, or activations other than the default"


_CHECKS: Mapping[str, Callable[[Graph, Operator], str]] = MappingProxyType(
    {
        **dict.fromkeys(("Conv", "MaxPool", "AveragePool"), _check_spatial),
        **dict.fromkeys(("GlobalAveragePool", "ReduceMean"), _check_global),
        **dict.fromkeys(("Gemm", "MatMul"), _check_fc),
        **dict.fromkeys(("Add", "Mul"), _check_binary),
        "BatchNormalization": _check_norm,
        "LRN": _check_lrn,
        "Transpose": _check_transpose,
        "Resize": _check_resize,
        "LSTM": _check_lstm,
    }
)
