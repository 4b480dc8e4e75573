"""How much a test tries: little in `make test`; all in `make test-all`, which sets HYPOTHESIS_PROFILE=many."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, TypeVar

import pytest

FEW = 12  # examples of a property
PROFILE = os.environ.get("HYPOTHESIS_PROFILE") or "few"
MANY = PROFILE == "many"
Value = TypeVar("Value")


def examples(many: int) -> int:
    """The number of examples of a property that `make test-all` tries on so many."""
    return many if MANY else min(many, FEW)


def some(values: Sequence[Value], turn: str) -> Sequence[Value]:
    """All of some values in `make test-all`, else one of them: which one depends on `turn`."""
    return values if MANY else (values[sum(turn.encode()) % len(values)],)


def by_day(values: Sequence[Any], least: int = 1) -> list[Any]:
    """Parameters of a test: the first ones are tried by day, the others, of the same kind, are of the lane `long`."""
    return [*values[:least], *(pytest.param(value, marks=pytest.mark.long) for value in values[least:])]
