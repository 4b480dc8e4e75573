"""Boards that cannot be reached, are not what they should be, or lie: each ends in one message with the next command."""

from __future__ import annotations

import os
import stat
import sys
from pathlib import Path
from typing import Any

import pytest
from boards import board, scripted
from quick_bench import SETTINGS, measuring_alone, subjects  # noqa: F401  a fixture

from edgeplan import __version__
from edgeplan.devices.config import DeviceFile, SshTransport
from edgeplan.errors import DeviceError, EdgeplanError, FormatError, StoreError
from edgeplan.measurement.bench import Bench
from edgeplan.measurement.board import client
from edgeplan.measurement.board.client import BoardMeasurer
from edgeplan.measurement.board.link import start_failure
from edgeplan.measurement.board.wire import WIRE_VERSION
from edgeplan.profiling.settings import cores_of

LANE = "processes"
SSH = DeviceFile.model_validate(
    {"format_version": 2, "name": "pi", "engine": "onnxruntime", "transport": {"kind": "ssh", "host": "pi5", "python": "py3"}}
)


def error_of(device: DeviceFile) -> EdgeplanError:
    measurer = BoardMeasurer(device)
    with pytest.raises(EdgeplanError) as caught:
        measurer.describe()
    measurer.close()
    assert caught.value.next_step
    return caught.value


_DEPLOY = "edgeplan device deploy pi"
SAID = {  # what ssh and shells say
    "unknown host": (255, "ssh: Could not resolve hostname pi5: Name or service", "host pi5 is not known", "transport.host"),
    "refused key": (255, "root@pi5: Permission denied (publickey).", "refused the key", "ssh-copy-id pi5"),
    "off": (255, "ssh: connect to host pi5 port 22: Connection timed out", "does not answer", "ssh pi5 true"),
    "new key": (255, "@ REMOTE HOST IDENTIFICATION HAS CHANGED! @\nHost key", "another host key", "ssh-keygen -R pi5"),
    "no Python": (127, "bash: line 1: py3: command not found", "no Python at py3", _DEPLOY),
    "no file": (127, "bash: line 1: /opt/py3: No such file or directory", "no Python at py3", _DEPLOY),
    "no library": (1, "ModuleNotFoundError: No module named 'msgspec'", "'msgspec'", _DEPLOY),
    "old Python": (1, "edgeplan needs Python 3.11 or newer, this is 3.10.12", "too old: .* 3.10.12", _DEPLOY),
    "anything else": (3, "\x1b[31mmoon\x1b[0m", "no worker answers at host pi5", _DEPLOY),
    "nothing": (1, "", "no worker answers", _DEPLOY),
}


@pytest.mark.parametrize("case", SAID)
def test_a_worker_that_does_not_start_is_told_by_its_cause(case: str) -> None:
    code, said, what, next_step = SAID[case]
    error = start_failure(SSH, code, said)
    with pytest.raises(DeviceError, match=what):
        raise error
    assert next_step in error.next_step
    assert "\x1b" not in str(error)
    assert "pi" in error.where


def test_a_program_that_is_not_there_is_told() -> None:
    transport = {"kind": "command", "argv": ["/nowhere/adb", "shell"]}
    device = DeviceFile.model_validate({**SSH.model_dump(), "transport": transport})
    error = error_of(device)
    assert "cannot start '/nowhere/adb'" in error.what
    assert "transport.argv" in error.next_step


def test_what_works_on_this_machine_alone_refuses_a_board() -> None:
    with pytest.raises(DeviceError, match="plans are made and run on this machine alone") as caught:
        cores_of(SSH)
    assert caught.value.where == "device 'pi', field transport"


@pytest.mark.parametrize(
    "fields",
    [
        {"format_version": 1},
        {"transport": {"kind": "ssh", "host": "-oProxyCommand=touch x"}},
        {"transport": {"kind": "ssh", "host": "pi5; rm -rf ~"}},
        {"transport": {"kind": "ssh", "host": "pi5", "python": "python\n3"}},
        {"transport": {"kind": "command", "argv": []}},
        {"gate": {"max_celsius": "warm"}},
    ],
)
def test_a_device_file_that_reaches_nowhere_is_refused(fields: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"transport|gate"):
        DeviceFile.model_validate({**SSH.model_dump(), **fields})


