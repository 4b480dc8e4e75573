"""Files of devices and pairs, and the command that writes them; the engine registry and the machine's description."""

from __future__ import annotations

import builtins
import errno
import itertools
import json
import os
import shutil
import socket
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner, Result

from edgeplan import workspace
from edgeplan.cli.commands import app
from edgeplan.devices import create
from edgeplan.devices.config import DeviceFile, is_here, load_device, machine_of
from edgeplan.devices.pairs import load_pair
from edgeplan.engines.base import EngineSettings
from edgeplan.engines.registry import ENGINES, engine_class
from edgeplan.errors import DeviceError
from edgeplan.measurement import device_check as check
from edgeplan.measurement.device_check import check_device, report_lines
from edgeplan.measurement.process import interference
from edgeplan.measurement.references import ReferenceTimes
from edgeplan.support import machine
from edgeplan.support.machine import environment, fingerprint

GOOD: dict[str, Any] = {"format_version": 1, "name": "dev", "engine": "onnxruntime", "threads": 1, "cores": []}

ROOT = Path(__file__).parents[2]


def _file(folder: Path, stem: str = "dev", **changes: Any) -> Path:
    path = folder / f"{stem}.yaml"
    document = {k: v for k, v in {**GOOD, **changes}.items() if v is not None}
    path.write_text(yaml.safe_dump(document))
    return path


@pytest.fixture
def devices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The device files of a workspace."""
    folder = tmp_path / "config/devices"
    folder.mkdir(parents=True)
    monkeypatch.setenv("EDGEPLAN_WORKSPACE", str(tmp_path))
    return folder


def test_a_device_is_found_by_name_and_by_path_and_that_of_the_workspace_goes_before_the_shipped_one(devices: Path) -> None:
    path = _file(devices, threads=3, options={"a": "b"})
    assert load_device("dev") == load_device(path) == load_device(str(path))
    assert load_device("cpu-onnxruntime").threads == 1
    _file(devices, "cpu-onnxruntime", name="cpu-onnxruntime", threads=3)
    assert load_device("cpu-onnxruntime").threads == 3
    assert load_device("cpu-onednn").engine == "onednn"


def test_the_shipped_files_of_devices_and_pairs_are_those_of_the_checkout(tmp_path: Path) -> None:
    """And each can be read."""
    here, nowhere = workspace.Workspace(ROOT, found=True), workspace.Workspace(tmp_path, found=False)
    for kind in ("device", "pair"):
        given, shipped = here.files(kind), nowhere.files(kind)
        one, other = ({name: path.read_bytes() for name, path in files.items()} for files in (shipped, given))
        assert one == other, "make distil copies those of devices"
        assert len([load_device(path) if kind == "device" else load_pair(path) for path in given.values()]) == len(given) > 0
        assert set(shipped.values()).isdisjoint(given.values())


def test_a_core_that_does_not_exist_is_told_whatever_else_is_measuring(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check, "machine_lock", lambda: pytest.fail("the machine was asked for"))
    with pytest.raises(DeviceError, match="core 9999 does not exist"):
        check_device(str(_file(tmp_path, cores=[9999])), 1.0)


@pytest.mark.parametrize("name", ["nosuch", "Dev", "", "..", "dev\n"])
def test_an_unknown_device_lists_the_known_ones(devices: Path, name: str) -> None:
    _file(devices)
    own = "cpu-onednn, cpu-onnxruntime, cpu-openvino, cuda-h200, cuda-h200-8sm, dev, opencl-pocl"
    with pytest.raises(DeviceError, match=f"unknown device(?s:.*)known devices: {own};"):
        load_device(name)


@pytest.mark.parametrize("path", ["./dev", "dev.yml", "/dev/null/dev.yaml"])
def test_what_is_given_as_a_path_is_not_taken_for_a_name(devices: Path, path: str) -> None:
    _file(devices)
    with pytest.raises(DeviceError, match="cannot read device file"):
        load_device(path)


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"thread": 1}, "thread"),
        ({"threads": 0}, "threads"),
        ({"cores": [-1]}, "cores.0"),
        ({"transport": "ssh"}, "transport"),
        ({"format_version": 2, "transport": {"kind": "ssh", "host": "-x"}}, "transport.ssh.host"),
        ({"format_version": 2, "transport": {"kind": "telnet"}}, "transport"),
        ({"format_version": 2, "fingerprint": "mine"}, "fingerprint"),
        ({"engine": None}, "engine"),
        ({"options": {"a": [1]}}, "options.a"),
        ({"name": "Dev One"}, "name"),
    ],
)
def test_a_wrong_field_is_named(tmp_path: Path, changes: dict[str, Any], field: str) -> None:
    path = _file(tmp_path, **changes)
    with pytest.raises(DeviceError, match=rf"does not fit: (.*; )?{field}: ") as caught:
        load_device(path)
    assert caught.value.where == str(path)
    assert caught.value.next_step


@pytest.mark.parametrize("text", ["- a list", "just text", "", "a: [1", "a: !!python/object:os.system {}", "\x00"])
@pytest.mark.parametrize(("load", "stem"), [(load_device, "dev"), (load_pair, "pair-test")])
def test_what_is_no_device_or_pair_file_is_refused(
    tmp_path: Path, load: Callable[[Path], object], stem: str, text: str
) -> None:
    path = tmp_path / f"{stem}.yaml"
    path.write_text(text)
    with pytest.raises(DeviceError) as caught:
        load(path)
    assert caught.value.where == str(path)


def test_a_name_that_differs_is_refused_and_an_unknown_engine_lists_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(DeviceError, match="named 'other' but says 'dev'"):
        load_device(_file(tmp_path, "other"))
    with pytest.raises(DeviceError, match="unknown engine 'tensorflux'") as caught:
        load_device(_file(tmp_path, engine="tensorflux"))
    assert caught.value.where == f"{tmp_path / 'dev.yaml'}, field engine"
    assert all(name in caught.value.next_step for name in ENGINES)


# those that are left out load their libraries when made, or import one of another name
@pytest.mark.parametrize("name", sorted({*ENGINES} - {"onednn", "opencl", "cuda", "onnxruntime_cuda"}))
def test_an_engine_that_is_not_installed_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    module, install = ENGINES[name].session.partition(":")[0], ENGINES[name].install
    real = builtins.__import__

    def without(wanted: str, *args: Any, **kwargs: Any) -> Any:
        if wanted.split(".", maxsplit=1)[0] == name:
            raise ImportError(f"No module named {wanted!r}")
        return real(wanted, *args, **kwargs)

    monkeypatch.delitem(sys.modules, module, raising=False)
    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(DeviceError, match=f"engine '{name}' is not installed") as caught:
        engine_class(name)
    assert caught.value.next_step == install


def test_pinning_reaches_the_named_cores_or_says_which_is_missing(request: pytest.FixtureRequest) -> None:
    request.addfinalizer(partial(os.sched_setaffinity, 0, os.sched_getaffinity(0)))
    core = min(os.sched_getaffinity(0))
    DeviceFile(**{**GOOD, "cores": (core,)}).pin()
    assert os.sched_getaffinity(0) == {core}
    DeviceFile(**GOOD).pin()
    assert os.sched_getaffinity(0) == {core}
    with pytest.raises(DeviceError, match="core 9999 does not exist") as caught:
        DeviceFile(**{**GOOD, "cores": (core, 9999)}).pin()
    assert "cores" in caught.value.where


def test_a_core_that_may_not_be_used_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a container that has fewer cores than its machine: there the system refuses."""
    core = min(os.sched_getaffinity(0))
    asked = DeviceFile(**{**GOOD, "cores": (core,)})

    def refuse(*_: object) -> None:
        raise OSError(errno.EINVAL, "Invalid argument")

    monkeypatch.setattr(os, "sched_setaffinity", refuse)
    with pytest.raises(DeviceError, match=f"cores {core} may not all be used by this process") as caught:
        asked.pin()
    assert "name cores among" in caught.value.next_step


