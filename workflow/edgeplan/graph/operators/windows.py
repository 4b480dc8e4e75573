"""Windows that slide over one axis, two or three: convolutions and poolings."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from edgeplan.graph.ir import Graph, Operator, Shape
from edgeplan.graph.operators import base
from edgeplan.graph.operators.base import AGAIN, Beside, Chain, Node, OperatorSpec, Part, Problem, part, refuse
from edgeplan.graph.steps import Setting

#: Ranks of the activations over which windows slide: a line, an image or a volume.
_SPATIAL_RANKS = (3, 4, 5)
_VOLUME = 5
_PADDINGS = (b"NOTSET", b"VALID", b"SAME_UPPER", b"SAME_LOWER")
_LARGEST_WINDOW = (1 << 31) - 1  # products of two such numbers still have 64 bits


def window_form(roles: tuple[str, ...] = ()) -> base.Form:
    """Return a form: windows of sizes that can be computed with, padded in one way."""
    weighted = base.require_weights(roles)

    def form(node: Node, beside: Beside) -> Node:
        attributes = base.attributes_of(node)
        least = {"kernel_shape": 1, "strides": 1, "dilations": 1, "group": 1, "pads": 0}
        for key, lowest in least.items():
            value = attributes.get(key, lowest)
            if not all(lowest <= number <= _LARGEST_WINDOW for number in (value if isinstance(value, list) else [value])):
                refuse(node, beside.source, f"with the impossible {key} {value}", "correct the node, or export the model again")
        padding, pads = attributes.get("auto_pad", b"NOTSET"), attributes.get("pads", [])
        if padding not in _PADDINGS or (padding != b"NOTSET" and any(pads)):
            refuse(node, beside.source, f"padded by auto_pad {base.word(padding)} and pads {pads}", "export it with pads alone")
        plain = weighted(node, beside)
        if padding != b"NOTSET" and pads:  # ONNX's inference would take the zeros, engines take the mode
            plain = base.copied(node)
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


def _window_settings(op: Operator, shapes: Mapping[str, Shape], kernel: tuple[int, ...]) -> dict[str, Setting]:
    before, after = window_pads(op, shapes[op.inputs[0]][2:], shapes[op.outputs[0]][2:], kernel)
    ones = (1,) * len(kernel)
    return {
        "kernel": kernel,
        "strides": op.integers("strides", ones),
        "dilations": op.integers("dilations", ones),
        "pads_before": before,
        "pads_after": after,
    }


_ROLES = ("W", "B")


def _kind(graph: Graph, op: Operator) -> str:
    groups = op.integer("group", 1)
    channels = graph.shape(op.inputs[0])[1]
    flat = "dwconv" if groups > 1 and groups == channels == graph.shape(op.outputs[0])[1] else "conv"
    return of_volumes(flat)(graph, op)


def _check(graph: Graph, op: Operator) -> Problem:
    if problem := check_window(graph, op):
        return problem
    shape, groups, weight = graph.shape(op.inputs[0]), op.integer("group", 1), graph.shape(op.weights[0])
    transposed, channels = op.op_type == "ConvTranspose", shape[1]
    fits = len(weight) == len(shape) and (weight[0] if transposed else weight[1] * groups) == channels
    if not fits or weight[0] % groups:
        return f"with a weight {weight} for {channels} channels in {groups} group{'s' * (groups > 1)}", AGAIN
    if transposed and len(graph.shape(op.outputs[0])) != len(weight):  # ONNX's inference leaves off axes that shrink
        return f"whose output_shape {op.integers('output_shape', ())} is smaller than its input", "export it with pads"
    if weight[2:] != op.integers("kernel_shape", weight[2:]):
        return f"with a weight {weight} for a window {op.integers('kernel_shape', ())}", AGAIN
    written = weight[1] * groups if transposed else weight[0]
    if len(op.weights) > 1 and graph.shape(op.weights[1]) != (written,):
        return f"with a bias {graph.shape(op.weights[1])} for {written} channels", AGAIN
    return None


def _macs(graph: Graph, op: Operator) -> int:
    """(in / groups) x window for each output element; (out / groups) x window for each input element of a transpose."""
    each = op.inputs[0] if op.op_type == "ConvTranspose" else op.outputs[0]
    return math.prod(graph.shape(op.weights[0])[1:]) * graph.tensors[each].elements


def _lower(_graph: Graph, op: Operator, shapes: dict[str, Shape]) -> tuple[Part, ...]:
    settings = {"groups": op.integer("group", 1), **_window_settings(op, shapes, shapes[op.weights[0]][2:])}
    return (part(op, "conv", ("weight", "bias"), settings),)


def _lower_transposed(_graph: Graph, op: Operator, shapes: dict[str, Shape]) -> tuple[Part, ...]:
    """Return the window of the convolution that it is the transpose of: from its output to its input."""
    kernel, out, size = shapes[op.weights[0]][2:], shapes[op.outputs[0]][2:], shapes[op.inputs[0]][2:]
    ones = (1,) * len(kernel)
    strides, dilations = op.integers("strides", ones), op.integers("dilations", ones)
    total = [(i - 1) * s + d * (k - 1) + 1 - o for i, s, d, k, o in zip(size, strides, dilations, kernel, out, strict=True)]
    before = op.integers("pads", (0,) * 2 * len(kernel))[: len(kernel)]
    padding = str(op.attributes.get("auto_pad", "NOTSET"))
    if "output_shape" in op.attributes or padding.startswith("SAME"):  # the padding follows from the output's size
        more = op.integers("output_padding", (0,) * len(kernel))
        pads = [max(0, t + a) for t, a in zip(total, more, strict=True)]
        before = tuple(pad // 2 if padding == "SAME_UPPER" else -(-pad // 2) for pad in pads)
    after = tuple(t - b for t, b in zip(total, before, strict=True))
    groups = op.integer("group", 1)
    settings: dict[str, Setting] = {"groups": groups, "kernel": kernel, "strides": strides, "dilations": dilations}
    return (part(op, "deconv", ("weight", "bias"), {**settings, "pads_before": before, "pads_after": after}),)


def _one_input(_graph: Graph, op: Operator) -> str:
    return "weights computed by the model" if len(op.inputs) != 1 else ""


_SQUARE = 2


def _pooled(_graph: Graph, op: Operator, shapes: dict[str, Shape]) -> tuple[Part, ...]:
    settings = _window_settings(op, shapes, op.integers("kernel_shape", ()))
    counted = op.op_type == "AveragePool" and op.integer("count_include_pad", 0)
    if counted and op.integer("ceil_mode", 0):
        return _counted(op, shapes)
    settings["algorithm"] = "max" if op.op_type == "MaxPool" else f"avg_{'include' if counted else 'exclude'}_padding"
    return (part(op, "pool", (), settings),)


def _counted(op: Operator, shapes: dict[str, Shape]) -> tuple[Part, ...]:
    """Windows whose padding counts, but not what lies beyond it: oneDNN would count both. An axis at a time."""
    chain, tensor = Chain(op, shapes), op.inputs[0]
    kernel, out = op.integers("kernel_shape", ()), shapes[op.outputs[0]][2:]
    ones = (1,) * len(kernel)
    before, _ = window_pads(op, shapes[tensor][2:], out, kernel)
    after = op.integers("pads", (0,) * 2 * len(kernel))[len(kernel) :]
    sides = (kernel, op.integers("strides", ones), op.integers("dilations", ones), before, after)
    for axis, (size, *numbers) in enumerate(zip(out, *sides, strict=True), start=2):
        names = ("window", "stride", "dilation", "before", "after")
        tensor = chain.mixed(tensor, axis, size, {"form": "average", **dict(zip(names, numbers, strict=True))}, numbers[0])
    return chain.finished(tensor)


def _power(op: Operator) -> float:
    return op.number("p", 2.0)


def _check_lp(graph: Graph, op: Operator) -> Problem:
    return check_window(graph, op) if _power(op) > 0 else (f"of power {_power(op)}", AGAIN)


def _lp(_graph: Graph, op: Operator, shapes: dict[str, Shape]) -> tuple[Part, ...]:
    """Roots of sums of powers: means over whole windows, padding counted, times the places of a window."""
    chain, (tensor,) = Chain(op, shapes), op.inputs
    kernel = op.integers("kernel_shape", shapes[tensor][2:])
    whole = "kernel_shape" not in op.attributes
    settings = _whole(kernel) if whole else _window_settings(op, shapes, kernel)
    power, places = _power(op), math.prod(kernel)
    tensor = chain.eltwise(tensor, "abs" if power != _SQUARE else "square")
    tensor = tensor if power in (1, _SQUARE) else chain.eltwise(tensor, "pow", 1.0, power)
    settings["algorithm"] = "avg_include_padding"
    tensor = chain.step("pool", [tensor], shapes[op.outputs[0]], settings)
    root = places ** (1 / power)
    return chain.finished(chain.linear(tensor, root) if power == 1 else chain.eltwise(tensor, "pow", root, 1 / power))


def _lacks(graph: Graph, op: Operator) -> str:
    if op.op_type == "MaxPool" and len(op.outputs) > 1:
        return "indices of the maxima"
    kernel = op.integers("kernel_shape", ())
    dilations = op.integers("dilations", (1,) * len(kernel))
    spans = [d * (k - 1) + 1 for k, d in zip(kernel, dilations, strict=True)]
    before, after = window_pads(op, graph.shape(op.inputs[0])[2:], graph.shape(op.outputs[0])[2:], kernel)
    if any(pad >= span for pads in (before, after) for pad, span in zip(pads, spans, strict=True)):
        return "windows that see nothing but padding"
    return ""


def _whole(size: Shape) -> dict[str, Setting]:
    ones, none = (1,) * len(size), (0,) * len(size)
    return {"kernel": size, "strides": size, "dilations": ones, "pads_before": none, "pads_after": none}


def whole_image(_graph: Graph, op: Operator, shapes: dict[str, Shape]) -> tuple[Part, ...]:
    """Return one window over all axes of the image; without them where the operator drops them."""
    n, c, *size = shapes[op.inputs[0]]
    settings = _whole(tuple(size)) | {"algorithm": "max" if "Max" in op.op_type else "avg_exclude_padding"}
    pool = part(op, "pool", (), settings)
    if len(shapes[op.outputs[0]]) == len(size) + 2:
        return (pool,)
    pooled = base.inner(op.outputs[0], (n, c, *[1] * len(size)), shapes)
    return pool._replace(outputs=[pooled]), Part(f"{op.name}:squeeze", "reshape", [], [pooled], list(op.outputs), {}, {})


def _pool(name: str, kind: str, lower: base.Lowerer = _pooled, check: base.Check = check_window) -> OperatorSpec:
    return OperatorSpec(
        (name,), of_volumes(kind), lower, (kind, f"{kind}3d"), base.WINDOW,
        form=window_form(), check=check, lacks=_lacks, inexact=inexact_window,
    )  # fmt: skip


SPECS = (
    OperatorSpec(
        ("Conv",), _kind, _lower, ("conv", "dwconv", "conv3d", "dwconv3d"), base.HEAVY, form=window_form(_ROLES), check=_check,
        macs=_macs, lacks=_one_input, inexact=inexact_window,
    ),
    OperatorSpec(
        ("ConvTranspose",), of_volumes("deconv"), _lower_transposed, ("deconv", "deconv3d"), base.HEAVY,
        form=window_form(_ROLES), check=_check, macs=_macs, lacks=_one_input,
    ),
    _pool("MaxPool", "maxpool"),
    _pool("AveragePool", "avgpool"),
    OperatorSpec(("GlobalAveragePool",), "gap", whole_image, (), base.WINDOW, check=check_spatial),
    OperatorSpec(("GlobalMaxPool",), "gmp", whole_image, (), base.WINDOW, check=check_spatial),
    _pool("LpPool", "lppool", _lp, _check_lp),
    OperatorSpec(("GlobalLpPool",), "glp", _lp, (), base.WINDOW, check=_check_lp),
)  # fmt: skip