def test_what_ssh_is_told_is_one_quoted_word() -> None:
    transport = SshTransport(kind="ssh", host="pi5", python="/opt/my python/bin/python")
    command = transport.worker_command()
    assert command[0] == "ssh"
    assert command[-3:] == ["--", "pi5", "'/opt/my python/bin/python' -m edgeplan worker"]


def greeting(**changes: Any) -> str:
    hello = {"is": "hello", "wire": WIRE_VERSION, "version": __version__, "python": "3.11", "architecture": "x", **changes}
    return f"import json, sys; print(json.dumps({hello!r}), flush=True); sys.stdin.read()"


@pytest.mark.parametrize(
    ("said", "what"),
    [
        ({"version": "0.0.1"}, "the board has edgeplan"),
        ({"wire": 99}, "the board has edgeplan"),
        ({}, "the board is a x, and its file says aarch64"),
    ],
)
def test_another_version_or_architecture_is_refused(said: dict[str, Any], what: str) -> None:
    error = error_of(scripted(greeting(**said), architecture="aarch64"))
    assert what in error.what
    if said:
        assert isinstance(error, FormatError)
        assert error.next_step == "edgeplan device deploy dev"


_OPENED = "real = worker.WorkerSession.opened; worker.WorkerSession.opened = lambda self: {}"
_NAMED = "__import__('msgspec').structs.replace({}, {}={!r})"
_PATH = _NAMED.format("real(self).environment", "fingerprint", "../../../etc")
ODD: dict[str, tuple[str, dict[str, object], str, str]] = {  # what its worker is spoilt by, its file, what is told, what to do
    "other sources": ("worker.sources_digest = lambda engine: '0' * 64", {}, "other sources", "edgeplan device deploy dev"),
    "two with one name": ("", {"fingerprint": "0" * 16}, "another board answers", "name of its own"),
    "no such core": ("", {"cores": [4321]}, "core 4321 does not exist", "name cores among"),
    "no such engine": ("", {"engine": "onednn-of-tomorrow"}, "onednn-of-tomorrow", "known"),
    "emulated": ("worker.emulated = lambda: True", {}, "emulated", "emulated: true"),
    "a version that is none": (_OPENED.format(_NAMED.format("real(self)", "engine_version", "1.0\n../..")), {}, "", ""),
    "a path for a fingerprint": (_OPENED.format(f"__import__('msgspec').structs.replace(real(self), environment={_PATH})"),
                                 {}, "", ""),
}  # fmt: skip


@pytest.mark.parametrize("case", ODD)
def test_a_board_that_is_not_what_it_should_be_is_refused(case: str, tmp_path: Path) -> None:
    more, fields, what, next_step = ODD[case]
    error = error_of(board(tmp_path, more, **fields))
    assert what in error.what
    assert next_step in error.next_step
    assert isinstance(error, FormatError) or what


@pytest.mark.parametrize(
    "program",
    [
        "print('Welcome to Board OS 12', flush=True)",
        "import sys; sys.stdout.write('x' * 20_000_000); sys.stdout.flush()",
        'print(\'{"is":"system","argv":["touch","/tmp/x"]}\')',
    ],
)
def test_what_is_no_worker_is_refused(program: str) -> None:
    error = error_of(scripted(program))
    assert isinstance(error, FormatError)
    assert len(str(error)) < 1500


def test_another_board_after_a_cut_is_not_taken_for_the_first(tmp_path: Path) -> None:
    more = f"""
    from edgeplan.measurement import local
    marked = Path({str(tmp_path / "started")!r})
    if marked.exists():
        local.fingerprint = lambda: "1" * 16
        real = local.environment
        local.environment = lambda: {{**real(), "fingerprint": "1" * 16}}
    marked.touch()
    """
    measurer = BoardMeasurer(board(tmp_path, more))
    measurer.describe()
    measurer.close()
    with pytest.raises(DeviceError, match="another board answers: its fingerprint is 1111"):
        measurer.nominal(1)


def test_an_emulated_board_gives_figures_where_a_test_asks(tmp_path: Path) -> None:
    measurer = BoardMeasurer(board(tmp_path, "worker.emulated = lambda: True", emulated=True))
    assert measurer.describe().environment["emulated"] is True
    measurer.close()


