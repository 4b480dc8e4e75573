"""What comes last before the clock starts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from plan_folders import wait_while

from edgeplan.measurement.process import page_cache
from edgeplan.measurement.process import prepare_machine as settling
from edgeplan.measurement.process.prepare_machine import prepare_machine

_BUSY, _FREE = 1.9, 1.1
Looks = list[float]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    found = tmp_path / "weights"
    found.write_bytes(bytes(1 << 20))
    return found


def _evict(file: Path) -> None:
    wait_while(lambda: page_cache.evict([file]) > 0)


@pytest.fixture
def looks(file: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Looks]:
    """Processors that are busy at each look but the last; grows by the share of the file in memory then.

    While they are waited for, somebody else does `meanwhile`.
    """

    def watched(*told: float, meanwhile: Callable[[], object] = lambda: None) -> Looks:
        left, shares = list(told), Looks()

        def look(*_: object, **__: object) -> float:
            shares.append(page_cache.cached_share([file]))
            meanwhile()
            return left.pop(0)

        monkeypatch.setattr(settling, "wait_until_free", look)
        return shares

    return watched


@pytest.mark.parametrize("evicted", [True, False])
def test_what_a_wait_may_have_undone_is_done_again_and_the_look_comes_last(
    file: Path, looks: Callable[..., Looks], evicted: bool
) -> None:
    seen = looks(_BUSY, _FREE, meanwhile=lambda: page_cache.read_through([file]) if evicted else _evict(file))
    assert prepare_machine([file], (0,), evicted=evicted, usual_us=100.0) == _FREE
    assert seen == [0.0 if evicted else 1.0] * 2


def test_processors_that_stay_disturbed_are_waited_for_so_long_and_no_longer(
    looks: Callable[..., Looks], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settling, "_WAIT_SECONDS", -1.0)
    seen = looks(_BUSY)
    assert prepare_machine([], (0,), evicted=True, usual_us=100.0) == _BUSY
    assert len(seen) == 1


def test_without_a_usual_time_nothing_is_waited_for(file: Path, looks: Callable[..., Looks]) -> None:
    seen = looks()
    assert prepare_machine([file], (0,), evicted=False, usual_us=0.0) == 1.0
    assert seen == []
    assert page_cache.cached_share([file]) == 1.0
