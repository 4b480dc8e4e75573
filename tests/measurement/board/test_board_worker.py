"""A real worker in a process of its own, links and hosts that end in mid-batch, and the gate of a board."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from boards import WORKER, board
from quick_bench import SETTINGS, held, measuring_alone, node_subjects, subjects  # noqa: F401  a fixture

from edgeplan.devices.config import DeviceFile, GateSettings
from edgeplan.errors import BusyError, DeviceError, NoiseError
from edgeplan.measurement.bench import Bench, read_rows
from edgeplan.measurement.board import client
from edgeplan.measurement.board.client import CLOCK_OFFSET, BoardMeasurer
from edgeplan.measurement.board.worker import Gate, journal_folder
from edgeplan.support.machine import fingerprint
from edgeplan.support.store import STORED_ROWS_ONLY

LANE = "processes"

#: A batch that lasts a second or so.
LONG = SETTINGS.model_copy(update={"min_gap_seconds": 0.3})


@contextmanager
def bench_on(device: DeviceFile, folder: Path, settings: object = SETTINGS) -> Iterator[Bench]:
    with Bench(device, settings, folder / "rows/dev") as bench:  # type: ignore[arg-type]
        yield bench


def journalled() -> Counter[str]:
    """How often each row is in the board's journals."""
    lines = [line for path in journal_folder().rglob("*.jsonl") for line in path.read_text().splitlines()]
    return Counter(json.loads(line)["row"]["name"] for line in lines)


def wait_for(what: Path) -> None:
    end = time.monotonic() + 120
    while not what.exists() and time.monotonic() < end:
        time.sleep(0.01)
    assert what.exists()


def test_a_board_gives_the_rows_that_this_machine_gives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = [*subjects(2), *subjects(1, profiled=True)]
    with bench_on(board(tmp_path), tmp_path) as bench:
        there = bench.measure(asked)
        assert bench.measured == 3
        assert list(bench.measurer.executed([s.graph for s in subjects(2)]))
        environment = bench.identity["environment"]
        assert (environment["fingerprint"], environment[CLOCK_OFFSET]) == (fingerprint(), pytest.approx(0, abs=60))
        assert environment["load_1min"]["batches"] == 2
        assert os.uname().nodename not in json.dumps(bench.identity)
    local = DeviceFile(format_version=1, name="dev", engine="onnxruntime")
    with bench_on(local, tmp_path) as bench:  # the same keys: nothing is measured again
        here = bench.measure(asked)
        assert bench.measured == 0
        again = bench.measure(asked, repeat=1)
    for a, b, c in zip(there, here, again, strict=True):
        assert a.latency_us == pytest.approx(b.latency_us, rel=1e-6)
        assert (a.nodes, a.least_us.shape, a.node_us.shape) == (c.nodes, c.least_us.shape, c.node_us.shape)
        assert abs(a.measured_at[0] - time.time()) < 600
    assert set(journalled().values()) == {1}
    monkeypatch.setenv(STORED_ROWS_ONLY, "1")
    with bench_on(board(tmp_path, "raise SystemExit"), tmp_path) as bench:  # stored rows need no board
        assert len(bench.measure(asked)) == 3


