"""What the runtime lacks, found before any work is done."""

from __future__ import annotations

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
    if op.op_type == "Conv" and len(op.inputs) != 1:
        return "weights computed by the model"
    if op.op_type == "MaxPool" and len(op.outputs) > 1:
        return "indices of the maxima"
    if op.op_type != "Conv":
        kernel = op.integers("kernel_shape", ())
        dilations = op.integers("dilations", (1,) * len(kernel))
        spans = [d * (k - 1) + 1 for k, d in zip(kernel, dilations, strict=True)]
        before, after = window_pads(op, graph.shape(op.inputs[0])[2:], graph.shape(op.outputs[0])[2:], kernel)
        if any(pad >= span for pads in (before, after) for pad, span in zip(pads, spans, strict=True)):
            return "windows that see nothing but padding"
    return ""


def _check_norm(graph: Graph, op: Operator) -> str:
    if len(op.weights) != 4:  # noqa: PLR2004
        return "statistics computed by the model"
    return "" if len(graph.shape(op.inputs[0])) > 1 else "an activation without channels"


def _check_lrn(graph: Graph, op: Operator) -> str:
    return "" if len(graph.shape(op.inputs[0])) == _FOUR else "only 4-D activations"


def _check_lstm(_graph: Graph, op: Operator) -> str:
    default = {"activations", "activation_alpha", "activation_beta", "clip", "input_forget", "layout"} & set(op.attributes)
    plain = len(op.inputs) == 1 and len(op.weights) in (2, 3)
    return "" if plain and not default else "initial states, peepholes, lengths, or activations other than the default"


_CHECKS: Mapping[str, Callable[[Graph, Operator], str]] = MappingProxyType(
    {
        **dict.fromkeys(("Conv", "MaxPool", "AveragePool"), _check_spatial),
        "BatchNormalization": _check_norm,
        "LRN": _check_lrn,
        "LSTM": _check_lstm,
    }
)
