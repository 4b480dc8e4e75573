"""A specification holds the package's knowledge of an ONNX operator as one value."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NoReturn

from edgeplan.errors import ModelError
from edgeplan.graph.element_types import FLOAT32
from edgeplan.graph.ir import Graph, Operator, Shape
from edgeplan.graph.parts import Part
from edgeplan.support.lazy import lazily

if TYPE_CHECKING:
    import onnx
else:  # operators are known where models are run, too, and these need no onnx
    onnx = lazily("onnx")

#: What is wrong, and what to do about it; None if nothing is.
Problem = tuple[str, str] | None
#: A node as the graph knows it, from the node, the constants by name, the tensors that anything reads, and where the model
#: comes from; raises ModelError for a form that the graph cannot express.
Form = Callable[["onnx.NodeProto", Mapping[str, "onnx.TensorProto"], AbstractSet[str], str], "onnx.NodeProto"]
#: Steps of an operator; the shapes of activations between them are added to the mapping.
Lowerer = Callable[[Graph, Operator, dict[str, Shape]], tuple[Part, ...]]

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


@dataclass(frozen=True, slots=True)
class OperatorSpec:
    """A specification describes an ONNX operator.

    Attributes:
        types: ONNX's names of it; several where all else is the same.
        kind: the field's name of it, or what tells it from the operator's form.
        kinds: all kinds that it may be; without, `kind` alone.
        rank: as an anchor of fused kernels.
        bandwidth_bound: whether the bytes that it moves decide what it takes: no axis of theirs is summed over.
        lower: its steps.
        constants: roles of its inputs that are constants and kept as attributes, by place; "" is an operand.
        inputs_since: opset from which on they are inputs; attributes before.
        integers: those of these roles whose values are 64-bit integers.
        ordered: whether it matters where among the activations a weight stands.
        moves: whether it writes a buffer of its own, and is not element-wise.
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
    bandwidth_bound: bool = field(default=False, kw_only=True)
    constants: tuple[str, ...] = ()
    integers: frozenset[str] = frozenset()
    inputs_since: int = 1
    ordered: bool = False
    moves: bool = False
    form: Form | None = None
    check: Callable[[Graph, Operator], Problem] | None = None
    macs: Callable[[Graph, Operator], int] | None = None
    lacks: Callable[[Graph, Operator], str] | None = None
    inexact: Callable[[Graph, Operator], Problem] | None = None
    computed: frozenset[str] = frozenset()
    elements: frozenset[str] = frozenset({FLOAT32})

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
    """Return a form: what is multiplied is an activation, weights are initialisers.

    Which of several inputs is which is not kept.

    Args:
        roles: of the weights, by place behind the activation.
    """

    def form(
        node: onnx.NodeProto, constants: Mapping[str, onnx.TensorProto], _: AbstractSet[str], source: str
    ) -> onnx.NodeProto:
        if input_of(node, 0) in constants:
            refuse(node, source, "of a constant", "fold constants, or exchange the operands of a product")
        for place, role in enumerate(roles, start=1):
            name = input_of(node, place)
            if name and name not in constants:
                refuse(node, source, f"whose {role} is no initialiser", FOLD)
        return node

    return form
