"""Starts and profiles that processors disturbed are made again, and the clock of references that cold times are told by."""

from __future__ import annotations

import itertools
import os
import threading
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest

from edgeplan.chapters.cold_start.measuring.runs import NEIGHBOURS, slowness_of
from edgeplan.engines.cold import Artefact
from edgeplan.measurement.process import interference, starts
from edgeplan.measurement.process.interference import (
    EXPONENTS,
    HASHES,
    PRODUCTS,
    Clock,
    Interference,
    calibrate,
    together_us,
    wait_until_free,
)
from edgeplan.measurement.process.job import RunJob, RunResult
from edgeplan.measurement.process.starts import ATTEMPTS, start_cold
from edgeplan.measurement.references import References, ReferenceTimes
from edgeplan.profiling import fresh_process_factors
from edgeplan.profiling.fresh_process_factors import Pairs, measure_pairs
from edgeplan.profiling.rounds import Round, RoundTimes, quiet_round
from edgeplan.profiling.settings import Cores, ProfileSettings

FREE, DISTURBED = 1.0, 1.9


def _told(monkeypatch: pytest.MonkeyPatch, *looks: float) -> list[float]:
    """Let looks at processors give these times, the last one for ever; gives what was not told yet."""
    left = list(looks)
    monkeypatch.setattr(interference, "together_us", lambda *_: left.pop(0) if len(left) > 1 else left[0])
    return left


@pytest.mark.parametrize("load", [HASHES, PRODUCTS])
def test_a_look_is_a_time_and_leaves_the_caller_where_it_was(load: str) -> None:
    before = os.sched_getaffinity(0)
    assert together_us(sorted(before), load) > 0
    assert os.sched_getaffinity(0) == before


@pytest.mark.parametrize(("looks", "slowness"), [((310.0,), 310 / 300), ((570.0, 450.0, 300.0), 1.0)])
def test_processors_are_waited_for_until_they_are_free(
    monkeypatch: pytest.MonkeyPatch, looks: tuple[float, ...], slowness: float
) -> None:
    left = _told(monkeypatch, *looks, 1.0)
    assert wait_until_free((0, 1), 300.0) == pytest.approx(slowness)
    assert left == [1.0], "no look is made beyond the first good one"


def test_waiting_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    _told(monkeypatch, 570.0)
    assert wait_until_free((0, 1), 300.0, seconds=0.05) == pytest.approx(1.9)


def test_what_is_usual_is_the_least_though_most_looks_were_disturbed(monkeypatch: pytest.MonkeyPatch) -> None:
    _told(monkeypatch, *[570.0] * 7, 300.0, 310.0, 570.0)
    assert Interference((0, 1)).usual_us == 310.0, "of the slower processor"


def test_what_is_usual_follows_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    _told(monkeypatch, 300.0)
    watch = Interference((0, 1))
    assert (watch.usual_us, watch.now()) == (300.0, 1.0)
    _told(monkeypatch, 390.0)
    monkeypatch.setattr(interference, "WAIT_SECONDS", 0.0)
    assert watch.wait() == pytest.approx(1.3), "slower than usual at first"
    for _ in range(interference._LOOKS):
        watch.wait()
    assert watch.now() == 1.0, "a slow hour is no disturbance"


class _Watch(Interference):
    """Says what it is told of the processors."""

    def __init__(self, *told: float) -> None:
        self._told = list(told)

    @property
    def usual_us(self) -> float:
        return 300.0

    def look(self) -> None:
        pass

    def wait(self) -> float:
        return FREE

    def now(self) -> float:
        return self._told.pop(0)


