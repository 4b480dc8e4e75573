from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from edgeplan.chapters.cold_start.measuring.planning import NEIGHBOURS, slowness_of
from edgeplan.measurement.process.interference import EXPONENTS, Clock, Interference, calibrate, least
from edgeplan.measurement.references import References, ReferenceTimes

NOMINAL = ReferenceTimes(300.0, 400.0)


class _Scripted(References):
    """References whose times are told beforehand, again and again."""

    def __init__(self, *compute_us: float) -> None:
        self._told, self._count = compute_us, 0

    def time(self, runs: int) -> ReferenceTimes:
        self._count += 1
        return ReferenceTimes(self._told[(self._count - 1) % len(self._told)], 2 * runs)


def test_slowness_is_one_at_nominal_speed_and_takes_the_lesser_of_the_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edgeplan.measurement.process.interference.together_us", lambda *_: 300.0)
    clock = Clock(_Scripted(1.0), NOMINAL, Interference([0]))
    assert clock.slowness(NOMINAL) == 1.0
    slow = ReferenceTimes(600.0, 400.0)
    assert clock.slowness(slow) == pytest.approx(2**EXPONENTS.compute)
    assert clock.slowness(slow, NOMINAL) == clock.slowness(NOMINAL, slow) == 1.0
    assert clock.slowness(ReferenceTimes(300.0, 800.0)) == pytest.approx(2**EXPONENTS.bandwidth)


def test_references_calibrated_are_typical_pairs_of_looks() -> None:
    # pairs (100, 400), (300, 350), (320, 300): their least are 100, 300, 300
    assert calibrate(_Scripted(100.0, 400.0, 300.0, 350.0, 320.0, 300.0), 3, 0.05) == ReferenceTimes(300.0, 6)


def test_least_is_of_each_reference() -> None:
    assert least([ReferenceTimes(1.0, 5.0), ReferenceTimes(2.0, 4.0)]) == ReferenceTimes(1.0, 4.0)


def _runs(compute_us: list[float]) -> pd.DataFrame:
    count = len(compute_us)
    return pd.DataFrame({"measured_at": np.arange(count, dtype=float), "compute_us": compute_us, "bandwidth_us": 400.0})


def test_one_disturbed_look_is_not_a_slow_machine() -> None:
    looks = [300.0] * 100
    looks[50] = 3000.0
    assert slowness_of(_runs(looks), NOMINAL).tolist() == [1.0] * 100


def test_a_slow_hour_is_seen_in_whatever_order_the_runs_come() -> None:
    runs = _runs([300.0] * 50 + [600.0] * 50).sample(frac=1, random_state=0)
    slow = slowness_of(runs, NOMINAL)
    assert list(slow.index) == list(runs.index)
    far = NEIGHBOURS
    assert (slow.sort_index()[: 50 - far] == 1.0).all()
    np.testing.assert_allclose(slow.sort_index()[50 + far :], 2**EXPONENTS.compute)


def test_runs_that_were_not_timed_have_no_slowness() -> None:
    assert slowness_of(_runs([float("nan")] * 3), NOMINAL).isna().all()
