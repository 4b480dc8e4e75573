"""Products of matrices: fully connected layers, products of any two operands, and recurrent layers."""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import MappingProxyType

from edgeplan.graph.ir import Graph, Operator, Shape
from edgeplan.graph.operators import base
from edgeplan.graph.operators.base import AGAIN, Beside, Chain, Node, OperatorSpec, Part, Problem, refuse
from edgeplan.graph.steps import Setting

_MATRIX_RANK = 2
_RANKS_OF_A_LAYER = (2, 3)  # of 4 it would be flattened
_FULLY_CONNECTED_RANKS = (2, 3, 4)  # further axes would fold into the one that is multiplied


def is_fully_connected(graph: Graph, op: Operator) -> bool:
    """Tell whether a `Gemm` or `MatMul` multiplies an activation of two to four axes, as it is, by a matrix of weights."""
    left, right = op.operands[:2]
    ranks = len(graph.shape(left)) in _FULLY_CONNECTED_RANKS and len(graph.shape(right)) == _MATRIX_RANK
    return ranks and left in op.inputs and right in op.weights and not op.integer("transA", 0)


def _check_gemm(graph: Graph, op: Operator) -> Problem:
    first, second, *bias = (graph.shape(name) for name in op.operands)
    rows = first[::-1] if op.integer("transA", 0) else first
    weight = second[::-1] if op.integer("transB", 0) else second
    if len(rows) != 2 or len(weight) != 2 or weight[0] != rows[1]:  # matrices
        return f"with a weight {second} for an input {first}", AGAIN
    if bias and not base.broadcasts(bias[0], (rows[0], weight[1])):
        return f"with a bias {bias[0]} for an output {(rows[0], weight[1])}", AGAIN
    return None


def _check_matmul(graph: Graph, op: Operator) -> Problem:
    first, second = (graph.shape(name) for name in op.operands)
    if not first or not second:
        return "of a number", AGAIN
    return None if first[-1] == second[-2:][0] else (f"with a weight {second} for {first[-1]} channels", AGAIN)


def _macs(graph: Graph, op: Operator) -> int:
    """As many for each output as are summed over."""
    return graph.shape(op.operands[0])[0 if op.integer("transA", 0) else -1] * graph.tensors[op.outputs[0]].elements


def _lower(_graph: Graph, op: Operator, shapes: dict[str, Shape]) -> tuple[Part, ...]:
    """Return a fully connected layer where the operand behind is a matrix of weights, else a product of two operands."""
    chain = Chain(op, shapes)
    left, right, *third = op.operands
    beta = op.number("beta", 1.0)
    layer = left in op.inputs and right in op.weights and len(shapes[right]) == _MATRIX_RANK
    if not layer:
        found = _product(chain, op, shapes)
        return chain.finished(_plus(chain, op, shapes, found, third[0], beta) if third else found)
    if op.integer("transA", 0):
        left = _transposed(chain, left, shapes)
    if len(shapes[left]) not in _RANKS_OF_A_LAYER:
        left = chain.reshaped(left, (math.prod(shapes[left][:-1]), shapes[left][-1]))
    transposed = op.integer("transB", 0)
    columns = shapes[right][0 if transposed else 1]
    biased = bool(third) and third[0] in op.weights and _is_bias(shapes[third[0]], columns)
    settings: dict[str, Setting] = {"transposed": transposed, "alpha": op.number("alpha", 1.0), "beta": beta}
    weights = {"weight": right} | ({"bias": third[0]} if biased else {})
    found = chain.step("fc", [left], (*shapes[left][:-1], columns), settings, weights)
    return chain.finished(found if biased or not third else _plus(chain, op, shapes, found, third[0], beta))


def _is_bias(shape: Shape, columns: int) -> bool:
    """Tell whether a third operand is one value for each column, or one for all."""
    return math.prod(shape) == 1 or (shape[-1:] == (columns,) and math.prod(shape) == columns)


def _transposed(chain: Chain, tensor: str, shapes: Mapping[str, Shape]) -> str:
    return chain.step("transpose", [tensor], shapes[tensor][::-1], {"permutation": (1, 0)})


