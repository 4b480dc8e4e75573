"""The committee that chooses which of the proposed carriers a round of Algorithm 2 measures."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import repeat
from pathlib import Path
from random import Random

import numpy as np
import pytest
import yaml
from edgeplan.chapters.prediction.sampling.adaptive import CarrierSampler, CarrierSamples, _affordable
from edgeplan.chapters.prediction.sampling.committee import Committee
from edgeplan.chapters.prediction.sampling.rows import Row, shape_of
from quick_bench import DEVICE, measuring_alone  # noqa: F401  a fixture
from quick_bench import SETTINGS as QUICK
from shipped_params import PARAMS_FILE

from edgeplan.chapters.prediction.sampling.prior import ConvPrior, ConvShape
from edgeplan.chapters.prediction.sampling.settings import SamplingSettings
from edgeplan.graph.builder import GraphBuilder
from edgeplan.graph.fusion_rules import FusionRules
from edgeplan.graph.ir import Graph
from edgeplan.graph.kernels import make_kernel
from edgeplan.measurement.bench import Bench
from edgeplan.measurement.records import Measurement
from edgeplan.measurement.references import ReferenceTimes
from edgeplan.measurement.settings import ReferenceExponents

RULES = FusionRules(pairs={"conv_bn": True, "conv_relu": True})
PRIOR = ConvPrior(
    Counter({ConvShape(14, 64, 128, 1, 1): 9, ConvShape(14, 64, 64, 3, 1): 4, ConvShape(14, 64, 64, 3, 2, depthwise=True): 3})
)
_NOTHING = np.zeros(0)
_MEASUREMENT = Measurement(
    "s", 0, *[_NOTHING] * 5, (), _NOTHING, ReferenceTimes(1.0, 1.0), ReferenceExponents(compute=1.0, bandwidth=0.0)
)
SETTINGS = SamplingSettings.model_validate(yaml.safe_load(PARAMS_FILE.read_text())["sampling"])


def _carrier(name: str, size: int, kernel: int, channels: int = 32) -> Graph:
    b = GraphBuilder(name, (1, channels, size, size))
    return b.build(b.relu(b.bn(b.conv(b.conv(b.input, channels, kernel), 2 * channels, kernel))))


def _row(graph: Graph, index: int, us_per_mmac: float) -> Row:
    convolutions = [op for op in graph.operators if op.op_type == "Conv"]
    config = make_kernel(graph, (convolutions[index].name,)).config
    latency = us_per_mmac * shape_of(config).macs / 1e6
    return {"subject": graph.name, "kind": config.kind, "config": config.to_json(), "latency_us": latency}


def _rows(count: int = 60, us_per_mmac: float = 10.0) -> list[Row]:
    """Pointwise convolutions that cost alike by the multiply-add, and few large kernels, whose cost is anyone's guess."""
    rng = Random(3)  # noqa: S311  not cryptography
    rows = []
    for number in range(count):
        known = _carrier(f"known-{number}", 28, 1, 16 + number)
        odd = _carrier(f"odd-{number}", 14, 7, 16 + number)
        rows += [_row(known, i, us_per_mmac) for i in (0, 1)]
        if number % 4 == 0:
            rows += [_row(odd, i, us_per_mmac * rng.uniform(0.2, 5.0)) for i in (0, 1)]
    return rows


def test_carriers_that_the_models_disagree_on_come_first() -> None:
    known = [_carrier(f"k{c}", 28, 1, c) for c in (20, 30, 50)]
    odd = [_carrier(f"o{c}", 14, 7, c) for c in (20, 30, 50)]
    ranked = Committee(_rows(), RULES, "unit").ranked([known[0], odd[0], known[1], odd[1], odd[2], known[2]])
    assert {graph.name for graph in ranked[:3]} == {"o20", "o30", "o50"}
    assert {graph.name for graph in ranked[3:]} == {"k20", "k30", "k50"}


def test_all_convolutions_of_a_carrier_count() -> None:
    b = GraphBuilder("long", (1, 24, 14, 14))
    x = b.input
    for _ in range(4):
        x = b.conv(x, 24, 7)
    long, short = b.build(x), _carrier("short", 14, 7, 24)
    assert [g.name for g in Committee(_rows(), RULES, "unit").ranked([short, long])] == ["long", "short"]


