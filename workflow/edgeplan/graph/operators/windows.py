"""Convolutions and poolings share windows that slide over one axis, two or three."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from typing import TYPE_CHECKING

from edgeplan.graph.ir import Graph, Operator, Shape
from edgeplan.graph.operators.base import (
    AGAIN,
    Form,
    Problem,
    attributes_of,
    copied,
    refuse,
    require_weights,
    word,
)
from edgeplan.graph.steps import Setting

if TYPE_CHECKING:
    import onnx

#: Ranks of the activations over which windows slide: a line, an image or a volume.
_SPATIAL_RANKS = (3, 4, 5)
_VOLUME = 5
_PADDINGS = (b"NOTSET", b"VALID", b"SAME_UPPER", b"SAME_LOWER")
_LARGEST_WINDOW = (1 << 31) - 1  # products of two such numbers still have 64 bits


def window_form(roles: tuple[str, ...] = ()) -> Form:
    """Return a form: windows of sizes that can be computed with, padded in one way."""
    weighted = require_weights(roles)

    def form(
        node: onnx.NodeProto, constants: Mapping[str, onnx.TensorProto], read: AbstractSet[str], source: str
    ) -> onnx.NodeProto:
        attributes = attributes_of(node)
        least = {"kernel_shape": 1, "strides": 1, "dilations": 1, "group": 1, "pads": 0}
        for key, lowest in least.items():
            value = attributes.get(key, lowest)
            if not all(lowest <= number <= _LARGEST_WINDOW for number in (value if isinstance(value, list) else [value])):
                refuse(node, source, f"with the impossible {key} {value}", "correct the node, or export the model again")
        padding, pads = attributes.get("auto_pad", b"NOTSET"), attributes.get("pads", [])
        if padding not in _PADDINGS or (padding != b"NOTSET" and any(pads)):
            refuse(node, source, f"padded by auto_pad {word(padding)} and pads {pads}", "export it with pads alone")
        plain = weighted(node, constants, read, source)
        if padding != b"NOTSET" and pads:  # ONNX's inference would take the zeros, engines take the mode
            plain = copied(node)
            del plain.attribute[:]
            plain.attribute.extend(a for a in node.attribute if a.name != "pads")
        return plain

    return form


def of_volumes(kind: str) -> Callable[[Graph, Operator], str]:
    """A kind by the rank of what is read: windows over volumes are a kind of their own, since predictors know two axes."""
    return lambda graph, op: f"{kind}3d" if len(graph.shape(op.inputs[0])) == _VOLUME else kind


def check_spatial(graph: Graph, op: Operator) -> Problem:
    """Kernels slide over one axis, two or three."""
    axes = len(graph.shape(op.inputs[0])) - 2
    if axes + 2 in _SPATIAL_RANKS:
        return None
    return (
        f"over {axes} spatial axes: kernels have one, two or three",
        "leave the operator to another tool, or export an image model",
    )


def check_window(graph: Graph, op: Operator) -> Problem:
    """Windows have as many axes as what they slide over."""
    axes = len(graph.shape(op.inputs[0])) - 2
    for key, length in (("kernel_shape", axes), ("strides", axes), ("dilations", axes), ("pads", 2 * axes)):
        if key in op.attributes and len(op.integers(key, ())) != length:
            return f"with {key} {op.integers(key, ())} over {axes} spatial axes", AGAIN
    return check_spatial(graph, op)


def inexact_window(_graph: Graph, op: Operator) -> Problem:
    """Engines disagree on dilated windows with `auto_pad`."""
    same = str(op.attributes.get("auto_pad", "NOTSET")).startswith("SAME")
    if same and any(d != 1 for d in op.integers("dilations", ())):
        return "dilated, with auto_pad: engines disagree on its size", "export it with pads"
    return None


def window_pads(op: Operator, size: Shape, out: Shape, kernel: tuple[int, ...]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Padding before and after each spatial axis such that the window gives exactly `out` (negative after: unread rest)."""
    ones = (1,) * len(size)
    strides, dilations = op.integers("strides", ones), op.integers("dilations", ones)
    spans = [(o - 1) * s + d * (k - 1) + 1 for o, s, d, k in zip(out, strides, dilations, kernel, strict=True)]
    total = [span - i for span, i in zip(spans, size, strict=True)]
    auto = str(op.attributes.get("auto_pad", "NOTSET"))
    if auto == "SAME_UPPER":
        before = tuple(max(0, t) // 2 for t in total)
    elif auto == "SAME_LOWER":
        before = tuple(-(-max(0, t) // 2) for t in total)
    elif auto == "VALID":
        before = (0,) * len(size)
    else:
        before = op.integers("pads", (0,) * 2 * len(size))[: len(size)]
    return before, tuple(t - b for t, b in zip(total, before, strict=True))


def window_settings(op: Operator, shapes: Mapping[str, Shape], kernel: tuple[int, ...]) -> dict[str, Setting]:
    """Return settings of a step with a window."""
    before, after = window_pads(op, shapes[op.inputs[0]][2:], shapes[op.outputs[0]][2:], kernel)
    ones = (1,) * len(kernel)
    return {
        "kernel": kernel,
        "strides": op.integers("strides", ones),
        "dilations": op.integers("dilations", ones),
        "pads_before": before,
        "pads_after": after,
    }
