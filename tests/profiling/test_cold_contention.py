"""The factors by which preparing, executing and reading slow each other down."""

from __future__ import annotations

import ctypes
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cold_start_instances import layouts
from tiny_profiled import tiny

from edgeplan.graph.onnx.write import save_onnx
from edgeplan.planning.profile import Contention, Fresh
from edgeplan.profiling import contention, subjects
from edgeplan.profiling.contention import charged
from edgeplan.profiling.profiler import pooled
from edgeplan.profiling.subjects import subject
from edgeplan.runtime.dnnl import Dnnl
from edgeplan.runtime.lowering import lower
from edgeplan.runtime.weights import locate_weights


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


def test_nothing_is_offered_from_the_library_s_cache(dnnl: Dnnl, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another model of the process may have filled it, and what it offers for that one is not there in a fresh process."""

    def capacity() -> int:
        found = ctypes.c_int()
        dnnl.check(dnnl.function("dnnl_get_primitive_cache_capacity")(ctypes.byref(found)), "capacity of the cache")
        return found.value

    seen: list[int] = []
    plain = subjects.candidates

    def watched(*arguments: Any) -> Any:
        seen.append(capacity())
        return plain(*arguments)

    monkeypatch.setattr(subjects, "candidates", watched)
    # whatever was run in this process before
    dnnl.check(dnnl.function("dnnl_set_primitive_cache_capacity")(64), "capacity of the cache")
    before, lowered = capacity(), lower(tiny())
    subject(dnnl, lowered, "nhwc", locate_weights(save_onnx(tiny(), tmp_path / "tiny.onnx"), lowered), 1)
    assert set(seen) == {0}
    assert capacity() == before == 64, "for whoever runs models in this process"
