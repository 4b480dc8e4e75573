"""Pair files: what they say, and one clear message for each mistake."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from shipped_params import PARAMS_FILE

from edgeplan.chapters.check import check_params
from edgeplan.devices.pairs import load_pair
from edgeplan.errors import DeviceError

ROOT = Path(__file__).parents[2]
GOOD: dict[str, Any] = {
    "format_version": 2,
    "name": "pair-test",
    "processors": [
        {"name": "cpu", "device": "cpu-onednn", "cores": [0]},
        {"name": "gpu", "device": "opencl-pocl", "cores": [1]},
    ],
    "synchronisation": "auto",
}


def _processors(first: dict[str, Any] | None = None, second: dict[str, Any] | None = None) -> dict[str, Any]:
    host, other = GOOD["processors"]
    return {"processors": [host | (first or {}), other | (second or {})]}


def _file(folder: Path, **changes: Any) -> Path:
    path = folder / "pair-test.yaml"
    path.write_text(yaml.safe_dump(GOOD | changes))
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
    _file(tmp_path / "config/pairs")
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
        ({"processors": GOOD["processors"][:1]}, "processors"),
        ({"synchronisation": "hope"}, "synchronisation"),
        ({"format_version": 1}, "format_version"),
        ({"surprise": 1}, "surprise"),
        ({"name": "pair-other"}, "named 'pair-test' but says 'pair-other'"),
    ],
)
def test_mistakes_are_told(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(DeviceError, match=f"(?s){message}"):
        load_pair(_file(tmp_path, **changes))


@pytest.mark.parametrize("content", ["", "[1, 2]", "name: [", "\x00"])
def test_a_damaged_file_is_told(tmp_path: Path, content: str) -> None:
    path = tmp_path / "pair-test.yaml"
    path.write_text(content)
    with pytest.raises(DeviceError, match="pair file"):
        load_pair(path)


def test_cores_may_be_shared_where_events_are_asked_for(tmp_path: Path) -> None:
    pair = load_pair(_file(tmp_path, **_processors(second={"cores": [0]}), synchronisation="events"))
    assert pair.shared_cores
    assert pair.cores == (0,)


def test_cores_that_do_not_exist_are_told(tmp_path: Path) -> None:
    beyond = os.cpu_count() or 1
    pair = load_pair(_file(tmp_path, **_processors(second={"cores": [beyond]})))
    with pytest.raises(DeviceError, match=f"core {beyond} does not exist on this machine.*\n.*field gpu.cores"):
        pair.check_cores()


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="two cores, one of which is withheld")
def test_one_core_alone_is_too_few(tmp_path: Path) -> None:
    """In a process of its own, which has one from its start, as in a container of one core."""
    first, second = sorted(os.sched_getaffinity(0))[:2]
    path = _file(tmp_path, **_processors({"cores": [first]}, {"cores": [second]}))
    load_pair(path).check_cores()
    code = f"""
import os
os.sched_setaffinity(0, [{first}])
from edgeplan.devices.pairs import load_pair
from edgeplan.errors import DeviceError
try:
    load_pair({str(path)!r}).check_cores()
except DeviceError as error:
    print(error)
"""
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert f"core {second} may not be used by this process" in told
    assert "field gpu.cores" in told
    assert f"name cores among {first}; a pair of cores takes two" in told


def test_params_name_pairs_that_have_files(tmp_path: Path) -> None:
    params = yaml.safe_load(PARAMS_FILE.read_text())
    params["partition"]["pairs"] = ["pair-none"]
    (tmp_path / "params.yaml").write_text(yaml.safe_dump(params))
    with pytest.raises(DeviceError, match=r"unknown pair 'pair-none'.*\n.*partition.pairs.*\n.*pair-pocl"):
        check_params(tmp_path / "params.yaml", ROOT / "config/devices", ROOT / "config/pairs")
