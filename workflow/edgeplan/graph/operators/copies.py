"""Operators that copy parts (joined, cut, padded, repeated, picked), and those that change the shape or the order of axes."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from edgeplan.graph import blocks
from edgeplan.graph.ir import Graph, Operator, Shape
from edgeplan.graph.operators import base
from edgeplan.graph.operators.base import AGAIN, Beside, Chain, Node, OperatorSpec, Part, Problem, part
from edgeplan.graph.shapes import FLOAT32
from edgeplan.graph.steps import GATHERED, SCATTERED, Setting


def _type(graph: Graph, op: Operator) -> str:
    return graph.tensors[op.outputs[0]].dtype


def _concat(graph: Graph, op: Operator, shapes: dict[str, Shape]) -> tuple[Part, ...]:
    axis, dtype = base.axis_of(op, len(shapes[op.outputs[0]]), 1), _type(graph, op)
    if dtype == FLOAT32:
        roles = [f"part_{place}" for place, name in enumerate(op.operands) if name in op.weights]
        return (part(op, "concat", roles, {"axis": axis}),)
    block = blocks.runs([shapes[name] for name in (*op.operands, op.outputs[0])], axis, dtype)
    return (base.kernel_part(op, f"joined_{base.moved(dtype)}", block),)


def _split(graph: Graph, op: Operator, shapes: dict[str, Shape]) -> tuple[Part, ...]:
    whole, dtype = shapes[op.inputs[0]], _type(graph, op)
    axis = base.axis_of(op, len(whole), 0)
    if dtype == FLOAT32:
        return (part(op, "split", (), {"axis": axis}),)
    found, start, strides = list[Part](), 0, blocks.dense(whole)
    for place, output in enumerate(op.outputs):
        out = shapes[output]
        block = blocks.strided(out, (strides, blocks.dense(out)), (dtype, dtype), (start * strides[axis], 0))
        chain = Chain(op, shapes, place)
        found += chain.finished(chain.kernel(f"copied_{base.moved(dtype)}", op.inputs, out, block))
        start += out[axis]
    return tuple(found)


def _split_form(node: Node, _: Beside) -> Node:
    """Every part has a name: without one it would be lost which of them the others are."""
    for place, name in enumerate(node.output):
        node.output[place] = name or f"{node.name}:part_{place}"
    return node


def _cuts(op: Operator) -> tuple[tuple[int, ...], ...]:
    """Starts, ends, axes and steps of a `Slice`."""
    starts = op.integers("starts", ())
    axes, steps = op.integers("axes", tuple(range(len(starts)))), op.integers("steps", (1,) * len(starts))
    return starts, op.integers("ends", ()), axes, steps


def slice_ranges(graph: Graph, op: Operator) -> dict[int, range]:
    """Return places of each axis that a `Slice` takes, of those that it cuts."""
    shape, found = graph.shape(op.inputs[0]), dict[int, range]()
    for start, end, axis, step in zip(*_cuts(op), strict=True):
        size = shape[axis]
        found[axis % len(shape)] = range(*slice(start, None if step < 0 and end < -size else end, step).indices(size))
    return {axis: places for axis, places in found.items() if places != range(shape[axis])}


def _check_slice(graph: Graph, op: Operator) -> Problem:
    rank, (starts, ends, axes, steps) = len(graph.shape(op.inputs[0])), _cuts(op)
    if not len(starts) == len(ends) == len(axes) == len(steps) or not all(-rank <= axis < rank for axis in axes):
        return f"from {starts} to {ends} along {axes} of {rank} axes", AGAIN
    return None if all(steps) else ("by steps of 0", AGAIN)


def _slice(graph: Graph, op: Operator, shapes: dict[str, Shape]) -> tuple[Part, ...]:
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


#: Which place each place of a padded axis holds, by mode; -1: none.
_PLACES: Mapping[str, Callable[[int, int, int], tuple[int, ...]]] = {
    "constant": lambda size, before, after: tuple(i if 0 <= i < size else -1 for i in range(-before, size + after)),
    "edge": lambda size, before, after: tuple(int(i) for i in np.clip(np.arange(-before, size + after), 0, size - 1)),
    "reflect": lambda size, before, after: tuple(
        int(i) for i in abs((np.arange(-before, size + after) - (size - 1)) % max(1, 2 * size - 2) - (size - 1))
    ),
    "wrap": lambda size, before, after: tuple(int(i) for i in np.arange(-before, size + after) % size),
}


def _pad(graph: Graph, op: Operator, shapes: dict[str, Shape]) -> tuple[Part, ...]:
    chain, tensor, mode = Chain(op, shapes), op.inputs[0], str(op.attributes.get("mode", "constant"))
    pads, rank, dtype = op.integers("pads", ()), len(shapes[op.inputs[0]]), _type(graph, op)
    axes = op.integers("axes", tuple(range(rank)))
    fill = base.bits(_padding(op), dtype) if mode == "constant" else 0
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
    axis = base.axis_of(op, len(shape), 0)
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
    return chain.finished(chain.kernel(f"copied_{base.moved(dtype)}", op.inputs, out, block))


def _check_repeat(graph: Graph, op: Operator) -> Problem:
    before, after = graph.shape(op.inputs[0]), graph.shape(op.outputs[0])
    raised = (1,) * (len(after) - len(before)) + before
    fits = len(raised) == len(after) and all(a % b == 0 for a, b in zip(after, raised, strict=True))
    return None if fits else (f"of {before} to {after}", AGAIN)


def _by_blocks(_graph: Graph, op: Operator, shapes: dict[str, Shape]) -> tuple[Part, ...]:
    """Between depth and space."""
    chain, (n, c, h, w), b = Chain(op, shapes), shapes[op.inputs[0]], op.integer("blocksize", 1)
    column_first = op.attributes.get("mode", "DCR") == "CRD"
    if op.op_type == "DepthToSpace":
        parted = (n, c // b**2, b, b, h, w) if column_first else (n, b, b, c // b**2, h, w)
        order = (0, 1, 4, 2, 5, 3) if column_first else (0, 3, 4, 1, 5, 2)
    else:
        parted, order = (n, c, h // b, b, w // b, b), (0, 1, 3, 5, 2, 4) if column_first else (0, 3, 5, 1, 2, 4)
    return chain.finished(chain.transposed(chain.reshaped(op.inputs[0], parted), order))


def _check_blocks(graph: Graph, op: Operator) -> Problem:
    before, after, b = graph.shape(op.inputs[0]), graph.shape(op.outputs[0]), op.integer("blocksize", 0)
    same = len(before) == len(after) == 4 and b > 0 and math.prod(before) == math.prod(after)  # images
    return None if same else (f"of {before} by blocks of {b}", AGAIN)


_INDICES = frozenset({"indices"})


def _copy(
    name: str, lower: base.Lowerer, constants: tuple[str, ...] = (), check: base.Check | None = None, **more: Any
) -> OperatorSpec:
    return OperatorSpec((name,), name.lower(), lower, (), base.COPY, constants, check=check, **more)


_MOST_AXES = 10  # a permutation is written with one digit for each axis


def _check_reshape(graph: Graph, op: Operator) -> Problem:
    before, after = graph.tensors[op.inputs[0]], graph.tensors[op.outputs[0]]
    return None if before.elements == after.elements else (f"of {before.shape} to {after.shape}", AGAIN)


def _order(graph: Graph, op: Operator) -> tuple[int, ...]:
    return op.integers("perm", tuple(reversed(range(len(graph.shape(op.inputs[0]))))))


def _check_transpose(graph: Graph, op: Operator) -> Problem:
    permutation, rank = _order(graph, op), len(graph.shape(op.inputs[0]))
    if sorted(permutation) != list(range(rank)):
        return f"of {rank} axes by {permutation}", AGAIN
    return None if rank <= _MOST_AXES else (f"of {rank} axes: known are up to {_MOST_AXES}", "join axes before it")


def _reshape(_graph: Graph, op: Operator, _shapes: dict[str, Shape]) -> tuple[Part, ...]:
    return (part(op, "reshape", (), {}),)


def _shape(name: str, role: str = "") -> OperatorSpec:
    constants = ("", role) if role else ()
    return OperatorSpec((name,), "reshape", _reshape, (), base.NONE, constants, check=_check_reshape, elements=base.ANY)


_MATRIX = _OUTPUTS = 2
_REDUCTIONS = ("none", "add", "mul", "max", "min")


def _check_top(graph: Graph, op: Operator) -> Problem:
    shape, counts, axis = graph.shape(op.inputs[0]), op.integers("K", ()), op.integer("axis", -1)
    fits = -len(shape) <= axis < len(shape) and len(op.outputs) == _OUTPUTS
    fits = fits and len(counts) == 1 and 0 < counts[0] <= shape[axis]
    return None if fits else (f"of {counts} along axis {axis} of {shape}", AGAIN)


def _top(graph: Graph, op: Operator, shapes: dict[str, Shape]) -> tuple[Part, ...]:
    """Sort the best first, whether that is asked for or not; of equal ones the first."""
    shape, dtype = shapes[op.inputs[0]], graph.tensors[op.inputs[0]].dtype
    block = blocks.selected(shape, base.axis_of(op, len(shape), -1), op.integers("K", ())[0], dtype)
    return (base.kernel_part(op, f"{'highest' if op.integer('largest', 1) else 'lowest'}_{dtype}", block),)


def _check_triangle(graph: Graph, op: Operator) -> Problem:
    rank, diagonals = len(graph.shape(op.inputs[0])), op.integers("k", (0,))
    fits = rank >= _MATRIX and len(diagonals) == 1
    return None if fits else (f"of {rank} axes, of diagonals {diagonals}", AGAIN)


def _triangle(graph: Graph, op: Operator, shapes: dict[str, Shape]) -> tuple[Part, ...]:
    shape, dtype = shapes[op.inputs[0]], graph.tensors[op.inputs[0]].dtype
    chain, upper = Chain(op, shapes), op.integer("upper", 1)
    diagonal, most = op.integers("k", (0,))[0], shape[-2] + shape[-1]
    diagonal = min(max(diagonal, -most), most) + (not upper)
    table: dict[str, Setting] = {"form": "triangle", "rows": shape[-2], "columns": shape[-1], "diagonal": diagonal}
    kernel = f"{'upper' if upper else 'lower'}_{base.moved(dtype)}"
    return chain.finished(chain.kernel(kernel, op.inputs, shape, blocks.triangle(shape, dtype), table))


def _check_elements(graph: Graph, op: Operator) -> Problem:
    shape, indices = (graph.shape(name) for name in op.operands[:2])
    axis = op.integer("axis", 0)
    fits = -len(shape) <= axis < len(shape) == len(indices)
    fits = fits and all(indices[place] <= shape[place] for place in range(len(shape)) if place != axis % len(shape))
    return None if fits else (f"along axis {axis} of {shape} by indices {indices}", AGAIN)


def _elements(graph: Graph, op: Operator, _shapes: dict[str, Shape]) -> tuple[Part, ...]:
    (data, indices), axis = (graph.tensors[name] for name in op.operands), op.integer("axis", 0)
    axis %= len(data.shape)
    block = blocks.gathered_elements(data.shape, axis, indices.shape, (data.dtype, indices.dtype))
    return (_by_indices(op, f"{GATHERED}elements_{indices.dtype}_{base.moved(data.dtype)}", block, data.shape[axis:], 1),)


def _check_slices(graph: Graph, op: Operator) -> Problem:
    shape, indices = (graph.shape(name) for name in op.operands[:2])
    batch = op.integer("batch_dims", 0)
    fits = 0 <= batch < min(len(shape), len(indices)) and shape[:batch] == indices[:batch]
    fits = fits and 1 <= indices[-1] <= len(shape) - batch
    return None if fits else (f"of {shape} by indices {indices}, {batch} axes of both being the same", AGAIN)


def _slices(graph: Graph, op: Operator, _shapes: dict[str, Shape]) -> tuple[Part, ...]:
    (data, indices), batch = (graph.tensors[name] for name in op.operands), op.integer("batch_dims", 0)
    block = blocks.gathered_slices(data.shape, batch, indices.shape, (data.dtype, indices.dtype))
    kernel = f"{GATHERED}slices_{indices.dtype}_{base.moved(data.dtype)}"
    return (_by_indices(op, kernel, block, data.shape[batch:], indices.shape[-1]),)


def _reduction(op: Operator) -> str:
    return str(op.attributes.get("reduction", "none"))


def _check_reduction(graph: Graph, op: Operator) -> Problem:
    """A reduction brings numbers together that go to one place; without one, elements of any type are moved."""
    word, dtype = _reduction(op), graph.tensors[op.outputs[0]].dtype
    if word not in _REDUCTIONS:
        return f"by the unknown reduction {word!r}", f"known are {', '.join(_REDUCTIONS)}"
    return None if word == "none" or dtype in base.NUMBERS else (f"of {dtype} by the reduction {word}", base.ELSEWHERE)


def _check_scattered_elements(graph: Graph, op: Operator) -> Problem:
    indices, updates = (graph.shape(name) for name in op.operands[1:])
    same = None if indices == updates else (f"of {updates} by indices {indices}", AGAIN)
    return _check_elements(graph, op) or same or _check_reduction(graph, op)


def _check_scattered_slices(graph: Graph, op: Operator) -> Problem:
    shape, indices, updates = (graph.shape(name) for name in op.operands)
    fits = bool(indices) and 1 <= indices[-1] <= len(shape) and updates == (*indices[:-1], *shape[indices[-1] :])
    return _check_reduction(graph, op) if fits else (f"of {updates} to {shape} by indices {indices}", AGAIN)


def _scattered(kernel: str, op: Operator, indices: str, dtype: str) -> str:
    word = _reduction(op)
    return f"{SCATTERED}{kernel}_" + (f"{indices}_{base.moved(dtype)}" if word == "none" else f"{word}_{indices}_{dtype}")


def _scattered_elements(graph: Graph, op: Operator, _shapes: dict[str, Shape]) -> tuple[Part, ...]:
    data, indices = (graph.tensors[name] for name in op.operands[:2])
    axis = op.integer("axis", 0) % len(data.shape)
    block = blocks.scattered_elements(data.shape, axis, indices.shape, (data.dtype, indices.dtype))
    return (_by_indices(op, _scattered("elements", op, indices.dtype, data.dtype), block, data.shape[axis:], 1),)


def _scattered_slices(graph: Graph, op: Operator, _shapes: dict[str, Shape]) -> tuple[Part, ...]:
    data, indices = (graph.tensors[name] for name in op.operands[:2])
    block = blocks.scattered_slices(data.shape, indices.shape, (data.dtype, indices.dtype))
    return (_by_indices(op, _scattered("slices", op, indices.dtype, data.dtype), block, data.shape, indices.shape[-1]),)


def _by_indices(op: Operator, kernel: str, block: tuple[int, ...], shape: Shape, depth: int) -> Part:
    """Return a kernel that is told the first axes of a shape, which are indexed."""
    axes = [number for pair in zip(shape[:depth], blocks.dense(shape), strict=False) for number in pair]
    return base.kernel_part(op, kernel, block, {"form": "axes", "axes": (depth, *axes)})


SPECS = (
    _copy("Concat", _concat, ordered=True, elements=base.ANY),
    _copy("Split", _split, ("", "split"), form=_split_form, elements=base.ANY),
    _copy("Slice", _slice, ("", "starts", "ends", "axes", "steps"), _check_slice),
    _copy("Pad", _pad, ("", "pads", "constant_value", "axes"), _check_pad, elements=base.ANY),
    _copy("Gather", _gather, ("", "indices"), _check_gather, ordered=True, computed=_INDICES, elements=base.ANY),
    _copy("Expand", _repeat, ("", "shape"), _check_repeat),
    _copy("Tile", _repeat, ("", "repeats"), _check_repeat, elements=base.ANY),
    _copy("DepthToSpace", _by_blocks, check=_check_blocks),
    _copy("SpaceToDepth", _by_blocks, check=_check_blocks),
    _shape("Flatten"),
    _shape("Reshape", "shape"),
    _shape("Squeeze", "axes"),
    _shape("Unsqueeze", "axes"),
    OperatorSpec(
        ("Transpose",), "transpose", lambda graph, op, _: (part(op, "transpose", (), {"permutation": _order(graph, op)}),), (),
        base.COPY, check=_check_transpose,
    ),
    OperatorSpec(("TopK",), "topk", _top, (), base.COPY, ("", "K"), 10, check=_check_top, elements=base.NUMBERS),
    OperatorSpec(("Trilu",), "trilu", _triangle, (), base.COPY, ("", "k"), check=_check_triangle, elements=base.ANY),
    *(
        OperatorSpec(types, types[0].lower(), lower, (), base.COPY, ordered=True, check=check, elements=base.ANY)
        for types, lower, check in (
            (("GatherElements",), _elements, _check_elements), (("GatherND",), _slices, _check_slices),
            (("ScatterElements", "Scatter"), _scattered_elements, _check_scattered_elements),
            (("ScatterND",), _scattered_slices, _check_scattered_slices),
        )
    ),
)  # fmt: skip
