"""Memory plan documents: written, read, and refused where anything in them contradicts the rest."""

import json
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from edgeplan.errors import FormatError
from edgeplan.planning.layout.buffers import buffers
from edgeplan.planning.memory.document import MemoryPlan, document
from edgeplan.planning.memory.planner import plan
from edgeplan.planning.memory.quick import Mode
from edgeplan.planning.memory.workload import Reader, Workload


def _made(mode: Mode = Mode.isolated) -> MemoryPlan:
    compute, weights = np.array([1.0, 2.0, 0.5, 1.0]), np.array([8, 0, 12, 8], dtype=np.int64)
    workload = Workload(compute, weights, buffers([0, 1, 2], [2, 3, 4], [4, 6, 4]), weight_alignment=2)
    planned = plan(workload, Reader(10.0, 2), 24, mode)
    return document(planned, workload, Reader(10.0, 2), ("a", "b", "c", "d"), ("x", "y", "z"))


@pytest.mark.parametrize("mode", Mode)
def test_a_document_is_read_as_it_was_written(mode: Mode) -> None:
    made = _made(mode)
    assert MemoryPlan.model_validate_json(made.model_dump_json()) == made
    assert made.mode == mode
    assert made.arena_bytes <= made.budget_bytes
    assert made.gap >= 0


def _first_load(raw: dict[str, Any]) -> int:
    return next(k for k, offset in enumerate(raw["weight_offset"]) if offset >= 0)


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (lambda raw: raw.update(format_version=2), "format_version"),
        (lambda raw: raw.update(more=1), "more"),
        (lambda raw: raw.pop("after"), "after"),
        (lambda raw: raw["after"].pop(), "one for each step"),
        (lambda raw: raw["tensor_offset"].pop(), "one for each tensor"),
        (lambda raw: raw["after"].__setitem__(2, 2), "a later one"),
        (lambda raw: raw["again"].__setitem__(3, 9), "a later one"),
        (lambda raw: raw["again"].__setitem__(1, 3), "again"),
        (lambda raw: raw["weight_offset"].__setitem__(1, 0), "0 bytes of weights"),
        (lambda raw: raw["weight_offset"].__setitem__(2, -1), "12 bytes of weights"),
        (lambda raw: raw["weight_offset"].__setitem__(2, 2**70), "above arena_bytes"),
        (lambda raw: raw.update(weight_offset=[raw["tensor_offset"][0], *raw["weight_offset"][1:]]), "share memory"),
        (lambda raw: raw.update(tensor_offset=[0, 0, 0]), "share memory"),
        (lambda raw: raw["tensor_upper"].__setitem__(0, 5), "not a range of steps"),
        (lambda raw: raw["tensor_bytes"].__setitem__(0, -1), "tensor_bytes"),
        (lambda raw: raw.update(arena_bytes=raw["budget_bytes"] + 1), "above budget_bytes"),
        (lambda raw: raw.update(arena_bytes=1), "above arena_bytes"),
        (lambda raw: raw.update(predicted_ms=raw["lower_bound_ms"] / 2), "below lower_bound_ms"),
        (lambda raw: raw.update(bytes_per_ms=0.0), "bytes_per_ms"),
        (lambda raw: raw.update(lanes=0), "lanes"),
        (lambda raw: raw.update(steps=[]), "steps"),
    ],
)
def test_a_document_that_contradicts_itself_is_refused(change: Any, what: str) -> None:
    raw = json.loads(_made().model_dump_json())
    change(raw)
    with pytest.raises(ValidationError, match=what):
        MemoryPlan.model_validate_json(json.dumps(raw))


@pytest.mark.parametrize(
    ("compute", "weights", "upper", "what"),
    [
        ([], [], [], "no step"),
        ([1.0, float("nan")], [1, 1], [1], "compute_ms"),
        ([1.0, -1.0], [1, 1], [1], "compute_ms"),
        ([1.0], [1, 1], [1], "weight_bytes"),
        ([1.0], [-1], [1], "weight_bytes"),
        ([1.0], [1], [2], "tensors"),
    ],
)
def test_a_workload_that_makes_no_sense_is_refused(
    compute: list[float], weights: list[int], upper: list[int], what: str
) -> None:
    alive = buffers([0] * len(upper), upper, [1] * len(upper))
    with pytest.raises(FormatError, match=what):
        Workload(np.array(compute), np.array(weights, dtype=np.int64), alive)


@pytest.mark.parametrize(("rate", "lanes"), [(0.0, 1), (-1.0, 1), (float("inf"), 1), (float("nan"), 1), (1.0, 0)])
def test_a_reader_that_makes_no_sense_is_refused(rate: float, lanes: int) -> None:
    with pytest.raises(FormatError, match="bandwidth"):
        Reader(rate, lanes)