def _start(monkeypatch: pytest.MonkeyPatch, watch: Interference | None, *results: dict[str, Any]) -> tuple[float, list[float]]:
    """What `start_cold` makes of results in turn: cold_ms of the one it took, and what the worker was told is usual."""
    asked: list[float] = []

    def run_cold(job: RunJob, _: float) -> RunResult:
        asked.append(job.usual_us)
        return RunResult(cold_ms=float(len(asked)), **{"state_reached": True, **results[len(asked) - 1]})

    monkeypatch.setattr(starts, "run_cold", run_cold)
    model = Path("m")
    job = RunJob(setting="x", threads=2, artefact=Artefact(main=model, files=(model,)), inputs={"x": (1,)}, state="cached")
    taken = start_cold(job, lambda: ReferenceTimes(300.0, 400.0), watch).result.cold_ms
    assert taken is not None
    return taken, asked


_MISSED = {"state_reached": False}


@pytest.mark.parametrize(
    ("results", "taken", "asked"),
    [
        pytest.param([{}], 1.0, 1, id="not disturbed"),
        pytest.param([{"interference": seen} for seen in (DISTURBED, DISTURBED, FREE)], 3.0, 3, id="made again"),
        pytest.param([{"interference": seen} for seen in (1.9, 1.5, 1.4, 1.6)], 3.0, ATTEMPTS, id="the least disturbed"),
        pytest.param([_MISSED, {"interference": DISTURBED}, _MISSED, _MISSED], 2.0, ATTEMPTS, id="its state comes first"),
        pytest.param([{"reason": "unsupported", "interference": DISTURBED}], 1.0, 1, id="it cannot run"),
    ],
)
def test_disturbed_starts_are_made_again_and_the_best_counts(
    monkeypatch: pytest.MonkeyPatch, results: list[dict[str, Any]], taken: float, asked: int
) -> None:
    assert _start(monkeypatch, _Watch(), *results) == (taken, [300.0] * asked)


def test_processors_loaded_on_purpose_are_not_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    assert _start(monkeypatch, None, {"interference": 1.0}) == (1.0, [0.0])


def test_a_disturbed_preparation_is_measured_again(monkeypatch: pytest.MonkeyPatch) -> None:
    class Passes(nullcontext["Passes"]):
        """Take 1 ms alone, beside each other 1.5 or, with raw weights, 3; the first of all was disturbed and took 100."""

        made = 0

        def __init__(self, _: object, content: str) -> None:
            super().__init__(self)
            self.raw = content != "cached"

        def prepare(self, together: threading.Barrier | None = None) -> float:
            Passes.made += 1
            if together:
                together.wait()
            return (100.0 if Passes.made == 1 else 1.0) * ((3.0 if self.raw else 1.5) if together else 1.0)

    class Watch(_Watch):
        def now(self) -> float:
            return DISTURBED if Passes.made == 1 else FREE

    monkeypatch.setattr(fresh_process_factors, "_Passes", Passes)
    monkeypatch.setattr(fresh_process_factors, "pinned", lambda *_: nullcontext())
    monkeypatch.setattr(fresh_process_factors, "Bench", lambda content, *_: nullcontext(content))
    cached, raw = (SimpleNamespace(content=name, cache=None) for name in ("cached", "raw"))
    dnnl = SimpleNamespace(info=SimpleNamespace(path=None))
    rig = SimpleNamespace(trials=SimpleNamespace(cached=cached, raw=raw, trying=raw), dnnl=dnnl, bench=None)
    alone, found = (measure_pairs(rig, Cores(big=big), Watch(), 1) for big in ((0,), (0, 1)))  # type: ignore[arg-type]
    assert alone == Pairs(), "one core has no pair"
    assert found == Pairs(cached=1.5, raw=3.0)
    assert Passes.made == 1 + 2 * (1 + 2), "one again, then alone and two together, of cached and of raw weights"


class _Rig:
    """A rig whose rounds take no time."""

    rounds = 0

    def run(self, *_: object) -> RoundTimes:
        self.rounds += 1
        return RoundTimes()


NOMINAL = ReferenceTimes(300.0, 400.0)


class _Scripted(References):
    """References whose times are told beforehand, again and again."""

    def __init__(self, *compute_us: float, bandwidth_us: float = 400.0) -> None:
        self._told, self._bandwidth_us = itertools.cycle(compute_us), bandwidth_us

    def time(self, _: int) -> ReferenceTimes:
        return ReferenceTimes(next(self._told), self._bandwidth_us)


