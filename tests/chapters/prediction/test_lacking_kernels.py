"""Kernels measured alone on a real engine: those of kinds that only the rules see, and of kinds that no family has."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pandas as pd
import pytest
from edgeplan.chapters.prediction.sampling.adaptive import CarrierSampler
from edgeplan.chapters.prediction.sampling.carriers_detection_text import KINDS, further_graphs
from edgeplan.predictors.training_rows import LACKING, trained_on
from quick_bench import DEVICE, SETTINGS, measuring_alone  # noqa: F401  a fixture
from shipped_params import PARAMS_FILE

from edgeplan.chapters.params import load_params
from edgeplan.chapters.prediction.sampling.prior import ConvPrior, conv_shapes
from edgeplan.chapters.prediction.stages import sampling
from edgeplan.chapters.prediction.stages.sampling import measure_lacking
from edgeplan.graph.builder import GraphBuilder
from edgeplan.graph.fusion_rules import FusionRules
from edgeplan.graph.simplify import simplify
from edgeplan.graph.splitting import split
from edgeplan.measurement.bench import Bench
from edgeplan.zoo import prior_models

ROOT = Path(__file__).parents[3]
#: No activation is taken into anything, whatever the engine does.
RULES = FusionRules(pairs={"conv_bn": True})


def _rows(kinds: frozenset[str]) -> list[dict[str, object]]:
    """What carriers showed: a row of each kind."""
    return [{"subject": "carrier", "mode": "in_situ", "sampler": "adaptive", "kind": kind} for kind in sorted(kinds)]


@cache
def _kinds() -> frozenset[str]:
    return frozenset(k.config.kind for build in prior_models().values() for k in split(simplify(build()), RULES))


def test_kinds_that_no_node_was_are_measured_alone(tmp_path: Path) -> None:
    rows = _rows(_kinds() - {"relu6"})
    with Bench(DEVICE, SETTINGS, tmp_path / "rows" / "dev") as bench:
        seconds = measure_lacking(bench, RULES, 7, rows)
    table = pd.DataFrame(rows)
    new = table[table["sampler"] == LACKING]
    assert seconds > 0
    assert set(new["kind"]) == {"relu6"}
    assert 1 < len(new) <= 12
    assert new["config"].is_unique
    assert (new["latency_us"] > 0).all()
    assert trained_on(table, "in_situ").all()  # whatever the mode of the device


@pytest.mark.long
def test_kinds_that_only_carriers_hold_are_measured_too(tmp_path: Path) -> None:
    b = GraphBuilder("carrier", (1, 5, 14, 14))
    carrier = b.build(b.activation(b.conv(b.input, 7, 3), "leakyrelu"))
    assert "leakyrelu" not in _kinds()
    rows = _rows(_kinds())
    with Bench(DEVICE, SETTINGS, tmp_path / "rows" / "dev") as bench:
        assert measure_lacking(bench, RULES, 7, rows, [carrier]) > 0
    assert [row["kind"] for row in rows if row["sampler"] == LACKING] == ["leakyrelu"]


def test_where_every_kind_was_shown_nothing_is_measured(tmp_path: Path) -> None:
    rows = _rows(_kinds())
    with Bench(DEVICE, SETTINGS, tmp_path / "rows" / "dev") as bench:
        assert measure_lacking(bench, RULES, 7, rows) == 0
    assert len(rows) == len(_kinds())


def test_a_device_that_tells_no_nodes_learns_the_kinds_that_no_family_has(tmp_path: Path) -> None:
    """They come first, and of their carriers they alone."""
    graphs = [graph for graph in further_graphs(7) if graph.name in ("neck-1", "recogniser-1")]
    found = sampling._Found()
    settings = load_params(PARAMS_FILE).sampling
    prior = ConvPrior(conv_shapes([prior_models()["resnet18"]()]))
    alone = {k.config for graph in graphs for k in split(graph, RULES) if k.config.kind in KINDS}
    with Bench(DEVICE, SETTINGS, tmp_path / "rows" / "dev") as bench:
        sampling._boundary(bench, 7)
        chains = bench.measured
        sampling._isolated(bench, CarrierSampler(bench, settings, prior, RULES, 7), RULES, 0.01, 7, found, graphs)
        assert bench.measured - chains == len(alone) > 1
    assert [row["kind"] in KINDS for row in found.rows] == [True], "what the budget holds"
