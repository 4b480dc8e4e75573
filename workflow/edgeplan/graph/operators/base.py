"""A specification holds the package's knowledge of an ONNX operator as one value; a chain puts together its steps."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

import numpy as np

from edgeplan.errors import ModelError
from edgeplan.graph import blocks
from edgeplan.graph.ir import BYTES_PER_ELEMENT, Graph, Operator, Shape
from edgeplan.graph.shapes import FLOAT32, free
from edgeplan.graph.steps import Setting
from edgeplan.support.lazy import lazily

if TYPE_CHECKING:
    import onnx

    Node = onnx.NodeProto
else:  # operators are known where models are run, too, and these need no onnx
    onnx, Node = lazily("onnx"), Any

#: Stands behind an operator's output in the names of activations between its steps, which are of the type that it writes.
INNER = ":inner"
#: Elements of a matrix that mixes places along an axis; along longer ones a compiled kernel does.
_LARGEST_MATRIX = 1 << 16
#: Pieces of an axis that are cut out and joined one by one.
_MOST_RUNS = 32
#: Where places of an axis begin (-1: none), and how many there are.
_Run = tuple[int, int]
#: What kernels that move elements take them for.
MOVED = MappingProxyType({1: "int8", 4: "int32", 8: "int64"})


def moved(dtype: str) -> str:
    """Return the type by which a kernel moves elements of another type."""
    return MOVED[BYTES_PER_ELEMENT[dtype]]


def bits(value: float, dtype: str) -> int:
    """Return a value as an integer of an element's size."""
    return int(np.array([value], dtype).view(moved(dtype))[0])


class Part(NamedTuple):
    """A part starts a step; it has the fields of `runtime.lowering.Draft`."""

    name: str
    kind: str
    members: list[str]
    inputs: list[str]
    outputs: list[str]
    weights: dict[str, str]
    settings: dict[str, Setting]


def inner(output: str, shape: Shape, shapes: dict[str, Shape], told: str = "") -> str:
    """Add an activation between the steps of the operator that writes an output; its name."""
    name = free(f"{output}{INNER}{told}", shapes)
    shapes[name] = shape
    return name


def part(op: Operator, kind: str, roles: Sequence[str], settings: Mapping[str, Setting]) -> Part:
    """Return the one step of an operator, whose weights have these roles."""
    weights = dict(zip(roles, op.weights, strict=False))
    return Part(op.name, kind, [op.name], list(op.inputs), list(op.outputs), weights, dict(settings))


def kernel_part(op: Operator, kernel: str, block: tuple[int, ...], settings: Mapping[str, Setting] | None = None) -> Part:
    """Return the one step of an operator that is a compiled kernel; its weights are called by their places."""
    weights = {f"operand_{place}": name for place, name in enumerate(op.operands) if name in op.weights}
    told = {"kernel": kernel, "block": block, **(settings or {})}
    return Part(op.name, "compiled", [op.name], list(op.inputs), list(op.outputs), weights, told)


