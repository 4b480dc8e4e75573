"""What follows from times of turns: intervals, verdicts, advice, and what a kept comparison is worth."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from edgeplan.comparing.api import queued_ms, ratio_verdict, with_kept
from edgeplan.comparing.result import Comparison, Held, LeftOut, Row, read, share_of, write_chart
from edgeplan.comparing.ways import Way, all_ways, processors_of
from edgeplan.errors import FormatError, ParamsError, SlowerError
from edgeplan.measurement import others
from edgeplan.support.numerics import around_median


def _row(engine: str = "onnxruntime", ms: float = 10.0, **other: object) -> Row:
    times = tuple(ms * k for k in (0.99, 1.0, 1.01, 1.0, 0.995, 1.005, 1.0, 1.0))
    firsts, rates = tuple(20 * t for t in times), tuple(1e3 / t for t in times)
    row = Row(
        engine.upper(), engine, "1", 2, 1, 20 * ms, ms, 0.99 * ms, 1.01 * ms, 1e3 / ms, 16 * ms, 1 << 26, None,
        firsts, times, rates, tuple(16 * t for t in times),
    )  # fmt: skip
    return replace(row, **other)  # type: ignore[arg-type]


def _found(*rows: Row, **other: object) -> Comparison:
    found = Comparison("net.onnx", "0" * 64, "f", (0, 1), 60.0, 0.0, 100.0, 16, rows)
    return replace(found, **other)  # type: ignore[arg-type]


@pytest.mark.parametrize("level", [0.95, 0.995])
@pytest.mark.parametrize("count", [6, 10, 15, 20])
def test_intervals_hold_the_median_as_often_as_they_say(level: float, count: int) -> None:
    rng = np.random.default_rng(count)
    drawn = rng.lognormal(sigma=1.0, size=(4000, count))
    ends = [around_median(list(values), level) for values in drawn]
    held = np.mean([low <= 1.0 <= high for low, high, _ in ends])
    assert all(sure for *_, sure in ends) == (1 - 2 * 0.5**count >= level)
    assert held >= min(level, 1 - 2 * 0.5**count) - 3 * (0.25 / 4000) ** 0.5
    assert around_median([3.0]) == (3.0, 3.0, False)


def test_a_queue_is_taken_from_by_the_session_that_is_free_first() -> None:
    assert queued_ms([2.0, 3.0], 3) == 4.0
    assert queued_ms([1.0, 10.0], 4) == 10.0, "a slow session takes one, too"
    assert queued_ms([2.0] * 4, 16) == 8.0


@pytest.mark.parametrize("noise", [0.01, 0.05, 0.3])
def test_a_model_is_not_slower_than_itself_whatever_the_noise(noise: float) -> None:
    """Looked at three times, as rounds are: an alarm is raised for one of a hundred at most."""
    rng = np.random.default_rng(7)
    alarms = 0
    for _ in range(1000):
        ratios = np.exp(rng.standard_t(3, 20) * noise)
        verdicts = [ratio_verdict(list(ratios[:count]))[2] for count in (10, 15, 20)]
        alarms += "slower" in verdicts
    assert alarms <= 10


def test_a_tenth_slower_is_found_through_noise_of_rounds() -> None:
    rng = np.random.default_rng(8)
    found = [ratio_verdict(list(1.1 * np.exp(rng.normal(0, 0.03, 20))))[2] for _ in range(200)]
    assert found.count("slower") >= 196


@pytest.mark.parametrize(
    ("ratios", "verdict"),
    [
        ([1.0, 1.01] * 5, "the same"),
        ([0.8, 0.81] * 5, "faster"),
        ([1.2] * 10, "slower"),
        ([1.011] * 10, "the same"),
        ([0.8, 1.2] * 5, "not told apart"),
        ([1.2] * 5, "not known"),
    ],
)
def test_verdicts_follow_from_the_rounds(ratios: list[float], verdict: str) -> None:
    assert ratio_verdict(ratios)[2] == verdict


def test_only_what_is_slower_for_certain_by_more_is_refused() -> None:
    held = Held("ONNX Runtime, 2 threads", 11.0, 10.0, 1.1, 1.06, 1.14, 10, "slower")
    _found(held=(held,)).require(0.06)
    _found(held=(replace(held, verdict="not known"),)).require(0.0)
    with pytest.raises(SlowerError, match=r"takes 1\.1 times as long"):
        _found(held=(held,)).require(0.05)
    assert SlowerError.exit_code == 15


def test_shares_are_read() -> None:
    assert [share_of(text) for text in ("5%", "0.1", "0%")] == pytest.approx([0.05, 0.1, 0.0])
    for text in ("", "-5%", "five", "nan", "inf"):
        with pytest.raises(ParamsError, match="no share"):
            share_of(text)


def test_each_goal_has_the_way_that_is_best_for_it() -> None:
    """And ways that are as good are said not to be told apart."""
    one, many = _row(ms=10.0), _row("openvino", 15.0, sessions=2, per_second=133.0, rates=(133.0,) * 8, peak_bytes=1 << 20)
    many = replace(many, at_once_ms=120.0, at_onces_ms=(120.0,) * 8)
    small, wrong = _row("ncnn", 30.0, peak_bytes=1 << 22, first_ms=50.0), _row("litert", 1.0, difference=0.1)
    found = _found(one, many, small, wrong)
    assert [found.best(goal) for goal in ("one", "at_once", "many", "memory", "start")] == [one, many, many, small, small]
    told = found.advice()
    assert [line.split(":")[0] for line in told] == ["one request", "16 at once", "per second", "least memory", "first answer"]
    assert "NCNN takes 3 times as long" in told[0]
    assert "OPENVINO: 120 ms until the last is answered; ONNXRUNTIME takes 1.33 times" in told[1]
    assert "OPENVINO: 133 requests; ONNXRUNTIME takes 1.33 times" in told[2]
    (line, *_) = _found(_row(ms=10.0), _row("ncnn", 10.01)).advice()
    assert "not told apart" in line
    none = _found(left_out=(LeftOut("X", "not installed"),))
    assert (none.best("one"), none.advice()) == (None, ())


def test_a_chart_has_a_marker_for_each_right_way(tmp_path: Path) -> None:
    found = _found(_row(), _row("openvino", 5.0, sessions=2), _row("ncnn", 1.0, difference=0.5))
    write_chart(found, tmp_path / "chart.svg")
    drawn = (tmp_path / "chart.svg").read_text()
    assert all(told in drawn for told in ("ONNXRUNTIME", "OPENVINO", "requests a second", "net.onnx"))
    assert "NCNN" not in drawn


@pytest.mark.parametrize("count", [1, 2, 3, 4, 6, 16])
def test_ways_fit_on_the_processors_and_begin_with_all_of_them(count: int) -> None:
    found = all_ways(["a", "b"], count)
    assert found[:2] == [Way("a", count, 1), Way("b", count, 1)]
    assert len(set(found)) == len(found)
    assert {way.threads for way in found} == {1, max(1, count // 2), count}
    for way in found:
        places = [p for place in way.places(range(count)) for p in place]
        assert len(places) == len(set(places)) == way.threads * way.sessions <= count
    assert Way("a", 1, count) in found


def test_a_job_of_slurm_has_its_own_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = processors_of("cpu-onednn")
    monkeypatch.setenv("SLURM_CPUS_PER_TASK", "1")
    assert processors_of("cpu-onednn") == whole[:1]


def test_a_kept_comparison_is_read_again(tmp_path: Path) -> None:
    found, path = _found(_row(), left_out=(LeftOut("X", "not installed"),)), tmp_path / "kept.json"
    path.write_text(json.dumps(found.document()))
    assert read(path) == found
    path.write_text("{}")
    with pytest.raises(FormatError, match="no comparison"):
        read(path)


def test_a_kept_comparison_tells_slower_from_the_same_and_allows_for_a_slower_clock() -> None:
    now, kept = _found(_row(ms=12.0), _row("ncnn", 5.0)), _found(_row(ms=10.0), _row("ncnn", 5.0), _row("openvino"))
    assert [held.verdict for held in with_kept(now, kept)] == ["slower", "the same"]
    assert with_kept(replace(now, compute_us=115.0), kept)[0].verdict == "not told apart"


@pytest.mark.parametrize(
    ("changed", "told"),
    [({"machine": "g"}, "another machine"), ({"processors": (0,)}, "another machine"), ({"others": 0.5}, "other work")],
)
def test_a_kept_comparison_of_another_machine_or_a_busy_one_raises_no_alarm(
    changed: dict[str, object], told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(others, "DISTURBED", 0.1)
    (held,) = with_kept(_found(_row(ms=20.0)), _found(_row(ms=10.0), **changed))
    assert (held.verdict, held.ratio) == ("not known", pytest.approx(2.0))
    assert told in held.reason
