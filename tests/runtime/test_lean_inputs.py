"""Random inputs of a plan of memory that are written without numpy."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from edgeplan.runtime.streaming.lean_inputs import random_inputs
from edgeplan.runtime.streaming.program import Border, Operand

LANE = "fast"  # see tests/conftest.py


class _Plan:
    def __init__(self, *borders: Border) -> None:
        self._borders = borders

    def program_of(self, _kind: type) -> Any:
        return SimpleNamespace(inputs=self._borders)


def _border(dtype: str, below: int = 2) -> Border:
    return Border("x", (3, 50), Operand(0, 0), dtype, below)


@pytest.mark.parametrize(("dtype", "below"), [("float32", 2), ("int64", 50257), ("int32", 9), ("bool", 2)])
def test_values_are_seeded_and_of_their_range(dtype: str, below: int, tmp_path: Path) -> None:
    plan: Any = _Plan(_border(dtype, below))
    written = []
    for _ in range(2):
        assert random_inputs(plan, tmp_path)
        written.append((tmp_path / "0.in").read_bytes())
    assert written[0] == written[1]
    values = np.frombuffer(written[0], dtype)
    assert values.size == 150
    assert (values >= (0.05 if dtype == "float32" else 0)).all()
    assert (values < (1 if dtype == "float32" else below)).all()
    assert len(set(values.tolist())) > 1


def test_other_types_are_left_to_numpy(tmp_path: Path) -> None:
    plan: Any = _Plan(_border("float32"), _border("float16"))
    assert not random_inputs(plan, tmp_path)
    assert not list(tmp_path.iterdir())
