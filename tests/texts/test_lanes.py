"""`make test-all` runs every lane; that each test is in one is for `tests/conftest.py`."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
_RECIPES = dict(re.findall(r"^([a-z-]+):[^\n]*\n((?:\t[^\n]*\n)+)", (ROOT / "Makefile").read_text(), re.MULTILINE))
_VARIABLES = dict(re.findall(r"^(DAY|MORE) = (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE))


def _selected(target: str) -> set[str]:
    """The lanes that a target of the Makefile runs."""
    (chosen,) = re.findall(r'(?:pytest|PYTEST\)) -m "?([^"\n]+)', _RECIPES[target])
    return set(re.sub(r"\$\((\w+)\)", lambda named: _VARIABLES[named[1]], chosen).split(" or "))


def test_the_lanes_of_the_targets_are_all(pytestconfig: pytest.Config) -> None:
    day, every, slow, texts = (_selected(target) for target in ("test", "test-all", "test-slow", "lint"))
    assert day | texts <= every
    assert sorted([*every, *slow]) == sorted(pytestconfig.lanes)
    assert "$(MAKE) test-isa test-sanitised test-slow" in _RECIPES["test-all"]
