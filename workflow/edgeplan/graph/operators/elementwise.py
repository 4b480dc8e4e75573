"""Element-wise operators of one input, and of two that are broadcast as numpy broadcasts."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType

from edgeplan.graph.ir import Graph, Operator, Shape
from edgeplan.graph.operators.base import AGAIN, PAIR, Chain, OperatorSpec, Part, Problem, broadcasts, part
from edgeplan.graph.steps import PostOp, Setting

FLOAT_MAX = 3.4028234663852886e38
_SELU_ALPHA, _SELU_GAMMA = 1.6732632423543772848170429916717, 1.0507009873554804934193349852946


def _bounds(op: Operator) -> tuple[float, float]:
    return op.number("min", -math.inf), op.number("max", math.inf)


def _clip(op: Operator) -> PostOp:
    low, high = _bounds(op)
    low = min(low, high)  # bounds that cross leave the upper one
    return PostOp("eltwise", "clip", max(low, -FLOAT_MAX), min(high, FLOAT_MAX))


def exponent(op: Operator) -> float:
    """Return the constant exponent of a `Pow`."""
    value = op.attributes["exponent"]
    return float(value[0] if isinstance(value, tuple) else value)


def _pow(op: Operator) -> PostOp:
    power = exponent(op)
    plain = {2.0: PostOp("eltwise", "square"), 0.5: PostOp("eltwise", "sqrt"), 1.0: PostOp("eltwise", "linear", 1.0, 0.0)}
    return plain.get(power) or PostOp("eltwise", "pow", 1.0, power)


#: oneDNN's eltwise operation of each type that is one.
_ELTWISE: Mapping[str, Callable[[Operator], PostOp]] = MappingProxyType(
    {
        "Relu": lambda _: PostOp("eltwise", "relu"),
        "LeakyRelu": lambda op: PostOp("eltwise", "relu", op.number("alpha", 0.01)),
        "Clip": _clip,
        "HardSwish": lambda _: PostOp("eltwise", "hardswish", 1 / 6, 0.5),
        "HardSigmoid": lambda op: PostOp("eltwise", "hardsigmoid", op.number("alpha", 0.2), op.number("beta", 0.5)),
        "Sigmoid": lambda _: PostOp("eltwise", "logistic"),
        "Tanh": lambda _: PostOp("eltwise", "tanh"),
        "Elu": lambda op: PostOp("eltwise", "elu", op.number("alpha", 1.0)),
        "Softplus": lambda _: PostOp("eltwise", "soft_relu", 1.0),
        "Mish": lambda _: PostOp("eltwise", "mish"),
        "Gelu": lambda op: PostOp("eltwise", f"gelu_{'tanh' if op.attributes.get('approximate') == 'tanh' else 'erf'}"),
        "Sqrt": lambda _: PostOp("eltwise", "sqrt"),
        "Exp": lambda _: PostOp("eltwise", "exp"),
        "Log": lambda _: PostOp("eltwise", "log"),
        "Abs": lambda _: PostOp("eltwise", "abs"),
        "Neg": lambda _: PostOp("eltwise", "linear", -1.0, 0.0),
        "Reciprocal": lambda _: PostOp("eltwise", "pow", 1.0, -1.0),
        "Pow": _pow,
    }
)


def activation(op: Operator) -> PostOp | None:
    """Return an element-wise operator as oneDNN's eltwise operation; None for other operators."""
    made = _ELTWISE.get(op.op_type) if len(op.operands) == 1 else None
    return made(op) if made else None


def _lower(_graph: Graph, op: Operator, _shapes: dict[str, Shape]) -> tuple[Part, ...]:
    found = _ELTWISE[op.op_type](op)
    settings: dict[str, Setting] = {"algorithm": found.algorithm, "alpha": found.alpha, "beta": found.beta}
    return (part(op, "eltwise", (), settings),)


def _selu(_graph: Graph, op: Operator, shapes: dict[str, Shape]) -> tuple[Part, ...]:
    """Gamma x, below zero gamma alpha (exp(x) - 1)."""
    chain = Chain(op, shapes)
    alpha, gamma = op.number("alpha", _SELU_ALPHA), op.number("gamma", _SELU_GAMMA)
    return chain.finished(chain.linear(chain.eltwise(op.inputs[0], "elu", alpha), gamma))


def _softsign(_graph: Graph, op: Operator, shapes: dict[str, Shape]) -> tuple[Part, ...]:
    """X / (1 + |x|)."""
    chain, x = Chain(op, shapes), op.inputs[0]
    below = chain.linear(chain.eltwise(x, "abs"), 1.0, 1.0)
    return chain.finished(chain.step("binary", [x, below], shapes[x], {"algorithm": "div"}))


def _check_pow(_graph: Graph, op: Operator) -> Problem:
    value = op.attributes.get("exponent")
    one = not isinstance(value, tuple) or len(value) == 1
    return None if one else ("by a tensor of exponents", "export it with one number as the exponent")


