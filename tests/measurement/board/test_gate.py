"""The gate of a board, on folders that stand for the kernel's."""

from __future__ import annotations

from pathlib import Path

import pytest

from edgeplan.devices.config import GateSettings
from edgeplan.errors import NoiseError
from edgeplan.measurement.board import worker
from edgeplan.measurement.board.worker import Gate


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


def test_a_fit_board_passes(root: Path) -> None:
    gate = Gate(GateSettings(max_celsius=60, governor="performance"), root)
    gate.wait()
    assert gate.disturbed() == ""
    assert (gate.look().celsius, gate.look().throttles) == (41.5, 7)


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


def test_a_board_that_stays_hot_ends_the_wait(root: Path) -> None:
    heat(root, 90)
    with pytest.raises(NoiseError, match=r"not fit to measure: too hot: 90\.0 degrees") as caught:
        Gate(GateSettings(max_celsius=60, wait_seconds=0), root).wait()
    assert "gate" in caught.value.next_step


def test_another_governor_is_told(root: Path) -> None:
    (root / "sys/devices/system/cpu/cpu1/cpufreq/scaling_governor").write_text("powersave\n")
    with pytest.raises(NoiseError, match="governor: it is performance, powersave"):
        Gate(GateSettings(governor="performance", wait_seconds=0), root).wait()
    Gate(GateSettings(), root).wait()


def test_a_batch_that_was_throttled_does_not_count(root: Path) -> None:
    gate = Gate(GateSettings(max_celsius=60), root)
    gate.wait()
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
    command.write_text("#!/bin/sh\necho throttled=0x50000\n")
    assert not Gate(GateSettings(), root).look().throttled
    command.write_text("#!/bin/sh\necho odd\n")
    assert not Gate(GateSettings(), root).look().throttled
    assert worker.THROTTLED_AGAIN > 0
