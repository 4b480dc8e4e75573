"""What a workflow engine is told of devices: where they are, and which share a machine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from edgeplan.chapters.registry import STAGES
from edgeplan.chapters.wiring import written
from edgeplan.devices.farm import is_here, machine_of
from edgeplan.errors import DeviceError


def device(folder: Path, name: str, **fields: Any) -> str:
    document = {"format_version": 2, "name": name, "engine": "onnxruntime", **fields}
    (folder / f"{name}.yaml").write_text(yaml.safe_dump(document))
    return name


def test_devices_of_this_machine_share_it_and_boards_are_their_own_unless_they_say(tmp_path: Path) -> None:
    board = {"transport": {"kind": "ssh", "host": "pi5"}}
    here, there = device(tmp_path, "here"), device(tmp_path, "there", **board)
    labelled = device(tmp_path, "labelled", **board, machine="rack-1")
    assert [is_here(name, tmp_path) for name in (here, there, labelled)] == [True, False, False]
    assert [machine_of(name, tmp_path) for name in (here, there, labelled)] == ["local", "there", "rack-1"]
    with pytest.raises(DeviceError):
        is_here("nowhere", tmp_path)


def test_rules_that_measure_devices_ask_where_they_are() -> None:
    rules = "".join(text for path, text in written().items() if path.suffix == ".smk")
    for stage in STAGES:
        rule = rules.partition(f"rule {stage.name}:\n")[2].partition("\nrule ")[0]
        measures = bool(stage.rows) and "device" in stage.wildcards
        assert ("device=measuring_here" in rule and "gres=machine_asked" in rule) == measures, stage.name
        assert ("threads: cores_taken" in rule) == (measures and stage.all_cores), stage.name