_UNARY = (
    *(OperatorSpec((name,), name.lower(), _lower) for name in ("Relu", "LeakyRelu")),
    OperatorSpec(
        ("Clip",), lambda _, op: "relu6" if _bounds(op) == (0.0, 6.0) else "clip", _lower, ("relu6", "clip"),
        constants=("", "min", "max"),
    ),
    OperatorSpec(("HardSwish",), "hswish", _lower),
    OperatorSpec(("HardSigmoid",), "hsigmoid", _lower),
    *(
        OperatorSpec((name,), name.lower(), _lower)
        for name in (
            "Sigmoid", "Tanh", "Elu", "Softplus", "Mish", "Gelu", "Exp", "Log", "Sqrt", "Abs", "Neg", "Reciprocal",
        )
    ),
    OperatorSpec(
        ("Pow",), "pow", _lower, constants=("", "exponent"), check=_check_pow, computed=frozenset({"exponent"}), ordered=True,
    ),
    OperatorSpec(("Selu",), "selu", _selu),
    OperatorSpec(("Softsign",), "softsign", _softsign),
)  # fmt: skip

#: Kinds that compute a value from each element alone.
ACTIVATIONS = frozenset(kind for spec in _UNARY for kind in spec.all_kinds)


_NO_SHARE = 1e-30


def _whole(op: Operator, shapes: dict[str, Shape]) -> bool:
    """Tell whether the operands have the output's rank, and one of the activations its shape."""
    out = shapes[op.outputs[0]]
    return all(len(shapes[name]) == len(out) for name in op.inputs) and any(shapes[name] == out for name in op.inputs)


def _commutative(_graph: Graph, op: Operator, shapes: dict[str, Shape]) -> tuple[Part, ...]:
    """The first operand of its primitive is the one that is not broadcast, an activation."""
    out = shapes[op.outputs[0]]
    settings: dict[str, Setting] = {"algorithm": op.op_type.lower()}
    if _whole(op, shapes):
        whole = part(op, "binary", ("operand",), settings)
        if shapes[whole.inputs[0]] != out:
            whole.inputs.reverse()
        return (whole,)
    chain = Chain(op, shapes)
    reads = [chain.raised(name, len(out)) for name in op.inputs]
    reads.sort(key=lambda name: shapes[name] != out)
    reads[0] = chain.repeated(reads[0], out)
    return chain.finished(chain.step("binary", reads, out, settings, dict(zip(("operand",), op.weights, strict=False))))


def _ordered(_graph: Graph, op: Operator, shapes: dict[str, Shape]) -> tuple[Part, ...]:
    """Differences and quotients: what is subtracted or divided from is the first operand, unless it is a constant."""
    out, (first, second) = shapes[op.outputs[0]], op.operands
    settings: dict[str, Setting] = {"algorithm": op.op_type.lower()}
    if first in op.inputs and shapes[first] == out and (second in op.weights or len(shapes[second]) == len(out)):
        return (part(op, "binary", ("operand",), settings),)
    chain = Chain(op, shapes)
    if first in op.inputs:
        full = chain.repeated(first, out)
        if second in op.weights:
            return chain.finished(chain.step("binary", [full], out, settings, {"operand": second}))
        return chain.finished(chain.step("binary", [full, chain.raised(second, len(out))], out, settings))
    full = chain.repeated(second, out)
    if op.op_type == "Sub":  # c - x
        return chain.finished(chain.linear(chain.step("binary", [full], out, settings, {"operand": first}), -1.0))
    inverse = chain.eltwise(full, "pow", 1.0, -1.0)  # c / x
    return chain.finished(chain.step("binary", [inverse], out, {"algorithm": "mul"}, {"operand": first}))


def _prelu(_graph: Graph, op: Operator, shapes: dict[str, Shape]) -> tuple[Part, ...]:
    """max(x, 0) + slope min(x, 0).

    The first passes a share of what is negative that no number shows, since it passes on what is no number and -inf with it:
    the bound of the second lets neither through.
    """
    chain, (x, slope) = Chain(op, shapes), op.operands
    low = chain.step("binary", [chain.eltwise(x, "clip", -FLOAT_MAX, 0.0)], shapes[x], {"algorithm": "mul"}, {"operand": slope})
    return chain.finished(chain.step("binary", [low, chain.eltwise(x, "relu", _NO_SHARE)], shapes[x], {"algorithm": "add"}))


def _check_prelu(graph: Graph, op: Operator) -> Problem:
    x, slope = (graph.shape(name) for name in op.operands[:2])
    return None if broadcasts(slope, x) else (f"with a slope {slope} for an input {x}", AGAIN)


SPECS = (
    *_UNARY,
    *(OperatorSpec((name,), name.lower(), _commutative, (), PAIR) for name in ("Add", "Mul", "Min", "Max")),
    *(OperatorSpec((name,), name.lower(), _ordered, (), PAIR, ordered=True) for name in ("Sub", "Div")),
    OperatorSpec(
        ("PRelu",), "prelu", _prelu, (), PAIR, ordered=True, check=_check_prelu,
        lacks=lambda _, op: "" if len(op.inputs) == 1 else "a slope that the model computes",
    ),
)  # fmt: skip
