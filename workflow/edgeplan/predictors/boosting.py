"""Fits gradient-boosted latency predictors: a non-negative linear work model, corrected by trees on log(latency / work).

The work model (time per multiply-add, per byte read and written, per call) carries the scale over six orders of magnitude and
extrapolates; the trees learn how well an implementation uses the machine, a ratio near 1 that interpolates well.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from edgeplan.predictors.features import work_terms
from edgeplan.predictors.labels import Floats, Labels, group_folds
from edgeplan.predictors.settings import TrainingSettings
from edgeplan.predictors.trees import merge_texts
from edgeplan.support.lazy import lazily
from edgeplan.support.rounding import nine_digits_each

# Training alone needs them.
lightgbm, optimize, optuna = lazily("lightgbm"), lazily("scipy.optimize"), lazily("optuna")

log = logging.getLogger(__name__)

_FEW_ROWS = 15  # below: the work model and the median of its ratios
_TUNED_ROWS = 200  # from here on Optuna tunes
_TUNING_ROWS = 4000  # tuning works on a sample of at most this many rows
_EARLY_STOP = 40
_MAX_TREES = 1000  # lipg, section 5.2
_SMALL: Mapping[str, float | int | str] = {
    "objective": "l1",
    "learning_rate": 0.05,
    "num_iterations": 150,
    "max_depth": 5,
    "num_leaves": 16,
    "min_data_in_leaf": 5,
    "lambda_l1": 1e-3,
    "lambda_l2": 1.0,
    "bagging_fraction": 0.8,
    "feature_fraction": 0.7,
}
_MEDIUM: Mapping[str, float | int | str] = {
    **_SMALL,
    "num_iterations": 800,
    "max_depth": 10,
    "lambda_l2": 0.1,
    "extra_trees": True,
}
_HUBER: Mapping[str, Any] = {"objective": "huber", "alpha": 0.15}  # alpha: where errors of log latency count linearly
#: Without a search: a third of the time, and errors of kernels that were left out are 4 % larger (.078 for .075).
_QUICK: Mapping[str, float | int | str] = {**_MEDIUM, "num_iterations": 300, "learning_rate": 0.1, "max_bin": 63}
#: A correction of what is nearly right.
SHALLOW: Mapping[str, float | int | str] = {**_SMALL, "num_leaves": 8, "min_data_in_leaf": 8}
_FIXED: Mapping[str, Any] = {
    "bagging_freq": 1,
    "deterministic": True,
    "force_row_wise": True,
    "verbosity": -1,
    "use_missing": False,
    "feature_pre_filter": False,
    "boost_from_average": True,
    "num_threads": 1,  # trainings are independent: processes use the cores better, and no thread waits for another
}


Parameters = dict[str, float | int | str]


@dataclass(frozen=True)
class Fitted:
    """Predicts the latency of one kind of kernels: a fitted work model, and trees that correct it.

    Attributes:
        work: coefficients of the work model (terms,).
        boosters: LightGBM's models, a seed each, whose mean predicts log(latency / work) from rows of the trees' features.
    """

    work: Floats
    boosters: tuple[Any, ...]

    @cached_property
    def text(self) -> str:
        """Return the trees as one LightGBM text model."""
        return merge_texts([b.model_to_string() for b in self.boosters])

    def trees(self, matrix: Floats) -> Floats:
        """Return log(latency / work) of kernels by their feature rows (n,)."""
        return np.asarray(np.mean([b.predict(matrix) for b in self.boosters], axis=0), dtype=np.float64)

    def predict(self, matrix: Floats) -> Floats:
        """Return the latency in us of kernels by their feature rows (n,)."""
        return np.asarray(work_time(matrix, self.work) * np.exp(self.trees(matrix)), dtype=np.float64)


def work_time(matrix: Floats, work: Floats) -> Floats:
    """Compute the work model's time for rows of the trees' features, us (n,)."""
    # Not a matrix product: its last digits differ between processors, and the trees learn from them (see `rounding`).
    return np.asarray(np.einsum("ij,j->i", work_terms(matrix), work))


def fit_work(matrix: Floats, latency: Floats, weight: Floats) -> Floats:
    """Fit the non-negative coefficients of the work terms with the least relative squared error (terms,), to nine digits."""
    terms = work_terms(matrix)
    scale = np.maximum(terms.max(axis=0), 1.0)
    # Relative errors are bounded below by -1 and not above, so outliers that are slow weigh the least: trees mend the bias.
    rows = (np.sqrt(weight) / latency)[:, None]
    design = terms / scale * rows
    if len(latency) < _FEW_ROWS:  # too few for a term each: a constant and one term, whichever fits best
        pairs = [np.array([0, i]) for i in range(1, terms.shape[1])]
        columns = min(pairs, key=lambda c: optimize.nnls(design[:, c], np.sqrt(weight))[1])
    else:
        columns = np.arange(terms.shape[1])
    work = np.zeros(terms.shape[1])
    work[columns] = optimize.nnls(design[:, columns], np.sqrt(weight))[0]
    work /= scale
    # Never no work at all: a hundredth of the least latency seen keeps the ratio finite for the smallest kernels.
    work[0] = max(work[0], 0.01 * float(latency.min()))
    return nine_digits_each(work)


def parameters_for(labels: Labels, matrix: Floats, settings: TrainingSettings) -> Parameters:
    """Return the parameters of the trees: tuned where there are rows enough, regularised defaults elsewhere."""
    if len(labels) < _FEW_ROWS:
        return {}
    if len(labels) < _TUNED_ROWS:
        return dict(_SMALL)
    if settings.trials == 0:
        return dict(_QUICK)
    return _tune(labels, matrix, settings)


def fit(labels: Labels, matrix: Floats, parameters: Mapping[str, float | int | str], seeds: tuple[int, ...]) -> Fitted:
    """Train on all rows; `matrix` holds the trees' features (n, features)."""
    work = fit_work(matrix, labels.latency, labels.weight)
    ratio = np.log(labels.latency / work_time(matrix, work))
    if not parameters:
        constant = np.full(len(ratio), _median(ratio, labels.weight))
        data = lightgbm.Dataset(matrix, constant, free_raw_data=False)
        boosters = [lightgbm.train({**_FIXED, "objective": "l2", "min_data_in_leaf": 1}, data, 1)]
    else:
        boosters = [boost(matrix, ratio, labels.weight, parameters, seed) for seed in seeds]
    return Fitted(work, tuple(boosters))


