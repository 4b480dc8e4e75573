"""Changes of size: oneDNN's resampling where it picks and weighs pixels as ONNX does, else matrices."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np

from edgeplan.graph.axis_matrices import Integers, picked, picked_by_primitive
from edgeplan.graph.ir import Graph, Operator, Shape
from edgeplan.graph.operators.base import (
    ELSEWHERE,
    WINDOW,
    OperatorSpec,
    Problem,
    attributes_of,
    copied,
    input_of,
    refuse,
    word,
)
from edgeplan.graph.operators.windows import check_spatial
from edgeplan.graph.parts import Chain, Part, part
from edgeplan.graph.steps import Setting

if TYPE_CHECKING:
    import onnx

_REGION, _SCALES, _SIZES = 1, 2, 3
_OPSET_10_INPUTS = 2  # the second are the scales
_COORDINATES = b"half_pixel half_pixel_symmetric pytorch_half_pixel align_corners asymmetric tf_half_pixel_for_nn"
_WORDS: Mapping[str, list[bytes]] = MappingProxyType(
    {
        "mode": [b"nearest", b"linear", b"cubic"],
        "nearest_mode": [b"round_prefer_floor", b"round_prefer_ceil", b"floor", b"ceil"],
        "coordinate_transformation_mode": _COORDINATES.split(),
    }
)

#: Linear interpolation may be off by this share of the distance between two pixels: far below the tolerance of outputs.
_SHIFT = 1e-5
_SPATIAL_RANKS = (3, 4)
_HALF_PIXEL = ("half_pixel", "pytorch_half_pixel")


def _lower(_graph: Graph, op: Operator, shapes: dict[str, Shape]) -> tuple[Part, ...]:
    """One resampling, or one pooling of single pixels, or a product with a matrix for each axis that changes."""
    before, after = shapes[op.inputs[0]], shapes[op.outputs[0]]
    mode, spatial = str(op.attributes.get("mode", "nearest")), len(before) in _SPATIAL_RANKS and before[:2] == after[:2]
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
    for axis, (size, out) in enumerate(zip(before, after, strict=True)):
        if size != out or _scale(op, before, after, axis) != 1:
            tensor = chain.mixed(tensor, axis, out, _settings(op, mode, _scale(op, before, after, axis)))
    return chain.finished(tensor)


def _scale(op: Operator, before: Shape, after: Shape, axis: int) -> float:
    scales = op.attributes.get("scales")
    if isinstance(scales, tuple) and len(scales) == len(before):
        return float(scales[axis])
    return after[axis] / before[axis]


def _settings(op: Operator, mode: str, scale: float) -> dict[str, Setting]:
    found: dict[str, Setting] = {
        "form": mode,
        "scale": scale,
        "coordinates": str(op.attributes.get("coordinate_transformation_mode", "half_pixel")),
    }
    if mode == "nearest":
        found["rounding"] = str(op.attributes.get("nearest_mode", "round_prefer_floor"))
    if mode == "cubic":
        found |= {"cubic": op.number("cubic_coeff_a", -0.75), "exclude_outside": op.integer("exclude_outside", 0)}
    return found


def _picked(op: Operator, before: Shape, after: Shape, axis: int) -> Integers:
    settings = _settings(op, "nearest", _scale(op, before, after, axis))
    coordinates, rounding = str(settings["coordinates"]), str(settings["rounding"])
    return picked(before[axis], after[axis], _scale(op, before, after, axis), coordinates, rounding)


def _stride(size: int, out: int, pick: Integers) -> int:
    """Every how many pixels one is picked from the first on, if all are looked at but fewer behind the last; else 0."""
    stride = int(pick[1]) if out > 1 else size
    even = stride > 0 and np.array_equal(pick, stride * np.arange(out))
    return stride if even and size - pick[-1] <= stride else 0


def _every(op: Operator, before: Shape, after: Shape, strides: tuple[int, ...]) -> Part:
    """Every second pixel, say: a pooling of windows of one."""
    ones, none = (1,) * len(strides), (0,) * len(strides)
    ends = tuple((out - 1) * s + 1 - size for size, out, s in zip(before[2:], after[2:], strides, strict=True))
    windows: dict[str, Setting] = {"kernel": ones, "strides": strides, "dilations": ones, "pads_before": none}
    return part(op, "pool", (), {**windows, "pads_after": ends, "algorithm": "max"})


def _by_half_pixels(op: Operator, before: Shape, after: Shape, axis: int) -> bool:
    """Whether interpolation is oneDNN's, which goes by the sizes alone and by the centres of pixels."""
    size, out, scale = before[axis], after[axis], _scale(op, before, after, axis)
    coordinates = str(op.attributes.get("coordinate_transformation_mode", "half_pixel"))
    near = abs(size * scale / out - 1) * size <= _SHIFT
    return coordinates in _HALF_PIXEL and near and not (coordinates == _HALF_PIXEL[1] and out == 1 < size)


def _form(node: onnx.NodeProto, constants: Mapping[str, onnx.TensorProto], _: AbstractSet[str], source: str) -> onnx.NodeProto:
    """X and constant scales or sizes; the region of `tf_crop_and_resize` is not known."""
    attributes = attributes_of(node)
    if len(node.input) == _OPSET_10_INPUTS and input_of(node, 1) in constants:
        return node
    if attributes.get("coordinate_transformation_mode") == b"tf_crop_and_resize" or "axes" in attributes:
        refuse(node, source, "of a region or of chosen axes", "export it with scales for every axis of the whole tensor")
    for key, known in _WORDS.items():
        if attributes.get(key, known[0]) not in known:
            listed = ", ".join(one.decode() for one in known)
            refuse(node, source, f"of the unknown {key} {word(attributes[key])}", f"correct the node: known are {listed}")
    plain = copied(node)
    given = []
    for place in (_SCALES, _SIZES):
        name = input_of(node, place)
        if name in constants and not any(constants[name].dims[:1]):  # exporters write an absent input as an empty tensor
            plain.input[place] = name = ""
        given += [name] if name else []
    if len(given) != 1 or given[0] not in constants:
        refuse(node, source, "whose scales or sizes are no constant", "fix the input shape and fold constants")
    plain.input[_REGION] = ""
    return plain


def _kind(_graph: Graph, op: Operator) -> str:
    mode = str(op.attributes.get("mode", "nearest"))
    return "resize" if mode == "nearest" else f"resize_{mode}"


def _inexact(graph: Graph, op: Operator) -> Problem:
    before, after = graph.shape(op.inputs[0]), graph.shape(op.outputs[0])
    if op.integer("antialias", 0) and any(out < size for size, out in zip(before, after, strict=True)):
        return "with antialias", "export it without, or " + ELSEWHERE
    if op.attributes.get("keep_aspect_ratio_policy", "stretch") != "stretch":
        return "that keeps the aspect ratio", "export it with the sizes that it has"
    return None


SPECS = (
    OperatorSpec(
        ("Resize",), _kind, _lower, ("resize", "resize_linear", "resize_cubic"), WINDOW,
        constants=("", "roi", "scales", "sizes"), integers=frozenset({"sizes"}), moves=True,
        form=_form, check=check_spatial, inexact=_inexact,
    ),
)  # fmt: skip