def _product(chain: Chain, op: Operator, shapes: Mapping[str, Shape]) -> str:
    """Return a product of two activations, or of one and a constant that is no matrix behind it."""
    reads: list[str] = []
    weights: dict[str, str] = {}
    settings: dict[str, Setting] = {}
    rank = max(_MATRIX_RANK, *(len(shapes[name]) for name in op.operands[:2]))
    sides: list[Shape] = []
    for name, role, transposing in zip(op.operands, ("left", "right"), ("transA", "transB"), strict=False):
        shape = shapes[name]
        if len(shape) == 1:
            shape = (1, *shape) if role == "left" else (*shape, 1)
        if transposed := op.integer(transposing, 0):
            shape = shape[::-1]
        shape = (1,) * (rank - len(shape)) + shape
        sides.append(shape)
        if name in op.weights:
            weights[role] = name
            settings |= {"shape": shape, "transposed": transposed}
        else:
            reads.append(chain.reshaped(_transposed(chain, name, shapes) if transposed else name, shape))
    batch = tuple(max(a, b) for a, b in zip(sides[0][:-2], sides[1][:-2], strict=True))
    shape = (*batch, sides[0][-2], sides[1][-1])
    found = chain.step("matmul", reads, shape, settings, weights)
    alpha = op.number("alpha", 1.0)
    return found if alpha == 1 else chain.linear(found, alpha)


def _plus(chain: Chain, op: Operator, shapes: Mapping[str, Shape], found: str, third: str, beta: float) -> str:
    settings: dict[str, Setting] = {"algorithm": "add"}
    if third in op.weights:
        settings |= {"beta": beta} if beta != 1 else {}
        return chain.step("binary", [found], shapes[found], settings, {"operand": third})
    third = chain.raised(third, len(shapes[found]))
    third = third if beta == 1 else chain.linear(third, beta)
    return chain.step("binary", [found, third], shapes[found], settings)


_INPUTS = ("X", "W", "R", "B", "sequence_lens", "initial_h", "initial_c", "P")
_FIRST_STATE, _PEEPHOLES = 5, 7
_OUTPUTS = ("Y", "Y_h", "Y_c")
_ATTRIBUTES = frozenset({"hidden_size", "direction", "layout", "linear_before_reset"})
_DIRECTIONS = (b"forward", b"reverse", b"bidirectional")
_SIMPLER = "export it with whole sequences and the default activations"
_MATRICES = 2  # W and R of all directions
_STATE_RANK = 3
#: Gates of each cell, and its activations for each direction.
_GATES: Mapping[str, int] = MappingProxyType({"RNN": 1, "GRU": 3, "LSTM": 4})
_ACTIVATIONS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {"RNN": ("Tanh",), "GRU": ("Sigmoid", "Tanh"), "LSTM": ("Sigmoid", "Tanh", "Tanh")}
)
#: What a plain cell may compute, as oneDNN's element-wise operation.
_PLAIN: Mapping[str, str] = MappingProxyType({"Tanh": "tanh", "Relu": "relu", "Sigmoid": "logistic"})


def _recurrent_form(node: Node, beside: Beside) -> Node:
    """Describe the form: all initial states, or none, in; Y out, and all last states where something reads one of them."""
    for name, role in zip(map(str, node.input), _INPUTS, strict=False):
        if name and role in ("W", "R", "B", "P") and name not in beside.constants:
            refuse(node, beside.source, f"whose {role} is no initialiser", base.FOLD)
    _require_known(node, beside.source)
    plain = base.copied(node)
    count = 2 if node.op_type == "LSTM" else 1
    states = [base.input_of(node, _FIRST_STATE + place) for place in range(count)]
    if not all(base.is_zero(name, beside.constants) for name in filter(None, states)):
        if not all(states) or len({name in beside.constants for name in states}) > 1:
            refuse(node, beside.source, "with one initial state", "give it both, as inputs or as constants, or none")
    else:
        states = [""] * count
    peepholes = base.input_of(node, _PEEPHOLES)
    del plain.input[:], plain.attribute[:], plain.output[:]
    plain.input.extend([*(base.input_of(node, place) for place in range(_FIRST_STATE)), *states, *filter(None, [peepholes])])
    while not plain.input[-1]:
        del plain.input[-1]
    plain.attribute.extend(
        a for a in node.attribute if a.name in _ATTRIBUTES or (a.name, node.op_type) == ("activations", "RNN")
    )
    outputs = _OUTPUTS[: 1 + count] if not beside.read.isdisjoint(filter(None, node.output[1:])) else _OUTPUTS[:1]
    given = [*node.output, "", "", ""]
    plain.output.extend(name or f"{node.name}:{role}" for name, role in zip(given, outputs, strict=False))
    return plain


