"""Files of devices and pairs, the engine registry and the machine's description."""

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
from shipped_params import PARAMS_FILE

from edgeplan import workspace
from edgeplan.chapters.check import check_params
from edgeplan.chapters.registry import STAGES
from edgeplan.chapters.wiring import written
from edgeplan.devices.config import DeviceFile, is_here, load_device, machine_of
from edgeplan.devices.pairs import load_pair
from edgeplan.engines.base import EngineSettings
from edgeplan.engines.registry import ENGINES, PROCESSORS, engine_class
from edgeplan.errors import DeviceError
from edgeplan.measurement import device_check as check
from edgeplan.measurement.device_check import check_device, report_lines
from edgeplan.measurement.process import interference
from edgeplan.measurement.references import ReferenceTimes
from edgeplan.runtime import library
from edgeplan.support import machine
from edgeplan.support.machine import environment, fingerprint

GOOD: dict[str, Any] = {"format_version": 1, "name": "dev", "engine": "onnxruntime", "threads": 1, "cores": []}

ROOT = Path(__file__).parents[2]
CONFIG = ROOT / "config"
SHIPPED = CONFIG / "devices"


def _file(folder: Path, stem: str = "dev", **changes: Any) -> Path:
    path = folder / f"{stem}.yaml"
    document = {k: v for k, v in {**GOOD, **changes}.items() if v is not None}
    path.write_text(yaml.safe_dump(document))
    return path


@pytest.mark.parametrize("path", sorted(SHIPPED.glob("*.yaml")), ids=lambda p: p.stem)
def test_shipped_device_files_load(path: Path) -> None:
    device = load_device(path)
    assert device.name == path.stem
    assert device.engine in {*ENGINES, *PROCESSORS}


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
    here, nowhere = workspace.Workspace(CONFIG.parent, found=True), workspace.Workspace(tmp_path, found=False)
    for files in (workspace.Workspace.device_files, workspace.Workspace.pair_files):
        given, shipped = files(here), files(nowhere)
        assert {name: path.read_bytes() for name, path in shipped.items()} == {
            name: path.read_bytes() for name, path in given.items()
        }, "make distil copies those of devices"
        assert set(shipped.values()).isdisjoint(given.values())


def test_a_core_that_does_not_exist_is_told_whatever_else_is_measuring(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check, "machine_lock", lambda: pytest.fail("the machine was asked for"))
    with pytest.raises(DeviceError, match="core 9999 does not exist"):
        check_device(str(_file(tmp_path, cores=[9999])), 1.0)


@pytest.mark.parametrize("name", ["nosuch", "Dev", "", "..", "dev\n"])
def test_an_unknown_device_lists_the_known_ones(devices: Path, name: str) -> None:
    _file(devices)
    with pytest.raises(DeviceError, match="unknown device") as caught:
        load_device(name)
    own = "cpu-onednn, cpu-onnxruntime, cpu-openvino, cuda-h200, cuda-h200-8sm, dev"
    assert f"known devices: {own}, opencl-pocl;" in caught.value.next_step


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


def test_a_name_that_differs_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DeviceError, match="named 'other' but says 'dev'"):
        load_device(_file(tmp_path, "other"))


def test_an_unknown_engine_lists_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(DeviceError, match="unknown engine 'tensorflux'") as caught:
        load_device(_file(tmp_path, engine="tensorflux"))
    assert caught.value.where == f"{tmp_path / 'dev.yaml'}, field engine"
    assert all(name in caught.value.next_step for name in ENGINES)


def test_a_missing_onednn_library_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "_places", lambda: iter(()))
    with pytest.raises(DeviceError, match="not installed") as caught:
        engine_class("onednn")(EngineSettings())
    assert "edgeplan[runtime]" in caught.value.next_step


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
    monkeypatch.setattr(
        interference, "together_us", lambda processors, *_: 100.0 * (beside if len(processors) == everyone else 1.0)
    )
    monkeypatch.setattr(interference, "_PAUSE_SECONDS", 0.0)
    found = check_device(str(_file(tmp_path)), 0.1)
    assert found.trusted == (not problems)
    assert [told.startswith(wanted) for told, wanted in zip(found.problems, problems, strict=True)] == [True] * len(problems)
    lines = report_lines(found)
    assert sum(line.startswith("problem") for line in lines) == len(problems)
    assert ("do not trust" if problems else "figures from this machine can be trusted") in lines[-1]
    if not problems:
        assert (found.compute_spread, found.residual) == pytest.approx((0.005, 0.005), abs=1e-3)


def test_devices_of_this_machine_share_it_and_boards_are_their_own_unless_they_say(tmp_path: Path) -> None:
    board = {"format_version": 2, "transport": {"kind": "ssh", "host": "pi5"}}
    for name, fields in (("here", {}), ("there", board), ("labelled", board | {"machine": "rack-1"})):
        _file(tmp_path, name, name=name, **fields)
    names = ("here", "there", "labelled")
    assert [is_here(name, tmp_path) for name in names] == [True, False, False]
    assert [machine_of(name, tmp_path) for name in names] == ["local", "there", "rack-1"]
    with pytest.raises(DeviceError):
        is_here("nowhere", tmp_path)


def test_rules_that_measure_devices_ask_where_they_are() -> None:
    rules = "".join(text for path, text in written().items() if path.suffix == ".smk")
    for stage in STAGES:
        rule = rules.partition(f"rule {stage.name}:\n")[2].partition("\nrule ")[0]
        measures = bool(stage.rows) and "device" in stage.wildcards
        assert ("device=measuring_here" in rule and "gres=machine_asked" in rule) == measures, stage.name
        assert ("threads: cores_taken" in rule) == (measures and stage.all_cores), stage.name


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


def test_the_shipped_pair_names_devices_that_are_there() -> None:
    pair = load_pair(ROOT / "config/pairs/pair-pocl.yaml")
    cpu, gpu = pair.devices()
    assert (cpu.engine, gpu.engine) == ("onednn", "opencl")
    assert pair.cores == (0, 1)
    assert not pair.shared_cores


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
        (
            _processors({"device": "cpu-openvino"}),
            "unknown processor 'openvino'.*field cpu.device.*: onednn, opencl",
        ),
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


def test_cores_may_be_shared_where_events_are_asked_for(tmp_path: Path) -> None:
    pair = load_pair(_pair_file(tmp_path, **_processors(second={"cores": [0]}), synchronisation="events"))
    assert (pair.shared_cores, pair.cores) == (True, (0,))


def test_one_core_alone_is_too_few(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a container of one core."""
    path = _pair_file(tmp_path)
    monkeypatch.setattr("edgeplan.devices.config.cpus.allowed", lambda: {0})
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    with pytest.raises(DeviceError, match=r"core 1 may not be used by this process(?s:.*)field gpu\.cores") as error:
        load_pair(path).check_cores()
    assert "name cores among 0; a pair of cores takes two" in str(error.value)


def test_params_name_pairs_that_have_files(tmp_path: Path) -> None:
    params = yaml.safe_load(PARAMS_FILE.read_text())
    params["partition"]["pairs"] = ["pair-none"]
    (tmp_path / "params.yaml").write_text(yaml.safe_dump(params))
    with pytest.raises(DeviceError, match=r"unknown pair 'pair-none'.*\n.*partition.pairs.*\n.*pair-pocl"):
        check_params(tmp_path / "params.yaml", ROOT / "config/devices", ROOT / "config/pairs")
