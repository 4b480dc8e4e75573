"""Borders of the cold-start planner: profile tables in, plan documents out."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cold_start_instances import layouts, realistic, uniform

from edgeplan.chapters.cold_start.planners.registry import plan
from edgeplan.errors import FormatError
from edgeplan.planning.document import Plan, Target, check_fits, plan_of, plan_text
from edgeplan.planning.profile import Candidate, Contention, Fresh, Layer, check
from edgeplan.profiling.frame import from_frame, to_frame
from edgeplan.support.frames import read_parquet

TARGET = Target("m.onnx", "a" * 64, "oneDNN", "3.2", "avx512_core", "machine", 2)


@pytest.mark.parametrize(
    ("column", "value", "message"),
    [
        ("execute_2_ms", -1.0, "negative"),
        ("create_big_ms", float("inf"), "not finite"),
        ("read_big_ms", None, "read_ms is by core class"),
        ("execute_1_ms", None, "misses a width"),
        ("source", "guessed", "source must be one of"),
        ("step", 7, "not numbered"),
        ("little_ratio", 0.5, "differ between the rows"),
        ("members", "conv0", "several names"),
        ("cache_bytes", -4, "size is negative"),
        ("name", None, "several names"),
    ],
)
def test_a_bad_cell_is_named(column: str, value: Any, message: str) -> None:
    frame = to_frame([realistic(2, 1)])
    frame[column] = frame[column].astype(object)
    frame.loc[len(frame) - 1, column] = value
    if column not in {"source", "members", "name"}:
        frame[column] = frame[column].astype(float)
    with pytest.raises(FormatError, match=message):
        from_frame(frame)


def test_missing_and_misused_columns_are_named() -> None:
    frame = to_frame([realistic(2, 1)])
    with pytest.raises(FormatError, match="transform_big_ms"):
        from_frame(frame.drop(columns="transform_big_ms"))
    with pytest.raises(FormatError, match="misses a width"):
        from_frame(frame.drop(columns=["execute_1_ms", "execute_2_ms"]))
    with pytest.raises(FormatError, match=r"not of its column's type.*many"):
        from_frame(frame.assign(read_bytes="many"))
    with pytest.raises(FormatError, match="not of its column's type"):
        from_frame(frame.assign(members="{"))


def test_inconsistent_profiles_are_refused() -> None:
    good = realistic(2, 1)
    twice = Layer("s", (), (good.layers[0].candidates[0],) * 2)
    narrow = Candidate("k", "none", {"big": 0.0}, {"big": 0.0}, {"big": 0.0}, {1: 1.0, 2: 1.0, 3: 1.0})
    for bad, message in (
        (replace(good, layers=()), "no steps"),
        (replace(good, layers=(Layer("s", (), ()),)), "no candidate"),
        (replace(good, layers=(twice,)), "same implementation"),
        (replace(good, layers=(*good.layers, Layer("s", (), (narrow,)))), "same widths"),
        (replace(good, contention=Contention(0.9)), "at least 1"),
        (replace(good, big_cores=0), "0 big"),
        (replace(good, start_ms=-1.0), "start_ms"),
        (replace(good, fresh=Fresh(create=0.0)), "above 0"),
        (replace(good, fresh=Fresh(execute=float("inf"))), "above 0"),
        (replace(good, fresh=Fresh(hand_over_ms=-1.0)), "hand_over_ms"),
    ):
        with pytest.raises(FormatError, match=message):
            check(bad)


def _plan() -> Plan:
    return plan(layouts(12, 4), "optimal", TARGET)


def test_plan_round_trip_is_compact() -> None:
    written = _plan()
    assert plan_of(plan_text(written), "") == written
    assert len(plan_text(written)) < 1000 + 12 * 40
    assert written.target == TARGET
    assert written.places == tuple(-1 if k in written.main else 0 for k in range(12))
    assert written.step(0).place in {"main", "prepare:0"}


def test_plan_says_what_the_profile_says() -> None:
    document = plan([uniform([(1, 4, 3), (5, 4, 3)])], "optimal", TARGET)
    assert document.main == (0,)
    assert document.queues == ((1,),)
    assert document.widen_from == 1
    assert document.makespan_ms == 8
    assert document.gap < 1e-3
    assert document.read_bytes == 200
    assert [document.step(k).place for k in (0, 1)] == ["main", "prepare:0"]
    assert (document.step(0).implementation, document.step(0).source) == ("k", "raw")


def test_the_gap_stands_in_the_document() -> None:
    written = plan(layouts(12, 4), "nnv12", TARGET)
    document = json.loads(plan_text(written))
    assert document["gap"] == written.gap == document["makespan_ms"] / document["lower_bound_ms"] - 1 > 0
    del document["gap"]  # as earlier documents
    assert plan_of(json.dumps(document), "") == written
    assert plan_of(json.dumps(document | {"lower_bound_ms": 0.0}), "").gap == 0


@pytest.mark.committed
def test_plans_of_before_the_gap_stood_in_them_are_read() -> None:
    kept = read_parquet(Path(__file__).parents[3] / "results/cpu-onednn/cold/plans.parquet")["document"]
    assert len(kept)
    for text in kept:
        found = plan_of(text, "plans.parquet")
        assert found.gap == pytest.approx(found.makespan_ms / found.lower_bound_ms - 1, abs=1e-6)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"format_version": 2}, "format_version"),
        ({"model_sha256": "short"}, "model_sha256"),
        ({"extra": 1}, "extra"),
        ({"widen_from": -1}, "widen_from"),
        ({"lower_bound_ms": "fast"}, "lower_bound_ms"),
        ({"gap": None}, "gap"),
        ({"costs": "guessed"}, "costs"),
        ({"threads": 2.0}, "threads"),
    ],
)
def test_a_plan_that_does_not_fit_names_the_field(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(FormatError, match=message):
        plan_of(json.dumps(json.loads(plan_text(_plan())) | changes), "")


def test_truncated_plans_say_what_to_do() -> None:
    whole = plan_text(_plan())
    for tenth in range(10):
        with pytest.raises(FormatError, match="does not fit") as refused:
            plan_of(whole[: len(whole) * tenth // 10], "plan.json")
        assert "edgeplan plan cold-start" in refused.value.next_step


def test_a_plan_for_something_else_is_refused() -> None:
    document = _plan()
    check_fits(document, TARGET, document.steps)
    check_fits(document, replace(TARGET, model="renamed.onnx"), ())
    for change in (
        {"model_sha256": "b" * 64},
        {"library": "other"},
        {"library_version": "3.3"},
        {"isa": "avx2"},
        {"machine": "other"},
        {"threads": 4},
    ):
        with pytest.raises(FormatError, match=next(iter(change))):
            check_fits(document, replace(TARGET, **change), document.steps)
    with pytest.raises(FormatError, match="steps are 11"):
        check_fits(document, TARGET, document.steps[:-1])
    with pytest.raises(FormatError, match="step 0 is new"):
        check_fits(document, TARGET, ("new", *document.steps[1:]))


def test_profile_knows_its_cores() -> None:
    equal, asymmetric = realistic(1, 1), realistic(1, 1, little_cores=3)
    assert (equal.narrow, equal.queues, equal.cores) == (1, 1, 2)
    assert (asymmetric.narrow, asymmetric.queues, asymmetric.cores) == (1, 3, 4)