def test_the_environment_can_be_kept_and_names_no_host() -> None:
    document = json.dumps(environment())
    assert environment()["fingerprint"] == fingerprint()
    for private in (socket.gethostname(), str(Path.home()), os.environ.get("USER", "")):
        if len(private) > 4:
            assert private not in document


def test_a_machine_without_an_id_is_given_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the rows of two such machines with the same processor would pass for each other's."""
    read = machine._read
    given = ("/etc/machine-id", "/var/lib/dbus/machine-id")
    monkeypatch.setattr(machine, "_read", lambda path: "" if path in given else read(path))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "one"))
    mine = fingerprint()
    assert mine == fingerprint()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "other"))
    assert fingerprint() != mine


@pytest.mark.parametrize(
    ("compute", "beside", "load", "problems"),
    [
        ([100.0, 100.5], 1.0, 0.1, []),
        ([100.0, 130.0], 1.0, 0.1, ["the ", "neighbouring "]),
        pytest.param(
            [100.0], 1.5, 0.1, ["others used the processors' cores in 100 % of the looks (limit 50 %)"],
            marks=pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one processor has none of its own beside it"),
        ),
        ([100.0], 1.0, 3.5, ["the load is 3.5: other work is running"]),
    ],
)  # fmt: skip
def test_a_steady_machine_alone_is_trusted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compute: list[float], beside: float, load: float, problems: list[str]
) -> None:
    """Not one that drifts, whose cores others use, or that has other work."""
    times = itertools.cycle([*compute[1:], compute[0]])

    class Scripted:
        def __init__(self, _loads: object) -> None:
            pass

        def time(self, _runs: int) -> ReferenceTimes:
            return ReferenceTimes(next(times), 400.0)

    everyone = len(os.sched_getaffinity(0))
    monkeypatch.setattr(check, "environment", lambda: environment() | {"load_1min": load})
    monkeypatch.setattr(check, "_WINDOW_SECONDS", 0.001)
    monkeypatch.setattr(check, "References", Scripted)
    together = {everyone: 100.0 * beside}
    monkeypatch.setattr(interference, "together_us", lambda processors, *_: together.get(len(processors), 100.0))
    monkeypatch.setattr(interference, "_PAUSE_SECONDS", 0.0)
    found = check_device(str(_file(tmp_path)), 0.1)
    assert found.trusted == (not problems)
    assert [told.startswith(wanted) for told, wanted in zip(found.problems, problems, strict=True)] == [True] * len(problems)
    lines = report_lines(found)
    assert sum(line.startswith("problem") for line in lines) == len(problems)
    assert ("do not trust" if problems else "figures from this machine can be trusted") in lines[-1]
    if not problems:
        assert (found.compute_spread, found.residual) == pytest.approx((0.005, 0.005), abs=1e-3)


