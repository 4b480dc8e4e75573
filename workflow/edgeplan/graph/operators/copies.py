"""Operators that copy parts: joined, cut, padded, repeated, picked."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from typing import TYPE_CHECKING, Any

import numpy as np

from edgeplan.graph import blocks
from edgeplan.graph.element_types import FLOAT32
from edgeplan.graph.ir import Graph, Operator, Shape
from edgeplan.graph.operators.base import AGAIN, ANY, COPY, Lowerer, OperatorSpec, Problem, axis_of
from edgeplan.graph.parts import Chain, Part, bits, moved, part

if TYPE_CHECKING:
    import onnx


def _type(graph: Graph, op: Operator) -> str:
    return graph.tensors[op.outputs[0]].dtype


def _concat(graph: Graph, op: Operator, shapes: dict[str, Shape]) -> tuple[Part, ...]:
    axis, dtype = axis_of(op, len(shapes[op.outputs[0]]), 1), _type(graph, op)
    floats = dtype == FLOAT32
    role, names = "part" if floats else "operand", (*op.operands, op.outputs[0])
    roles = [f"{role}_{place}" for place, name in enumerate(op.operands) if name in op.weights]
    if floats:
        return (part(op, "concat", roles, {"axis": axis}),)
    block = blocks.runs([shapes[name] for name in names], axis, dtype)
    return (part(op, "compiled", roles, {"kernel": f"joined_{moved(dtype)}", "block": block}),)


def _split(graph: Graph, op: Operator, shapes: dict[str, Shape]) -> tuple[Part, ...]:
    whole, dtype = shapes[op.inputs[0]], _type(graph, op)
    axis = axis_of(op, len(whole), 0)
    if dtype == FLOAT32:
        return (part(op, "split", (), {"axis": axis}),)
    found, start, strides = list[Part](), 0, blocks.dense(whole)
    for place, output in enumerate(op.outputs):
        out = shapes[output]
        block = blocks.strided(out, (strides, blocks.dense(out)), (dtype, dtype), (start * strides[axis], 0))
        chain = Chain(op, shapes, place)
        found += chain.finished(chain.kernel(f"copied_{moved(dtype)}", op.inputs, out, block))
        start += out[axis]
    return tuple(found)


def _split_form(node: onnx.NodeProto, _: Mapping[str, onnx.TensorProto], __: AbstractSet[str], ___: str) -> onnx.NodeProto:
    """Every part has a name: without one it would be lost which of them the others are."""
    for place, name in enumerate(node.output):
        node.output[place] = name or f"{node.name}:part_{place}"
    return node


def slice_ranges(graph: Graph, op: Operator) -> dict[int, range]:
    """Return places of each axis that a `Slice` takes, of those that it cuts."""
    shape = graph.shape(op.inputs[0])
    starts, ends = op.integers("starts", ()), op.integers("ends", ())
    axes = op.integers("axes", tuple(range(len(starts))))
    steps = op.integers("steps", (1,) * len(starts))
    found = {}
    for axis, start, end, step in zip(axes, starts, ends, steps, strict=True):
        size = shape[axis]
        found[axis % len(shape)] = range(*slice(start, None if step < 0 and end < -size else end, step).indices(size))
    return {axis: places for axis, places in found.items() if places != range(shape[axis])}


def _check_slice(graph: Graph, op: Operator) -> Problem:
    rank = len(graph.shape(op.inputs[0]))
    starts, ends = op.integers("starts", ()), op.integers("ends", ())
    axes, steps = op.integers("axes", tuple(range(len(starts)))), op.integers("steps", (1,) * len(starts))
    if not len(starts) == len(ends) == len(axes) == len(steps) or not all(-rank <= axis < rank for axis in axes):
        return f"from {starts} to {ends} along {axes} of {rank} axes", AGAIN
    return None if all(steps) else ("by steps of 0", AGAIN)


def _slice(graph: Graph, op: Operator, shapes: dict[str, Shape]) -> tuple[Part, ...]:
    """Copy places that lie side by side as a block, the others one by one."""
    chain, tensor = Chain(op, shapes), op.inputs[0]
    for axis, places in slice_ranges(graph, op).items():
        tensor = chain.cut(tensor, axis, places.start, len(places)) if places.step == 1 else chain.picked(
            tensor, axis, tuple(places)
        )  # fmt: skip
    return chain.finished(tensor)


def _check_pad(graph: Graph, op: Operator) -> Problem:
    rank, pads, axes = len(graph.shape(op.inputs[0])), op.integers("pads", ()), op.integers("axes", ())
    count = len(axes) or rank
    if len(pads) != 2 * count or not all(-rank <= axis < rank for axis in axes):
        return f"by {pads} of {rank} axes", AGAIN
    mode = str(op.attributes.get("mode", "constant"))
    return None if mode in _PLACES else (f"of the unknown mode {mode!r}", f"known are {', '.join(_PLACES)}")


def _padding(op: Operator) -> float | int:
    value = op.attributes.get("constant_value", op.attributes.get("value", 0.0))
    value = (value[0] if value else 0.0) if isinstance(value, tuple) else value
    return value if isinstance(value, int) else float(value)


def _constant(size: int, before: int, after: int) -> tuple[int, ...]:
    return tuple(i if 0 <= i < size else -1 for i in range(-before, size + after))


#: Which place each place of a padded axis holds, by mode; -1: none.
_PLACES: Mapping[str, Callable[[int, int, int], tuple[int, ...]]] = {
    "constant": _constant,
    "edge": lambda size, before, after: tuple(int(i) for i in np.clip(np.arange(-before, size + after), 0, size - 1)),
    "reflect": lambda size, before, after: tuple(
        int(i) for i in abs((np.arange(-before, size + after) - (size - 1)) % max(1, 2 * size - 2) - (size - 1))
    ),
    "wrap": lambda size, before, after: tuple(int(i) for i in np.arange(-before, size + after) % size),
}


def _pad(graph: Graph, op: Operator, shapes: dict[str, Shape]) -> tuple[Part, ...]:
    """Return the steps of a `Pad`, an axis at a time."""
    chain, tensor, mode = Chain(op, shapes), op.inputs[0], str(op.attributes.get("mode", "constant"))
    pads, rank, dtype = op.integers("pads", ()), len(shapes[op.inputs[0]]), _type(graph, op)
    axes = op.integers("axes", tuple(range(rank)))
    fill = bits(_padding(op), dtype) if mode == "constant" else 0
    for place, axis in enumerate(axes):
        before, after = pads[place], pads[len(axes) + place]
        if before or after:
            places = _PLACES[mode](shapes[tensor][axis % rank], before, after)
            tensor = chain.picked(tensor, axis % rank, places, dtype, fill)
    return chain.finished(tensor)


def _check_gather(graph: Graph, op: Operator) -> Problem:
    shape = graph.shape(op.inputs[0])
    axis, indices = op.integer("axis", 0), op.integers("indices", ())
    if len(op.operands) > 1:
        return None  # what the indices are shows when the model runs
    if not -len(shape) <= axis < len(shape) or not all(-shape[axis] <= i < shape[axis] for i in indices):
        return f"of places {indices[:8]} along axis {axis} of {shape}", AGAIN
    return None


def _gather(graph: Graph, op: Operator, shapes: dict[str, Shape]) -> tuple[Part, ...]:
    chain, tensor, shape, dtype = Chain(op, shapes), op.inputs[0], shapes[op.inputs[0]], _type(graph, op)
    axis = axis_of(op, len(shape), 0)
    places = tuple(i % shape[axis] for i in op.integers("indices", ()))
    beside = dtype == FLOAT32 and places == tuple(range(places[0], places[0] + len(places)))
    tensor = chain.cut(tensor, axis, places[0], len(places)) if beside else chain.picked(tensor, axis, places, dtype)
    return chain.finished(tensor)


def _repeat(graph: Graph, op: Operator, shapes: dict[str, Shape]) -> tuple[Part, ...]:
    """`Expand` and `Tile`: an axis at a time; not of float32 in one go, over axes of repeats and of places by turns."""
    chain, before, out, dtype = Chain(op, shapes), shapes[op.inputs[0]], shapes[op.outputs[0]], _type(graph, op)
    if dtype == FLOAT32:
        return chain.finished(chain.repeated(op.inputs[0], out))
    before = (1,) * (len(out) - len(before)) + before
    parted = tuple(size for a, b in zip(before, out, strict=True) for size in (b // a, a))
    strides = tuple(size for stride in blocks.dense(before) for size in (0, stride))
    block = blocks.strided(parted, (strides, blocks.dense(parted)), (dtype, dtype))
    return chain.finished(chain.kernel(f"copied_{moved(dtype)}", op.inputs, out, block))


def _check_repeat(graph: Graph, op: Operator) -> Problem:
    before, after = graph.shape(op.inputs[0]), graph.shape(op.outputs[0])
    raised = (1,) * (len(after) - len(before)) + before
    fits = len(raised) == len(after) and all(a % b == 0 for a, b in zip(after, raised, strict=True))
    return None if fits else (f"of {before} to {after}", AGAIN)


def _depth_to_space(_graph: Graph, op: Operator, shapes: dict[str, Shape]) -> tuple[Part, ...]:
    chain, (n, c, h, w), b = Chain(op, shapes), shapes[op.inputs[0]], op.integer("blocksize", 1)
    column_first = op.attributes.get("mode", "DCR") == "CRD"
    parted = (n, c // b**2, b, b, h, w) if column_first else (n, b, b, c // b**2, h, w)
    order = (0, 1, 4, 2, 5, 3) if column_first else (0, 3, 4, 1, 5, 2)
    return chain.finished(chain.transposed(chain.reshaped(op.inputs[0], parted), order))


def _space_to_depth(_graph: Graph, op: Operator, shapes: dict[str, Shape]) -> tuple[Part, ...]:
    chain, (n, c, h, w), b = Chain(op, shapes), shapes[op.inputs[0]], op.integer("blocksize", 1)
    parted = chain.reshaped(op.inputs[0], (n, c, h // b, b, w // b, b))
    column_first = op.attributes.get("mode", "DCR") == "CRD"
    return chain.finished(chain.transposed(parted, (0, 1, 3, 5, 2, 4) if column_first else (0, 3, 5, 1, 2, 4)))


def _check_blocks(graph: Graph, op: Operator) -> Problem:
    before, after, b = graph.shape(op.inputs[0]), graph.shape(op.outputs[0]), op.integer("blocksize", 0)
    same = len(before) == len(after) == 4 and b > 0 and math.prod(before) == math.prod(after)  # images
    return None if same else (f"of {before} by blocks of {b}", AGAIN)


_INDICES = frozenset({"indices"})


def _copy(
    name: str,
    lower: Lowerer,
    constants: tuple[str, ...] = (),
    check: Callable[[Graph, Operator], Problem] | None = None,
    **more: Any,
) -> OperatorSpec:
    kind = name.lower()
    integers = frozenset(constants) - {"", "constant_value"}
    given = (kind, lower, (), COPY, constants, integers)
    return OperatorSpec((name,), *given, bandwidth_bound=True, moves=True, check=check, **more)


SPECS = (
    _copy("Concat", _concat, ordered=True, elements=ANY),
    _copy("Split", _split, ("", "split"), form=_split_form, elements=ANY),
    _copy("Slice", _slice, ("", "starts", "ends", "axes", "steps"), _check_slice),
    _copy("Pad", _pad, ("", "pads", "constant_value", "axes"), _check_pad, elements=ANY),
    _copy("Gather", _gather, ("", "indices"), _check_gather, ordered=True, computed=_INDICES, elements=ANY),
    _copy("Expand", _repeat, ("", "shape"), _check_repeat),
    _copy("Tile", _repeat, ("", "repeats"), _check_repeat, elements=ANY),
    _copy("DepthToSpace", _depth_to_space, check=_check_blocks),
    _copy("SpaceToDepth", _space_to_depth, check=_check_blocks),
)
