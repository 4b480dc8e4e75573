"""Rules of a shipped device where timing leaves open what fuses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from quick_bench import SETTINGS as QUICK
from quick_bench import measuring_alone  # noqa: F401  a fixture

from edgeplan.chapters.prediction.fusion.detection import COLUMNS
from edgeplan.chapters.prediction.fusion.verification import averages
from edgeplan.chapters.prediction.settings import FusionSettings, PredictionParams
from edgeplan.chapters.prediction.stages.fusion import detect_fusion, find_prior, with_prior
from edgeplan.graph.fusion_rules import Contexts, FusionRules, Provenance, Rule, read_rules
from edgeplan.support.frames import write_parquet
from edgeplan.workspace import SHIPPED
from edgeplan.zoo import FAMILIES, variants

ROOT = Path(__file__).parents[3]
DEVICES = ROOT / "config" / "devices"
_TABLE = {"16": "16", "4": "16", "1": "1", "<4": "16", "<1": "1"}
_ABOUT = Provenance(device="shipped", engine="engine", version="2", alpha=0.5)
PRIOR = FusionRules(
    provenance=_ABOUT,
    pairs={"conv_relu": True, "conv_hswish": {"16": True, "1": False}, "bn_relu": False},
    inbound={"conv_add": True},
    multi_inbound=1,
    contexts=Contexts(conv=_TABLE, dwconv=_TABLE, carried=_TABLE, order=("16", "1")),
)
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


@pytest.mark.parametrize(("version", "fused"), [("2", True), ("3", False)])
def test_a_prior_of_this_version_takes_more_to_contradict(version: str, fused: bool) -> None:
    cases = _cases(("conv_relu", "single", "", 0.2, 0.1, "separate"))  # 3 standard errors from alpha
    assert with_prior(_timed(version), cases, PRIOR, SETTINGS).pairs["conv_relu"] is fused


def test_what_sizes_say_differently_is_no_contradiction() -> None:
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


@pytest.mark.parametrize("prior", ["", "shipped, engine 2"])
def test_only_rules_with_a_prior_name_one(tmp_path: Path, prior: str) -> None:
    rules = _timed()
    rules = rules.model_copy(update={"provenance": rules.provenance.model_copy(update={"prior": prior})})
    rules.write(tmp_path / "rules.json")
    assert read_rules(tmp_path / "rules.json") == rules
    document: dict[str, Any] = pd.read_json(tmp_path / "rules.json", typ="series").to_dict()
    assert ("prior" in document["provenance"]) == bool(prior)
