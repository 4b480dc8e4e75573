"""What is made of starts in fresh processes: factors, contention, and the row they are kept in."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from tiny_profiled import tiny

from edgeplan.graph.onnx.write import save_onnx
from edgeplan.planning.profile import SOURCES, Candidate, Contention, Fresh, Layer, Profile
from edgeplan.profiling import fresh_process_factors
from edgeplan.profiling.contention import Pairs, charged
from edgeplan.profiling.fresh_process_factors import STAGES, Check, Start, start_of, start_row
from edgeplan.runtime.dnnl import Dnnl

START = Start(1.5, Fresh(2, 3, 0.5, 1.25, 0.75, 0.875, hand_over_ms=0.25), Contention(1.5, 1.25, 1.125, 2, 3, 4, 5))


def _check(predicted: dict[str, float], measured: dict[str, float]) -> Check:
    blank = dict.fromkeys(("total", *STAGES), 0.0)
    return Check(blank | predicted, blank | measured)


def test_a_row_says_what_was_put_into_it() -> None:
    row = start_row(["a", "b"], START)
    assert row.position == 2
    assert start_of([row]) == START


def test_of_several_programs_the_medians_count_and_of_none_nothing_is_added() -> None:
    others = [replace(START, start_ms=time_ms) for time_ms in (0.5, 9.0)]
    assert start_of([start_row(["a"], start) for start in (START, *others)]) == START
    assert start_of([]) == Start(0.0, Fresh(), Contention())


def test_factors_are_measured_over_profiled_where_nothing_overlaps() -> None:
    stages = {"read": 2.0, "create": 4.0, "transform": 1.0, "execute": 10.0}
    checks = {
        ("alone", "cached_mmap"): _check(stages | {"transform": 0.0}, {"read": 3.0, "create": 2.0, "execute": 8.0}),
        ("alone", "raw"): _check(stages, {"read": 5.0, "create": 9.0, "transform": 1.25, "execute": 99.0}),
        ("wide", "cached_mmap"): _check({"execute": 6.0}, {"execute": 9.0}),
    }
    assert fresh_process_factors._fresh(checks) == Fresh(read=2.5, map=1.5, create=0.5, transform=1.25, execute=0.8, wide=1.5)
    del checks["wide", "cached_mmap"]
    assert fresh_process_factors._fresh(checks).wide == 0.8, "one core executes as wide as it can"


def test_contention_is_beside_over_alone_whatever_was_profiled() -> None:
    alone = {"read": 2.0, "create": 4.0, "execute": 10.0}
    beside = {"read": 3.0, "create": 6.0, "execute": 9.0}
    checks = {
        ("alone", "cached_mmap"): _check(dict.fromkeys(alone, 1.0), alone),
        ("beside", "cached_mmap"): _check(dict.fromkeys(alone, 1.0), beside),
        ("alone", "raw"): _check(
            {"read": 1.0, "create": 1.0, "transform": 1.0}, {"read": 1.0, "create": 2.0, "transform": 2.0}
        ),
        # a little core prepares, which was profiled at twice the time
        ("beside", "raw"): _check(
            {"read": 2.0, "create": 2.0, "transform": 2.0}, {"read": 3.0, "create": 4.0, "transform": 8.0}
        ),
    }
    found = fresh_process_factors._contention(checks, Pairs(1.6, 1.5))
    assert found == Contention(
        prepare=1.5,
        execute=1.0,  # no less than 1
        read=1.5,
        main=charged(1.6, 1.5),
        raw_prepare=pytest.approx(1.5),
        raw_read=1.5,
        raw_main=pytest.approx(charged(1.5, 1.5)),
    )


def test_a_start_with_raw_weights_reads_those_that_are_always_cached(dnnl: Dnnl, tmp_path: Path) -> None:
    times, nothing = {"big": 1.0}, {"big": 0.0}
    raw, copied, mapped = (
        Candidate("k", source, times, times, nothing, {1: 1.0, 2: 1.0}) for source in ("raw", "cached_read", "cached_mmap")
    )
    layers = (Layer("one", (), (raw, copied, mapped)), Layer("always", (), (copied, mapped)))
    profile, model = Profile("m", "nhwc", 2, 0, 1.0, layers), save_onnx(tiny(), tmp_path / "tiny.onnx")
    for source, wanted in (("raw", ["raw", "cached_read"]), ("cached_mmap", ["cached_mmap"] * 2)):
        plan = fresh_process_factors.plan_of_least(dnnl, model, profile, source, beside=True)
        assert [SOURCES[number] for number in plan.source] == wanted
