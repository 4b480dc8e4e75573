"""Steps that are computed in eight bits: layers and what lies between them, from bytes to bytes that stand for numbers.

A step takes the place of DequantizeLinear, the operator, activations behind it and QuantizeLinear, and reads and writes the
bytes. Convolutions and fully connected layers are the library's: their weights are int8 without zero points, one scale for each
channel or for all (`graph.onnx.stored`); it sums up products of bytes exactly in 32 bits, multiplies by the scales, adds the
bias and rounds once, half-way cases to even. The largest number of a window is that of the largest byte, so MaxPool is computed
before numbers are made of what it reads. Sums, products, means and joins are compiled kernels, and what depends on one byte
alone, however many operators compute it, is a table of all bytes (`runtime.transform`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import NamedTuple

from edgeplan.graph import blocks
from edgeplan.graph.ir import Graph, Operator, Shape, StoredWeight, Tensor
from edgeplan.graph.operators.base import BYTES, INNER, Part
from edgeplan.graph.operators.compiled import compiled, lacks_kernel
from edgeplan.graph.operators.elementwise import FLOAT_MAX, activation
from edgeplan.graph.operators.registry import SPECS
from edgeplan.graph.shapes import FLOAT32, free
from edgeplan.graph.steps import INT8_CONV, INT8_FC, INT8_LINE, INT8_POOL, PostOp, Setting
from edgeplan.runtime.transform import OF_TWO, TABLED

_LAYERS = {"Conv": INT8_CONV, "Gemm": INT8_FC, "MatMul": INT8_FC}
#: Axes of the activations of convolutions whose kernels the library generates for bytes.
_IMAGE_RANK = 4
_CHANNELS_LAST = (0, 2, 3, 1)
#: Axes beside its rows that a kernel of two operands goes over.
_MOST_AXES = 2
_MOST_TERMS = 64  # of a table: the same byte may come in by many ways


class ByteStep(NamedTuple):
    """A byte step is what an operator and its neighbours become.

    `post_ops` are between its bias and its rounding, `numbers` the operators that make numbers of the bytes that it reads; it
    runs at the place of the last operator. A step `behind` follows on what the first one writes for that (`inner`), if that is
    not all.
    """

    part: Part
    post_ops: list[PostOp]
    numbers: tuple[Operator, ...]
    last: Operator
    behind: Part | None = None
    inner: Tensor | None = None


def byte_steps(graph: Graph, shapes: Mapping[str, Shape]) -> tuple[Mapping[str, ByteStep], frozenset[str]]:
    """Return the steps of a graph that can be computed in eight bits, by their last operator, and all operators that they run.

    Operators that make numbers of bytes for others, too, are not among the latter.
    """
    taken, steps = set[str](), list[ByteStep]()
    lines = _Lines(graph, shapes, taken)
    for find in (
        lambda op: _byte_step(graph, shapes, op),
        lines.table,
        lambda op: _largest_bytes(graph, shapes, op),
        lines.line,
    ):
        for op in reversed(graph.operators):
            found = None if op.name in taken else find(op)
            if found is not None:
                steps.append(found)
                taken |= {*found.part.members}
    place = {op.name: number for number, op in enumerate(graph.operators)}
    for step in sorted(steps, key=lambda one: place[one.last.name]):
        for made in step.numbers:
            readers = graph.consumers[made.outputs[0]]
            if made.name not in taken and made.outputs[0] not in graph.outputs and all(op.name in taken for op in readers):
                step.part.members.insert(0, made.name)  # the first that reads the numbers stands for it
                taken.add(made.name)
    return {step.last.name: step for step in steps}, frozenset(taken)


class _Term(NamedTuple):
    """A term is a part of what a table holds: an operation in reverse Polish notation, and the operator that it stands for."""

    text: str
    op: Operator


class _Lines:
    """Steps from bytes to bytes by compiled kernels are looked for among the operators that no other step has `taken`."""

    def __init__(self, graph: Graph, shapes: Mapping[str, Shape], taken: set[str]) -> None:
        self._graph, self._shapes, self._taken = graph, shapes, taken

    def table(self, op: Operator) -> ByteStep | None:
        """Return a table of what is rounded at last, if that follows from one byte alone."""
        if not is_by_one_scale(self._graph, op, "QuantizeLinear"):
            return None
        for through in (True, False):
            terms = list(self._terms(op.inputs[0], through=through) or ())
            sources = {term.op.name: term.op for term in terms if term.text == "x"}
            inside = {term.op.name for term in terms} - sources.keys()
            if len(sources) == 1 and self._private(inside, op) and not inside & self._taken:
                return self._tabled(op, terms, next(iter(sources.values())))
        return None

    def _private(self, inside: set[str], last: Operator) -> bool:
        """Tell whether nothing else reads what some operators write."""
        graph, known = self._graph, {*inside, last.name}
        written = [output for name in inside for output in graph.by_name[name].outputs]
        return all(
            output not in graph.outputs and all(op.name in known for op in graph.consumers.get(output, ()))
            for output in written
        )

    def _terms(self, tensor: str, *, through: bool, most: int = _MOST_TERMS) -> list[_Term] | None:
        """Return what makes a tensor of a byte in at most so many terms, or None; beyond rounding in between, if so wanted."""
        graph = self._graph
        op = graph.producer.get(tensor)
        if op is None or not most:
            return None
        if is_by_one_scale(graph, op, "DequantizeLinear"):
            return (self._terms_before(op, most - 1) if through else None) or [_Term("x", op)]
        if op.op_type.lower() in OF_TWO and len(op.inputs) == len(op.operands) == len(("a", "b")):
            return self._terms_of_two(op, through=through, most=most)
        post = activation(op) if compiled(graph, op) is None else None
        tabled = post is not None and post.algorithm in TABLED
        found = self._terms(op.inputs[0], through=through, most=most - 1) if tabled else None
        if found is None or post is None:
            return None
        return [*found, _Term(f"{post.algorithm},{post.alpha!r},{post.beta!r}", op)]

    def _terms_of_two(self, op: Operator, *, through: bool, most: int) -> list[_Term] | None:
        sides = list[_Term]()
        for name in op.operands:
            side = self._terms(name, through=through, most=max(0, most - 1 - len(sides)))
            if not side or self._shapes[name] != self._shapes[op.operands[0]]:
                return None
            sides += side
        return [*sides, _Term(op.op_type.lower(), op)] if len(sides) < most else None

    def _terms_before(self, op: Operator, most: int) -> list[_Term] | None:
        """Return what makes the bytes that numbers are made of, where they are rounded of others for these alone."""
        before = self._graph.producer.get(op.inputs[0])
        if before is None or before.name in self._taken or not is_by_one_scale(self._graph, before, "QuantizeLinear"):
            return None
        alone = before.weights == op.weights and self._private({before.name}, op)
        found = self._terms(before.inputs[0], through=True, most=max(0, most - 2)) if alone else None
        return found and [*found, _Term("round", before), _Term("", op)]

    def _tabled(self, last: Operator, terms: list[_Term], numbers: Operator) -> ByteStep:
        members = [op.name for op in self._graph.operators if op.name in {t.op.name for t in terms} - {numbers.name}]
        weights, texts, rounded = _scaling("0", numbers), list[str](), 0
        for term in terms:
            if term.text == "round":
                weights |= _scaling(f"between_{rounded}", term.op)
                texts.append(f"round,between_{rounded}")
                rounded += 1
            elif term.text:
                texts.append(term.text)
        settings: dict[str, Setting] = {"form": "table", "terms": " ".join(texts)}
        weights |= _scaling("written", last)
        part = Part(last.name, INT8_LINE, [*members, last.name], list(numbers.inputs), list(last.outputs), weights, settings)
        return ByteStep(part, [], (numbers,), last)

    def line(self, op: Operator) -> ByteStep | None:
        """Return the sum, product, mean or join of bytes that an operator is, with bounds behind it."""
        settings = self._form(op)
        numbers = [self._graph.producer.get(name) for name in op.inputs]
        made = [one for one in numbers if one is not None and is_by_one_scale(self._graph, one, "DequantizeLinear")]
        if settings is None or op.weights or len(made) < len(op.inputs):
            return None
        behind, posts = _activations(self._graph, op)
        bounds = [_bounds(post) for post in posts]
        last = _only_reader(self._graph, behind[-1] if behind else op)
        if last is None or None in bounds or not is_by_one_scale(self._graph, last, "QuantizeLinear"):
            return None
        if settings["form"] in ("add", "mul") and self._shapes[op.inputs[0]] != self._shapes[op.outputs[0]]:
            made.reverse()  # the one that is broadcast comes second
        low, high = -FLOAT_MAX, FLOAT_MAX
        for bound in bounds:
            low, high = (min(max(value, bound[0]), bound[1]) for value in (low, high)) if bound is not None else (low, high)
        settings |= {"sources": len(made), "low": low, "high": high}
        weights = {role: name for place, one in enumerate(made) for role, name in _scaling(str(place), one).items()}
        members = [op.name, *(follower.name for follower in behind), last.name]
        reads, weights = [one.inputs[0] for one in made], weights | _scaling("written", last)
        part = Part(op.name, INT8_LINE, members, reads, list(last.outputs), weights, settings)
        return ByteStep(part, [], tuple({one.name: one for one in made}.values()), last)

    def _form(self, op: Operator) -> dict[str, Setting] | None:
        shapes, out = [self._shapes[name] for name in op.inputs], self._shapes[op.outputs[0]]
        if op.op_type == "Concat":
            return {"form": "concat", "axis": op.integer("axis", 1) % len(out)}
        if op.op_type in ("Add", "Sub", "Mul") and len(shapes) == len(op.operands) and _is_walked(shapes, out):
            turned = shapes[0] != out
            if not (turned and op.op_type == "Sub"):
                return {"form": "mul"} if op.op_type == "Mul" else {"form": "add", "sign": -1 if op.op_type == "Sub" else 1}
        if op.op_type in ("GlobalAveragePool", "ReduceMean"):
            rank = len(shapes[0])
            axes = op.integers("axes", ()) if op.op_type == "ReduceMean" else tuple(range(2, rank))
            places = sorted(axis % rank for axis in axes)
            beside = places and places == list(range(places[0], places[-1] + 1))
            # images may lie with channels last: their means are those of images, and no mean of something else is one
            if beside and (places == [2, 3] if rank == _IMAGE_RANK else len(out) != _IMAGE_RANK):
                size = math.prod(shapes[0][axis] for axis in places)
                return {"form": "mean", "size": size, "after": math.prod(shapes[0][places[-1] + 1 :])}
        return None


def _is_walked(shapes: Sequence[Shape], out: Shape) -> bool:
    """Tell whether a kernel can go over two operands, of which one has the shape of the output, in any order of axes."""
    if out not in shapes:
        return False
    raised = [(1,) * (len(out) - len(shape)) + shape for shape in shapes]
    orders = [tuple(range(len(out))), *([_CHANNELS_LAST] if len(out) == _IMAGE_RANK else [])]
    if len(out) == _IMAGE_RANK and any(len(shape) != len(out) for shape in shapes):
        return False  # the axes of both are turned
    walked = [blocks.paired(*_turned(out, raised, order), 1)[blocks.AT_RANK] for order in orders]
    return max(walked) <= _MOST_AXES


def _turned(out: Shape, shapes: Sequence[Shape], order: tuple[int, ...]) -> tuple[Shape, list[Shape]]:
    return tuple(out[axis] for axis in order), [tuple(shape[axis] for axis in order) for shape in shapes]


def _bounds(post: PostOp) -> tuple[float, float] | None:
    """Return the least and largest number that an activation leaves as they are between them; None of others."""
    if post.algorithm == "relu" and post.alpha == 0:
        return 0.0, FLOAT_MAX
    return (post.alpha, post.beta) if post.algorithm == "clip" else None


def _scaling(name: str, op: Operator) -> dict[str, str]:
    return dict(zip((f"scale_{name}", f"zero_{name}"), op.weights, strict=True))


def _byte_step(graph: Graph, shapes: Mapping[str, Shape], op: Operator) -> ByteStep | None:
    kind = _LAYERS.get(op.op_type, "")
    stored = graph.stored.get(op.weights[0]) if kind and op.weights and len(op.inputs) == 1 else None
    flat = _flattened(graph, op)
    numbers = graph.producer.get((flat or op).inputs[0]) if op.inputs else None
    if stored is None or stored.scale is None or numbers is None or not is_by_one_scale(graph, numbers, "DequantizeLinear"):
        return None
    part, *more = SPECS[op.op_type].lower(graph, op, dict(shapes))
    if more or not _fits(shapes, kind, part, stored):
        return None
    behind, posts = _activations(graph, op)
    members = [*([flat.name] if flat else []), op.name, *(follower.name for follower in behind)]
    last = behind[-1] if behind else op
    weights = {"weight": stored.values.name, "weight_scale": stored.scale.name}
    weights |= {"bias": part.weights["bias"]} if "bias" in part.weights else {}
    weights |= dict(zip(("source_scale", "source_zero"), numbers.weights, strict=True))
    rounded = _only_reader(graph, last)
    if rounded is not None and is_by_one_scale(graph, rounded, "QuantizeLinear"):
        weights |= dict(zip(("written_scale", "written_zero"), rounded.weights, strict=True))
        last = rounded
        members.append(last.name)
    settings: dict[str, Setting] = {key: value for key, value in part.settings.items() if key not in ("alpha", "beta")}
    found = Part(op.name, kind, members, [numbers.inputs[0]], [last.outputs[0]], weights, settings)
    return ByteStep(found, posts, (numbers,), last)


def _largest_bytes(graph: Graph, shapes: Mapping[str, Shape], op: Operator) -> ByteStep | None:
    """Return a pool of the largest bytes, written as bytes where they are rounded by the scale that they were read by."""
    numbers = graph.producer.get(op.inputs[0]) if op.op_type == "MaxPool" and len(op.outputs) == 1 else None
    if numbers is None or not is_by_one_scale(graph, numbers, "DequantizeLinear"):
        return None
    (part,), (given,) = SPECS[op.op_type].lower(graph, op, dict(shapes)), numbers.inputs
    if len(shapes[given]) != _IMAGE_RANK or graph.tensors[given].dtype not in BYTES:
        return None
    rounded = _only_reader(graph, op)
    if rounded is not None and not is_by_one_scale(graph, rounded, "QuantizeLinear"):
        rounded = None
    if rounded is not None and rounded.weights == numbers.weights:
        whole = Part(op.name, INT8_POOL, [op.name, rounded.name], [given], list(rounded.outputs), {}, part.settings)
        return ByteStep(whole, [], (numbers,), rounded)
    name = free(f"{op.outputs[0]}{INNER}bytes", shapes)
    inner = Tensor(name, shapes[op.outputs[0]], graph.tensors[given].dtype)
    first = Part(op.name, INT8_POOL, [op.name], [given], [inner.name], {}, part.settings)
    if rounded is not None:
        first.members.append(rounded.name)
        scales = _scaling("0", numbers) | _scaling("written", rounded)
        own: dict[str, Setting] = {"form": "table", "terms": "x"}
        again = Part(f"{op.name}:bytes", INT8_LINE, [], [inner.name], list(rounded.outputs), scales, own)
        return ByteStep(first, [], (numbers,), rounded, again, inner)
    operands: list[tuple[Shape, str]] = [(inner.shape, inner.dtype), ((), FLOAT32), ((), inner.dtype)]
    settings: dict[str, Setting] = {
        "kernel": f"dequantised_{inner.dtype}",
        "block": blocks.element_wise(inner.shape, operands, FLOAT32),
    }
    weights = dict(zip(("operand_1", "operand_2"), numbers.weights, strict=True))
    behind = Part(f"{op.name}:numbers", "compiled", [], [inner.name], list(op.outputs), weights, settings)
    return ByteStep(first, [], (numbers,), op, behind, inner)


def _flattened(graph: Graph, op: Operator) -> Operator | None:
    """Return the reshape that only joins the axes of an image behind its first for a layer, which alone reads that."""
    made = graph.producer.get(op.inputs[0]) if op.inputs and op.op_type != "Conv" else None
    if (
        made is None
        or made.op_type not in ("Flatten", "Reshape")
        or len(made.inputs) != 1
        or _only_reader(graph, made) is not op
    ):
        return None
    before, after = graph.shape(made.inputs[0]), graph.shape(made.outputs[0])
    return made if before and after == (before[0], math.prod(before[1:])) else None


def _fits(shapes: Mapping[str, Shape], kind: str, part: Part, stored: StoredWeight) -> bool:
    """Tell whether the library computes a layer in eight bits: of images or rows, scales along its channels."""
    if kind == INT8_CONV:
        channels, fits = 0, len(shapes[part.inputs[0]]) == _IMAGE_RANK
    else:
        channels = 0 if part.settings.get("transposed") else 1
        plain = part.settings.get("alpha") == 1 and (part.settings.get("beta") == 1 or "bias" not in part.weights)
        fits = part.kind == "fc" and plain
    return fits and stored.scale is not None and (math.prod(stored.scale.shape) == 1 or stored.axis == channels)


def _only_reader(graph: Graph, op: Operator) -> Operator | None:
    """Return the operator that alone reads what another writes, and reads nothing else that is computed."""
    readers: Sequence[Operator] = graph.consumers.get(op.outputs[0], ())
    if len(readers) != 1 or op.outputs[0] in graph.outputs or readers[0].inputs != (op.outputs[0],):
        return None
    return readers[0]


def _activations(graph: Graph, op: Operator) -> tuple[list[Operator], list[PostOp]]:
    """Return the element-wise operators behind a layer that it can take in, one after the other, and what they do."""
    found, posts, last = list[Operator](), list[PostOp](), op
    while (follower := _only_reader(graph, last)) is not None:
        post = activation(follower) if compiled(graph, follower) is None else None
        if post is None:
            break
        found.append(follower)
        posts.append(post)
        last = follower
    return found, posts


_MOVES = frozenset(
    {"Reshape", "Flatten", "Squeeze", "Unsqueeze", "Transpose", "Slice", "Split", "Gather", "Expand", "Tile"}
)  # fmt: skip


class Moved(NamedTuple):
    """A graph whose bytes are moved, and operators that others stand for, by the name of that one: before and behind it."""

    graph: Graph
    members: Mapping[str, tuple[str, ...]]


def is_by_one_scale(graph: Graph, op: Operator, op_type: str) -> bool:
    """Tell whether an operator is between numbers and bytes, by one constant scale and zero point."""
    if op.op_type != op_type or len(op.inputs) != 1 or len(op.weights) != 2:
        return False
    scale, zero = (graph.tensors[name] for name in op.weights)
    return scale.elements == 1 and zero.dtype in BYTES


def bytes_moved(graph: Graph) -> Moved:
    """Return a graph in which bytes are moved instead of numbers that are made of them and are rounded to them again."""
    tensors, producer = dict(graph.tensors), dict(graph.producer)
    known = replace(graph, tensors=tensors)
    members: dict[str, tuple[str, ...]] = {}
    operators: list[Operator] = []
    dropped = set[str]()
    for op in graph.operators:
        if op.name in dropped:
            continue
        rounded = _rounded(known, op, producer)
        if not rounded:
            operators.append(op)
            continue
        numbers = producer[op.inputs[0]]
        for one, output in zip(rounded, op.outputs, strict=True):
            tensors[one.outputs[0]] = Tensor(one.outputs[0], graph.shape(output), tensors[numbers.inputs[0]].dtype)
        moved = replace(op, inputs=(*numbers.inputs, *op.inputs[1:]), outputs=tuple(one.outputs[0] for one in rounded))
        if lacks_kernel(known, moved, SPECS[op.op_type].elements):
            operators.append(op)
            continue
        operators.append(moved)
        producer |= dict.fromkeys(moved.outputs, moved)
        dropped |= {one.name for one in rounded}
        members[op.name] = tuple(one.name for one in rounded)
    if not members:
        return Moved(graph, MappingProxyType({}))
    read = {name for op in operators for name in op.inputs} | set(graph.outputs)
    unread = {op.name: op for op in operators if op.op_type == "DequantizeLinear" and not read & set(op.outputs)}
    for op in graph.operators:
        if op.name in members and (before := unread.pop(graph.producer[op.inputs[0]].name, None)) is not None:
            members[op.name] = (before.name, *members[op.name])
            operators.remove(before)
    return Moved(replace(graph, operators=tuple(operators), tensors=MappingProxyType(tensors)), MappingProxyType(members))


def _rounded(graph: Graph, op: Operator, producer: Mapping[str, Operator]) -> list[Operator]:
    """Return the operators that alone read what a move writes and make bytes of it as those that it reads were; or none."""
    numbers = producer.get(op.inputs[0]) if op.op_type in _MOVES and len(op.inputs) == 1 else None
    if numbers is None or not is_by_one_scale(graph, numbers, "DequantizeLinear"):
        return []
    found = list[Operator]()
    for output in op.outputs:
        readers = graph.consumers.get(output, ())
        if len(readers) != 1 or output in graph.outputs or not is_by_one_scale(graph, readers[0], "QuantizeLinear"):
            return []
        found += readers
    return found if all(one.weights == numbers.weights for one in found) else []
