"""The grade of every chapter: by what repeats differ by, and by what others took of the processors meanwhile."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from cold_chapter_frames import evidence as cold_evidence

from edgeplan.chapters.cold_start.evaluation.page import cold_grade
from edgeplan.chapters.memory.evaluation.evidence import MemoryEvidence
from edgeplan.chapters.memory.evaluation.page import memory_grade
from edgeplan.chapters.partition.evaluation.eop_page import eop_grade
from edgeplan.chapters.partition.evaluation.eop_tables import EopEvidence
from edgeplan.chapters.partition.evaluation.page import partition_grade
from edgeplan.chapters.partition.evaluation.tables import PartitionEvidence
from edgeplan.chapters.prediction.evaluation.page import machine_grade
from edgeplan.chapters.prediction.whole_models import APART_SECONDS
from edgeplan.measurement.lock import machine_lock
from edgeplan.measurement.others import SHARE, others_share, watched
from edgeplan.reporting.bars import Graded, Repeats, graded

EMPTY = pd.DataFrame()


def _of(found: Graded | None) -> str:
    return found.name if found else ""


@pytest.mark.parametrize(("spread", "expected"), [(0.005, "good"), (0.05, "fair"), (0.3, "poor")])
def test_noise_in_the_repeats_of_each_chapter_gives_each_grade(spread: float, expected: str) -> None:
    rng = np.random.default_rng(2)

    def noisy(count: int) -> np.ndarray:
        return np.exp(rng.normal(0, spread / np.sqrt(2), count))

    cold = cold_evidence()
    runs = pd.concat([cold.runs.assign(repeat=k) for k in range(4)], ignore_index=True)
    runs["cold_ms"] = runs.groupby(["model", "setting", "plan", "state", "threads"])["cold_ms"].transform("first")
    assert _of(cold_grade(replace(cold, runs=runs.assign(cold_ms=runs["cold_ms"] * noisy(len(runs)))))) == expected
    models = pd.DataFrame({"normalised_ms": 5.0, "repeat_ms": 5.0 * noisy(40) ** 1.4, "repeat_gap_s": 600.0})
    assert _of(machine_grade(models, {})) == expected
    budgets = pd.DataFrame({"model": ["a"] * 20 + ["b"] * 20, "case": "budget", "resident_ms": np.r_[noisy(20), 9 * noisy(20)]})
    assert _of(memory_grade(MemoryEvidence("dev", budgets, {}))) == expected
    again = np.maximum(noisy(40), 1 / noisy(40))
    pair = pd.DataFrame({"model": "a", "way": "ours", "repeat": again, "slowdown": np.nan})
    assert _of(partition_grade(PartitionEvidence("p", *[EMPTY] * 3, pair, *[EMPTY] * 2, {}))) == expected
    assert _of(eop_grade(EopEvidence("p", EMPTY, EMPTY, pair, EMPTY, {}))) == expected


def test_models_measured_again_too_soon_or_not_at_all_say_nothing() -> None:
    rng = np.random.default_rng(0)
    first, gap = rng.uniform(1, 100, 40), np.full(40, APART_SECONDS)
    models = pd.DataFrame({"normalised_ms": first, "repeat_ms": first * np.exp(rng.normal(0, 0.005, 40)), "repeat_gap_s": gap})
    assert _of(machine_grade(models, {})) == "good"
    disturbed = models.assign(repeat_ms=models["repeat_ms"].where(models.index >= 8, 1.5 * first))
    assert _of(machine_grade(disturbed, {})) == "poor"
    assert "minutes later" in str(machine_grade(models, {}))
    assert "minutes later" not in str(machine_grade(models.assign(repeat_gap_s=gap - (models.index < 37)), {}))
    few = models.assign(repeat_ms=models["repeat_ms"].where(models.index < 4), repeat_gap_s=1e4)
    assert _of(machine_grade(few, {})) == "good"


def test_the_same_layers_slower_beside_the_models_than_beside_the_samples_are_poor() -> None:
    pair = pd.DataFrame({"model": ["a", "b"] * 4, "way": "ours", "repeat": 1.001, "slowdown": [1.35, 1.3, *[np.nan] * 6]})
    found = partition_grade(PartitionEvidence("p", *[EMPTY] * 3, pair, *[EMPTY] * 2, {}))
    assert found is not None
    assert (found.name, "the same layers" in found.why) == ("poor", True)


def test_one_round_repeats_nothing() -> None:
    plans = pd.DataFrame({"repeat": [1.0] * 30})
    grades = [eop_grade(EopEvidence("p", EMPTY, EMPTY, plans, EMPTY, about)) for about in ({}, {SHARE: 0.25})]
    assert list(map(_of, grades)) == ["", "poor"]


def test_the_worse_of_both_counts() -> None:
    for share, expected in ((0.0, "good"), (0.05, "fair"), (0.25, "poor")):
        found = graded({SHARE: share}, Repeats([1.001] * 8, "starts"))
        assert found is not None
        assert found.name == expected
        assert "8 starts differ by 0.1 %" in found.why
        assert f"{100 * share:.1f} % of the processors' time" in found.why
    assert _of(graded({SHARE: 0.0}, Repeats([1.5] * 8, "starts"))) == "poor"
    assert graded({}, Repeats([1.5] * 3, "starts")) is None


def _work(seconds: float) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        sum(range(1000))


def test_a_busy_loop_on_one_of_the_processors_is_seen_and_own_work_is_not(tmp_path: Path) -> None:
    """Own work and that of ended children count for nobody else; what a loop adds stands out of whatever else goes on here."""
    cores = sorted(os.sched_getaffinity(0))[:1]
    rows = tmp_path / "rows"
    rows.mkdir()
    previous = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    # of a shell that has ended: what this process started and still runs would count as its own
    started = ["sh", "-c", '"$0" -c "while True: pass" >/dev/null 2>&1 & echo $!', sys.executable]
    loop = int(subprocess.run(started, check=True, capture_output=True).stdout)
    try:
        with watched(rows, cores):
            os.kill(loop, signal.SIGSTOP)
            _work(1.0)  # holds nothing: it counts for nothing
            os.kill(loop, signal.SIGCONT)
            with machine_lock():
                _work(1.5)
    finally:
        os.kill(loop, signal.SIGKILL)
        os.sched_setaffinity(0, previous)
    assert 0.25 <= others_share(rows)[SHARE] <= 1.0
    assert _of(graded(others_share(rows))) == "poor"


def test_only_what_holds_the_machine_counts_and_later_runs_add_up(tmp_path: Path) -> None:
    rows, cores = tmp_path / "rows", sorted(os.sched_getaffinity(0))[:1]
    rows.mkdir()
    with watched(rows, cores):
        _work(1.2)
    assert others_share(rows) == {}
    (rows / "others.json").write_text('{"seconds": 1000.0, "others": 500.0}')
    with machine_lock(), watched(rows, cores):
        _work(1.2)
    assert json.loads((rows / "others.json").read_text())["seconds"] == pytest.approx(1001.2, abs=0.9)
    assert others_share(rows)[SHARE] == pytest.approx(0.5, abs=0.01)
    (rows / "others.json").write_text("damaged")
    assert others_share(rows) == {}
