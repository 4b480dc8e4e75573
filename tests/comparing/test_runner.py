"""The process that starts sessions: what it times, what it counts as memory, and how it ends what does not answer."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator

import pytest

from edgeplan.comparing.turns import Session, Turns
from edgeplan.support.workers import ColdRunError

LANE = "processes"
#: Takes lines as a setting's program does: its first answer after a while, each inference a while; holds some memory.
_PROGRAM = """
import json, sys, time
first, later, size = map(float, sys.argv[1:])
print("{}", flush=True)
sys.stdin.readline()
held = bytearray(int(size))
held[::4096] = b"1" * len(held[::4096])
time.sleep(first)
print("an engine says something", flush=True)
print(json.dumps({"open": 0.0, "first_run": first}), flush=True)
for line in sys.stdin:
    began = time.perf_counter()
    time.sleep(later)
    print(json.dumps({"run": time.perf_counter() - began}), flush=True)
"""
#: Says its times when it ends, as edgeplan-run does.
_WHOLE = "import json, time; time.sleep(0.3); print(json.dumps({'warm_ms': [100.0, 50.0], 'cold_ms': 1.0}))"
_PROCESSORS = tuple(sorted(os.sched_getaffinity(0)))[:1]


def _session(first: float = 0.0, later: float = 0.01, size: int = 0) -> Session:
    return Session((sys.executable, "-c", _PROGRAM, str(first), str(later), str(size)), _PROCESSORS)


@pytest.fixture(scope="module")
def turns() -> Iterator[Turns]:
    with Turns() as found:
        yield found


def test_first_answers_count_from_exec_and_later_ones_by_themselves(turns: Turns) -> None:
    ((ran,),) = turns.run([_session(first=0.4)], seconds=0.3, patience=60)
    assert ran.first_ms > 400
    assert ran.later_ms > 10
    assert len(ran.blocks) == 1
    assert 5 < len(ran.blocks[0]) <= 30
    assert ran.per_second == pytest.approx(1e3 / (sum(ran.blocks[0]) / len(ran.blocks[0])))


def test_each_inference_of_a_slow_model_is_waited_for(turns: Turns) -> None:
    ((ran,),) = turns.run([_session(later=0.5)], seconds=0.1, patience=60)
    assert [ms > 500 for ms in ran.blocks[0]] == [True]


def test_memory_is_that_of_the_program_alone(turns: Turns) -> None:
    held = b"1" * (256 << 20)  # by this process
    sizes = (0, 64 << 20, 128 << 20)  # what starting takes for a moment counts for the first alone
    ((small,),), ((large,),), ((larger,),) = (turns.run([_session(size=n)], seconds=0.01, patience=60) for n in sizes)
    assert small.peak < 64 << 20 < large.peak < larger.peak < len(held)
    assert larger.peak - large.peak == pytest.approx(64 << 20, rel=0.05)


def test_groups_have_blocks_in_turns_and_sessions_run_at_once(turns: Turns) -> None:
    slow, fast = _session(later=0.04), _session(later=0.02)
    began = time.monotonic()
    first, second = turns.run([slow, slow], [fast], seconds=0.2, patience=60, blocks=3)
    assert time.monotonic() - began > 6 * 0.2
    assert [len(ran.blocks) for ran in (*first, *second)] == [3, 3, 3]
    assert all(ran.later_ms > 40 for ran in first)
    assert second[0].later_ms < 40


def test_a_program_that_tells_its_times_at_its_end_has_them(turns: Turns) -> None:
    session = Session((sys.executable, "-c", _WHOLE), _PROCESSORS, lines=False)
    ((ran,),) = turns.run([session], seconds=1.0, patience=60)
    assert ran.blocks == ((100.0, 50.0),)
    assert ran.first_ms > 300 - 150


@pytest.mark.parametrize(
    ("command", "told"),
    [
        ("import sys; sys.exit('no such layer')", "ended with exit code 1: no such layer"),
        ("import os; os.kill(os.getpid(), 9)", "was ended by SIGKILL"),
        ("import time; time.sleep(600)", "had not answered"),
    ],
)
@pytest.mark.parametrize("lines", [True, False])
def test_what_fails_says_why_and_nothing_is_left(turns: Turns, command: str, told: str, lines: bool) -> None:
    failing = Session((sys.executable, "-c", f"marker = {os.getpid()}; {command}"), _PROCESSORS, lines)
    with pytest.raises(ColdRunError, match=told):
        turns.run([_session(), failing] if lines else [failing], seconds=0.1, patience=3)
    ((ran,),) = turns.run([_session()], seconds=0.1, patience=60)  # it goes on with others
    assert ran.first_ms > 0


def test_a_program_that_is_not_there_is_named(turns: Turns) -> None:
    with pytest.raises(ColdRunError, match="no-such-program"):
        turns.run([Session(("/no-such-program",), _PROCESSORS)], seconds=0.1, patience=3)