class Chain:
    """Several steps of an operator one after the other, which write one of its outputs; those of the first stand for it.

    The shapes of activations between them are added to `shapes`.
    """

    def __init__(self, op: Operator, shapes: dict[str, Shape], place: int = 0) -> None:
        self._op, self._shapes = op, shapes
        self._output, self._first = op.outputs[place], place == 0
        self._parts: list[Part] = []

    def step(
        self,
        kind: str,
        reads: Sequence[str],
        shape: Shape,
        settings: Mapping[str, Setting] | None = None,
        weights: Mapping[str, str] | None = None,
    ) -> str:
        """Add a step; the name of what it writes. The first one that is no reshape stands for the operator."""
        written = inner(self._output, shape, self._shapes, str(len(self._parts)))
        first = self._first and kind != "reshape" and not any(p.members for p in self._parts)
        name = self._op.name if self._first else self._output
        name = name if first else f"{name}:{len(self._parts)}"
        members = [self._op.name] if first else []
        self._parts.append(Part(name, kind, members, list(reads), [written], dict(weights or {}), dict(settings or {})))
        return written

    def reshaped(self, tensor: str, shape: Shape) -> str:
        """Return an activation in another shape, itself if it has that one."""
        return tensor if self._shapes[tensor] == shape else self.step("reshape", [tensor], shape)

    def raised(self, tensor: str, rank: int) -> str:
        """Return an activation with axes of size 1 before its own, as many axes as wanted in all."""
        shape = self._shapes[tensor]
        return self.reshaped(tensor, (1,) * (rank - len(shape)) + shape)

    def kernel(
        self,
        kernel: str,
        reads: Sequence[str],
        shape: Shape,
        block: tuple[int, ...],
        settings: Mapping[str, Setting] | None = None,
    ) -> str:
        """Return a compiled kernel; with a `form` among the settings it reads the tables of that, too."""
        return self.step("compiled", reads, shape, {"kernel": kernel, "block": block, **(settings or {})})

    def mixed(self, tensor: str, axis: int, out: int, settings: Mapping[str, Setting], taps: int = 0) -> str:
        """Return an activation whose places along an axis are mixed into `out` ones (`axis_matrices`), of so many taps each."""
        shape = self._shapes[tensor]
        before, size, after = math.prod(shape[:axis]), shape[axis], math.prod(shape[axis + 1 :])
        if size * out > _LARGEST_MATRIX and out > 1:
            block, out_shape = blocks.mixed(before, size, after, out, taps), (*shape[:axis], out, *shape[axis + 1 :])
            return self.kernel(f"mixed_{FLOAT32}", [tensor], out_shape, block, {**settings, "size": size, "out": out})
        side = "left" if after > 1 else "right"
        flat = (before, size, after) if after > 1 else (before, size)
        written = (before, out, after) if after > 1 else (before, out)
        own: dict[str, Setting] = {**settings, "side": side, "size": size, "out": out}
        mixed = self.step("mix", [self.reshaped(tensor, flat)], written, own)
        return self.reshaped(mixed, (*shape[:axis], out, *shape[axis + 1 :]))

    def linear(self, tensor: str, factor: float, summand: float = 0.0) -> str:
        """Return an activation times a number, plus another."""
        return self.eltwise(tensor, "linear", factor, summand)

    def eltwise(self, tensor: str, algorithm: str, alpha: float = 0.0, beta: float = 0.0) -> str:
        """Return an element-wise operation of oneDNN."""
        return self.step("eltwise", [tensor], self._shapes[tensor], {"algorithm": algorithm, "alpha": alpha, "beta": beta})

    def transposed(self, tensor: str, permutation: tuple[int, ...]) -> str:
        """Return an activation with its axes in another order."""
        shape = self._shapes[tensor]
        return self.step("transpose", [tensor], tuple(shape[axis] for axis in permutation), {"permutation": permutation})

    def picked(self, tensor: str, axis: int, places: tuple[int, ...], dtype: str = FLOAT32, fill: int = 0) -> str:
        """Return an activation with some of the places along an axis, in any order and as often as wanted; -1: a value.

        That is `fill`, as an integer of an element's size.
        """
        shape, out = self._shapes[tensor], len(places)
        runs = _runs(places)
        if dtype == FLOAT32 and not fill and len(runs) <= _MOST_RUNS and shape[axis] > 1:
            return self._of_runs(tensor, axis, runs)
        block = blocks.picked(math.prod(shape[:axis]), shape[axis], math.prod(shape[axis + 1 :]), dtype, out)
        settings: dict[str, Setting] = {"form": "pick", "places": places, "fill": fill, "dtype": moved(dtype)}
        return self.kernel(f"picked_{moved(dtype)}", [tensor], (*shape[:axis], out, *shape[axis + 1 :]), block, settings)

    def _of_runs(self, tensor: str, axis: int, runs: Sequence[_Run]) -> str:
        """Places side by side are cut out and joined."""
        size, parts = self._shapes[tensor][axis], dict[_Run, str]()
        wanted: list[_Run] = []
        for start, count in runs:
            whole, rest = divmod(count, size)  # as many zeros as there are places, again and again
            wanted += [(start, count)] if start >= 0 else [(-1, size)] * whole + [(-1, rest)] * bool(rest)
        for run in dict.fromkeys(wanted):
            start, count = run
            part = tensor if count == size else self.cut(tensor, axis, max(start, 0), count)
            parts[run] = part if start >= 0 else self.eltwise(part, "clip")  # to 0, whatever it holds
        out = sum(count for _, count in wanted)
        shape = (*self._shapes[tensor][:axis], out, *self._shapes[tensor][axis + 1 :])
        reads = [parts[run] for run in wanted]
        return reads[0] if len(reads) == 1 else self.step("concat", reads, shape, {"axis": axis})

    def repeated(self, tensor: str, out: Shape) -> str:
        """Return an activation in a shape whose sizes are multiples of its own, repeated along these axes."""
        tensor = self.raised(tensor, len(out))
        for axis, wanted in enumerate(out):
            size = self._shapes[tensor][axis]
            if size != wanted:
                tensor = self.picked(tensor, axis, tuple(i % size for i in range(wanted)))
        return tensor

    def cut(self, tensor: str, axis: int, start: int, count: int) -> str:
        """Return an activation with the places along an axis that lie side by side from one on."""
        shape = self._shapes[tensor]
        cut = (*shape[:axis], count, *shape[axis + 1 :])
        return self.step("split", [tensor], cut, {"axis": axis, "start": start})

    def finished(self, tensor: str) -> tuple[Part, ...]:
        """Return all steps, of which the last writes the operator's output `tensor`, in the operator's shape."""
        if not self._parts or self._shapes[tensor] != self._shapes[self._output] or self._parts[-1].outputs != [tensor]:
            tensor = self.step("reshape", [tensor], self._shapes[self._output])
        last = self._parts.pop()
        return (*self._parts, last._replace(outputs=[self._output]))


