"""Rules of fusion: their file, those of a shipped device, and precision and recall against what an engine reports."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from pydantic import ValidationError
from quick_bench import SETTINGS as QUICK
from quick_bench import measuring_alone  # noqa: F401  a fixture

from edgeplan.chapters.prediction.evaluation.page import averages
from edgeplan.chapters.prediction.fusion.detection import COLUMNS
from edgeplan.chapters.prediction.settings import FusionSettings, PredictionParams
from edgeplan.chapters.prediction.stages.fusion import detect_fusion, find_prior, verify, with_prior
from edgeplan.engines.base import EngineNode
from edgeplan.errors import FormatError
from edgeplan.graph.builder import GraphBuilder
from edgeplan.graph.fusion_rules import Alignments, Contexts, FusionRules, Provenance, Rule, read_rules
from edgeplan.graph.ir import Graph
from edgeplan.support.frames import write_parquet
from edgeplan.workspace import SHIPPED
from edgeplan.zoo import FAMILIES, variants

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


@pytest.mark.parametrize("prior", ["", "shipped, engine 2"])
def test_round_trip(tmp_path: Path, prior: str) -> None:
    path = tmp_path / "rules.json"
    rules = RULES.model_copy(update={"provenance": RULES.provenance.model_copy(update={"prior": prior})})
    rules.write(path)
    assert read_rules(path) == rules
    document = json.loads(path.read_text())
    assert document["multi-inbound"] == 1
    assert ("prior" in document["provenance"]) == bool(prior), "only rules with a prior name one"
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
    for text in ("", "{", "[]"):
        path.write_text(text)
        with pytest.raises(FormatError, match="fusion rules"):
            read_rules(path)
    path.unlink()
    with pytest.raises(FormatError, match="cannot read"):
        read_rules(path)


def test_a_rule_by_context_is_not_fused_in_a_context_it_does_not_name() -> None:
    assert RULES.fuses("conv", "conv", "hswish", "16")
    assert not RULES.fuses("conv", "conv", "hswish", "1")
    assert not RULES.fuses("conv", "conv", "hswish", "unknown")
    assert RULES.fuses("conv", "conv", "add", "16", "16")
    assert not RULES.fuses("conv", "relu", "add", "16", "16")


def test_settings_must_probe_every_class() -> None:
    named = {64: "16", 8: "<4", 24: "4", 66: "1", 3: "<1", 16: "16"}
    assert {channels: Alignments().name(channels) for channels in named} == named
    with pytest.raises(ValidationError, match="class 4"):
        FusionSettings(channels={"16": 64, "4": 66, "1": 66, "<4": 12, "<1": 6})
    with pytest.raises(ValidationError, match="fall strictly"):
        Alignments(alignments=(4, 16, 1))


_ABOUT = Provenance(device="shipped", engine="engine", version="2", alpha=0.5)
_PAIRS: dict[str, Rule] = {**RULES.pairs, "bn_relu": False}
PRIOR = RULES.model_copy(update={"provenance": _ABOUT, "pairs": _PAIRS, "inbound": {"conv_add": True}})
SETTINGS = FusionSettings(alpha=0.5, confidence=2.0)


def _timed(version: str = "2") -> FusionRules:
    about = _ABOUT.model_copy(update={"device": "here", "version": version})
    return FusionRules(provenance=about, pairs={"conv_relu": False}, undecided=("conv_relu single 16",))


def _cases(*told: tuple[str, str, str, float, float, str]) -> pd.DataFrame:
    names = ["pair", "connection", "context", "margin", "noise", "decision"]
    return pd.DataFrame(list(told), columns=names).reindex(columns=list(COLUMNS))


def test_what_is_undecided_stands_as_the_prior_has_it() -> None:
    cases = _cases(("conv_relu", "single", "16", 0.1, 0.5, "undecided"), ("bn_relu", "single", "small", 0.9, 0.5, "undecided"))
    found = with_prior(_timed(), cases, PRIOR, SETTINGS)
    assert (found.pairs, found.inbound, found.contexts) == (PRIOR.pairs, PRIOR.inbound, PRIOR.contexts)
    assert found.provenance.prior == "shipped, engine 2"
    assert found.provenance.device == "here"
    assert found.undecided == ("conv_relu single 16",)


@pytest.mark.parametrize(
    ("case", "name", "rule"),
    [
        (("conv_relu", "single", "", 0.0, 0.01, "separate"), "conv_relu", False),
        (("conv_relu", "single", "16 small", 0.0, 0.01, "separate"), "conv_relu", {"16": False, "1": True}),
        (("conv_hswish", "single", "1", 1.0, 0.01, "fused"), "conv_hswish", {"16": True, "1": True}),
        (("conv_hswish", "single", "<4", 0.0, 0.01, "separate"), "conv_hswish", {"16": True, "1": False}),
        (("conv_add", "multi-inbound", "1|16", 0.0, 0.01, "separate"), "conv_add", {"16|16": True, "1|16": False}),
        (("conv_add", "multi-inbound", "left|right", 0.0, 0.01, "separate"), "conv_add", True),
        (("relu_conv", "single", "", 1.0, 0.01, "fused"), "relu_conv", None),
    ],
)
def test_a_clear_contradiction_replaces_the_prior(
    case: tuple[str, str, str, float, float, str], name: str, rule: Rule | None
) -> None:
    found = with_prior(_timed(), _cases(case), PRIOR, SETTINGS)
    told = {**found.pairs, **found.inbound}.get(name)
    if isinstance(rule, dict):
        assert isinstance(told, dict)
        assert told.items() >= rule.items()
    else:
        assert told == rule


def test_what_sizes_say_differently_or_hardly_is_no_contradiction() -> None:
    cases = _cases(("conv_relu", "single", "", 0.2, 0.1, "separate"))  # 3 standard errors from alpha
    for version, fused in (("2", True), ("3", False)):  # a prior of this version takes more to contradict
        assert with_prior(_timed(version), cases, PRIOR, SETTINGS).pairs["conv_relu"] is fused
    cases = _cases(("conv_relu", "single", "small", 0.0, 0.01, "separate"), ("conv_relu", "single", "", 1.0, 0.01, "fused"))
    assert with_prior(_timed(), cases, PRIOR, SETTINGS).pairs == PRIOR.pairs


def test_shipped_rules_are_found_by_engine() -> None:
    names = [folder.parent.name for folder in sorted(SHIPPED.glob("*/rules.json"))]
    for engine in ("onnxruntime", "openvino", "onednn"):
        found = find_prior(names, engine)
        assert found is not None
        assert found.provenance.engine == engine
    assert find_prior(names, "another") is None
    assert find_prior([], "onnxruntime") is None


@pytest.mark.long
def test_rules_are_verified_as_they_are_used(tmp_path: Path) -> None:
    """Where the time decides nothing the shipped rules stand, and what is said of their precision is of these."""
    device = tmp_path / "dev.yaml"
    device.write_text("{format_version: 1, name: dev, engine: onnxruntime}")
    specs = [spec.to_json() for name in ("squeezenet", "mobilenetv2") for spec in variants(FAMILIES[name], 1, 5)]
    table = pd.DataFrame({"model_id": ["a", "b"], "family": ["squeezenet", "mobilenetv2"], "index": 0, "spec": specs})
    write_parquet(table.assign(macs=1, memory_bytes=1), tmp_path / "models.parquet")
    found = {}
    for prior in ([], ["cpu-onnxruntime"]):
        fusion = SETTINGS.model_copy(update={"prior": prior, "stage_seconds": 1e-3, "max_rounds": 1})
        given = PredictionParams.model_construct(fusion=fusion, measurement=QUICK)
        paths = {name: tmp_path / f"{name}-{len(prior)}" for name in ("rules", "test_cases", "skipped", "verification")}
        detect_fusion(given, device=device, models=tmp_path / "models.parquet", rows=tmp_path / f"rows-{len(prior)}", **paths)
        found[len(prior)] = averages(pd.read_csv(paths["verification"]))
    assert min(found[1]) > 0.95
    assert min(found[0]) < 0.7


def network() -> Graph:
    b = GraphBuilder("network", (1, 16, 8, 8))
    x = b.conv_bn(b.input, 16, 3)
    y = b.relu(b.bn(b.maxpool(x, 2, 2)))
    return b.build(b.add(b.relu(b.conv(y, 16, 1)), y))


def node(*members: str) -> EngineNode:
    return EngineNode(members[0], "", "", members)


def test_edges_are_counted_by_pair_and_connection() -> None:
    graph = network()
    conv, bn, relu, pool, bn2, relu2, conv2, relu3, add = (op.name for op in graph.operators)
    rules = FusionRules(
        pairs={"conv_bn": True, "conv_relu": True, "bn_relu": True}, inbound={"conv_add": True}, multi_inbound=1
    )
    engine = [node(conv, bn, relu), node(pool), node(bn2), node(relu2), node(conv2, relu3), node(add)]
    found = verify(rules, [graph], lambda _: engine).set_index(["pair", "connection"])

    assert found.loc[("bn_relu", "single")].tolist()[:4] == [2, 1, 2, 1]
    assert found.loc[("bn_relu", "single"), "precision"] == pytest.approx(0.5)
    assert found.loc[("bn_relu", "single"), "recall"] == pytest.approx(1.0)
    assert found.loc[("relu_add", "multi-inbound")].tolist()[:4] == [1, 0, 1, 0]
    assert found.loc[("relu_add", "multi-outbound"), "edges"] == 1
    assert bool(found.loc[("conv_bn", "single"), "bn_folding"])
    assert not bool(found.loc[("bn_relu", "single"), "bn_folding"])

    # precision over bn_relu (1/2), conv_relu (1) and relu_add (0), recall over the first two (1, 1); folding is left out
    assert averages(found.reset_index()) == pytest.approx((0.5, 1.0))


def test_a_duplicate_that_the_engine_dropped_runs_where_its_twin_does() -> None:
    b = GraphBuilder("twins", (1, 16, 8, 8))
    x = b.conv(b.input, 16, 3)
    one, other = b.relu(x), b.relu(x)
    graph = b.build(b.gap(one), b.maxpool(other, 2, 2))
    engine = [node(x, other), *(node(op.name) for op in graph.operators[3:])]
    rules = FusionRules(pairs={"conv_relu": True}, merges_duplicates=True)
    found = verify(rules, [graph], lambda _: engine)
    row = found[found.pair == "conv_relu"].iloc[0]
    assert (row.edges, row.fused_by_engine, row.fused_by_rules, row.true_positive) == (2, 2, 2, 2)


def test_reshapes_are_counted_apart() -> None:
    b = GraphBuilder("rows", (1, 8, 4, 4))
    graph = b.build(b.fc(b.relu(b.flatten(b.gap(b.input), name="flat"), name="r"), 10, name="fc"))
    pool, *_ = (op.name for op in graph.operators)
    engine = [node(pool), node("flat", "r"), node("fc")]
    found = verify(FusionRules(pairs={}), [graph], lambda _: engine)
    apart = found[found.reshaping]
    assert set(apart.pair) == {"gap_reshape", "reshape_relu"}
    assert apart.fused_by_engine.sum() == 1
    assert averages(found) == (1.0, 1.0), "rules and an engine that never fuse agree"
    assert averages(found.assign(reshaping=False)) == (1.0, 0.0)
