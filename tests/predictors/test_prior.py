"""A prior of other devices: it helps where it is right up to a factor, does no harm where it is noise, and leaks nothing."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import asdict
from functools import cache
from pathlib import Path
from types import MappingProxyType

import numpy as np
import pandas as pd
import pytest
from law_of_latency import ABOUT, SETTINGS, rows, trained_once

from edgeplan.errors import DeviceError, FormatError
from edgeplan.opencl.launch import GpuNumbers
from edgeplan.predictors.boosting import mixed_parameters
from edgeplan.predictors.correction import correct
from edgeplan.predictors.features import FEATURES
from edgeplan.predictors.labels import read_labels
from edgeplan.predictors.latency import EXTRA_FEATURES
from edgeplan.predictors.launches import LAUNCH_FEATURES
from edgeplan.predictors.prior import COLUMNS, Prior, shipped_prior
from edgeplan.predictors.support import Support, cross_validate
from edgeplan.predictors.training import train_predictor
from edgeplan.workspace import KERNELS, SHIPPED

_NONE: Mapping[str, int] = MappingProxyType({})
_FACTORS = {"conv": 3.0, "relu": 0.4, "reorder": 1.7}


@cache
def _prior(seed: int | None = None) -> Prior:
    """Of a device of the same law; with a seed, of one whose labels were shuffled within each kind: noise."""
    known = rows(500)
    if seed is None:
        return Prior((trained_once()[0],), known[list(COLUMNS)])
    rng = np.random.default_rng(seed)
    noise = known.copy()
    noise["latency_us"] = known.groupby("kind")["latency_us"].transform(lambda column: rng.permutation(column.to_numpy()))
    return Prior((train_predictor(noise, SETTINGS, **ABOUT)[0],), known[list(COLUMNS)])


def _few(count: int = 120) -> pd.DataFrame:
    """Few own rows of a device that is slower or faster by a factor of each kind, and many frozen ones."""
    table = rows(1000)  # of which the prior has seen the first 700 at most
    table["latency_us"] *= table["kind"].map(_FACTORS)
    frozen = table["sampler"] == "frozen"
    return pd.concat([table[~frozen].iloc[-count:], table[frozen]], ignore_index=True)


def _errors(prior: Prior | None, table: pd.DataFrame) -> pd.Series:
    """Mean error of frozen kernels by kind."""
    quality = train_predictor(table, SETTINGS, **ABOUT, prior=prior)[1]
    frozen = quality[quality["split"] == "frozen"]
    return np.abs(np.log(frozen["predicted_us"] / frozen["measured_us"])).groupby(frozen["kind"]).mean()


def test_a_prior_that_is_right_up_to_a_factor_helps() -> None:
    without, given = _errors(None, _few()), _errors(_prior(), _few())
    assert given["conv"] < 0.7 * without["conv"]
    assert (given <= without + 0.01).all()


@pytest.mark.long
def test_a_prior_of_noise_does_no_harm() -> None:
    without, given = _errors(None, _few()), _errors(_prior(seed=0), _few())
    assert (given <= 1.1 * without + 0.01).all()


@pytest.mark.long
def test_a_prior_of_an_engine_with_other_implementations_helps_too() -> None:
    table = _few()
    renamed = table.assign(
        implementation=table["implementation"].map(lambda name: f"other.{name}"),
        **{c: table[c].map(lambda name: f"other_{name}") for c in ("input_state", "input_layout", "output_layout")},
    )
    about = {**ABOUT, "plain_layouts": {"4": "other_nchw"}}
    found = {}
    for prior in (None, _prior()):
        quality = train_predictor(renamed, SETTINGS, **about, prior=prior)[1]
        conv = quality[(quality["split"] == "frozen") & (quality["kind"] == "conv")]
        found[prior is None] = float(np.abs(np.log(conv["predicted_us"] / conv["measured_us"])).mean())
    assert found[False] < 0.9 * found[True]


def test_without_a_prior_or_with_one_of_other_kinds_nothing_changes() -> None:
    assert shipped_prior(()) is None
    table = _few()
    unknown = Prior(_prior().predictors, _prior().kernels[:0])
    one, other = (train_predictor(table, SETTINGS, **ABOUT, prior=prior) for prior in (None, unknown))
    assert one[0].texts == other[0].texts
    assert one[0].card == other[0].card
    pd.testing.assert_frame_equal(one[1], other[1])


@pytest.mark.long
def test_training_with_a_prior_is_deterministic() -> None:
    table = _few()
    table = table[table["kind"] == "conv"]
    one, two = (train_predictor(table, SETTINGS, **ABOUT, prior=_prior())[0] for _ in range(2))
    assert one.texts == two.texts
    assert one.card == two.card


def _support(count: int, numbers: Mapping[str, int] = _NONE) -> tuple[pd.DataFrame, Support]:
    table = _few(count)
    table = table[(table["kind"] == "conv") & (table["sampler"] != "frozen")].reset_index(drop=True)
    codes: dict[str, dict[str, float]] = {"input_layout": {"nchw": 1.0, "nchwc": 2.0}, "implementation": {}}
    support = _prior().support("conv", read_labels(table, numbers), codes, numbers)
    assert support is not None
    return table, support


def test_kernels_of_a_prior_are_launched_as_the_device_would() -> None:
    """Where the device's own kernels have launches; those of engines that do not dispatch have none, and so zeros."""
    numbers = asdict(GpuNumbers(units=8, vector=4, block=16, work_group=1024))
    (_, plain), (table, support) = _support(120), _support(120, numbers)
    launches = support.matrix[:, len(FEATURES) : -len(EXTRA_FEATURES)]
    assert launches.shape[1] == len(LAUNCH_FEATURES) == read_labels(table, numbers).matrix.shape[1] - len(FEATURES)
    assert not launches.any()
    np.testing.assert_array_equal(np.delete(support.matrix, range(len(FEATURES), support.matrix.shape[1] - 2), 1), plain.matrix)


