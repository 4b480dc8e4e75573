"""The order of things that wait for each other."""

from __future__ import annotations

from edgeplan.support.topology import topological


def test_what_waits_for_nothing_keeps_its_place() -> None:
    assert topological([(), (), ()]) == [0, 1, 2]
    assert topological([(2,), (), ()]) == [1, 2, 0]
    assert topological([(3,), (0,), (), ()]) == [2, 3, 0, 1]
    assert topological([]) == []


def test_a_circle_and_what_waits_for_it_are_left_out() -> None:
    assert topological([(1,), (0,), (), (1, 2), (2,)]) == [2, 4]
    assert topological([(0,)]) == []
