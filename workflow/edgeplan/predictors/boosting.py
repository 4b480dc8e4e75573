"""Grows gradient-boosted trees, and tunes how they grow by Optuna."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from edgeplan.predictors.settings import TrainingSettings
from edgeplan.support.lazy import lazily

# Training alone needs them.
lightgbm, optuna = lazily("lightgbm"), lazily("optuna")

log = logging.getLogger(__name__)

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]

TUNED_ROWS = 200  # from here on Optuna tunes
_TUNING_ROWS = 4000  # tuning works on a sample of at most this many rows
_EARLY_STOP = 40
_MAX_TREES = 1000  # lipg, section 5.2
SMALL: Mapping[str, float | int | str] = {
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
    **SMALL,
    "num_iterations": 800,
    "max_depth": 10,
    "lambda_l2": 0.1,
    "extra_trees": True,
}
_HUBER: Mapping[str, Any] = {"objective": "huber", "alpha": 0.15}  # alpha: where errors of log latency count linearly
#: Without a search: a third of the time, and errors of kernels that were left out are 4 % larger (.078 for .075).
QUICK: Mapping[str, float | int | str] = {**_MEDIUM, "num_iterations": 300, "learning_rate": 0.1, "max_bin": 63}
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


def group_folds(group: Integers, folds: int, seed: int) -> Integers:
    """Draw a fold for each row such that the rows of a group share one (n,); there are at most as many folds as groups."""
    groups, inverse = np.unique(group, return_inverse=True)
    shuffled = np.random.default_rng(seed).permutation(len(groups))
    return np.asarray((shuffled % max(1, min(folds, len(groups))))[inverse], dtype=np.int64)


def boost(matrix: Floats, ratio: Floats, weight: Floats, parameters: Mapping[str, float | int | str], seed: int) -> Any:
    """Train the trees that predict `ratio` from the features."""
    data = lightgbm.Dataset(matrix, ratio, weight=weight, params={"verbosity": -1}, free_raw_data=False)
    return lightgbm.train({**_HUBER, **_FIXED, **parameters, "seed": seed}, data)


def held_out(group: Integers, settings: TrainingSettings) -> tuple[Integers, Integers]:
    """Return the rows that a search trains and tests on: a sample, with one share of the groups held out."""
    rng = np.random.default_rng(settings.seeds[0])
    sample = np.sort(rng.permutation(len(group))[:_TUNING_ROWS])
    held = group_folds(group[sample], 4, settings.seeds[0] + 1) == 0
    return sample[~held], sample[held]


def search(
    matrix: Floats, ratio: Floats, weight: Floats, parts: tuple[Integers, Integers], settings: TrainingSettings
) -> Parameters:
    """Tune the trees by Optuna (ranges of LiPG, section 5.2) on the first part of the rows, with the second one held out.

    Trials alone bound it: a bound in seconds would make predictors depend on the speed of the machine that trains them.
    """
    optuna.logging.set_verbosity(optuna.logging.ERROR)

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
            lightgbm.Dataset(matrix[rows], ratio[rows], weight=weight[rows], params={"verbosity": -1}, free_raw_data=False)
            for rows in parts
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