def _runs(places: Sequence[int]) -> list[_Run]:
    """Return places that follow each other, and those that there are none of, together."""
    found: list[_Run] = []
    for place in places:
        start, count = found[-1] if found else (0, 0)
        if count and place == (start + count if start >= 0 else -1):
            found[-1] = start, count + 1
        else:
            found.append((place, 1))
    return found


#: What is wrong, and what to do about it; None if nothing is.
Problem = tuple[str, str] | None


class Beside(NamedTuple):
    """What stands beside a node in its model: constants by name, tensors that anything reads, and where it comes from."""

    constants: Mapping[str, onnx.TensorProto]
    read: AbstractSet[str]
    source: str


#: A node as the graph knows it; raises ModelError for a form that the graph cannot express.
Form = Callable[["onnx.NodeProto", Beside], "onnx.NodeProto"]
#: Steps of an operator; the shapes of activations between them are added to the mapping.
Lowerer = Callable[[Graph, Operator, dict[str, Shape]], tuple[Part, ...]]

#: What an operator takes for granted of the tensors that it reads.
Check = Callable[[Graph, Operator], Problem]
#: Types of elements.
INTEGERS = frozenset({"int32", "int64"})
NUMBERS = INTEGERS | {FLOAT32}
BYTES = frozenset({"int8", "uint8"})
ANY = NUMBERS | BYTES | {"bool"}
#: Ranks of anchors: which operator of a fused kernel does the work, the lowest first.
HEAVY, WINDOW, COPY, PAIR, CHEAP, NONE = range(6)
AGAIN = "correct the node, or export the model again: no engine runs this"
FOLD = "fold constants, or export with fixed weights"
ELSEWHERE = "run it on another engine"


#: Roles of constants that are no integers.
_NUMBERS_AS_CONSTANTS = frozenset({"", "min", "max", "exponent", "constant_value", "roi", "scales"})


