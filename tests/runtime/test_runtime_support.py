"""Settings of operators that the runtime lacks are refused by name, before any work."""

from __future__ import annotations

from types import MappingProxyType

import pytest

from edgeplan.errors import ModelError
from edgeplan.graph.ir import Attribute, Graph, Operator, Tensor
from edgeplan.runtime.lowering import lower


def _one(op_type: str, shapes: list[tuple[int, ...]], output: tuple[int, ...], **attributes: Attribute) -> Graph:
    names = [f"x{i}" for i in range(len(shapes))]
    tensors = {n: Tensor(n, s) for n, s in zip(names, shapes, strict=True)} | {"y": Tensor("y", output)}
    op = Operator("op", op_type, tuple(names), ("y",), (), MappingProxyType(attributes))
    return Graph("one", (op,), tuple(names), ("y",), MappingProxyType(tensors))


@pytest.mark.parametrize(
    ("graph", "message"),
    [
        (_one("LSTM", [(5, 1, 7), (1, 1, 8)], (5, 1, 1, 8), hidden_size=8), "initial states"),
        (_one("Conv", [(1, 3, 4), (2, 3, 1)], (1, 2, 4)), "weights computed"),
        (_one("LRN", [(1, 3, 4)], (1, 3, 4), size=3), "4-D"),
    ],
)
def test_refused(graph: Graph, message: str) -> None:
    with pytest.raises(ModelError, match=message) as caught:
        lower(graph)
    assert "op" in caught.value.what
