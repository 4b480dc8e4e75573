"""Training the predictors of a pair from sampled layers, and their errors on held-out ones (LiPG, section 5.2)."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from types import MappingProxyType
from typing import Any

import lightgbm
import numpy as np
import numpy.typing as npt
import optuna
import pandas as pd

from edgeplan.chapters.partition.layers import KINDS, LayerShape
from edgeplan.chapters.partition.learning import predictors
from edgeplan.chapters.partition.learning.predictors import (
    OURS,
    PLAIN,
    SHAPE,
    WORK,
    Floats,
    PairPredictors,
    Trees,
    fit,
    shape_matrix,
)
from edgeplan.chapters.partition.settings import SIDES
from edgeplan.predictors.walking import slim_text
from edgeplan.runtime.processor import Dispatcher
from edgeplan.support import cpus

#: What is not tuned; rows are few, so that leaves are small.
_FIXED: Mapping[str, Any] = {
    "objective": "l1",
    "metric": "l1",
    "bagging_freq": 1,
    "min_data_in_leaf": 5,
    "deterministic": True,
    "force_row_wise": True,
    "verbosity": -1,
    "use_missing": False,
    "feature_pre_filter": False,
    "num_threads": 1,
}
_VALIDATED = 5  # one in so many rows is what trials are judged by
_FEW = 40  # rows: with fewer nothing is tuned


def boosted(matrix: Floats, latency_us: Floats, trials: int, seed: int) -> tuple[Trees, Floats]:
    """Tune and train on samples; return the trees, and the gain importance of each feature."""
    target = np.log(latency_us / matrix[:, WORK])
    parameters = _tuned(matrix, target, trials, seed) if len(target) >= _FEW else {"num_iterations": 100, "num_leaves": 8}
    data = lightgbm.Dataset(matrix, target, free_raw_data=False, params={"verbosity": -1})
    booster = lightgbm.train({**_FIXED, **parameters, "seed": seed}, data)
    text = slim_text(booster.model_to_string())
    return Trees.of(text, matrix.shape[1], "trained trees"), np.asarray(booster.feature_importance("gain"), np.float64)


def _tuned(matrix: Floats, target: Floats, trials: int, seed: int) -> dict[str, Any]:
    """The search of section 5.2: its ranges, one held-out share of the rows."""
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    held = np.random.default_rng(seed).permutation(len(target)) % _VALIDATED == 0

    def objective(trial: optuna.Trial) -> float:
        parameters = {
            "learning_rate": trial.suggest_float("learning_rate", 0.01, 0.2, log=True),
            "num_iterations": trial.suggest_int("num_iterations", 100, 1000),
            "max_depth": trial.suggest_int("max_depth", 5, 20),
            "num_leaves": trial.suggest_int("num_leaves", 16, 512, log=True),
            "lambda_l1": trial.suggest_float("lambda_l1", 1e-8, 1.0, log=True),
            "lambda_l2": trial.suggest_float("lambda_l2", 1e-8, 1.0, log=True),
            "bagging_fraction": trial.suggest_float("bagging_fraction", 0.5, 1.0),
            "feature_fraction": trial.suggest_float("feature_fraction", 0.5, 1.0),
        }
        data = lightgbm.Dataset(matrix[~held], target[~held], params={"verbosity": -1})
        booster = lightgbm.train({**_FIXED, **parameters, "seed": seed}, data)
        return float(np.mean(np.abs(np.exp(booster.predict(matrix[held]) - target[held]) - 1)))

    study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=seed))
    study.enqueue_trial({
        "learning_rate": 0.05, "num_iterations": 400, "max_depth": 8, "num_leaves": 31, "lambda_l1": 1e-3, "lambda_l2": 0.1,
        "bagging_fraction": 0.8, "feature_fraction": 0.8,
    })  # fmt: skip
    study.optimize(objective, n_trials=trials)
    return dict(study.best_params)


Rows = npt.NDArray[np.bool_]
CPU, GPU = SIDES
#: Columns of sampled layers that say which layer it is.
LAYER = ("kind", "height", "width", "inputs", "outputs", "window", "stride", "window_width")
#: Columns of samples. Of steps that are no layers the kind is `OTHER`; `dispatch` is JSON of dispatch features by name, `terms`
#: of `predictors.TERMS`. A processor that refuses a step has no time of it.
SAMPLE = (*LAYER, "name", "family", "cpu_us", "gpu_us", "cpu_implementation", "gpu_implementation", "dispatch", "terms")
OTHER = "other"
#: With fewer rows an implementation has no predictor of its own.
_LEAST = 30
LINEAR_REGRESSION, NETWORK = "linear regression", "network"


@dataclass(frozen=True, slots=True)
class Trained:
    """Predictors to plan by, and their errors.

    Attributes:
        errors: for every sample and predictor: side, kind, predictor, implementation, measured_us, predicted_us, split
            ("training", "test").
        importance: gain of every feature, by kind and implementation, of the GPU's predictors with dispatch features.
        beside: the predictors on shapes alone of the GPU, by name and kind.
    """

    predictors: PairPredictors
    errors: pd.DataFrame
    importance: pd.DataFrame
    beside: Mapping[tuple[str, str], Predict]

    def training(self, samples: pd.DataFrame) -> pd.DataFrame:
        """Return the samples that were trained on, in their order."""
        parts = []
        for kind in KINDS:
            own = self.errors[(self.errors["kind"] == kind) & (self.errors["side"] == GPU) & (self.errors["predictor"] == OURS)]
            parts.append(_usable(samples, kind)[(own["split"] == "training").to_numpy()])
        return pd.concat(parts, ignore_index=True)


def layers_of(frame: pd.DataFrame) -> list[LayerShape]:
    """Return the layers of rows."""
    return [LayerShape(str(kind), *map(int, sizes)) for kind, *sizes in frame[list(LAYER)].itertuples(index=False, name=None)]


def train_pair(
    samples: pd.DataFrame, dispatcher: Dispatcher, about: Mapping[str, Any], *, trials: int, test_share: float, seed: int
) -> Trained:
    """Train on all samples but a held-out share."""
    trees: dict[tuple[str, str, str, str], Trees] = {}
    parts, gains, beside = [], [], {}
    features = predictors.augmented_names(dispatcher.features)
    tables = {kind: _table(samples, kind, dispatcher.features, test_share, seed) for kind in KINDS}
    jobs = [
        (side, variant, kind, *group)
        for kind, table in tables.items()
        for side, variant in table.matrices
        for group in _groups(table.names(side), table.held, single=variant == PLAIN)
    ]

    def fit(job: tuple[str, str, str, str, Rows, Rows]) -> tuple[Trees, Floats]:
        side, variant, kind, _, fitted, at = job
        table = tables[kind]
        # A model that predicts no sample stands for implementations that were never seen.
        return boosted(table.matrices[side, variant][fitted], table.us(side)[fitted], trials if at.any() else 1, seed)

    with ThreadPoolExecutor(cpus.workers()) as pool:  # LightGBM works without the interpreter
        fits = list(pool.map(fit, jobs))
    predicted = {(side, variant, kind): np.zeros(len(tables[kind].held)) for side, variant, kind, *_ in jobs}
    for (side, variant, kind, name, _, at), (found, gain) in zip(jobs, fits, strict=True):
        trees[side, variant, kind, name] = found
        predicted[side, variant, kind][at] = found.predict(tables[kind].matrices[side, variant][at])
        if (side, variant) == (GPU, OURS):
            gains.append(pd.DataFrame({"kind": kind, "implementation": name, "feature": features, "gain": gain}))
    for (side, variant, kind), us in predicted.items():
        table = tables[kind]
        parts.append(_errors(side, kind, variant, table.names(side), table.us(side), us, table.held))
    for kind, table in tables.items():
        shapes, held = table.matrices[GPU, PLAIN], table.held
        gpu_us, names = table.us(GPU), table.names(GPU)
        for label, predict in (
            (LINEAR_REGRESSION, linear_regression(shapes[~held], gpu_us[~held])),
            (NETWORK, network(shapes[~held], gpu_us[~held], seed)),
        ):
            beside[label, kind] = predict
            parts.append(_errors(GPU, kind, label, names, gpu_us, predict(shapes), held))
    errors = pd.concat(parts, ignore_index=True)
    tested = errors[errors["split"] == "test"]
    relative = (tested["predicted_us"] / tested["measured_us"] - 1).abs()
    means = relative.groupby([tested["side"], tested["kind"], tested["predictor"]]).mean()
    card = predictors.PartitionCard(
        **about,
        numbers=dict(dispatcher.numbers),
        models=tuple(
            predictors.Model(side=s, variant=v, kind=k, implementation=i, file=predictors.file_name(s, v, k, i))  # type: ignore[arg-type]
            for s, v, k, i in trees
        ),
        cpu_implementations=_cpu_implementations(samples),
        others={side: _others(samples, side) for side in SIDES},  # type: ignore[misc]
        errors={" ".join(map(str, key)): float(value) for key, value in means.items()},  # type: ignore[call-overload]
    )
    trained = PairPredictors(card, MappingProxyType(trees), dispatcher)
    return Trained(trained, errors, pd.concat(gains, ignore_index=True), MappingProxyType(beside))


@dataclass(frozen=True, slots=True)
class _Table:
    """Samples of one kind: their rows, which of them are held out, and features by side and variant."""

    rows: pd.DataFrame
    held: Rows
    matrices: Mapping[tuple[str, str], Floats]

    def us(self, side: str) -> Floats:
        return self.rows[f"{side}_us"].to_numpy(np.float64)

    def names(self, side: str) -> npt.NDArray[np.str_]:
        return self.rows[f"{side}_implementation"].to_numpy(str)


def _usable(samples: pd.DataFrame, kind: str) -> pd.DataFrame:
    """Samples of a kind with times of both processors."""
    return samples[(samples["kind"] == kind) & samples["cpu_us"].notna() & samples["gpu_us"].notna()].reset_index(drop=True)


def _table(samples: pd.DataFrame, kind: str, features: Sequence[str], test_share: float, seed: int) -> _Table:
    rows = _usable(samples, kind)
    held = np.random.default_rng(seed).permutation(len(rows)) < round(test_share * len(rows))
    shapes = shape_matrix(layers_of(rows))
    dispatched = np.column_stack(
        [shapes, predictors.dispatch_matrix([json.loads(text) for text in rows["dispatch"]], features)]
    )
    return _Table(rows, held, {(CPU, OURS): shapes, (GPU, PLAIN): shapes, (GPU, OURS): dispatched})


def _groups(names: npt.NDArray[np.str_], held: Rows, *, single: bool) -> Iterator[tuple[str, Rows, Rows]]:
    """Implementations with rows enough, each with what to train on and what it predicts; "" for all, and for what is left."""
    left = np.ones(len(names), np.bool_)
    for name in [] if single else sorted(set(names.tolist())):
        own = names == name
        if name and (own & ~held).sum() >= _LEAST:
            left &= ~own
            yield name, own & ~held, own
    yield "", ~held, left


def _errors(
    side: str, kind: str, predictor: str, names: Sequence[str] | npt.NDArray[np.str_], us: Floats, predicted: Floats, held: Rows
) -> pd.DataFrame:
    about = {"side": side, "kind": kind, "predictor": predictor, "implementation": names}
    split = np.where(held, "test", "training")
    return pd.DataFrame({**about, "measured_us": us, "predicted_us": predicted, "split": split})


def _cpu_implementations(samples: pd.DataFrame) -> dict[str, str]:
    """The implementation that most samples of a class of shapes had."""
    rows = samples[samples["kind"].isin(KINDS) & samples["cpu_us"].notna()]
    classes = pd.Series([predictors.shape_class(layer) for layer in layers_of(rows)], index=rows.index, dtype=object)
    common = rows.groupby(classes)["cpu_implementation"].agg(lambda names: str(names.mode().iloc[0]))
    return {str(key): str(name) for key, name in common.items()}


def _others(samples: pd.DataFrame, side: str) -> dict[str, tuple[float, float, float]]:
    rows = samples[(samples["kind"] == OTHER) & samples[f"{side}_us"].notna()]
    terms = np.array([json.loads(text) for text in rows["terms"]], np.float64).reshape(len(rows), len(predictors.TERMS))
    us, families = rows[f"{side}_us"].to_numpy(np.float64), rows["family"].to_numpy(str)
    found: dict[str, Any] = {predictors.ALL: fit(terms, us) if len(rows) else (0.0, 0.0, 0.0)}
    for family in sorted(set(families.tolist())):
        own = families == family
        if own.sum() >= predictors.FEW:
            found[family] = fit(terms[own], us[own])
    return found


def empty_dispatch(features: Sequence[str]) -> str:
    """Dispatch features, by name, of a row that has none."""
    return json.dumps(dict.fromkeys(features, 0.0))


Predict = Callable[[Floats], Floats]
_TERMS = tuple(SHAPE.index(name) for name in ("flops", "input_elements", "output_elements", "weight_elements"))
_WIDTH, _DEPTHS, _EPOCHS, _BATCH = 64, (1, 2, 3), 150, 64
_RATE, _DECAY, _FIRST, _SECOND, _TINY = 3e-3, 1e-4, 0.9, 0.999, 1e-8  # Adam


def linear_regression(matrix: Floats, latency_us: Floats) -> Predict:
    """Work and bytes with the non-negative factors of the least relative squared error."""

    def terms(rows: Floats) -> Floats:
        return np.column_stack([np.ones(len(rows)), rows[:, _TERMS]])

    factors = fit(terms(matrix), latency_us)
    return lambda rows: np.asarray(np.einsum("ij,j->i", terms(rows), factors))


def network(matrix: Floats, latency_us: Floats, seed: int) -> Predict:
    """A perceptron of one to three layers of 64 neurons on logarithms; the depth by one held-out share of the rows."""
    held = np.random.default_rng(seed).permutation(len(latency_us)) % _VALIDATED == 0

    def error(depth: int) -> float:
        predict = _trained(matrix[~held], latency_us[~held], depth, seed)
        return float(np.mean(np.abs(predict(matrix[held]) / latency_us[held] - 1)))

    return _trained(matrix, latency_us, min(_DEPTHS, key=error), seed)


def _trained(matrix: Floats, latency_us: Floats, depth: int, seed: int) -> Predict:
    rng = np.random.default_rng(seed)
    inputs, target = np.log(matrix), np.log(latency_us)
    mean, spread = inputs.mean(axis=0), inputs.std(axis=0) + _TINY
    centre, scale = float(target.mean()), float(target.std()) + _TINY
    sizes = [matrix.shape[1], *[_WIDTH] * depth, 1]
    weights = [rng.normal(0.0, np.sqrt(2 / a), (a, b)) for a, b in pairwise(sizes)]
    values = [*weights, *(np.zeros(b) for b in sizes[1:])]
    layers = len(weights)
    first, second = [np.zeros_like(v) for v in values], [np.zeros_like(v) for v in values]

    def forward(rows: Floats) -> list[Floats]:
        found = [rows]
        for k in range(layers):
            out = found[-1] @ values[k] + values[layers + k]
            found.append(np.maximum(out, 0.0) if k + 1 < layers else out)
        return found

    rows, wanted = (inputs - mean) / spread, ((target - centre) / scale)[:, None]
    step = 0
    for epoch in range(_EPOCHS):
        rate = _RATE * 0.5 * (1 + np.cos(np.pi * epoch / _EPOCHS))
        order = rng.permutation(len(rows))
        for batch in np.array_split(order, max(1, len(order) // _BATCH)):
            step += 1
            outs = forward(rows[batch])
            slope = 2 * (outs[-1] - wanted[batch]) / len(batch)
            slopes = [np.zeros(0)] * len(values)
            for k in reversed(range(layers)):
                slopes[k], slopes[layers + k] = outs[k].T @ slope + _DECAY * values[k], slope.sum(axis=0)
                slope = (slope @ values[k].T) * (outs[k] > 0)
            for k, found in enumerate(slopes):
                first[k] = _FIRST * first[k] + (1 - _FIRST) * found
                second[k] = _SECOND * second[k] + (1 - _SECOND) * found**2
                moved = first[k] / (1 - _FIRST**step) / (np.sqrt(second[k] / (1 - _SECOND**step)) + _TINY)
                values[k] = values[k] - rate * moved

    def predict(given: Floats) -> Floats:
        return np.asarray(np.exp(forward((np.log(given) - mean) / spread)[-1][:, 0] * scale + centre))

    return predict