def test_a_committee_is_seeded() -> None:
    rows, configs = (
        _rows(),
        [make_kernel(g, (g.operators[0].name,)).config for g in (_carrier("a", 14, 7), _carrier("b", 28, 3))],
    )
    one, again, other = (Committee(rows, RULES, seed).disagreement(configs) for seed in ("a", "a", "b"))
    np.testing.assert_array_equal(one, again)
    assert not np.array_equal(one, other)
    assert (one > 0).all()


def test_what_takes_less_than_a_microsecond_is_not_looked_for() -> None:
    """Engines count whole microseconds: such labels tell how they round."""
    tiny = [make_kernel(g, (g.operators[0].name,)).config for g in (_carrier("a", 2, 1, 8), _carrier("b", 1, 7, 8))]
    assert (Committee(_rows(us_per_mmac=10.0), RULES, "unit").disagreement(tiny) == 0).all()


def test_carriers_without_convolutions_come_last_and_in_their_order() -> None:
    pools = []
    for name in ("p", "q"):
        b = GraphBuilder(name, (1, 8, 14, 14))
        pools.append(b.build(b.maxpool(b.input, 2, 2)))
    committee = Committee(_rows(), RULES, "unit")
    assert [g.name for g in committee.ranked([pools[0], _carrier("odd", 14, 7), pools[1]])] == ["odd", "p", "q"]
    assert [g.name for g in committee.ranked(pools)] == ["p", "q"]
    assert committee.ranked([]) == []


def _sampler() -> CarrierSampler:
    return CarrierSampler(None, SETTINGS, PRIOR, RULES, 7)  # type: ignore[arg-type]


def test_a_round_proposes_from_around_hard_rows_and_from_the_prior() -> None:
    hard = [_row(_carrier(f"h{c}", 14, 7, c), 0, 10.0) for c in (24, 48)]
    sampler = _sampler()
    proposed = sampler._proposed(sampler._around(hard, 2), 2, affordable=5.0)
    streams = Counter(graph.name.rpartition("-")[0] for graph in proposed)
    assert streams["round2-prior"] == 20
    assert 0 < streams["round2"] <= 20
    kernels = Counter(op.integers("kernel_shape", ()) for g in proposed for op in g.operators if op.op_type == "Conv")
    assert kernels[7, 7] >= 2 * SETTINGS.fine_grained, "each as often as Algorithm 2 says; the prior has some as well"
    assert len({graph.name for graph in proposed}) == len(proposed)


def test_no_round_proposes_a_carrier_that_takes_as_long_as_a_hundred() -> None:
    """Around a large kernel on a single pixel, of a gigabyte and few multiply-adds."""
    hard = [_row(_carrier("pixel", 1, 7, 2200), 0, 10.0)]
    sampler = _sampler()
    proposed = sampler._proposed(sampler._around(hard, 1), 1, affordable=5.0)
    assert proposed
    assert max(sum(g.tensors[w].size_bytes for op in g.operators for w in op.weights) for g in proposed) < 4e8


@pytest.mark.parametrize("count", [0, 1, 7])
def test_a_sampler_stops_when_there_are_no_more_carriers(count: int, tmp_path: Path) -> None:
    sampled = CarrierSamples()
    with Bench(DEVICE, QUICK, tmp_path / "rows" / "dev") as bench:
        sampler = CarrierSampler(bench, SETTINGS, PRIOR, RULES, 7)
        sampler.spend(sampled, (_carrier(f"c{i}", 14, 3) for i in range(count)), 1e9, "unit")
    assert [graph.name for graph in sampled.graphs] == [f"c{i}" for i in range(count)]
    assert len(sampled.measurements) == count


@pytest.mark.parametrize(("seconds", "count"), [(1e9, 12), (30.0, 2), (1e-3, 1)])
def test_a_first_batch_is_judged_by_carriers_of_another_sampler(seconds: float, count: int) -> None:
    """Carriers of the random baseline may take ten times as long as those of the others: a dozen of them, all there is."""
    small, large = _carrier("small", 28, 3), _carrier("large", 4 * 28, 3)  # sixteen times the multiply-adds
    known = CarrierSamples([small] * 3, [replace(_MEASUREMENT, seconds=1.0)] * 3, [0] * 3)
    assert len(_affordable(repeat(large), CarrierSamples(), seconds, 64, known)) == count