def _require_known(node: Node, source: str) -> None:
    attributes = base.attributes_of(node)
    if attributes.get("direction", b"forward") not in _DIRECTIONS:
        refuse(node, source, f"of the unknown direction {base.word(attributes['direction'])}", _SIMPLER)
    directions = 2 if attributes.get("direction") == b"bidirectional" else 1
    usual = [name.encode() for name in _ACTIVATIONS[node.op_type]] * directions
    defaults = {"input_forget": 0, "activations": usual}
    plain = node.op_type == "RNN" and attributes.get("activations", usual) in ([name.encode()] * directions for name in _PLAIN)
    for key, value in attributes.items():
        if key not in _ATTRIBUTES and defaults.get(key) != value and not (key == "activations" and plain):
            refuse(node, source, f"with the attribute {key}", _SIMPLER)


def _sizes(op: Operator, shapes: Mapping[str, Shape]) -> tuple[int, int, int, int]:
    written = shapes[op.outputs[0]]
    if op.integer("layout", 0):
        batch, time, directions, hidden = written
    else:
        time, directions, batch, hidden = written
    return time, directions, batch, hidden


def _roles(op: Operator, shapes: Mapping[str, Shape]) -> dict[str, str]:
    """Return weights by role; those behind the matrices are told apart by their shapes."""
    found = dict(zip(("weight", "recurrence"), op.weights, strict=False))
    states = iter(("state_h", "state_c"))
    peepholes = 3 * _sizes(op, shapes)[3]
    for name in op.weights[_MATRICES:]:
        if len(shapes[name]) == _STATE_RANK:
            found[next(states, "")] = name
        else:
            found["peepholes" if op.op_type == "LSTM" and shapes[name][-1] == peepholes else "bias"] = name
    return found


def operands_in_place(graph: Graph, op: Operator) -> tuple[str, ...]:
    """Return the operands of any operator in ONNX's order, "" for those that a recurrent layer leaves out before others."""
    if op.op_type not in _GATES:
        return op.operands
    roles = _roles(op, {name: tensor.shape for name, tensor in graph.tensors.items()})
    states = [roles.get(role, "") for role in ("state_h", "state_c")]
    given = op.inputs[1:] or states
    places = (op.inputs[0], *(roles.get(role, "") for role in ("weight", "recurrence", "bias")), "", *given)
    found = [*places, *[""] * (_PEEPHOLES - len(places)), roles.get("peepholes", "")]
    while not found[-1]:
        del found[-1]
    return tuple(found)


def _check_recurrent(graph: Graph, op: Operator) -> Problem:
    before, after = graph.shape(op.inputs[0]), graph.shape(op.outputs[0])
    if len(before) != 3 or len(after) != 4:  # steps, batch, features; steps, directions, batch, hidden
        return f"of an input {before}", AGAIN
    shapes = {name: tensor.shape for name, tensor in graph.tensors.items()}
    time, directions, batch, hidden = _sizes(op, shapes)
    rows, first = _GATES[op.op_type] * hidden, (batch, directions) if op.integer("layout", 0) else (directions, batch)
    state = (*first, hidden)
    wanted = {
        "weight": (directions, rows, before[2]), "recurrence": (directions, rows, hidden), "bias": (directions, 2 * rows),
        "peepholes": (directions, 3 * hidden), "state_h": state, "state_c": state,
    }  # fmt: skip
    roles = _roles(op, shapes)
    if len(roles) != len(op.weights) or any(graph.shape(name) != wanted.get(role) for role, name in roles.items()):
        found = tuple(graph.shape(name) for name in op.weights)
        return f"with weights {found} for an input {before} and an output {after}", AGAIN
    if directions != (2 if op.attributes.get("direction") == "bidirectional" else 1):
        return f"in {directions} directions for the direction {op.attributes.get('direction', 'forward')}", AGAIN
    states = {graph.shape(name) for name in op.inputs[1:]}
    if states - {state}:
        return f"with initial states {states} for an output {after}", AGAIN
    lengths = op.integers("sequence_lens", (time,) * batch)
    return None if len(lengths) == batch else (f"with {len(lengths)} lengths for a batch of {batch}", AGAIN)