@dataclass(frozen=True, slots=True)
class OperatorSpec:
    """A specification describes an ONNX operator.

    Attributes:
        types: ONNX's names of it; several where all else is the same.
        kind: the field's name of it, or what tells it from the operator's form.
        kinds: all kinds that it may be; without, `kind` alone.
        rank: as an anchor of fused kernels.
        constants: roles of its inputs that are constants and kept as attributes, by place; "" is an operand.
        inputs_since: opset from which on they are inputs; attributes before.
        ordered: whether it matters where among the activations a weight stands.
        form: brings a node to the form that the graph knows.
        check: what it takes for granted of the tensors that it reads.
        macs: its multiply-adds (footnote 1 of nn-Meter); none for most.
        lacks: what the runtime lacks for it, or "".
        inexact: what the runtime would not compute as ONNX says.
        computed: those of the constants that may be computed, too: then they are operands, of a compiled kernel.
        elements: types of elements that its steps take; of further ones a compiled kernel may (`compiled`).
    """

    types: tuple[str, ...]
    kind: str | Callable[[Graph, Operator], str]
    lower: Lowerer
    kinds: tuple[str, ...] = ()
    rank: int = CHEAP
    constants: tuple[str, ...] = ()
    inputs_since: int = 1
    ordered: bool = False
    form: Form | None = None
    check: Check | None = None
    macs: Callable[[Graph, Operator], int] | None = None
    lacks: Callable[[Graph, Operator], str] | None = None
    inexact: Check | None = None
    computed: frozenset[str] = frozenset()
    elements: frozenset[str] = frozenset({FLOAT32})

    @property
    def integers(self) -> frozenset[str]:
        """Return those of the constants' roles whose values are integers."""
        return frozenset(self.constants) - _NUMBERS_AS_CONSTANTS

    @property
    def all_kinds(self) -> tuple[str, ...]:
        """Return all kinds that the operator may be."""
        return self.kinds or ((self.kind,) if isinstance(self.kind, str) else ())


def refuse(node: onnx.NodeProto, source: str, what: str, next_step: str) -> NoReturn:
    """Raise the error for a form that is not known."""
    raise ModelError(f"{node.op_type} {what}", where=f"{source}, node {node.name!r}", next_step=next_step)


def input_of(node: onnx.NodeProto, place: int) -> str:
    """Name of an input, "" for none."""
    return str(node.input[place]) if place < len(node.input) else ""


def word(value: bytes) -> str:
    """Return a text of an attribute, for messages."""
    return repr(value.decode(errors="replace"))


def attributes_of(node: onnx.NodeProto) -> dict[str, Any]:
    """Return the attributes of a node by name."""
    return {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}


def copied(node: onnx.NodeProto) -> onnx.NodeProto:
    """Return a copy that may be changed."""
    plain = onnx.NodeProto()
    plain.CopyFrom(node)
    return plain


def is_zero(name: str, constants: Mapping[str, onnx.TensorProto]) -> bool:
    """Tell whether a constant is known to hold nothing but zeros."""
    constant = constants.get(name)
    if constant is None or constant.data_location == onnx.TensorProto.EXTERNAL:
        return False
    return not onnx.numpy_helper.to_array(constant).any()


def broadcasts(shape: Shape, to: Shape) -> bool:
    """Tell whether a shape is broadcast to another by numpy's rules."""
    ends = zip(reversed(shape), reversed(to), strict=False)
    return len(shape) <= len(to) and all(a in (1, b) for a, b in ends)


def axis_of(op: Operator, rank: int, default: int) -> int:
    """Return the attribute `axis`, counted from the front."""
    return op.integer("axis", default) % rank


def require_weights(roles: tuple[str, ...] = ()) -> Form:
    """Return a form: what is multiplied is an activation, weights behind it, of these roles, are initialisers.

    Which of several inputs is which is not kept.
    """

    def form(node: onnx.NodeProto, beside: Beside) -> onnx.NodeProto:
        if input_of(node, 0) in beside.constants:
            refuse(node, beside.source, "of a constant", "fold constants, or exchange the operands of a product")
        for place, role in enumerate(roles, start=1):
            name = input_of(node, place)
            if name and name not in beside.constants:
                refuse(node, beside.source, f"whose {role} is no initialiser", FOLD)
        return node

    return form
