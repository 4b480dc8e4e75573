"""The factors by which preparing, executing and reading slow each other down."""

import threading
from dataclasses import replace

import pytest
from cold_start_instances import layouts

from edgeplan.planning.profile import Contention, Fresh
from edgeplan.profiling import contention
from edgeplan.profiling.contention import charged
from edgeplan.profiling.profiler import pooled


def test_two_preparations_get_done_what_was_measured() -> None:
    main = charged(both=1.6, beside_execution=1.25)
    assert 1 / main + 1 / 1.25 == pytest.approx(2 / 1.6)  # of a lone core's work, both together


def test_two_that_do_not_disturb_each_other_cost_nothing() -> None:
    assert charged(both=1.0, beside_execution=1.0) == 1.0


def test_the_factor_stays_finite_where_two_get_no_more_done_than_one() -> None:
    assert charged(both=2.0, beside_execution=1.0) == 20.0


def test_a_model_has_the_medians_over_its_layouts_but_for_creation() -> None:
    profiles = layouts(4, 1)
    factors = (Contention(1, 1, 1, 20), Contention(1.5, 1, 1.2, 2), Contention(1.1, 1.3, 1.1, 3))
    fresh = (Fresh(2, 3, 0.6), Fresh(1, 9, 0.8, hand_over_ms=0.5), Fresh(4, 1, 1.1))
    given = [replace(p, contention=c, fresh=f) for p, c, f in zip(profiles, factors, fresh, strict=True)]
    found = pooled(given)
    assert {p.contention for p in found} == {Contention(1.1, 1, 1.1, 3)}
    assert [p.fresh for p in found] == [Fresh(2, 3, 0.6), Fresh(2, 3, 0.8), Fresh(2, 3, 1.1)]
    assert {p.start_ms for p in found} == {0.25}
    assert [p.layers for p in found] == [p.layers for p in given]


def test_what_one_preparation_failed_at_is_told_rather_than_that_the_other_missed_it() -> None:
    class Failing:
        def __init__(self, *, fails: bool) -> None:
            self.fails = fails

        def prepare(self, together: threading.Barrier) -> float:
            if self.fails:
                raise ValueError("the model file changed")
            together.wait()
            return 1.0

    pair = [(Failing(fails=fails), 0) for fails in (False, True)]
    with pytest.raises(ValueError, match="the model file changed"):
        contention._at_once(*pair)  # type: ignore[arg-type]
