"""Recurrent layers."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from typing import TYPE_CHECKING

from edgeplan.graph.ir import Graph, Operator, Shape
from edgeplan.graph.operators.base import (
    AGAIN,
    FOLD,
    HEAVY,
    OperatorSpec,
    Problem,
    attributes_of,
    copied,
    input_of,
    is_zero,
    refuse,
    word,
)
from edgeplan.graph.parts import INNER, Part, part
from edgeplan.graph.steps import Setting

if TYPE_CHECKING:
    import onnx

_INPUTS = ("X", "W", "R", "B", "sequence_lens", "initial_h", "initial_c", "P")
_KEPT_INPUTS, _FIRST_STATE = 4, 5
_STATES = ("initial_h", "initial_c")
_OUTPUTS = ("Y", "Y_h", "Y_c")
_ATTRIBUTES = frozenset({"hidden_size", "direction"})
_DIRECTIONS = (b"forward", b"reverse", b"bidirectional")
_MATRICES = 2  # W and R of all directions; what follows them is the bias


def _form(
    node: onnx.NodeProto, constants: Mapping[str, onnx.TensorProto], read: AbstractSet[str], source: str
) -> onnx.NodeProto:
    """X, W, R, B and both initial states, or none, in; Y out, and all last states where something reads one of them."""
    simplify = "export it with whole sequences and the default activations"
    for place, role in enumerate(_INPUTS):
        name = input_of(node, place)
        if role in ("W", "R", "B") and (name not in constants) and (name or role != "B"):
            refuse(node, source, f"whose {role} is no initialiser", FOLD)
        if role in _STATES and name in constants and not is_zero(name, constants):
            refuse(node, source, f"with a constant {role} that is not known to be zero", "make it an input of the model")
        if name and role in ("sequence_lens", "P"):
            refuse(node, source, f"with the input {role}", simplify)
    attributes = attributes_of(node)
    directions = 2 if attributes.get("direction") == b"bidirectional" else 1
    defaults = {"layout": 0, "input_forget": 0, "activations": [b"Sigmoid", b"Tanh", b"Tanh"] * directions}
    for key, value in attributes.items():
        if key not in _ATTRIBUTES and defaults.get(key) != value:
            refuse(node, source, f"with the attribute {key}", simplify)
    if attributes.get("direction", b"forward") not in _DIRECTIONS:
        refuse(node, source, f"of the unknown direction {word(attributes['direction'])}", simplify)
    plain = copied(node)
    states_in = map(str, node.input[_FIRST_STATE : _FIRST_STATE + 2])
    given_states = [name for name in states_in if name and name not in constants]
    if len(given_states) == 1:
        refuse(node, source, "with one initial state", "give it both, or none")
    del plain.input[_KEPT_INPUTS:], plain.attribute[:]
    if given_states:
        plain.input.extend([*[""] * (_FIRST_STATE - len(plain.input)), *given_states])
    plain.attribute.extend(a for a in node.attribute if a.name in _ATTRIBUTES)
    states = not read.isdisjoint(filter(None, node.output[1:]))
    given = [*node.output, "", "", ""]
    del plain.output[:]
    plain.output.extend(
        name or f"{node.name}:{role}" for name, role in zip(given, _OUTPUTS[: 3 if states else 1], strict=False)
    )
    return plain


def _check(graph: Graph, op: Operator) -> Problem:
    before, after = graph.shape(op.inputs[0]), graph.shape(op.outputs[0])
    if len(before) != 3 or len(after) != 4:  # noqa: PLR2004  steps, batch, features; steps, directions, batch, hidden
        return f"of an input {before}", AGAIN
    directions, hidden = after[1], after[3]
    wanted = ((directions, 4 * hidden, before[2]), (directions, 4 * hidden, hidden), (directions, 8 * hidden))
    found = tuple(graph.shape(name) for name in op.weights)
    if directions != (2 if op.attributes.get("direction") == "bidirectional" else 1) or found != wanted[: len(found)]:
        return f"with weights {found} for an input {before} and an output {after}", AGAIN
    states = {graph.shape(name) for name in op.inputs[1:]}
    if states - {(directions, before[1], hidden)}:
        return f"with initial states {states} for an output {after}", AGAIN
    return None


def _macs(graph: Graph, op: Operator) -> int:
    """4 x hidden x (input + hidden) for each step, sequence and direction: its gates' products."""
    steps, batch = graph.shape(op.inputs[0])[:2]
    return steps * batch * sum(graph.tensors[name].elements for name in op.weights[:_MATRICES])


def _lacks(_graph: Graph, op: Operator) -> str:
    default = {"activations", "activation_alpha", "activation_beta", "clip", "input_forget", "layout"} & set(op.attributes)
    plain = len(op.inputs) in (1, 3) and len(op.weights) in (2, 3)
    return (
        "" if plain and not default else "one of the initial states, peepholes, lengths, or activations other than the default"
    )


def _lower(_graph: Graph, op: Operator, shapes: dict[str, Shape]) -> tuple[Part, ...]:
    """Its primitive writes (time, batch, directions x hidden); ONNX wants (time, directions, batch, hidden).

    The last states, where they are read, lie alike in both: (directions, batch, hidden).
    """
    settings: dict[str, Setting] = {
        "hidden": op.integer("hidden_size", 1),
        "direction": str(op.attributes.get("direction", "forward")),
    }
    time, directions, batch, hidden = shapes[op.outputs[0]]
    joined, parted = f"{op.outputs[0]}{INNER}", f"{op.outputs[0]}{INNER}{INNER}"
    shapes[joined] = (time, batch, directions * hidden)
    whole = part(op, "lstm", ("weight", "recurrence", "bias"), settings)._replace(outputs=[joined, *op.outputs[1:]])
    if directions == 1 or batch == 1:
        return whole, Part(f"{op.name}:parted", "reshape", [], [joined], list(op.outputs[:1]), {}, {})
    shapes[parted] = (time, batch, directions, hidden)
    swap: dict[str, Setting] = {"permutation": (0, 2, 1, 3)}
    return (
        whole,
        Part(f"{op.name}:parted", "reshape", [], [joined], [parted], {}, {}),
        Part(f"{op.name}:swapped", "transpose", [], [parted], list(op.outputs[:1]), {}, swap),
    )


SPECS = (OperatorSpec(("LSTM",), "lstm", _lower, (), HEAVY, moves=True, form=_form, check=_check, macs=_macs, lacks=_lacks),)