def cross_validate(
    labels: Labels, matrix: Floats, parameters: Mapping[str, float | int | str], settings: TrainingSettings
) -> Floats:
    """Predict the latency of every row (us) by a model that saw no row of its subject (n,); NaN with a single subject."""
    folds = group_folds(labels.group, settings.folds, settings.seeds[0])
    result = np.full(len(labels), np.nan)
    for number in range(int(folds.max()) + 1):
        train, held = np.flatnonzero(folds != number), np.flatnonzero(folds == number)
        if len(train):
            fitted = fit(labels.take(train), matrix[train], parameters, settings.seeds[:1])
            result[held] = fitted.predict(matrix[held])
    return result


def boost(matrix: Floats, ratio: Floats, weight: Floats, parameters: Mapping[str, float | int | str], seed: int) -> Any:
    """Train the trees that predict `ratio` from the features."""
    data = lightgbm.Dataset(matrix, ratio, weight=weight, params={"verbosity": -1}, free_raw_data=False)
    return lightgbm.train({**_HUBER, **_FIXED, **parameters, "seed": seed}, data)


def _median(values: Floats, weight: Floats) -> float:
    order = np.argsort(values)
    mass = np.cumsum(weight[order])
    return float(values[order][np.searchsorted(mass, mass[-1] / 2)])


def _tune(labels: Labels, matrix: Floats, settings: TrainingSettings) -> Parameters:
    """Tune the trees by Optuna (ranges of LiPG, section 5.2) on a sample of rows, with one share of subjects held out.

    Trials alone bound it: a bound in seconds would make predictors depend on the speed of the machine that trains them.
    """
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    rng = np.random.default_rng(settings.seeds[0])
    sample = np.sort(rng.permutation(len(labels))[:_TUNING_ROWS])
    held = group_folds(labels.group[sample], 4, settings.seeds[0] + 1) == 0
    train, test = sample[~held], sample[held]
    work = fit_work(matrix[train], labels.latency[train], labels.weight[train])
    ratio = np.log(labels.latency / work_time(matrix, work))

    def objective(trial: Any) -> float:
        parameters: Parameters = {
            "objective": trial.suggest_categorical("objective", ["l1", "huber"]),
            "extra_trees": trial.suggest_categorical("extra_trees", [True, False]),
            "learning_rate": trial.suggest_float("learning_rate", 0.01, 0.2, log=True),
            "max_depth": trial.suggest_int("max_depth", 5, 20),
            "num_leaves": trial.suggest_int("num_leaves", 16, 512, log=True),
            "min_data_in_leaf": trial.suggest_int("min_data_in_leaf", 3, 30, log=True),
            "lambda_l1": trial.suggest_float("lambda_l1", 1e-8, 1.0, log=True),
            "lambda_l2": trial.suggest_float("lambda_l2", 1e-8, 1.0, log=True),
            "bagging_fraction": trial.suggest_float("bagging_fraction", 0.5, 1.0),
            "feature_fraction": trial.suggest_float("feature_fraction", 0.3, 1.0),
        }
        datasets = [
            lightgbm.Dataset(
                matrix[rows], ratio[rows], weight=labels.weight[rows], params={"verbosity": -1}, free_raw_data=False
            )
            for rows in (train, test)
        ]
        booster = lightgbm.train(
            {**_HUBER, "metric": "l1", **_FIXED, **parameters, "seed": settings.seeds[0]},
            datasets[0],
            _MAX_TREES,
            valid_sets=[datasets[1]],
            callbacks=[lightgbm.early_stopping(_EARLY_STOP, verbose=False), _give_up(trial)],
        )
        trial.set_user_attr("trees", booster.best_iteration)
        return float(booster.best_score["valid_0"]["l1"])

    study = optuna.create_study(
        sampler=optuna.samplers.TPESampler(seed=settings.seeds[0]),
        pruner=optuna.pruners.MedianPruner(n_startup_trials=5, n_warmup_steps=100),
    )
    study.enqueue_trial({k: v for k, v in _MEDIUM.items() if k != "num_iterations"})
    study.optimize(objective, n_trials=settings.trials)
    best = study.best_trial
    # More rows than in the search carry somewhat more trees.
    trees = int(np.clip(round(best.user_attrs["trees"] * 1.15), 100, _MAX_TREES))
    return {**best.params, "num_iterations": trees}


def _give_up(trial: Any) -> Callable[[Any], None]:
    """Return a LightGBM callback that prunes a hopeless trial."""

    def callback(env: Any) -> None:
        if env.iteration % 50 == 49 and env.evaluation_result_list:  # every fifty trees
            trial.report(float(env.evaluation_result_list[0][2]), env.iteration)
            if trial.should_prune():
                raise optuna.TrialPruned

    return callback
