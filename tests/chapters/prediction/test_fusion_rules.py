"""The rule document: round trip, and files that do not fit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from edgeplan.chapters.prediction.settings import FusionSettings
from edgeplan.errors import FormatError
from edgeplan.graph.fusion_rules import Alignments, Contexts, FusionRules, Provenance, read_rules

TABLE = {"16": "16", "4": "16", "1": "1", "<4": "16", "<1": "1"}
RULES = FusionRules(
    provenance=Provenance(
        device="board", engine="engine", version="1.2", alpha=0.5, date="2026-01-01", measurements="abc", cases=9
    ),
    pairs={"conv_relu": True, "conv_hswish": {"16": True, "1": False}, "conv+relu_add": False},
    inbound={"conv_add": {"16|16": True, "16|1": False}},
    multi_inbound=1,
    merges_duplicates=True,
    patterns=(("reshape", "transpose", "reshape"),),
    contexts=Contexts(conv=TABLE, dwconv=TABLE, carried=TABLE, order=("16", "1")),
    undecided=("lrn_relu single",),
)


def test_round_trip(tmp_path: Path) -> None:
    path = tmp_path / "rules.json"
    RULES.write(path)
    assert read_rules(path) == RULES
    assert json.loads(path.read_text())["multi-inbound"] == 1
    assert [p.name for p in tmp_path.iterdir()] == ["rules.json"]


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"format_version": 2}, "format_version"),
        ({"multi-inbound": 3}, "multi-inbound"),
        ({"pairs": {"conv_relu": "perhaps"}}, "conv_relu"),
        ({"pairs": {"convrelu": True}}, "convrelu"),
        ({"patterns": [["reshape"]]}, "pattern"),
        ({"surprise": 1}, "surprise"),
        ({"contexts": {"conv": {"16": "16"}, "order": ["16"]}}, "conv must name"),
    ],
)
def test_files_that_do_not_fit_name_the_field(tmp_path: Path, change: dict[str, Any], named: str) -> None:
    path = tmp_path / "rules.json"
    path.write_text(json.dumps(RULES.model_dump(mode="json", by_alias=True) | change))
    with pytest.raises(FormatError, match=named) as caught:
        read_rules(path)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("text", ["", "{", "[]"])
def test_files_that_are_no_document(tmp_path: Path, text: str) -> None:
    path = tmp_path / "rules.json"
    path.write_text(text)
    with pytest.raises(FormatError, match="fusion rules"):
        read_rules(path)


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match="cannot read"):
        read_rules(tmp_path / "rules.json")


def test_a_rule_by_context_is_not_fused_in_a_context_it_does_not_name() -> None:
    assert RULES.fuses("conv", "conv", "hswish", "16")
    assert not RULES.fuses("conv", "conv", "hswish", "1")
    assert not RULES.fuses("conv", "conv", "hswish", "unknown")
    assert RULES.fuses("conv", "conv", "add", "16", "16")
    assert not RULES.fuses("conv", "relu", "add", "16", "16")


@pytest.mark.parametrize(("channels", "name"), [(64, "16"), (8, "<4"), (24, "4"), (66, "1"), (3, "<1"), (16, "16")])
def test_classes_of_channel_counts(channels: int, name: str) -> None:
    assert Alignments().name(channels) == name
    assert name in Alignments().names()


def test_settings_must_probe_every_class() -> None:
    with pytest.raises(ValidationError, match="class 4"):
        FusionSettings(channels={"16": 64, "4": 66, "1": 66, "<4": 12, "<1": 6})
    with pytest.raises(ValidationError, match="fall strictly"):
        Alignments(alignments=(4, 16, 1))