def test_a_board_measures_nodes_and_leaves_out_one_that_its_engine_refuses(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    nodes = node_subjects(refused=True)
    with bench_on(board(tmp_path), tmp_path) as bench:
        found = bench.measure_in_time([*nodes, *subjects(1)])
        assert bench.measured == 3
    assert [one and one.subject for one in found] == [nodes[0].id, nodes[1].id, None, subjects(1)[0].id]
    assert caplog.text.count("a node is left out: ONNX Runtime does not run a node MatMul") == 1
    assert set(journalled()) == {one.subject for one in found if one}


def test_a_worker_loads_nothing_that_a_board_lacks(tmp_path: Path) -> None:
    told = tmp_path / "modules"
    more = f"""
    import atexit
    atexit.register(lambda: Path({str(told)!r}).write_text(" ".join(sys.modules)))
    """
    with bench_on(board(tmp_path, more), tmp_path) as bench:
        bench.measure(subjects(1, profiled=True))
    wait_for(told)
    time.sleep(0.2)
    heavy = {"pandas", "pyarrow", "lightgbm", "snakemake", "dvc", "matplotlib", "optuna", "sklearn", "jinja2"}
    assert not heavy & set(told.read_text().split())


RELAY = """
import os, subprocess, sys, threading
worker = subprocess.Popen([sys.executable, "-c", sys.argv[1], sys.argv[2]], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                          start_new_session=True)
open(sys.argv[3], "w").write(f"{os.getpid()} {worker.pid}")
def pump(source, sink):
    while chunk := os.read(source, 65536):
        os.write(sink, chunk)
    os._exit(0)
threading.Thread(target=pump, args=(0, worker.stdin.fileno()), daemon=True).start()
pump(worker.stdout.fileno(), 1)
"""
#: Tells that a batch is being measured: its first block has begun.
BEGUN = """
from edgeplan.measurement import local
block = local._block
def told(*given):
    Path(sys.argv[1], "begun").touch()
    return block(*given)
local._block = told
"""


def relayed(folder: Path) -> DeviceFile:
    """A board behind a process that stands for the link: it may be killed while the worker goes on."""
    program = WORKER.format(more=BEGUN)
    argv = [sys.executable, "-c", RELAY, program, str(folder), str(folder / "link")]
    return DeviceFile.model_validate(
        {"format_version": 2, "name": "dev", "engine": "onnxruntime", "transport": {"kind": "command", "argv": argv}}
    )


@pytest.mark.parametrize("killed", ["link", "worker"])
def test_what_is_cut_in_mid_batch_loses_no_row_and_gives_none_twice(
    tmp_path: Path, killed: str, caplog: pytest.LogCaptureFixture
) -> None:
    pids: list[int] = []

    def kill() -> None:
        wait_for(tmp_path / "begun")
        pids.extend(map(int, (tmp_path / "link").read_text().split()))
        os.kill(pids[killed == "worker"], signal.SIGKILL)

    with bench_on(relayed(tmp_path), tmp_path, LONG) as bench:
        threading.Thread(target=kill).start()
        found = bench.measure(subjects(4))
    assert len(found) == 4
    assert "the link was cut; it is tried again" in caplog.text
    assert journalled() == Counter(s.id for s in subjects(4))
    stored = [row["subject"] for path in (tmp_path / "rows").rglob("*.parquet") for row in read_rows(path)]
    assert sorted(stored) == sorted(s.id for s in subjects(4))


HOST = """
import sys
from pathlib import Path
sys.path[:0] = sys.argv[2:]
from edgeplan.measurement import lock
from edgeplan.measurement.bench import Bench
from test_board_worker import LONG, relayed, subjects
root = Path(sys.argv[1])
lock.FOLDER = root
with Bench(relayed(root), LONG, root / "first/dev") as bench:
    bench.measure(subjects(4))
"""


def test_a_host_that_is_killed_gets_what_the_board_measured_alone(tmp_path: Path) -> None:
    command = [sys.executable, "-c", textwrap.dedent(HOST), str(tmp_path), *sys.path]
    with subprocess.Popen(command, start_new_session=True) as host:
        wait_for(tmp_path / "begun")
        os.kill(host.pid, signal.SIGKILL)
    with bench_on(relayed(tmp_path), tmp_path / "second", LONG) as bench:
        assert len(bench.measure(subjects(4))) == 4
    assert journalled() == Counter(s.id for s in subjects(4))


def test_a_second_client_is_told_who_measures_and_waits(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with bench_on(board(tmp_path), tmp_path) as bench, held("alice at lab, process 7") as other:
        threading.Timer(3.0, other.kill).start()
        assert len(bench.measure(subjects(1))) == 1
    assert f"alice at lab, process 7 by pid {other.pid}" in caplog.text


def test_who_waits_too_long_is_told_for_whom(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with bench_on(board(tmp_path), tmp_path) as bench:
        monkeypatch.setattr(client, "WAIT_SECONDS", 0.5)
        with held("alice at lab"), pytest.raises(BusyError, match="alice at lab") as caught:
            bench.measure(subjects(1))
    assert "dev" in caught.value.where


def test_a_clock_that_jumps_dates_no_row(tmp_path: Path) -> None:
    more = """
    import time
    hours = iter(range(0, 10**9, 7200))
    time.time = lambda: float(next(hours))
    """
    with bench_on(board(tmp_path, more), tmp_path) as bench:
        (found,) = bench.measure(subjects(1))
        assert abs(found.measured_at - time.time()).max() < 600
        assert bench.identity["environment"][CLOCK_OFFSET] < -1e9


def test_an_engine_that_fails_there_is_told_and_the_board_goes_on(tmp_path: Path) -> None:
    more = """
    from edgeplan.measurement import local
    real, calls = local.measure_batch, []
    def fails(*given, **named):
        calls.append(1)
        if len(calls) == 1:
            raise RuntimeError("segment violated")
        return real(*given, **named)
    local.measure_batch = fails
    """
    with bench_on(board(tmp_path, more), tmp_path) as bench:
        with pytest.raises(DeviceError, match="the engine failed: RuntimeError: segment violated"):
            bench.measure(subjects(1))
        assert len(bench.measure(subjects(1))) == 1


def test_a_throttled_board_is_measured_again_and_then_given_up(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    more = """
    from edgeplan.measurement.board.worker import Gate
    looks = []
    Gate.disturbed = lambda self: looks.append(1) or ("it was hot" if len(looks) in (1, 3, 4, 5) else "")
    """
    with bench_on(board(tmp_path, more), tmp_path) as bench:
        assert len(bench.measure(subjects(1))) == 1
        assert "a batch is measured again: it was hot" in caplog.text
        with pytest.raises(Exception, match="it was hot in 3 batches on end"):
            bench.measure(subjects(2))
    assert sum(journalled().values()) == 1


def test_a_board_is_checked_over_there(tmp_path: Path) -> None:
    measurer = BoardMeasurer(board(tmp_path))
    found = measurer.check(0.5)
    measurer.close()
    assert len(found.compute_us) == len(found.bandwidth_us) > 0


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Two zones, one of which cannot be read, and two processors."""
    for name, text in (
        ("class/thermal/thermal_zone0/temp", "41500"),
        ("class/thermal/thermal_zone1/temp", "n/a"),
        ("devices/system/cpu/cpu0/thermal_throttle/core_throttle_count", "3"),
        ("devices/system/cpu/cpu1/thermal_throttle/core_throttle_count", "4"),
        ("devices/system/cpu/cpu0/cpufreq/scaling_governor", "performance"),
        ("devices/system/cpu/cpu1/cpufreq/scaling_governor", "performance"),
    ):
        path = tmp_path / "sys" / name
        path.parent.mkdir(parents=True)
        path.write_text(f"{text}\n")
    return tmp_path


def heat(root: Path, celsius: float) -> None:
    (root / "sys/class/thermal/thermal_zone0/temp").write_text(str(int(celsius * 1000)))


def test_a_hot_board_is_waited_for_and_told_once(root: Path, caplog: pytest.LogCaptureFixture) -> None:
    heat(root, 80)
    pauses = []

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        heat(root, 80 - 10 * len(pauses))

    Gate(GateSettings(max_celsius=60), root, pause).wait()
    assert len(pauses) == 2
    assert caplog.text.count("a batch waits: too hot: 80.0 degrees") == 1
    assert "70.0" not in caplog.text


def test_a_board_that_stays_unfit_ends_the_wait(root: Path) -> None:
    (root / "sys/devices/system/cpu/cpu1/cpufreq/scaling_governor").write_text("powersave\n")
    with pytest.raises(NoiseError, match="governor: it is performance, powersave"):
        Gate(GateSettings(governor="performance", wait_seconds=0), root).wait()
    heat(root, 90)
    with pytest.raises(NoiseError, match=r"not fit to measure: too hot: 90\.0 degrees") as caught:
        Gate(GateSettings(max_celsius=60, wait_seconds=0), root).wait()
    assert "gate" in caught.value.next_step


def test_a_batch_that_was_throttled_does_not_count(root: Path) -> None:
    gate = Gate(GateSettings(max_celsius=60, governor="performance"), root)
    gate.wait()
    assert gate.disturbed() == ""
    (root / "sys/devices/system/cpu/cpu1/thermal_throttle/core_throttle_count").write_text("5")
    assert gate.disturbed() == "its processor was throttled"
    gate.wait()
    assert not gate.disturbed()
    heat(root, 66)
    assert gate.disturbed() == "it grew hotter than 60 degrees: 66.0"


def test_a_raspberry_pi_tells_by_its_own_command(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    command = tmp_path / "bin/vcgencmd"
    command.parent.mkdir()
    command.write_text("#!/bin/sh\necho throttled=0x50005\n")  # capped in the past; undervoltage and throttled now
    command.chmod(0o755)
    monkeypatch.setenv("PATH", f"{command.parent}:/bin:/usr/bin")
    assert Gate(GateSettings(), root).look().throttled
    for others in ("throttled=0x50000", "odd"):
        command.write_text(f"#!/bin/sh\necho {others}\n")
        assert not Gate(GateSettings(), root).look().throttled
