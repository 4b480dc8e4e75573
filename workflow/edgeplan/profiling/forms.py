"""Forms of operators that the runtime would compute otherwise than ONNX says, refused before anything is measured.

`runtime.support` names what oneDNN lacks, by operator and shape. These forms pass it: the graph holds all that tells them
apart, the steps made of it do not. They are no matter to predictions of latency, so a model is not refused when it is read.
They stand outside `edgeplan.runtime` since results are kept by the contents of its files.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType

from edgeplan.errors import ModelError
from edgeplan.graph.element_types import require_float32
from edgeplan.graph.ir import Graph, Operator
from edgeplan.runtime.constants import PLAIN_TAGS

#: What the runtime would not compute as ONNX says, and what to do about it; None if there is nothing.
Problem = tuple[str, str] | None
_ELSEWHERE = "run it on another engine"


def require_exact(graph: Graph, source: str) -> None:
    """Refuse what the runtime would compute wrongly.

    Args:
        graph: the graph that is to be lowered, as `load_onnx` has passed it.
        source: where it comes from, for messages.

    Raises:
        ModelError: names all such operators.
    """
    require_float32(graph, source)
    found = list(_problems(graph))
    if found:
        names = ", ".join(dict.fromkeys(name for name, _, _ in found))
        raise ModelError(
            "the oneDNN runtime does not compute as ONNX says: " + "; ".join(what for _, what, _ in found),
            where=f"{source}, {names}",
            next_step="; ".join(dict.fromkeys(step for _, _, step in found)),
        )


def _problems(graph: Graph) -> Iterator[tuple[str, str, str]]:
    """Where, what, and what to do about it."""
    for op in graph.operators:
        check = _CHECKS.get(op.op_type)
        if problem := (check and check(graph, op)) or _ranks(graph, op):
            yield f"node {op.name!r}", f"{op.name} ({op.op_type}) {problem[0]}", problem[1]
    for name in graph.outputs:
        if name not in graph.producer:
            yield f"output {name!r}", f"{name}, which no operator writes", "leave it out of the outputs"


def _ranks(graph: Graph, op: Operator) -> Problem:
    ranks = {len(graph.shape(name)) for name in (*op.inputs, *op.outputs)}
    if odd := ranks - set(PLAIN_TAGS):
        return f"of {max(odd)} axes", f"reshape it to {min(PLAIN_TAGS)} to {max(PLAIN_TAGS)} axes"
    return None


def _clip(_graph: Graph, op: Operator) -> Problem:
    low, high = op.number("min", -math.inf), op.number("max", math.inf)
    return None if low <= high else (f"from {low:g} to {high:g}", "give it bounds in order")


def _window(_graph: Graph, op: Operator) -> Problem:
    same = str(op.attributes.get("auto_pad", "NOTSET")).startswith("SAME")
    if same and any(d != 1 for d in op.integers("dilations", ())):
        return "dilated, with auto_pad: engines disagree on its size", "export it with pads"
    return None


def _lrn(_graph: Graph, op: Operator) -> Problem:
    return None if op.integer("size", 1) % 2 else ("over an even number of channels", _ELSEWHERE)


def _resize(graph: Graph, op: Operator) -> Problem:
    before, after = graph.shape(op.inputs[0]), graph.shape(op.outputs[0])
    if op.integer("antialias", 0) and any(out < size for size, out in zip(before, after, strict=True)):
        return "with antialias", "export it without, or " + _ELSEWHERE
    if op.attributes.get("keep_aspect_ratio_policy", "stretch") != "stretch":
        return "that keeps the aspect ratio", "export it with the sizes that it has"
    return None


_CHECKS: Mapping[str, Callable[[Graph, Operator], Problem]] = MappingProxyType(
    {
        **dict.fromkeys(("Conv", "MaxPool", "AveragePool"), _window),
        "Clip": _clip,
        "LRN": _lrn,
        "Resize": _resize,
    }
)