def _with_codes(table: pd.DataFrame) -> np.ndarray:
    matrix = read_labels(table).matrix
    return np.column_stack([matrix, np.zeros(len(matrix)), np.full(len(matrix), -1.0)])


def test_labels_of_a_held_out_subject_reach_no_prediction_of_it() -> None:
    """The correction, too, is learnt without them."""
    table, support = _support(120)
    support = Support(**{**vars(support), "share": 1.0})
    parameters = mixed_parameters(1000)
    first = read_labels(table)
    before = cross_validate(first, _with_codes(table), parameters, SETTINGS, support)
    for subject in table["subject"].unique()[:3]:
        mine = (table["subject"] == subject).to_numpy()
        spoilt = table.assign(latency_us=table["latency_us"].where(~mine, 1e6))
        after = cross_validate(read_labels(spoilt), _with_codes(spoilt), parameters, SETTINGS, support)
        # the weights of labels follow from their latency, but not those of others
        np.testing.assert_array_equal(after[mine], before[mine])
        assert not np.array_equal(after[~mine], before[~mine])


@pytest.mark.parametrize("count", [1, 2, 5, 14, 40])
def test_a_correction_of_any_number_of_rows_is_finite_and_keeps_a_factor(count: int) -> None:
    rng = np.random.default_rng(count)
    said = rng.normal(3, 2, (count, 3))
    latency = 2.5 * np.exp(said.mean(axis=1))
    corrected = correct(said, np.full(3, 1 / 3), np.zeros((count, 2)), latency, np.ones(count), 0)
    asked = rng.normal(3, 2, (50, 3))
    found = corrected(asked, np.zeros((50, 2)))
    assert np.isfinite(found).all()
    np.testing.assert_allclose(found, 2.5 * np.exp(asked.mean(axis=1)), rtol=0.05)


@pytest.mark.committed
def test_the_shipped_devices_have_kernels_of_every_kind_that_they_predict_but_of_no_frozen_carrier() -> None:
    devices = sorted(path.parent.name for path in SHIPPED.glob(f"*/{KERNELS}"))
    assert devices == sorted(path.parent.name for path in SHIPPED.glob("*/card.json"))
    prior = shipped_prior(devices)
    assert prior is not None
    for predictor in prior.predictors:
        assert predictor.card.factors == {}, "these are of whole models"
        assert {r.kind for r in predictor.card.regressors} <= set(prior.kernels["kind"])
    for device in devices:
        table = pd.read_parquet(SHIPPED.parents[2] / "results" / device / "measurements/kernels.parquet")
        frozen = set(table.loc[table["sampler"] == "frozen", "config"])
        own = pd.read_parquet(SHIPPED / device / KERNELS)
        assert not frozen & set(own["config"])
        assert list(own.columns) == list(COLUMNS)
        assert (SHIPPED / device / KERNELS).stat().st_size < 5e6


@pytest.mark.parametrize("name", ["cpu-nope", "../cpu-onednn", ""])
def test_a_prior_that_is_not_shipped_is_an_error_that_names_those_that_are(name: str) -> None:
    with pytest.raises(DeviceError, match="ships nothing") as caught:
        shipped_prior([name])
    assert caught.value.where == "training.prior"
    assert "cpu-onednn, cpu-onnxruntime, cpu-openvino" in caught.value.next_step


def test_damaged_kernels_of_a_prior_are_an_error(tmp_path: Path) -> None:
    shutil.copytree(SHIPPED / "cpu-openvino", tmp_path / "cpu-openvino")
    (tmp_path / "cpu-openvino" / KERNELS).write_bytes(b"PAR1")
    with pytest.raises(FormatError):
        shipped_prior(["cpu-openvino"], tmp_path)