def test_devices_of_this_machine_share_it_and_boards_are_their_own_unless_they_say(
    devices: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(devices.parents[1])
    board = {"format_version": 2, "transport": {"kind": "ssh", "host": "pi5"}}
    for name, fields in (("here", {}), ("there", board), ("labelled", board | {"machine": "rack-1"})):
        _file(devices, name, name=name, **fields)
    names = ("here", "there", "labelled")
    assert [is_here(name) for name in names] == [True, False, False]
    assert [machine_of(name) for name in names] == ["local", "there", "rack-1"]
    with pytest.raises(DeviceError):
        is_here("nowhere")


PAIR: dict[str, Any] = {
    "format_version": 2,
    "name": "pair-test",
    "processors": [
        {"name": "cpu", "device": "cpu-onednn", "cores": [0]},
        {"name": "gpu", "device": "opencl-pocl", "cores": [1]},
    ],
    "synchronisation": "auto",
}


def _processors(first: dict[str, Any] | None = None, second: dict[str, Any] | None = None) -> dict[str, Any]:
    host, other = PAIR["processors"]
    return {"processors": [host | (first or {}), other | (second or {})]}


def _pair_file(folder: Path, **changes: Any) -> Path:
    path = folder / "pair-test.yaml"
    path.write_text(yaml.safe_dump(PAIR | changes))
    return path


def test_the_shipped_pair_names_devices_and_cores_may_be_shared_where_events_are_asked_for(tmp_path: Path) -> None:
    pair = load_pair(ROOT / "config/pairs/pair-pocl.yaml")
    cpu, gpu = pair.devices()
    assert (cpu.engine, gpu.engine) == ("onednn", "opencl")
    assert (pair.shared_cores, pair.cores) == (False, (0, 1))
    shared = load_pair(_pair_file(tmp_path, **_processors(second={"cores": [0]}), synchronisation="events"))
    assert (shared.shared_cores, shared.cores) == (True, (0,))


def test_a_pair_is_found_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(ROOT / "config/devices", tmp_path / "config/devices")
    (tmp_path / "config/pairs").mkdir()
    _pair_file(tmp_path / "config/pairs")
    monkeypatch.setenv("EDGEPLAN_WORKSPACE", str(tmp_path))
    assert load_pair("pair-test").name == "pair-test"
    with pytest.raises(DeviceError, match=r"unknown pair 'pair-none'.*\n.*\n.*known pairs: .*pair-test"):
        load_pair("pair-none")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (_processors(second={"cores": [0]}), "core 0 is one of cpu.cores.*name another core"),
        (_processors({"cores": [0, 0]}), "cpu.cores: a core is named twice"),
        (_processors({"cores": []}), "cpu.cores: .*none is named"),
        (_processors({"device": "cpu-none"}), "unknown device 'cpu-none'.*\n.*pair 'pair-test', field cpu.device"),
        (_processors({"device": "cpu-openvino"}), "unknown processor 'openvino'.*field cpu.device.*: onednn, opencl"),
        (_processors({"device": "opencl-pocl"}), "the engine 'opencl', which does not compute in the calling thread"),
        (_processors(second={"name": "cpu"}), "both are named cpu"),
        ({"processors": PAIR["processors"][:1]}, "processors"),
        ({"surprise": 1}, "surprise"),
        ({"name": "pair-other"}, "named 'pair-test' but says 'pair-other'"),
    ],
)
def test_mistakes_are_told(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(DeviceError, match=f"(?s){message}"):
        load_pair(_pair_file(tmp_path, **changes))


def test_one_core_alone_is_too_few(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a container of one core."""
    path = _pair_file(tmp_path)
    monkeypatch.setattr("edgeplan.devices.config.cpus.allowed", lambda: {0})
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    with pytest.raises(DeviceError, match=r"core 1 may not be used by this process(?s:.*)field gpu\.cores") as error:
        load_pair(path).check_cores()
    assert "name cores among 0; a pair of cores takes two" in str(error.value)


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def _init(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["device", "init", *arguments])


def _usable() -> list[int]:
    return sorted(os.sched_getaffinity(0))


def test_defaults_are_this_machines(place: Path) -> None:
    done = _init("desk")
    assert done.exit_code == 0, done.output
    device = load_device(place / "config/devices/desk.yaml")
    assert (device.engine, device.threads, device.cores) == (next(iter(ENGINES)), 1, (_usable()[-1],))
    assert f"on core(s) {_usable()[-1]}" in done.output
    for command in ("device check desk", "measure MODEL.onnx --device desk", "make reproduce DEVICE=desk"):
        assert command in done.output


def test_a_pair_is_the_cpu_beside_a_device(place: Path) -> None:
    done = _init("pair-desk", "--pair", "cuda-h200")
    assert done.exit_code == 0, done.output
    made = load_pair(place / "config/pairs/pair-desk.yaml")
    assert [side.device for side in made.processors] == ["cpu-onednn", "cuda-h200"]
    assert made.cores == tuple(_usable())
    assert "compare MODEL.onnx --pair pair-desk" in done.output
    assert isinstance(_init("pair-desk", "--pair", "cuda-h200").exception, DeviceError), "it is there already"


def test_only_processors_that_may_be_used_are_taken(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = min(_usable())
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {first})
    assert _init("desk").exit_code == 0
    assert load_device(place / "config/devices/desk.yaml").cores == (first,)


@pytest.mark.parametrize("engine", ENGINES)
def test_every_engine_gets_a_file_that_loads(place: Path, engine: str) -> None:
    try:
        engine_class(engine)(EngineSettings())
    except DeviceError as error:
        pytest.skip(error.what)
    done = _init("desk", "--engine", engine, "--threads", str(len(_usable())))
    assert done.exit_code == 0, done.output
    device = load_device(place / "config/devices/desk.yaml")
    assert (device.engine, device.threads, device.cores) == (engine, len(_usable()), tuple(_usable()))
    device.load_engine()
    assert ("plan cold-start" in done.output) == (engine == "onednn")


def test_cores_that_are_named_are_threads(place: Path) -> None:
    assert _init("desk", "--cores", ",".join(map(str, _usable()))).exit_code == 0
    assert load_device(place / "config/devices/desk.yaml").threads == len(_usable())


def test_the_next_engine_is_taken_where_the_first_is_not_installed(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second, *_ = ENGINES
    real = create.engine_class

    def without(name: str) -> object:
        if name == first:
            raise DeviceError("not installed")
        return real(name)

    monkeypatch.setattr(create, "engine_class", without)
    assert _init("desk").exit_code == 0
    assert load_device(place / "config/devices/desk.yaml").engine == second


def test_a_file_that_is_there_is_kept_unless_forced(place: Path) -> None:
    assert _init("desk").exit_code == 0
    path = place / "config/devices/desk.yaml"
    path.write_text(path.read_text() + "# mine\n")
    done = _init("desk")
    assert isinstance(done.exception, DeviceError)
    assert "--force" in done.exception.next_step
    assert path.read_text().endswith("# mine\n")
    assert _init("desk", "--force").exit_code == 0
    assert "# mine" not in path.read_text()


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        (["../desk"], "name"),
        (["a" * 300 + "/b"], "name"),
        (["desk", "--engine", "tensorflux"], "unknown engine 'tensorflux'"),
        (["desk", "--cores", "4096"], "core 4096 does not exist"),
        (["desk", "--cores", "0,x"], "'x' is no number"),
        (["desk", "--cores", "9" * 5000], "is no number"),
        (["desk", "--threads", "1024"], "1024 threads would share"),
        (["desk", "--pair", "cuda-h200"], "name"),
        (["pair-desk", "--pair", "nothing"], "unknown device 'nothing'"),
        (["pair-desk", "--pair", "cuda-h200", "--cores", "4096"], "core 4096 does not exist"),
    ],
)
def test_what_does_not_fit_is_refused(place: Path, arguments: list[str], what: str) -> None:
    done = _init(*arguments)
    assert isinstance(done.exception, DeviceError)
    assert what in done.exception.what
    assert done.exception.next_step
    assert list(place.iterdir()) == []
