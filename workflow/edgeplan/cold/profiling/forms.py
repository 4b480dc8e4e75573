"""Forms of operators that the runtime would compute otherwise than ONNX says, refused before anything is measured.

`runtime.support` names what oneDNN lacks, by operator and shape. These forms pass it: the graph holds all that tells them
apart, the steps made of it do not. They are no matter to predictions of latency, so a model is not refused when it is read.
They stand outside `edgeplan.runtime` since results are kept by the contents of its files.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType

import numpy as np
import numpy.typing as npt

from edgeplan.errors import ModelError
from edgeplan.graph.element_types import require_float32
from edgeplan.graph.ir import Graph, Operator
from edgeplan.runtime.constants import PLAIN_TAGS
from edgeplan.runtime.steps import Lowered

#: What the runtime would not compute as ONNX says, and what to do about it; None if there is nothing.
Problem = tuple[str, str] | None
_Pixels = npt.NDArray[np.float32]

_ELSEWHERE = "run it on another engine"
_MATRIX_RANK, _IMAGE_RANK = 2, 4
#: Linear interpolation may be off by this share of the distance between two pixels: far below the tolerance of outputs.
_SHIFT = 1e-5


def require_exact(graph: Graph, source: str) -> None:
    """Refuse what the runtime would compute wrongly.

    Args:
        graph: the graph that is to be lowered, as `load_onnx` has passed it.
        source: where it comes from, for messages.

    Raises:
        ModelError: names all such operators.
    """
    require_float32(graph, source)
    found = list(_problems(graph))
    if found:
        names = ", ".join(dict.fromkeys(name for name, _, _ in found))
        raise ModelError(
            "the oneDNN runtime does not compute as ONNX says: " + "; ".join(what for _, what, _ in found),
            where=f"{source}, {names}",
            next_step="; ".join(dict.fromkeys(step for _, _, step in found)),
        )


def require_exact_steps(lowered: Lowered, source: str) -> None:
    """Refuse steps that would compute wrongly what their operators compute rightly one by one.

    Args:
        lowered: the steps of the model.
        source: where it comes from, for messages.

    Raises:
        ModelError: names the operators of all such steps.
    """
    # a product runs as one of two axes, and so would the other operand be read of a sum that is fused into it
    found = [
        " and ".join(step.members)
        for step in lowered.steps
        if step.kind == "fc" and len(lowered.shapes[step.outputs[0]]) != _MATRIX_RANK and any(p.tensor for p in step.post_ops)
    ]
    if found:
        raise ModelError(
            "the oneDNN runtime does not compute as ONNX says: a sum or product of a fully connected layer's output, which is "
            "not of 2 axes, and another activation",
            where=f"{source}, nodes {', '.join(found)}",
            next_step="reshape the operands of the sum or product to 2 axes, or " + _ELSEWHERE,
        )


def _problems(graph: Graph) -> Iterator[tuple[str, str, str]]:
    """Where, what, and what to do about it."""
    for op in graph.operators:
        check = _CHECKS.get(op.op_type)
        if problem := (check and check(graph, op)) or _ranks(graph, op):
            yield f"node {op.name!r}", f"{op.name} ({op.op_type}) {problem[0]}", problem[1]
    for name in graph.outputs:
        if name not in graph.producer:
            yield f"output {name!r}", f"{name}, which no operator writes", "leave it out of the outputs"


def _ranks(graph: Graph, op: Operator) -> Problem:
    ranks = {len(graph.shape(name)) for name in (*op.inputs, *op.outputs)}
    if odd := ranks - set(PLAIN_TAGS):
        return f"of {max(odd)} axes", f"reshape it to {min(PLAIN_TAGS)} to {max(PLAIN_TAGS)} axes"
    return None


def _product(graph: Graph, op: Operator) -> Problem:
    if len(graph.shape(op.inputs[0])) == _IMAGE_RANK:  # a step would take it for an image that is to be flattened
        return "of an activation of 4 axes", "reshape it to 2 or 3 axes before it, and back behind it"
    columns = graph.shape(op.outputs[0])[-1:]
    bias = graph.shape(op.weights[1]) if len(op.weights) > 1 else ()
    if bias and bias[-1:] != columns and (math.prod(bias),) == columns:
        return f"with a bias {bias}, one value for each row", "export it with one value for each column"
    return None


def _binary(graph: Graph, op: Operator) -> Problem:
    rank = len(graph.shape(op.outputs[0]))
    if any(len(graph.shape(name)) != rank for name in op.inputs):
        return f"of {len(graph.shape(op.inputs[0]))} axes to {rank}", "reshape its operands to one number of axes"
    return None


def _clip(_graph: Graph, op: Operator) -> Problem:
    low, high = op.number("min", -math.inf), op.number("max", math.inf)
    return None if low <= high else (f"from {low:g} to {high:g}", "give it bounds in order")


def _window(_graph: Graph, op: Operator) -> Problem:
    same = str(op.attributes.get("auto_pad", "NOTSET")).startswith("SAME")
    if same and any(d != 1 for d in op.integers("dilations", ())):
        return "dilated, with auto_pad: engines disagree on its size", "export it with pads"
    return None


def _lrn(_graph: Graph, op: Operator) -> Problem:
    return None if op.integer("size", 1) % 2 else ("over an even number of channels", _ELSEWHERE)


def _resize(graph: Graph, op: Operator) -> Problem:
    """The runtime goes by the sizes alone: by half-pixel centres, to the nearest pixel or between two."""
    before, after = graph.shape(op.inputs[0]), graph.shape(op.outputs[0])
    mode, scales = str(op.attributes.get("mode", "nearest")), op.attributes.get("scales")
    if op.integer("antialias", 0) and any(out < size for size, out in zip(before, after, strict=True)):
        return "with antialias", "export it without, or " + _ELSEWHERE
    if op.attributes.get("keep_aspect_ratio_policy", "stretch") != "stretch":
        return "that keeps the aspect ratio", "export it with the sizes that it has"
    coordinates = str(op.attributes.get("coordinate_transformation_mode", "half_pixel"))
    rounding = str(op.attributes.get("nearest_mode", "round_prefer_floor"))
    for axis, (size, out) in enumerate(zip(before, after, strict=True)):
        scale = float(scales[axis]) if isinstance(scales, tuple) and len(scales) == len(before) else out / size
        # the other coordinates, and fractions, are refused by `runtime.support`
        known = coordinates in _COORDINATES and out % size == 0
        if mode == "nearest" and known and not _repeats(size, out, scale, coordinates, rounding):
            said = f"{coordinates} coordinates and nearest_mode {rounding}, {size} to {out} pixels"
            return f"of other pixels than oneDNN's ({said})", "export it with half_pixel and round_prefer_floor by whole scales"
        if mode == "linear" and abs(size * scale / out - 1) * size > _SHIFT:
            return f"by {scale:g} from {size} to {out} pixels", "export it with sizes instead of scales"
        if coordinates == "pytorch_half_pixel" and out == 1 < size:
            return f"of {size} pixels to the first one", "export it with half_pixel coordinates"
    return None


def _repeats(size: int, out: int, scale: float, coordinates: str, rounding: str) -> bool:
    """Whether each pixel is repeated equally often, which is what oneDNN does by whole factors."""
    if rounding not in _ROUNDINGS:
        return False
    places = np.arange(out, dtype=np.float32)
    if scale != 1:  # in single precision, as ONNX Runtime places them
        places = _COORDINATES[coordinates](places, np.float32(scale))
    picked = _ROUNDINGS[rounding](places).clip(0, size - 1)
    return np.array_equal(picked, np.arange(out) // (out // size))


#: ONNX's `coordinate_transformation_mode`, of those that the runtime takes: where in the input an output pixel lies.
_COORDINATES: Mapping[str, Callable[[_Pixels, np.float32], _Pixels]] = MappingProxyType(
    {
        "asymmetric": lambda places, scale: places / scale,
        "half_pixel": lambda places, scale: (places + np.float32(0.5)) / scale - np.float32(0.5),
        "pytorch_half_pixel": lambda places, scale: (places + np.float32(0.5)) / scale - np.float32(0.5),
    }
)
#: ONNX's `nearest_mode`.
_ROUNDINGS: Mapping[str, Callable[[_Pixels], _Pixels]] = MappingProxyType(
    {
        "floor": np.floor,
        "ceil": np.ceil,
        "round_prefer_floor": lambda places: np.ceil(places - np.float32(0.5)),
        "round_prefer_ceil": lambda places: np.floor(places + np.float32(0.5)),
    }
)
_CHECKS: Mapping[str, Callable[[Graph, Operator], Problem]] = MappingProxyType(
    {
        **dict.fromkeys(("Gemm", "MatMul"), _product),
        **dict.fromkeys(("Add", "Mul"), _binary),
        **dict.fromkeys(("Conv", "MaxPool", "AveragePool"), _window),
        "Clip": _clip,
        "LRN": _lrn,
        "Resize": _resize,
    }
)
