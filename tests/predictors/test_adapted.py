"""A predictor adapted from an old device: its lines, its members' weights, few models' intervals, and the draw of samples."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from edgeplan.predictors.adapted import (
    AdaptedPredictor,
    Member,
    fitted_to_models,
    old_member,
    scratch_member,
    small_sample,
    spreads,
    weighed_by_models,
)
from edgeplan.predictors.adapting import NewDevice, adapt, rows_of
from edgeplan.predictors.calibration_line import Calibration, KernelRows, Lines, LogLine, calibrate_kernels, held_out_us
from edgeplan.predictors.card import Interval
from edgeplan.predictors.features import FEATURES
from edgeplan.predictors.kernel_tables import KernelTables
from edgeplan.predictors.labels import read_labels
from edgeplan.predictors.latency import MANY_ROWS
from edgeplan.predictors.predictor import DevicePredictor
from edgeplan.predictors.strata import Strata, drawn
from edgeplan.predictors.training import train_predictor
from law_of_latency import ABOUT, SETTINGS, model, rows

from edgeplan.errors import FormatError

INTERVAL = Interval(nominal=0.9, common=0.05, single=0.0, quantile=1.0, subjects=30)


@cache
def old() -> DevicePredictor:
    return train_predictor(rows(), SETTINGS, **ABOUT)[0]  # type: ignore[arg-type]


def kernel_rows(count: int, factor: float, seed: int = 0) -> KernelRows:
    """Kernels of two kinds in subjects of ten, all `factor` slower than the old device says, the second kind twice as much."""
    rng = np.random.default_rng(seed)
    kind = np.array(["conv", "relu"], object)[np.arange(count) % 2]
    said = rng.uniform(0.0, 8.0, count)
    latency = np.exp(said) * factor * np.where(kind == "relu", 2.0, 1.0) * rng.lognormal(0, 0.01, count)
    return KernelRows(kind, rng.normal(size=(count, len(FEATURES))), said, latency, np.ones(count), np.arange(count) // 10)


def test_lines_find_a_factor_of_all_kinds_and_of_each() -> None:
    found = calibrate_kernels(kernel_rows(40, 2.5))
    kinds = np.array(["conv", "relu", "gap"], object)
    us = found.latency_us(kinds, np.zeros((3, len(FEATURES))), np.full(3, np.log(100.0)))
    np.testing.assert_allclose(us[:2], [250.0, 500.0], rtol=0.08)
    assert 200.0 < us[2] < 550.0  # a kind that no label was of: as the others


def test_an_old_device_says_of_unknown_implementations_what_it_mostly_runs() -> None:
    known = rows(100)
    conv = known[(known["kind"] == "conv") & (known["implementation"] == known["implementation"].mode()[0])]
    strange = conv.assign(implementation="other", input_layout="strange")
    usual = rows_of(old(), read_labels(conv)).said
    np.testing.assert_array_equal(rows_of(old(), read_labels(strange)).said, usual)


def test_without_labels_the_old_device_stands() -> None:
    found = calibrate_kernels(kernel_rows(0, 1.0))
    np.testing.assert_allclose(
        found.latency_us(np.array(["conv"], object), np.zeros((1, len(FEATURES))), np.array([2.0])), np.exp(2.0)
    )


def test_trees_learn_what_lines_cannot_and_only_from_enough_labels() -> None:
    made = kernel_rows(400, 1.0)
    bent = replace(made, latency=made.latency * np.where(made.matrix[:, 0] > 0, 1.5, 1.0))
    few, many = calibrate_kernels(bent.take(np.arange(40))), calibrate_kernels(bent)
    assert not few.text
    errors = [np.abs(np.log(c.latency_us(bent.kind, bent.matrix, bent.said) / bent.latency)) for c in (few, many)]
    assert np.median(errors[1]) < 0.25 * np.median(errors[0])


def test_errors_are_of_rows_whose_subject_was_not_seen() -> None:
    made = kernel_rows(200, 1.0)
    off = replace(made, latency=made.latency * np.where(made.group == 3, 3.0, 1.0))
    error = np.abs(np.log(off.latency / held_out_us(off, 0)))
    assert np.median(error[off.group == 3]) > 0.8
    assert np.median(error[off.group != 3]) < 0.2


def test_one_subject_alone_tells_no_error() -> None:
    assert np.isnan(held_out_us(kernel_rows(8, 1.0), 0)).all()


def test_spreads_of_few_rows_are_drawn_to_that_of_all() -> None:
    kind = np.array(["conv"] * 200 + ["gap"] * 2, object)
    error = np.array([0.1] * 200 + [0.9, np.nan])
    found = spreads(kind, error)
    assert found["conv"] == pytest.approx(0.1, rel=0.1)
    assert 0.1 < found["gap"] < 0.5
    assert spreads(kind[:0], error[:0]) == {"": 1.0}


def test_members_count_by_their_errors() -> None:
    slow = Calibration(Lines(common=LogLine(shift=float(np.log(4.0)))))
    tables = KernelTables.of([model()])

    def mixed(good: float, bad: float) -> float:
        members = (Member(old(), Calibration(Lines()), {"": good}), Member(old(), slow, {"": bad}))
        return float(AdaptedPredictor.of(members, old().card).predict_many(tables).latency_ms[0])

    plain = float(old().without_factors().predict_many(tables).latency_ms[0])
    assert mixed(0.01, 1.0) == pytest.approx(plain, rel=0.01)
    assert mixed(0.2, 0.2) == pytest.approx(2 * plain, rel=0.15)  # the geometric mean of the two
    assert mixed(1.0, 0.01) > 3.5 * plain


def test_many_kernels_are_corrected_as_few_are() -> None:
    made = kernel_rows(MANY_ROWS + 100, 1.0)
    found = calibrate_kernels(made.take(np.arange(400)))
    parts = [made.take(part) for part in np.array_split(np.arange(len(made)), 3)]
    few = np.concatenate([found.latency_us(part.kind, part.matrix, part.said) for part in parts])
    np.testing.assert_array_equal(found.latency_us(made.kind, made.matrix, made.said), few)


def test_short_kernels_have_a_factor_of_their_own() -> None:
    """Models of long convolutions take as long as predicted, those of short ones a fifth less."""
    few = {f"{side}_{axis}": 7 for side in ("in", "out") for axis in ("height", "width")}
    short = replace(model("short"), configs=tuple(replace(c, **few) for c in model().configs))  # type: ignore[arg-type]
    models = [short, model("long")] * 6
    plain = AdaptedPredictor.of([Member(old(), Calibration(Lines()), {"": 0.1})], old().card)
    batch, names, by_factor = plain.without_factors_of(KernelTables.of(models))
    assert by_factor.sum(axis=0) == pytest.approx(batch.latency_ms - plain.card.call_us / 1e3)
    assert [bool(row[0]) for row, name in zip(by_factor, names, strict=True) if name.startswith("conv")] == [False, True]
    measured = batch.latency_ms * np.array([0.8, 1.0] * 6)
    found = fitted_to_models(plain, KernelTables.of(models), measured)
    again = found.predict_many(KernelTables.of(models)).latency_ms
    np.testing.assert_allclose(again, measured, rtol=0.05)
    assert found.without_factors_of(KernelTables.of(models))[0].latency_ms == pytest.approx(batch.latency_ms)


def test_one_odd_model_moves_no_kind_far() -> None:
    """Two models, one of which takes half as long again: a factor for each kind would explain it, and nothing else."""
    few = {f"{side}_{axis}": 7 for side in ("in", "out") for axis in ("height", "width")}
    short = replace(model("short"), configs=tuple(replace(c, **few) for c in model().configs))  # type: ignore[arg-type]
    models = KernelTables.of([short, model("long")])
    plain = AdaptedPredictor.of([Member(old(), Calibration(Lines()), {"": 0.1})], old().card)
    measured = plain.predict_many(models).latency_ms * np.array([1.5, 1.0])
    found = fitted_to_models(plain, models, measured).card.factors
    assert max(abs(np.log(factor)) for factor in found.values()) < np.log(1.5) / 1.5
    many = fitted_to_models(plain, KernelTables.of([short, model("long")] * 20), np.tile(measured, 20)).card.factors
    assert many["conv, short"] == pytest.approx(1.5, rel=0.05)


@pytest.mark.parametrize("right", [True, False])
def test_the_member_that_errs_less_in_whole_models_counts_more(right: bool) -> None:
    """Kernels say that both members are as good; whole models tell that one of two is off, each model another way."""
    rng = np.random.default_rng(3)
    tables = [KernelTables.of([model(f"net{i}")]) for i in range(8)]
    true = Member(old(), Calibration(Lines()), {"": 0.1})
    wrong = Member(old(), Calibration(Lines(common=LogLine(shift=0.5))), {"": 0.1})
    plain = AdaptedPredictor.of([true, wrong], old().card)
    measured = np.concatenate(
        [AdaptedPredictor.of([true if right else wrong], old().card).predict_many(t).latency_ms for t in tables]
    )
    measured *= rng.lognormal(0, 0.02, 8)
    found = weighed_by_models(plain, KernelTables.of([model(f"net{i}") for i in range(8)]), measured)
    spread = {member.calibration.lines.common.shift: member.of("") for member in found.members if member.calibration}
    assert (spread[0.0] < spread[0.5]) == right


def test_adapting_finds_a_device_that_is_slower_by_a_factor(tmp_path: Path) -> None:
    labels = rows(120).assign(sampler="adaptive")
    labels["latency_us"] *= 1.8
    models = [model(f"net{i}") for i in range(10)]
    plain = float(old().predict_many(KernelTables.of(models[:1])).latency_ms[0])
    new = NewDevice("new", "law", "1", "2026-02-02", 7.0, {"4": "nchw"}, labels, models, np.full(10, 1.8 * plain))
    found = adapt(new, [old()], None, 0)
    batch = found.predict_many(KernelTables.of(models))
    np.testing.assert_allclose(batch.latency_ms, 1.8 * plain, rtol=0.05)
    assert (batch.low_ms <= 1.8 * plain).all()
    assert (batch.high_ms >= 1.8 * plain).all()
    assert (found.card.device, found.card.rows, found.card.measured_at) == ("new", 120, "2026-02-02")
    found.save(tmp_path)
    again = AdaptedPredictor.load(tmp_path)
    np.testing.assert_allclose(again.predict_many(KernelTables.of(models)).latency_ms, batch.latency_ms, rtol=1e-6)
    assert again.predict(models[0]).latency_ms == pytest.approx(batch.latency_ms[0])


def test_a_damaged_list_of_members_is_refused(tmp_path: Path) -> None:
    AdaptedPredictor.of([scratch_member(old())], old().card).save(tmp_path)
    path = tmp_path / "adapted.json"
    path.write_text(path.read_text().replace('"member-0"', '"../../elsewhere"'))
    with pytest.raises(FormatError, match="folder"):
        AdaptedPredictor.load(tmp_path)


def test_without_whole_models_the_interval_is_wide() -> None:
    noisy = rows(40)
    noisy["latency_us"] *= np.random.default_rng(2).lognormal(0, 0.3, 40)
    member = old_member(old(), rows_of(old(), read_labels(noisy)), 0)
    found = fitted_to_models(AdaptedPredictor.of([member], old().card), KernelTables.of([model()]), np.zeros(0))
    batch = found.predict_many(KernelTables.of([model()]))
    assert batch.high_ms[0] / batch.low_ms[0] > 1.3


@pytest.mark.parametrize("count", [1, 3, 6, 9, 13, 30])
def test_few_models_give_intervals_that_hold(count: int) -> None:
    rng = np.random.default_rng(count)
    held = []
    for _ in range(300):
        drawn_errors = rng.normal(0, 0.08, count + 1)
        found = small_sample(INTERVAL, drawn_errors[:count], np.ones(count))
        held.append(abs(drawn_errors[-1]) <= found.half_width(np.ones(1))[0])
    assert 0.83 <= np.mean(held) <= 0.99


def test_samples_fill_what_lacks_and_all_come_once() -> None:
    kind = np.array(["conv"] * 8 + ["fc"] * 8, object)
    strata = Strata.of(kind, np.tile(np.linspace(10, 80, 8), 2))
    assert sum(strata.share.values()) == pytest.approx(1.0)
    convs, fcs = strata.counts(["conv"] * 5, np.full(5, 75.0)), strata.counts(["fc"], np.array([75.0]))
    samples = [convs] * 20 + [fcs] * 20
    order = list(drawn(strata, samples, np.random.default_rng(1)))
    assert sorted(order) == list(range(40))
    assert order == list(drawn(strata, samples, np.random.default_rng(1)))
    assert {i < 20 for i in order[:4]} == {True, False}
    assert strata.counts(["gap", "conv"], np.array([1.0, np.nan])) == {}
