"""These operators select elements of an axis, or of a matrix, by order or by place."""

from __future__ import annotations

from edgeplan.graph import blocks
from edgeplan.graph.ir import Graph, Operator, Shape
from edgeplan.graph.operators.base import AGAIN, ANY, COPY, ELSEWHERE, NUMBERS, OperatorSpec, Problem, axis_of
from edgeplan.graph.parts import Chain, Part, moved, part
from edgeplan.graph.steps import GATHERED, SCATTERED, Setting

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
    block = blocks.selected(shape, axis_of(op, len(shape), -1), op.integers("K", ())[0], dtype)
    kernel = "highest" if op.integer("largest", 1) else "lowest"
    return (part(op, "compiled", (), {"kernel": f"{kernel}_{dtype}", "block": block}),)


def _check_triangle(graph: Graph, op: Operator) -> Problem:
    rank, diagonals = len(graph.shape(op.inputs[0])), op.integers("k", (0,))
    fits = rank >= _MATRIX and len(diagonals) == 1
    return None if fits else (f"of {rank} axes, of diagonals {diagonals}", AGAIN)


def _triangle(graph: Graph, op: Operator, shapes: dict[str, Shape]) -> tuple[Part, ...]:
    """Keep one side of a diagonal, and write zeros elsewhere."""
    shape, dtype = shapes[op.inputs[0]], graph.tensors[op.inputs[0]].dtype
    chain, upper = Chain(op, shapes), op.integer("upper", 1)
    diagonal, most = op.integers("k", (0,))[0], shape[-2] + shape[-1]
    diagonal = min(max(diagonal, -most), most) + (not upper)
    table: dict[str, Setting] = {"form": "triangle", "rows": shape[-2], "columns": shape[-1], "diagonal": diagonal}
    kernel = f"{'upper' if upper else 'lower'}_{moved(dtype)}"
    return chain.finished(chain.kernel(kernel, op.inputs, shape, blocks.triangle(shape, dtype), table))


def _check_elements(graph: Graph, op: Operator) -> Problem:
    shape, indices = (graph.shape(name) for name in op.operands[:2])
    axis = op.integer("axis", 0)
    if not -len(shape) <= axis < len(shape) == len(indices):
        return f"along axis {axis} of {shape} by indices {indices}", AGAIN
    others = [place for place in range(len(shape)) if place != axis % len(shape)]
    fits = all(indices[place] <= shape[place] for place in others)
    return None if fits else (f"along axis {axis} of {shape} by indices {indices}", AGAIN)


def _elements(graph: Graph, op: Operator, _shapes: dict[str, Shape]) -> tuple[Part, ...]:
    """Copy an element for each index."""
    (data, indices), axis = (graph.tensors[name] for name in op.operands), op.integer("axis", 0)
    axis %= len(data.shape)
    block = blocks.gathered_elements(data.shape, axis, indices.shape, (data.dtype, indices.dtype))
    return (_by_indices(op, f"{GATHERED}elements_{indices.dtype}_{moved(data.dtype)}", block, data.shape[axis:], 1),)


def _check_slices(graph: Graph, op: Operator) -> Problem:
    shape, indices = (graph.shape(name) for name in op.operands[:2])
    batch = op.integer("batch_dims", 0)
    fits = 0 <= batch < min(len(shape), len(indices)) and shape[:batch] == indices[:batch]
    fits = fits and 1 <= indices[-1] <= len(shape) - batch
    return None if fits else (f"of {shape} by indices {indices}, {batch} axes of both being the same", AGAIN)


def _slices(graph: Graph, op: Operator, _shapes: dict[str, Shape]) -> tuple[Part, ...]:
    """Copy a slice for each row of indices."""
    (data, indices), batch = (graph.tensors[name] for name in op.operands), op.integer("batch_dims", 0)
    block = blocks.gathered_slices(data.shape, batch, indices.shape, (data.dtype, indices.dtype))
    return (
        _by_indices(op, f"{GATHERED}slices_{indices.dtype}_{moved(data.dtype)}", block, data.shape[batch:], indices.shape[-1]),
    )


