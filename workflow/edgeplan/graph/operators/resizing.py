"""Changes of size: oneDNN's resampling where it picks and weighs pixels as ONNX does, else matrices."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import numpy as np

from edgeplan.graph.axis_matrices import Integers, nearest_pixels, picked_by_primitive, taps
from edgeplan.graph.ir import Graph, Operator, Shape
from edgeplan.graph.operators import base
from edgeplan.graph.operators.base import AGAIN, Beside, Chain, Node, OperatorSpec, Part, Problem, part, refuse
from edgeplan.graph.operators.windows import check_spatial
from edgeplan.graph.shapes import FLOAT32
from edgeplan.graph.steps import Setting

_REGION, _SCALES, _SIZES = 1, 2, 3
_OPSET_10_INPUTS = 2  # the second are the scales
_OF_A_REGION = "tf_crop_and_resize"
_COORDINATES = (
    b"half_pixel half_pixel_symmetric pytorch_half_pixel align_corners asymmetric tf_half_pixel_for_nn tf_crop_and_resize"
)
_WORDS: Mapping[str, list[bytes]] = MappingProxyType(
    {
        "mode": [b"nearest", b"linear", b"cubic"],
        "nearest_mode": [b"round_prefer_floor", b"round_prefer_ceil", b"floor", b"ceil"],
        "coordinate_transformation_mode": _COORDINATES.split(),
        "keep_aspect_ratio_policy": [b"stretch", b"not_larger", b"not_smaller"],
    }
)

#: Linear interpolation may be off by this share of the distance between two pixels: far below the tolerance of outputs.
_SHIFT = 1e-5
_SPATIAL_RANKS = (3, 4, 5)
_HALF_PIXEL = ("half_pixel", "pytorch_half_pixel")


def _lower(_graph: Graph, op: Operator, shapes: dict[str, Shape]) -> tuple[Part, ...]:
    """Return one resampling, or one pooling of single pixels, or a pick or product with a matrix for each axis that changes."""
    before, after = shapes[op.inputs[0]], shapes[op.outputs[0]]
    mode, coordinates = str(op.attributes.get("mode", "nearest")), _coordinates(op)
    spatial = len(before) in _SPATIAL_RANKS and before[:2] == after[:2] and coordinates != _OF_A_REGION
    if spatial and mode == "nearest":
        picks = [_picked(op, before, after, axis) for axis in range(2, len(before))]
        sizes = list(zip(before[2:], after[2:], picks, strict=True))
        if all(np.array_equal(pick, picked_by_primitive(size, out)) for size, out, pick in sizes):
            return (part(op, "resize", (), {"algorithm": mode}),)
        strides = tuple(_stride(*given) for given in sizes)
        if all(strides):
            return (_every(op, before, after, strides),)
    if spatial and mode == "linear" and all(_by_half_pixels(op, before, after, axis) for axis in range(2, len(before))):
        return (part(op, "resize", (), {"algorithm": mode}),)
    chain, tensor = Chain(op, shapes), op.inputs[0]
    beyond = op.number("extrapolation_value", 0.0) if coordinates == _OF_A_REGION else 0.0
    if mode == "nearest":
        for axis, size in enumerate(before):
            pick = _picked(op, before, after, axis)
            if not np.array_equal(pick, np.arange(size)):
                tensor = chain.picked(tensor, axis, tuple(pick.tolist()), fill=base.bits(beyond, FLOAT32))
        return chain.finished(tensor)
    tensor = chain.linear(tensor, 1.0, -beyond) if beyond else tensor  # pixels beyond the tensor are sums of nothing
    for axis, (size, out) in enumerate(zip(before, after, strict=True)):
        settings = _settings(op, mode, before, after, axis)
        if size != out or settings["scale"] != 1 or "start" in settings:
            tensor = chain.mixed(tensor, axis, out, settings, taps(settings))
    return chain.finished(chain.linear(tensor, 1.0, beyond) if beyond else tensor)


def _coordinates(op: Operator) -> str:
    return str(op.attributes.get("coordinate_transformation_mode", "half_pixel"))


def _axes(op: Operator, rank: int) -> tuple[int, ...]:
    return tuple(axis % rank for axis in op.integers("axes", tuple(range(rank))))


def _scale(op: Operator, before: Shape, after: Shape, axis: int) -> float:
    axes, scales = _axes(op, len(before)), op.attributes.get("scales")
    if axis not in axes:
        return 1.0
    if isinstance(scales, tuple) and len(scales) == len(axes):
        return float(scales[axes.index(axis)])
    policy = op.attributes.get("keep_aspect_ratio_policy", "stretch")
    if policy == "stretch":
        return after[axis] / before[axis]
    wanted = [size / before[one] for one, size in zip(axes, op.integers("sizes", ()), strict=True)]
    return min(wanted) if policy == "not_larger" else max(wanted)


def _settings(op: Operator, mode: str, before: Shape, after: Shape, axis: int) -> dict[str, Setting]:
    scale = _scale(op, before, after, axis)
    found: dict[str, Setting] = {"form": mode, "scale": scale, "coordinates": _coordinates(op)}
    axes, region = _axes(op, len(before)), op.attributes.get("roi")
    if found["coordinates"] == _OF_A_REGION and axis in axes and isinstance(region, tuple):
        place = axes.index(axis)
        found |= {"start": float(region[place]), "end": float(region[len(axes) + place])}
    if mode == "nearest":
        found["rounding"] = str(op.attributes.get("nearest_mode", "round_prefer_floor"))
    if mode == "cubic":
        found["cubic"] = op.number("cubic_coeff_a", -0.75)
    if mode != "nearest" and op.integer("exclude_outside", 0):
        found["exclude_outside"] = 1
    if mode != "nearest" and scale < 1 and op.integer("antialias", 0):
        found["antialias"] = 1
    return found


def _picked(op: Operator, before: Shape, after: Shape, axis: int) -> Integers:
    return nearest_pixels(before[axis], after[axis], _settings(op, "nearest", before, after, axis))


def _stride(size: int, out: int, pick: Integers) -> int:
    """Every how many pixels one is picked from the first on, if all are looked at but fewer behind the last; else 0."""
    stride = int(pick[1]) if out > 1 else size
    even = stride > 0 and np.array_equal(pick, stride * np.arange(out))
    return stride if even and size - pick[-1] <= stride else 0


def _every(op: Operator, before: Shape, after: Shape, strides: tuple[int, ...]) -> Part:
    """Pick every second pixel, say: a mean of windows of one, since a maximum would make numbers of what is none."""
    ones, none = (1,) * len(strides), (0,) * len(strides)
    ends = tuple((out - 1) * s + 1 - size for size, out, s in zip(before[2:], after[2:], strides, strict=True))
    windows: dict[str, Setting] = {"kernel": ones, "strides": strides, "dilations": ones, "pads_before": none}
    return part(op, "pool", (), {**windows, "pads_after": ends, "algorithm": "avg_exclude_padding"})


def _by_half_pixels(op: Operator, before: Shape, after: Shape, axis: int) -> bool:
    """Tell whether interpolation is oneDNN's, which goes by the sizes alone and by the centres of pixels."""
    size, out, scale = before[axis], after[axis], _scale(op, before, after, axis)
    coordinates = _coordinates(op)
    if op.integer("antialias", 0) and scale < 1:
        return False
    near = abs(size * scale / out - 1) * size <= _SHIFT
    return coordinates in _HALF_PIXEL and near and not (coordinates == _HALF_PIXEL[1] and out == 1 < size)


