"""Memory plan documents: written, read, and refused in another form."""

import json
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

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


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (lambda raw: raw.update(format_version=2), "format_version"),
        (lambda raw: raw.update(more=1), "more"),
        (lambda raw: raw.pop("after"), "after"),
        (lambda raw: raw["tensor_bytes"].__setitem__(0, -1), "tensor_bytes"),
        (lambda raw: raw.update(bytes_per_ms=0.0), "bytes_per_ms"),
        (lambda raw: raw.update(lanes=0), "lanes"),
        (lambda raw: raw.update(steps=[]), "steps"),
    ],
)
def test_a_document_of_another_form_is_refused(change: Any, what: str) -> None:
    raw = json.loads(_made().model_dump_json())
    change(raw)
    with pytest.raises(ValidationError, match=what):
        MemoryPlan.model_validate_json(json.dumps(raw))