def _reduction(op: Operator) -> str:
    return str(op.attributes.get("reduction", "none"))


def _check_reduction(graph: Graph, op: Operator) -> Problem:
    """A reduction brings numbers together that go to one place; without one, elements of any type are moved."""
    word, dtype = _reduction(op), graph.tensors[op.outputs[0]].dtype
    if word not in _REDUCTIONS:
        return f"by the unknown reduction {word!r}", f"known are {', '.join(_REDUCTIONS)}"
    return None if word == "none" or dtype in NUMBERS else (f"of {dtype} by the reduction {word}", ELSEWHERE)


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
    return (
        f"{SCATTERED}{kernel}_{indices}_{moved(dtype)}" if word == "none" else f"{SCATTERED}{kernel}_{word}_{indices}_{dtype}"
    )


def _scattered_elements(graph: Graph, op: Operator, _shapes: dict[str, Shape]) -> tuple[Part, ...]:
    """Copy the data, and write an element for each index."""
    data, indices = (graph.tensors[name] for name in op.operands[:2])
    axis = op.integer("axis", 0) % len(data.shape)
    block = blocks.scattered_elements(data.shape, axis, indices.shape, (data.dtype, indices.dtype))
    return (_by_indices(op, _scattered("elements", op, indices.dtype, data.dtype), block, data.shape[axis:], 1),)


def _scattered_slices(graph: Graph, op: Operator, _shapes: dict[str, Shape]) -> tuple[Part, ...]:
    """Copy the data, and write a slice for each row of indices."""
    data, indices = (graph.tensors[name] for name in op.operands[:2])
    block = blocks.scattered_slices(data.shape, indices.shape, (data.dtype, indices.dtype))
    return (_by_indices(op, _scattered("slices", op, indices.dtype, data.dtype), block, data.shape, indices.shape[-1]),)


def _by_indices(op: Operator, kernel: str, block: tuple[int, ...], shape: Shape, depth: int) -> Part:
    """Return a kernel that is told the first axes of a shape, which are indexed."""
    axes = [number for pair in zip(shape[:depth], blocks.dense(shape), strict=False) for number in pair]
    settings: dict[str, Setting] = {
        "kernel": kernel, "block": block, "form": "axes", "axes": (depth, *axes),
    }  # fmt: skip
    weights = {f"operand_{place}": name for place, name in enumerate(op.operands) if name in op.weights}
    return Part(op.name, "compiled", [op.name], list(op.inputs), list(op.outputs), weights, settings)


SPECS = (
    OperatorSpec(
        ("TopK",), "topk", _top, (), COPY, ("", "K"), frozenset({"K"}), 10,
        moves=True, check=_check_top, elements=NUMBERS,
    ),
    OperatorSpec(
        ("Trilu",), "trilu", _triangle, (), COPY, ("", "k"), frozenset({"k"}),
        moves=True, check=_check_triangle, elements=ANY,
    ),
    OperatorSpec(
        ("GatherElements",), "gatherelements", _elements, (), COPY,
        ordered=True, moves=True, check=_check_elements, elements=ANY,
    ),
    OperatorSpec(
        ("GatherND",), "gathernd", _slices, (), COPY,
        ordered=True, moves=True, check=_check_slices, elements=ANY,
    ),
    OperatorSpec(
        ("ScatterElements", "Scatter"), "scatterelements", _scattered_elements, (), COPY,
        ordered=True, moves=True,
        check=_check_scattered_elements, elements=ANY,
    ),
    OperatorSpec(
        ("ScatterND",), "scatternd", _scattered_slices, (), COPY,
        ordered=True, moves=True, check=_check_scattered_slices, elements=ANY,
    ),
)  # fmt: skip