def test_a_board_that_stays_away_is_given_up_with_what_it_said(tmp_path: Path) -> None:
    more = f"""
    marked = Path({str(tmp_path / "started")!r})
    if marked.exists():
        sys.exit("sh: reboot in progress")
    marked.touch()
    """
    measurer = BoardMeasurer(board(tmp_path, more, reconnect_seconds=2))
    measurer.describe()
    measurer.close()
    with pytest.raises(DeviceError, match="did not come back in 2 s") as caught:
        measurer.nominal(1)
    assert "run the same command again" in caught.value.next_step


LIES = {
    "a name that is a path": "named(rows, name='../../../escaped')",
    "each row twice": "rows * 2",
    "no rows": "[]",
    "a huge row": "named(rows, seconds=1.0, nodes=(EngineNode('n' * 900, '', '', (), '', '', ''),) * 20000)",
}


@pytest.mark.parametrize("lie", LIES)
def test_a_lying_worker_writes_no_row_and_no_file(tmp_path: Path, lie: str) -> None:
    more = f"""
    import msgspec
    from edgeplan.engines.base import EngineNode
    def named(rows, **changes):
        return [msgspec.structs.replace(row, **changes) for row in rows]
    real = worker.WorkerSession._measured
    def lying(self, asked):
        rows = real(self, asked)
        return {LIES[lie]}
    worker.WorkerSession._measured = lying
    """
    (tmp_path / "w").mkdir()
    with Bench(board(tmp_path, more), SETTINGS, tmp_path / "w/dev") as bench:
        with pytest.raises(FormatError) as caught:
            bench.measure(subjects(2))
        assert not len(bench.store)
    assert caught.value.next_step
    assert not [path for path in (tmp_path / "w").rglob("*") if path.is_file()]
    assert not list(tmp_path.rglob("*escaped*"))


def test_a_worker_that_never_stops_talking_is_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "_MOST_NOTES", 50)
    more = """
    def talking(self, asked):
        while not self._answers.gone.is_set():
            self._answers.send(worker.wire.Note(text="and another thing"))
        return []
    worker.WorkerSession._measured = talking
    """
    with Bench(board(tmp_path, more), SETTINGS, tmp_path / "w/dev") as bench, pytest.raises(FormatError, match="51 notes"):
        bench.measure(subjects(1))


def test_an_error_of_a_worker_is_none_but_the_packages_own(tmp_path: Path) -> None:
    more = """
    def refuse(self, asked):
        raise type("SystemExit", (Exception,), {})("x" * 10_000)
    worker.WorkerSession._measured = refuse
    worker._refused = lambda error: worker.wire.Refused(error="SystemExit", what="\\x1b[2J gone")
    """
    with Bench(board(tmp_path, more), SETTINGS, tmp_path / "w/dev") as bench, pytest.raises(DeviceError) as caught:
        bench.measure(subjects(1))
    assert "\x1b" not in str(caught.value)


def test_a_worker_refuses_what_a_hostile_host_asks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Folders are made of names: those that are no names are refused before anything is written."""
    device = board(tmp_path)
    fields = {**client.wire.device_fields(device), "name": "../../escaped"}
    monkeypatch.setattr(client.wire, "device_fields", lambda _: fields)
    assert "name" in error_of(device).what
    assert not list(tmp_path.rglob("*escaped*"))


@pytest.mark.skipif(os.geteuid() == 0, reason="root writes everywhere")
def test_a_journal_that_may_not_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "state").mkdir(mode=stat.S_IRUSR | stat.S_IXUSR)
    with Bench(board(tmp_path), SETTINGS, tmp_path / "w/dev") as bench, pytest.raises(StoreError):
        bench.measure(subjects(1))


def test_a_python_that_is_too_old_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    from edgeplan import cli  # noqa: PLC0415  its only test here

    monkeypatch.setattr(sys, "argv", ["edgeplan", "worker"])
    monkeypatch.setattr(sys, "version_info", (3, 10, 12))
    monkeypatch.setattr(sys, "version", "3.10.12 (main)")
    with pytest.raises(SystemExit) as caught:
        cli.main()
    assert "edgeplan needs Python 3.11 or newer, this is 3.10.12" in str(caught.value)
