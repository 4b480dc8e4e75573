"""What comes last before the clock starts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from edgeplan.measurement.process import prepare_machine as settling
from edgeplan.measurement.process.prepare_machine import settle


@pytest.fixture
def done(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What was done, in order; processors are disturbed in the first look."""
    order: list[str] = []
    looks = iter([1.9, 1.1])

    def noted(name: str, answer: Any = None) -> Any:
        def work(*_: object, **__: object) -> Any:
            order.append(name)
            return answer() if answer else None

        return work

    monkeypatch.setattr(settling.page_cache, "evict", noted("evict"))
    monkeypatch.setattr(settling.page_cache, "read_through", noted("read"))
    monkeypatch.setattr(settling.page_cache, "cached_share", lambda _: 0.5)
    monkeypatch.setattr(settling.grounds, "back_files", noted("look at files"))
    monkeypatch.setattr(settling.grounds, "back_memory", noted("memory"))
    monkeypatch.setattr(settling, "wait_until_free", noted("look", lambda: next(looks)))
    return order


@pytest.mark.parametrize(("evicted", "first"), [(True, ["evict"]), (False, ["read", "look at files"])])
def test_what_a_wait_may_have_undone_is_done_again_and_the_look_comes_last(
    done: list[str], tmp_path: Path, evicted: bool, first: list[str]
) -> None:
    file = tmp_path / "weights"
    file.write_bytes(b"w")
    assert settle([file], (0,), evicted=evicted, usual_us=100.0) == 1.1
    assert done == [*first, "memory", "look"] * 2


def test_processors_that_stay_disturbed_are_waited_for_so_long_and_no_longer(
    done: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settling, "_WAIT_SECONDS", -1.0)
    assert settle([], (0,), evicted=True, usual_us=100.0) == 1.9
    assert done == ["evict", "memory", "look"]


def test_without_a_usual_time_nothing_is_waited_for(done: list[str]) -> None:
    assert settle([], (0,), evicted=True, usual_us=0.0) == 1.0
    assert done == ["evict", "memory"]
