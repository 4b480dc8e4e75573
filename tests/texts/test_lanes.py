"""Each test is in one lane, and `make test-all` runs every lane."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
_RECIPES = dict(re.findall(r"^([a-z-]+):[^\n]*\n((?:\t[^\n]*\n)+)", (ROOT / "Makefile").read_text(), re.MULTILINE))
_VARIABLES = dict(re.findall(r"^(DAY|MORE) = (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE))
#: Fewer by day would leave much untried; a lane that nobody fills is none.
_LEAST_BY_DAY = 3500
_COLLECT = """
import sys, pytest

class Lanes:
    def pytest_collection_finish(self, session):
        lanes = set(session.config.lanes)
        for item in session.items:
            print("case:", *sorted(lanes & {marker.name for marker in item.iter_markers()}))

sys.exit(pytest.main(["--collect-only", "-qq", "-m", "", "-p", "no:cacheprovider", "tests"], plugins=[Lanes()]))
"""


def _selected(target: str) -> set[str]:
    """The lanes that a target of the Makefile runs."""
    (chosen,) = re.findall(r'(?:pytest|PYTEST\)) -m "?([^"\n]+)', _RECIPES[target])
    return set(re.sub(r"\$\((\w+)\)", lambda named: _VARIABLES[named[1]], chosen).split(" or "))


@pytest.fixture(scope="module")
def cases() -> Counter[tuple[str, ...]]:
    """The numbers of the cases that are in the same lanes."""
    ran = subprocess.run(
        [sys.executable, "-c", _COLLECT], cwd=ROOT, env=os.environ, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stdout[-2000:] + ran.stderr[-2000:]
    return Counter(tuple(line.split()[1:]) for line in ran.stdout.splitlines() if line.startswith("case:"))


def test_each_case_is_in_one_lane_and_no_lane_is_empty(cases: Counter[tuple[str, ...]], pytestconfig: pytest.Config) -> None:
    assert set(cases) == {(lane,) for lane in pytestconfig.lanes}


def test_the_lanes_of_the_targets_are_all(cases: Counter[tuple[str, ...]], pytestconfig: pytest.Config) -> None:
    day, every, slow, texts = (_selected(target) for target in ("test", "test-all", "test-slow", "lint"))
    assert day | texts <= every
    assert sorted([*every, *slow]) == sorted(pytestconfig.lanes)
    assert "$(MAKE) test-isa test-slow" in _RECIPES["test-all"]
    assert sum(cases[lane,] for lane in day) >= _LEAST_BY_DAY