def _macs_recurrent(graph: Graph, op: Operator) -> int:
    """Gates x hidden x (input + hidden) for each step, sequence and direction: its gates' products."""
    steps, batch = graph.shape(op.inputs[0])[:2]
    return steps * batch * sum(graph.tensors[name].elements for name in op.weights[:_MATRICES])


def _lacks_recurrent(graph: Graph, op: Operator) -> str:
    odd = {"activation_alpha", "activation_beta", "clip", "input_forget"} & set(op.attributes)
    if odd or ("activations" in op.attributes and op.op_type != "RNN"):
        return "activations other than the default"
    shapes = {name: tensor.shape for name, tensor in graph.tensors.items()}
    time, _, batch, _ = _sizes(op, shapes)
    if op.integers("sequence_lens", (time,) * batch) != (time,) * batch:
        return "sequences that end early"
    states = sum(role.startswith("state") for role in _roles(op, shapes))
    if states and op.integer("layout", 0):
        return "constant initial states of a batch that comes first"
    return "" if len(op.inputs) - 1 + states in (0, 2 if op.op_type == "LSTM" else 1) else "one of the initial states"


def _lower_recurrent(_graph: Graph, op: Operator, shapes: dict[str, Shape]) -> tuple[Part, ...]:
    """Its primitive takes (time, batch, features) and writes (time, batch, directions x hidden), last states as they are read.

    ONNX wants (time, directions, batch, hidden), or the batch first of all it reads and writes.
    """
    time, directions, batch, hidden = _sizes(op, shapes)
    batch_first = bool(op.integer("layout", 0))
    settings: dict[str, Setting] = {"hidden": hidden, "direction": str(op.attributes.get("direction", "forward"))}
    if op.op_type == "RNN":
        settings["activation"] = _PLAIN[str(op.attributes.get("activations", "Tanh")).split()[0]]
    kind = "lbr_gru" if op.integer("linear_before_reset", 0) and op.op_type == "GRU" else op.op_type.lower()
    joined = base.inner(op.outputs[0], (time, batch, directions * hidden), shapes)
    before, behind = list[Part](), list[Part]()
    reads, writes = list(op.inputs), [joined, *op.outputs[1:]]
    if batch_first:
        first = {"permutation": (1, 0, 2)}
        for place, name in enumerate(reads):
            one, other, last = shapes[name]
            reads[place] = base.inner(op.outputs[0], (other, one, last), shapes)
            before.append(Part(f"{op.name}:read_{place}", "transpose", [], [name], [reads[place]], {}, dict(first)))
        for place, name in enumerate(op.outputs[1:], start=1):
            writes[place] = base.inner(name, (directions, batch, hidden), shapes)
            behind.append(Part(f"{op.name}:written_{place}", "transpose", [], [writes[place]], [name], {}, dict(first)))
    whole = Part(op.name, kind, [op.name], reads, writes, _roles(op, shapes), settings)
    if not batch_first and 1 in (directions, batch):
        return whole, Part(f"{op.name}:parted", "reshape", [], [joined], list(op.outputs[:1]), {}, {})
    parted = base.inner(op.outputs[0], (time, batch, directions, hidden), shapes)
    swap: dict[str, Setting] = {"permutation": (1, 0, 2, 3) if batch_first else (0, 2, 1, 3)}
    return (
        *before,
        whole,
        Part(f"{op.name}:parted", "reshape", [], [joined], [parted], {}, {}),
        Part(f"{op.name}:swapped", "transpose", [], [parted], list(op.outputs[:1]), {}, swap),
        *behind,
    )


SPECS = (
    *(
        OperatorSpec(
            (name,), lambda graph, op: "fc" if is_fully_connected(graph, op) else "matmul", _lower, ("fc", "matmul"),
            base.HEAVY, ordered=True, check=check, macs=_macs,
        )
        for name, check in (("Gemm", _check_gemm), ("MatMul", _check_matmul))
    ),
    *(
        OperatorSpec(
            (name,), name.lower(), _lower_recurrent, (), base.HEAVY, ("", "", "", "", "sequence_lens"),
            form=_recurrent_form, check=_check_recurrent, macs=_macs_recurrent, lacks=_lacks_recurrent,
        )
        for name in _GATES
    ),
)  # fmt: skip
