"""Training gradient-boosted trees, tuned as in LiPG's section 5.2."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import lightgbm
import numpy as np
import optuna

from edgeplan.chapters.partition.learning.features import WORK, Floats
from edgeplan.chapters.partition.learning.predictors import Trees
from edgeplan.predictors.trees import slim_text

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


def fit(matrix: Floats, latency_us: Floats, trials: int, seed: int) -> tuple[Trees, Floats]:
    """Tune and train on samples.

    Returns:
        The trees, and the gain importance of each feature.
    """
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
