"""Element-wise operators of two inputs, which are broadcast as numpy broadcasts."""

from __future__ import annotations

from edgeplan.graph.ir import Graph, Operator, Shape
from edgeplan.graph.operators.activations import FLOAT_MAX
from edgeplan.graph.operators.base import AGAIN, PAIR, OperatorSpec, Problem, broadcasts
from edgeplan.graph.parts import Chain, Part, part
from edgeplan.graph.steps import Setting

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


def _lacks_prelu(_graph: Graph, op: Operator) -> str:
    return "" if len(op.inputs) == 1 else "a slope that the model computes"


def _check_prelu(graph: Graph, op: Operator) -> Problem:
    x, slope = (graph.shape(name) for name in op.operands[:2])
    return None if broadcasts(slope, x) else (f"with a slope {slope} for an input {x}", AGAIN)


def _pair(name: str, *, ordered: bool = False) -> OperatorSpec:
    kind = name.lower()
    lower = _ordered if ordered else _commutative
    return OperatorSpec((name,), kind, lower, (), PAIR, ordered=ordered, bandwidth_bound=True)


SPECS = (
    _pair("Add"),
    _pair("Mul"),
    _pair("Min"),
    _pair("Max"),
    _pair("Sub", ordered=True),
    _pair("Div", ordered=True),
    OperatorSpec(
        ("PRelu",), "prelu", _prelu, (), PAIR, ordered=True, check=_check_prelu, lacks=_lacks_prelu, bandwidth_bound=True,
    ),
)  # fmt: skip
