"""The factors by which preparing, executing and reading slow each other down."""

import pytest

from edgeplan.cold.profiling.contention import charged


def test_two_preparations_get_done_what_was_measured() -> None:
    main = charged(both=1.6, beside_execution=1.25)
    assert 1 / main + 1 / 1.25 == pytest.approx(2 / 1.6)  # of a lone core's work, both together


def test_two_that_do_not_disturb_each_other_cost_nothing() -> None:
    assert charged(both=1.0, beside_execution=1.0) == 1.0


def test_the_factor_stays_finite_where_two_get_no_more_done_than_one() -> None:
    assert charged(both=2.0, beside_execution=1.0) == 20.0