def _round(watch: Interference) -> tuple[int, bool]:
    """How many rounds were run for one, and whether the last one counts as quiet."""
    rig, clock = _Rig(), Clock(_Scripted(300.0), NOMINAL, watch)
    settings = ProfileSettings(on_noise="refuse", retries=2, max_waiting=1.0)
    _, scale, quiet = quiet_round(rig, Round({}, 1, frozenset()), settings, clock)  # type: ignore[arg-type]
    assert scale == 1.0
    return rig.rounds, quiet


@pytest.fixture
def _unstolen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever else runs here, the kernel's books say that nobody took the processors."""
    monkeypatch.setattr("edgeplan.measurement.others.waited_ms", lambda: 0.0)
    monkeypatch.setattr("edgeplan.measurement.others.stolen_ms", lambda: 0.0)


class _Busy(_Watch):
    """Waits in vain."""

    def wait(self) -> float:
        return DISTURBED


@pytest.mark.usefixtures("_unstolen")
@pytest.mark.parametrize(
    ("watch", "rounds", "quiet"),
    [
        (_Watch(FREE), 1, True),
        (_Watch(DISTURBED, FREE), 2, True),
        (_Watch(DISTURBED, DISTURBED, DISTURBED), 3, False),
        (_Busy(FREE, FREE, FREE), 3, False),
    ],
)
def test_a_profile_round_that_was_disturbed_or_waited_in_vain_is_made_again(
    watch: Interference, rounds: int, quiet: bool
) -> None:
    assert _round(watch) == (rounds, quiet)


def test_slowness_is_one_at_nominal_speed_and_takes_the_lesser_of_the_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edgeplan.measurement.process.interference.together_us", lambda *_: 300.0)
    clock = Clock(_Scripted(1.0), NOMINAL, Interference([0]))
    assert clock.slowness(NOMINAL) == 1.0
    slow = ReferenceTimes(600.0, 400.0)
    assert clock.slowness(slow) == pytest.approx(2**EXPONENTS.compute)
    assert clock.slowness(slow, NOMINAL) == clock.slowness(NOMINAL, slow) == 1.0
    assert clock.slowness(ReferenceTimes(300.0, 800.0)) == pytest.approx(2**EXPONENTS.bandwidth)
    assert clock.slowness(slow, ReferenceTimes(300.0, 800.0)) == 1.0, "of each reference the lesser"


def test_references_calibrated_are_typical_pairs_of_looks() -> None:
    # pairs (100, 400), (300, 350), (320, 300): their least are 100, 300, 300
    assert calibrate(_Scripted(100.0, 400.0, 300.0, 350.0, 320.0, 300.0), 3, 0.05) == NOMINAL


def _runs(compute_us: list[float]) -> pd.DataFrame:
    count = len(compute_us)
    return pd.DataFrame({"measured_at": np.arange(count, dtype=float), "compute_us": compute_us, "bandwidth_us": 400.0})


def test_one_disturbed_look_is_not_a_slow_machine_and_runs_that_were_not_timed_have_none() -> None:
    looks = [300.0] * 100
    looks[50] = 3000.0
    assert slowness_of(_runs(looks), NOMINAL).tolist() == [1.0] * 100
    assert slowness_of(_runs([float("nan")] * 3), NOMINAL).isna().all()


def test_a_slow_hour_is_seen_in_whatever_order_the_runs_come() -> None:
    runs = _runs([300.0] * 50 + [600.0] * 50).sample(frac=1, random_state=0)
    slow = slowness_of(runs, NOMINAL)
    assert list(slow.index) == list(runs.index)
    far = NEIGHBOURS
    assert (slow.sort_index()[: 50 - far] == 1.0).all()
    np.testing.assert_allclose(slow.sort_index()[50 + far :], 2**EXPONENTS.compute)
