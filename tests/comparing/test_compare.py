"""`edgeplan compare` on the engines that are installed, in processes of their own, and the process that starts these."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from partition_frames import PAIR
from streamed_models import plain_model

from edgeplan.comparing import api
from edgeplan.comparing.result import read
from edgeplan.comparing.ways import OWN, OWN_GPU, REFERENCE, SPLIT, Session, Turns, Way, all_ways, engines, processors_of
from edgeplan.devices.pairs import load_pair
from edgeplan.errors import FormatError, ParamsError, SlowerError
from edgeplan.graph.builder import GraphBuilder
from edgeplan.graph.onnx.write import save_onnx
from edgeplan.measurement.process.job import STOCK_TOLERANCE
from edgeplan.support.workers import ColdRunError

LANE = "processes"
Edgeplan = Callable[..., Any]


def _convolutions(folder: Path, count: int, batch: int = 1) -> Path:
    b = GraphBuilder("deep", (batch, 16, 48, 48))
    x = "input"
    for _ in range(count):
        x = b.relu(b.conv(x, 16, 3))
    return save_onnx(b.build(x), folder / f"deep-{count}-{batch}.onnx")


@pytest.fixture(scope="module", autouse=True)
def few_turns() -> Iterator[pytest.MonkeyPatch]:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {"_MOST_TURNS": 3, "_TURN_SECONDS": 0.05, "_ROUNDS": (10,), "_SECONDS": 0.02}.items():
            patch.setattr(api, name, value)
        yield patch


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_onnx(plain_model(), tmp_path_factory.mktemp("compare") / "plain.onnx")


def test_each_engine_has_rows_or_a_reason_and_advice_names_the_best(model: Path) -> None:
    found = api.compare(model, budget_seconds=40)
    titles = {Way(name, 1, 1).title for name in engines()}
    assert titles == {row.name.split(",")[0] for row in found.rows} | {left.name.split(",")[0] for left in found.left_out}
    assert all(left.reason for left in found.left_out)
    for row in found.rows:
        assert row.difference is not None
        assert row.difference <= STOCK_TOLERANCE, row.name
        assert row.low_ms <= row.latency_ms <= row.high_ms
        assert row.first_ms > row.latency_ms
        assert len(row.firsts_ms) == len(row.latencies_ms) == len(row.rates)
        assert row.peak_bytes > 1 << 20
    assert Way(REFERENCE, len(found.processors), 1).name in {row.name for row in found.rows}
    assert len(found.advice()) == 5
    best = found.best("one")
    assert best is not None
    assert best.latency_ms == min(row.latency_ms for row in found.rows if row.sessions == 1)


def test_what_is_printed_as_json_is_read_again(
    edgeplan: Edgeplan, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = edgeplan("compare", str(model), "--engine", REFERENCE, "--budget-seconds", "8", "--json")
    assert done.code == 0, done.err
    kept = tmp_path / "kept.json"
    kept.write_text(done.out)
    assert json.loads(json.dumps(read(kept).document())) == json.loads(done.out)
    again = edgeplan("compare", str(model), "--engine", REFERENCE, "--budget-seconds", "8", "--against", str(kept))
    assert again.code == 0, again.err
    assert "times" in again.out
    assert "verdict" in again.out


def test_a_model_that_an_engine_refuses_is_named_with_the_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api, "_MOST_TURNS", len(api._NEAR) + 1)  # each threshold of what is worth a turn
    two = _convolutions(tmp_path, 2, batch=2)
    found = api.compare(two, engine=(REFERENCE, "ncnn"), budget_seconds=15)
    assert {row.engine for row in found.rows} == {REFERENCE}
    assert [left.name for left in found.left_out if "ncnn" in left.name] == ["ncnn"]
    assert all("ncnn" not in line for line in found.advice())


def test_the_budget_holds_and_what_had_no_time_is_named(model: Path) -> None:
    found = api.compare(model, budget_seconds=2)
    assert found.seconds < 20, "a loaded machine takes seconds for the last look and the ends of processes; all ways take more"
    assert any("the time was over" in left.reason for left in found.left_out)


@pytest.mark.skipif(len(processors_of("cpu-onednn")) < 2, reason="a pair of one processor")
def test_a_pair_serves_by_its_second_processor_beside_the_first_and_split(tmp_path: Path) -> None:
    found = api.compare(_convolutions(tmp_path, 3), pair=PAIR, budget_seconds=80, engine=(REFERENCE,))
    asked = ["+".join(way.engines) for way in all_ways((REFERENCE,), 2, load_pair(PAIR))]
    assert {*asked} == {REFERENCE, OWN_GPU, f"{REFERENCE}+{OWN_GPU}", SPLIT}
    assert asked[-2:] == [REFERENCE, SPLIT], "what is seldom the best comes late, what takes longest to plan last"
    assert {*asked} <= {row.engine for row in found.rows}, found.left_out
    assert {row.sessions for row in found.rows if row.engine == f"{REFERENCE}+{OWN_GPU}"} == {2}
    assert all(row.is_right and row.difference is not None for row in found.rows)


def test_an_interrupt_keeps_what_is_known(edgeplan: Edgeplan, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs, run = [0], Turns.run

    def interrupted(self: Turns, *groups: Any, **how: Any) -> Any:
        runs[0] += 1
        if runs[0] == 3:
            raise KeyboardInterrupt
        return run(self, *groups, **how)

    monkeypatch.setattr(Turns, "run", interrupted)
    done = edgeplan("compare", str(model), "--engine", REFERENCE)
    assert done.code == 130
    assert "interrupted" in done.out
    assert "one request: ONNX Runtime" in done.out


def test_a_deeper_model_is_slower_and_ends_with_its_exit_code(edgeplan: Edgeplan, tmp_path: Path) -> None:
    deep, deeper = _convolutions(tmp_path, 6), _convolutions(tmp_path, 48)
    done = edgeplan("compare", str(deeper), "--against", str(deep), "--fail-above", "5%")
    assert done.code == SlowerError.exit_code, done.err + done.out
    assert "slower" in done.out
    assert "1.05 are allowed" in done.err


@pytest.mark.long
def test_beside_a_busy_loop_a_model_is_not_slower_than_itself(tmp_path: Path, few_turns: pytest.MonkeyPatch) -> None:
    few_turns.undo()
    deep = _convolutions(tmp_path, 6)
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as loop:
        try:
            found = [api.compare(deep, against=deep, budget_seconds=60).held for _ in range(3)]
        finally:
            loop.kill()
    assert all(held.verdict != "slower" for (held,) in found), found


def test_plans_are_held_against_each_other_too(tmp_path: Path) -> None:
    deep, deeper = _convolutions(tmp_path, 4), _convolutions(tmp_path, 32)
    found = api.compare(deep, against=deeper, engine=(OWN,), budget_seconds=60)
    assert [held.verdict for held in found.held] == ["faster"], (found.held, found.left_out)


@pytest.mark.parametrize(
    ("options", "code", "told"),
    [
        (("--fail-above", "5%"), ParamsError.exit_code, "nothing is held against"),
        (("--engine", "tensorflow"), ParamsError.exit_code, "there is no engine 'tensorflow'"),
        (("--against", "kept.json"), FormatError.exit_code, "no comparison"),
        (("--against", "old.onnx", "--fail-above", "much"), ParamsError.exit_code, "no share"),
    ],
)
def test_what_cannot_be_compared_is_refused(
    edgeplan: Edgeplan, model: Path, tmp_path: Path, options: tuple[str, ...], code: int, told: str
) -> None:
    done = edgeplan("compare", str(model), *options, folder=tmp_path)
    assert done.code == code
    assert told in done.err


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
    ((slow,),) = turns.run([_session(later=0.5)], seconds=0.1, patience=60)
    assert [ms > 500 for ms in slow.blocks[0]] == [True], "each inference of a slow model is waited for"


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


@pytest.mark.parametrize(
    ("command", "told"),
    [
        ("import sys; sys.exit('no such layer')", "ended with exit code 1: no such layer"),
        ("import os; os.kill(os.getpid(), 9)", "was ended by SIGKILL"),
        ("import time; time.sleep(600)", "had not answered"),
        ("/no-such-program", "no-such-program"),
    ],
)
@pytest.mark.parametrize("lines", [True, False])
def test_what_fails_says_why_and_nothing_is_left(turns: Turns, command: str, told: str, lines: bool) -> None:
    failing = Session((command,) if command.startswith("/") else (sys.executable, "-c", command), _PROCESSORS, lines)
    with pytest.raises(ColdRunError, match=told):
        turns.run([_session(), failing] if lines else [failing], seconds=0.1, patience=3)
    ((ran,),) = turns.run([_session()], seconds=0.1, patience=60)  # it goes on with others
    assert ran.first_ms > 0