def _form(node: Node, beside: Beside) -> Node:
    attributes = base.attributes_of(node)
    if len(node.input) == _OPSET_10_INPUTS and base.input_of(node, 1) in beside.constants:
        return node
    for key, known in _WORDS.items():
        if attributes.get(key, known[0]) not in known:
            listed = ", ".join(one.decode() for one in known)
            what = f"of the unknown {key} {base.word(attributes[key])}"
            refuse(node, beside.source, what, f"correct the node: known are {listed}")
    plain = base.copied(node)
    given = []
    for place in (_SCALES, _SIZES):
        name = base.input_of(node, place)
        # exporters write an absent input as an empty tensor
        if name in beside.constants and not any(beside.constants[name].dims[:1]):
            plain.input[place] = name = ""
        given += [name] if name else []
    if len(given) != 1 or given[0] not in beside.constants:
        refuse(node, beside.source, "whose scales or sizes are no constant", "fix the input shape and fold constants")
    if attributes.get("coordinate_transformation_mode") != _OF_A_REGION.encode():
        plain.input[_REGION] = ""
    elif base.input_of(plain, _SCALES) or base.input_of(plain, _REGION) not in beside.constants:
        what = "of a region by scales, or that the model computes"
        refuse(node, beside.source, what, "export it with sizes and a constant region")
    return plain


def _upsample_form(node: Node, beside: Beside) -> Node:
    mode = base.attributes_of(node).get("mode", b"nearest")
    if mode not in _WORDS["mode"][:2]:
        refuse(node, beside.source, f"of the unknown mode {base.word(mode)}", "correct the node: known are nearest, linear")
    if len(node.input) > 1 and base.input_of(node, 1) not in beside.constants:
        refuse(node, beside.source, "whose scales are no constant", "fix the input shape and fold constants")
    return node


def _kind(_graph: Graph, op: Operator) -> str:
    mode = str(op.attributes.get("mode", "nearest"))
    return "resize" if mode == "nearest" else f"resize_{mode}"


def _check(graph: Graph, op: Operator) -> Problem:
    if problem := check_spatial(graph, op):
        return problem
    rank = len(graph.shape(op.inputs[0]))
    axes, region = op.integers("axes", tuple(range(rank))), op.attributes.get("roi")
    fits = all(-rank <= axis < rank for axis in axes) and len(set(_axes(op, rank))) == len(axes)
    fits &= not isinstance(region, tuple) or len(region) == 2 * len(axes)
    return None if fits else (f"of the axes {axes} of {rank}, or of a region of others", AGAIN)


SPECS = (
    OperatorSpec(
        ("Resize",), _kind, _lower, ("resize", "resize_linear", "resize_cubic"), base.WINDOW,
        constants=("", "roi", "scales", "sizes"), form=_form, check=_check,
    ),
    OperatorSpec(
        ("Upsample",), _kind, _lower, ("resize", "resize_linear"), base.WINDOW,
        constants=("", "scales"), inputs_since=9, form=_upsample_form, check=check_spatial,
    ),
)  # fmt: skip
