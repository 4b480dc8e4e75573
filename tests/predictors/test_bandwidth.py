"""The bandwidth-bound family: what it is fitted on, and how far off it is for kinds that it has not seen."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from edgeplan.predictors.bandwidth import Bandwidth, bytes_moved, fit_bandwidth
from edgeplan.predictors.configs import ConfigTable
from edgeplan.predictors.distilled import load_distilled
from edgeplan.predictors.labels import Labels, read_labels
from edgeplan.predictors.training import bandwidth_of, kinds_with_trees
from edgeplan.predictors.training_rows import SINGLE, trained_on
from law_of_latency import relu

from edgeplan.graph.builder import GraphBuilder
from edgeplan.graph.kernels import KernelConfig, make_kernel
from edgeplan.graph.operators.registry import BANDWIDTH_BOUND
from edgeplan.support.frames import read_document, read_parquet
from edgeplan.workspace import SHIPPED

ROOT = Path(__file__).parents[2]
#: A GPU's few rows hold no trees of some of these kinds.
DEVICES = sorted(path.parent.name for path in SHIPPED.glob("cpu-*/card.json"))
#: Labels from which on the resolution of the engines' counters, a microsecond, no longer matters.
RESOLVED_US = 5.0


@cache
def _shipped(device: str) -> tuple[Labels, ConfigTable]:
    """Labelled kernels of the family that the shipped predictors were trained on."""
    measurements = ROOT / "results" / device / "measurements"
    rows = read_parquet(measurements / "kernels.parquet", "mode", "sampler", "subject", "config")
    rows = rows[trained_on(rows, str(read_document(measurements / "sampling.json", "mode")["mode"]))]
    labels = read_labels(rows[rows["kind"].isin(BANDWIDTH_BOUND)])
    return labels, ConfigTable.of([KernelConfig.from_json(text) for text in labels.column("config")])


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.committed
def test_the_shipped_fit_is_that_of_the_shipped_rows(device: str) -> None:
    card = load_distilled(SHIPPED / device).card
    assert card.bandwidth is not None
    again = bandwidth_of(_shipped(device)[0], card.interval.nominal)
    assert again is not None
    for name, value in card.bandwidth.model_dump().items():
        assert getattr(again, name) == pytest.approx(value, rel=1e-6), name
    assert set(again.levels) == BANDWIDTH_BOUND & {r.kind for r in card.regressors}


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.committed
def test_kinds_left_out_of_the_shipped_rows_are_predicted_by_the_others(device: str) -> None:
    """As figures of docs/prediction.md: the typical kind is off by less than a factor of 2, and the interval holds most."""
    labels, table = _shipped(device)
    kinds, medians, inside = labels.column("kind"), [], []
    for kind in sorted(set(kinds)):
        others, held = kinds != kind, (kinds == kind) & (labels.latency >= RESOLVED_US)
        fit = fit_bandwidth(table.take(others), labels.latency[others], labels.weight[others], 0.9)
        assert fit is not None
        assert kind not in fit.levels
        rest = np.log(labels.latency[held] / fit.latency_us(table.take(held)))
        medians.append(float(np.median(np.abs(rest))))
        inside.append(float(np.mean((rest >= fit.low) & (rest <= fit.high))))
    assert np.exp(np.median(medians)) < 2.0
    assert np.mean(inside) > 0.75


def _law(kind: str, count: int, level: float, seed: int) -> tuple[list[KernelConfig], list[float]]:
    rng = np.random.default_rng(seed)
    configs = [replace(relu(int(rng.integers(4, 400)), int(rng.integers(3, 60))), kind=kind, type=kind) for _ in range(count)]
    moved = bytes_moved(ConfigTable.of(configs))
    return configs, (np.exp(rng.normal(0, 0.02, count)) * (0.4 + level * 1e-4 * moved)).tolist()


def _fit(*parts: tuple[str, int, float]) -> Bandwidth:
    configs, latency = [], []
    for seed, (kind, count, level) in enumerate(parts):
        of_kind, us = _law(kind, count, level, seed)
        configs += of_kind
        latency += us
    found = fit_bandwidth(ConfigTable.of(configs), np.array(latency), np.ones(len(latency)), 0.9)
    assert found is not None
    return found


def test_launch_pace_and_levels_are_found_again() -> None:
    found = _fit(("relu", 200, 1.0), ("add", 100, 1.0), ("sigmoid", 100, 3.0))
    assert found.launch_us == pytest.approx(0.4, rel=0.1)
    pace = {kind: level * found.us_per_byte for kind, level in found.levels.items()}
    assert pace == pytest.approx({"relu": 1e-4, "add": 1e-4, "sigmoid": 3e-4}, rel=0.1)
    assert found.rows == 400
    assert 0 < found.own_high < found.high  # a kind with a level of its own is known better than one without


def test_a_kind_that_was_not_measured_takes_the_level_of_the_nearest_that_was() -> None:
    found = _fit(("relu", 60, 1.0), ("sigmoid", 60, 3.0))
    asked = [replace(relu(64, 56), kind=kind, type=kind) for kind in ("relu", "abs", "sigmoid", "tanh", "gelu")]
    plain, near, curve, tanh, gelu = found.latency_us(ConfigTable.of(asked))
    assert (near, tanh, gelu) == (plain, curve, curve)
    assert curve > 2 * plain


def test_few_rows_hardly_move_a_level() -> None:
    many = [("relu", 100, 1.0), ("add", 100, 1.0)]
    few, enough = (_fit(*many, ("tanh", count, 4.0)).levels["tanh"] for count in (1, 60))
    assert few < enough


def test_other_kinds_and_element_types_get_no_number() -> None:
    found = _fit(("relu", 20, 1.0))
    odd = [replace(relu(8, 8), kind="conv"), replace(relu(8, 8), dtype="float16"), replace(relu(8, 8), dtype="int64")]
    assert np.isnan(found.latency_us(ConfigTable.of(odd))).tolist() == [True, True, False]
    none = fit_bandwidth(ConfigTable.of(odd[:1]), np.ones(1), np.ones(1), 0.9)
    assert none is None


def test_bytes_are_those_that_an_operator_reads_and_writes() -> None:
    b = GraphBuilder("bytes", (2, 6, 5, 5))
    whole = 4 * 2 * 6 * 5 * 5
    first, second = b.split(b.input, (2, 4))
    joined = b.concat([second, first])
    turned = b.transpose(b.reshape(joined, (2, 150)), (1, 0))
    pooled = b.gap(joined)
    graph = b.build(b.mul(b.add(joined, joined), pooled), turned)
    kernels = {op.op_type: make_kernel(graph, (op.name,)).config for op in graph.operators}
    moved = {name: float(bytes_moved(ConfigTable.of([config]))[0]) for name, config in kernels.items()}
    assert moved["Split"] == moved["Concat"] == moved["Transpose"] == 2 * whole
    assert moved["Add"] == 3 * whole
    assert moved["GlobalAveragePool"] == whole + 4 * 2 * 6
    assert moved["Mul"] == 2 * whole + 4 * 2 * 6


def test_kinds_of_single_operators_are_left_to_the_family() -> None:
    row = {"subject": "s", "latency_us": 1.0}
    shown = [("relu", "adaptive"), ("relu", SINGLE), ("tanh", SINGLE), ("deconv", SINGLE)]
    frame = pd.DataFrame([{**row, "kind": k, "sampler": s, "config": relu(4, 4).to_json()} for k, s in shown])
    assert kinds_with_trees(read_labels(frame)) == ("deconv", "relu")
