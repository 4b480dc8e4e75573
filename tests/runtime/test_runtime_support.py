"""Settings of operators that the runtime lacks are refused by name, before any work."""

from __future__ import annotations

import subprocess
import sys
from types import MappingProxyType

import pytest

from edgeplan.errors import ModelError
from edgeplan.graph.ir import Attribute, Graph, Operator, Tensor
from edgeplan.runtime import library
from edgeplan.runtime.installed import NAMED_BY, installed_libraries
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


_LEFT_OUT = {"dataclasses", "inspect", "tempfile", "subprocess", "hashlib", "msgspec", "numpy", "edgeplan.graph.ir"}


@pytest.mark.parametrize("module", ["edgeplan.opening", "edgeplan.measurement.process.streaming"])
def test_a_start_imports_what_running_needs_alone(module: str) -> None:
    code = f"import sys; before = set(sys.modules); import {module}; print(*set(sys.modules) - before)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not _LEFT_OUT & set(done.stdout.split())


def test_no_process_looks_for_a_library_where_one_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    looked_for: list[str] = []
    monkeypatch.setattr("ctypes.util.find_library", looked_for.append)
    assert library.open_library()[1].path == next(installed_libraries())
    assert not looked_for
    monkeypatch.setenv(NAMED_BY, "/no/such/libdnnl.so")
    assert list(library._places()) == []
    assert looked_for == ["dnnl"]
