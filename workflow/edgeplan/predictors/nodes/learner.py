"""Learns what executed nodes take from measured ones: terms, then trees and a Gaussian process on the log ratio to them.

A prior, another device's predictor, is one more term: then trees and processes learn the ratio to it, which is all of transfer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from edgeplan.errors import PredictionError
from edgeplan.graph.nodes import NodeConfig
from edgeplan.predictors.nodes.features import SPILLED, TERMS, Floats, Integers, Table, logs, spill
from edgeplan.predictors.nodes.kernels import Kernels, KindModel, Process, seen_by_trees, split_terms
from edgeplan.predictors.settings import TrainingSettings
from edgeplan.predictors.walking import Forest
from edgeplan.support.lazy import lazily
from edgeplan.support.numerics import nine_digits, nine_digits_each

optimize, lightgbm, optuna = lazily("scipy.optimize"), lazily("lightgbm"), lazily("optuna")

_WEIGHTS = TERMS.index("weights")
KEY_ROWS = 12  # a key of so many rows has terms of its own
PROCESS_ROWS = 8  # and of so many a process
TREE_ROWS = 40  # a kind of so many has trees
_ALL_TERMS_ROWS = 15  # below: a constant and one term, or the prior alone
#: Weights beyond the last cache have a term where so many rows spill at least such a share: a sliver tells nothing.
_SPILLING_ROWS, _SPILLED = 3, 0.25
_SHRINK = 2.0  # rows that a level of nothing counts as
_MOST_LEVEL = 1.0
_RESOLVED_US = 0.3  # below, errors count by this
_LEAST_CONSTANT = 0.1  # of the least time seen
_LEAST_US = 0.02
_LEAST_SPREAD = 0.05
_USUAL_SPREAD, _MOST_SPREAD = 0.5, 2.0  # of a kind of which little is known, and of any
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


@dataclass(frozen=True)
class Samples:
    """Holds measured nodes to learn from: contexts (bytes), times, and numbers of the models they were first seen in (n,)."""

    table: Table
    context: Floats
    us: Floats
    group: Integers
    names: tuple[str, ...]

    @staticmethod
    def of(configs: Sequence[NodeConfig], context: Sequence[float], us: Sequence[float], groups: Sequence[str]) -> Samples:
        """Describe measured nodes; `groups` names the model of each."""
        if not configs or not all(np.isfinite(us)) or min(us) <= 0:
            raise PredictionError("no measured node to learn from", where="samples of nodes", next_step="measure nodes first")
        numbers = {name: number for number, name in enumerate(dict.fromkeys(groups))}
        arrays = np.array(context, np.float64), np.array(us, np.float64), np.array([numbers[name] for name in groups], np.int64)
        return Samples(Table.of(configs), *arrays, tuple(numbers))

    def __len__(self) -> int:
        return len(self.us)

    @property
    def kinds(self) -> Integers | Any:
        """Return the kind of each sample (n,)."""
        return np.array(self.table.kinds)[self.table.place]

    @property
    def keys(self) -> tuple[str, ...]:
        """Return the key of each sample (n,)."""
        return tuple(self.table.keys[place] for place in self.table.place)

    def take(self, at: Any) -> Samples:
        """Return the samples at a mask or positions."""
        table = replace(self.table, place=self.table.place[at])
        return Samples(table, self.context[at], self.us[at], self.group[at], self.names)


@dataclass
class Tuned:
    """Holds what is searched for once, and used again where only some rows are trained on: trees by kind, processes by key."""

    parameters: dict[str, Parameters] = field(default_factory=dict)
    numbers: dict[str, Floats] = field(default_factory=dict)


def learn(
    samples: Samples, cache_bytes: float, settings: TrainingSettings, prior: Kernels | None = None, tuned: Tuned | None = None
) -> Kernels:
    """Learn what nodes take from all samples; `tuned`, what was searched for before, is filled in where it lacks something."""
    tuned = Tuned() if tuned is None else tuned
    table = samples.table
    earlier = prior.estimate(table, spread=False) if prior else None
    spilled = spill(samples.context, cache_bytes)
    near, far = split_terms(table.sizes, earlier)
    rows = near[table.place] + far[table.place] * spilled[:, None]
    ratio = nine_digits(float(np.exp(np.median(np.log(samples.us / rows[:, len(TERMS)]))))) if prior else None
    kinds, texts, all_kinds = {}, [], samples.kinds
    for kind in sorted(set(all_kinds.tolist())):
        at = np.flatnonzero(all_kinds == kind)
        kinds[kind], trees = _of_kind(samples.take(at), rows[at], near[table.place[at]], ratio, settings, tuned)
        texts += [trees] if trees else []
    forest = Forest.parse(texts, "trained trees")
    forest = replace(forest, value=nine_digits_each(forest.value))
    fallback, unlike = _fallback(rows, samples.us, all_kinds, ratio)
    return Kernels(kinds, forest, fallback, unlike, cache_bytes, prior)


def out_of_fold(
    samples: Samples, cache_bytes: float, settings: TrainingSettings, prior: Kernels | None, tuned: Tuned
) -> Iterator[tuple[Kernels, Integers]]:
    """Yield what was learnt without a share of the groups, and these samples; `tuned` is that of all samples."""
    folds = group_folds(samples.group, settings.folds, settings.seeds[0])
    for fold in range(int(folds.max()) + 1):
        if (folds != fold).any():
            kept = np.flatnonzero(folds != fold)
            yield learn(samples.take(kept), cache_bytes, settings, prior, tuned), np.flatnonzero(folds == fold)


def cross_validated_us(samples: Samples, cache_bytes: float, settings: TrainingSettings) -> Floats:
    """Return what samples take by what was learnt without their groups, us (n,)."""
    us = np.full(len(samples), np.nan)
    for learnt, held in out_of_fold(samples, cache_bytes, settings, None, Tuned()):
        us[held] = time_of(learnt, samples.take(held))[0]
    return us


def time_of(kernels: Kernels, samples: Samples) -> tuple[Floats, Floats]:
    """Return us that samples take, and the deviation of its logarithm (n,)."""
    said, place = kernels.estimate(samples.table), samples.table.place
    spilled = spill(samples.context, kernels.cache_bytes)
    return said.near[place] + said.far[place] * spilled, said.deviation[place]


def _of_kind(
    samples: Samples, rows: Floats, near: Floats, to_prior: float | None, settings: TrainingSettings, tuned: Tuned
) -> tuple[KindModel, list[str]]:
    us, names = samples.us, samples.keys
    kind = str(samples.kinds[0])
    keys = tuple(sorted(set(names)))
    codes = np.array([keys.index(name) for name in names])
    work = _work(rows, us, to_prior)
    counts = np.bincount(codes, minlength=len(keys))
    key_work = np.array(
        [
            _work(rows[codes == c], us[codes == c], to_prior, work) if count >= KEY_ROWS else work
            for c, count in enumerate(counts)
        ]
    )
    left = np.log(us / np.einsum("ij,ij->i", rows, key_work[codes]))
    sums = np.bincount(codes, np.clip(left, -_MOST_LEVEL, _MOST_LEVEL), minlength=len(keys))
    levels = nine_digits_each(sums / (counts + _SHRINK))
    left -= levels[codes]
    seen = logs(samples.table.sizes)[samples.table.place]
    processes = {}
    for code, key in enumerate(keys):
        at = np.flatnonzero(codes == code)
        if len(at) >= PROCESS_ROWS:
            processes[key] = Process.standardised(seen[at], left[at], settings.seeds[0], tuned.numbers.get(key))
            tuned.numbers.setdefault(key, processes[key].numbers)
    texts = []
    if len(us) >= TREE_ROWS:
        matrix = seen_by_trees(seen, codes, np.einsum("ij,ij->i", near, key_work[codes]))
        if kind not in tuned.parameters:
            tuned.parameters[kind] = _parameters(matrix, left, samples.group, settings)
        boosters = [boost(_data(matrix, left), tuned.parameters[kind], seed) for seed in settings.seeds]
        texts = [booster.model_to_string() for booster in boosters]
    spread = _unlike(rows, us, codes, to_prior)
    return KindModel(work, keys, key_work, levels, counts, processes, bool(texts), spread), texts


def _parameters(matrix: Floats, left: Floats, group: Integers, settings: TrainingSettings) -> Parameters:
    if len(left) < TUNED_ROWS or len(set(group)) < 4:
        return dict(SMALL)
    if settings.trials == 0:
        return dict(QUICK)
    return search(matrix, left, held_out(group, settings), settings)


def _work(rows: Floats, us: Floats, to_prior: float | None, of_kind: Floats | None = None) -> Floats:
    """Return non-negative us per unit of each term with the least relative squared error (TERMS + 1,).

    `to_prior` is what nodes of all kinds take over the prior's time, None without one; `of_kind` what is found for the kind,
    whose spilled weights count where too few rows spill any.
    """
    prior = len(TERMS)
    weight = 1.0 / np.maximum(us, _RESOLVED_US)
    work = np.zeros(rows.shape[1])
    if to_prior is not None and len(us) < _ALL_TERMS_ROWS:
        ratios = np.log(us / rows[:, prior])
        work[prior] = np.exp((ratios.sum() + _SHRINK * np.log(to_prior)) / (len(us) + _SHRINK))
        return nine_digits_each(work)
    scale = np.maximum(rows.max(axis=0), 1e-9)
    design, target = rows / scale * weight[:, None], us * weight
    columns = np.arange(rows.shape[1])
    if len(us) < _ALL_TERMS_ROWS:
        pairs = [np.array([0, column]) for column in range(1, prior)]
        columns = min(pairs, key=lambda pair: optimize.nnls(design[:, pair], target)[1])
    if (rows[:, SPILLED] > _SPILLED * rows[:, _WEIGHTS]).sum() < _SPILLING_ROWS:
        columns = columns[columns != SPILLED]
        work[SPILLED] = of_kind[SPILLED] * scale[SPILLED] if of_kind is not None else 0.0
        target = target - design[:, SPILLED] * work[SPILLED]
    work[columns] = optimize.nnls(design[:, columns], target)[0]
    work /= scale
    if to_prior is None:  # never no time at all: the ratio stays finite
        work[0] = max(work[0], _LEAST_CONSTANT * float(us.min()), _LEAST_US)
    else:
        work[prior] = max(work[prior], _LEAST_CONSTANT * to_prior)
    return nine_digits_each(work)


def _fallback(rows: Floats, us: Floats, kinds: Any, to_prior: float | None) -> tuple[Floats, float]:
    """Return the terms of all kinds, and how far off they are for a kind that they were fitted without."""
    if to_prior is None:
        return _work(rows, us, None), _unlike(rows, us, kinds, None)
    work = np.zeros(rows.shape[1])
    work[-1] = to_prior
    return work, nine_digits(max(_LEAST_SPREAD, float(np.std(np.log(us / (rows @ work))))))


def _unlike(rows: Floats, us: Floats, labels: Any, to_prior: float | None) -> float:
    """Return the deviation of log time of a label that was not measured, by each one left out of the terms."""
    squares = [_USUAL_SPREAD**2] * 2  # until several say otherwise
    for label in sorted(set(labels)):
        out = labels == label
        if not out.all():
            off = np.log(us[out] / np.maximum(rows[out] @ _work(rows[~out], us[~out], to_prior), _LEAST_US))
            squares.append(min(float(np.mean(off**2)), _MOST_SPREAD**2))
    return nine_digits(float(np.sqrt(np.mean(squares))))


def with_stretch(kernels: Kernels, stretch: Mapping[str, float]) -> Kernels:
    """Return the same with factors on the deviations of kinds."""
    return replace(kernels, kinds={kind: replace(one, stretch=stretch.get(kind, 1.0)) for kind, one in kernels.kinds.items()})


def group_folds(group: Integers, folds: int, seed: int) -> Integers:
    """Draw a fold for each row such that the rows of a group share one (n,); there are at most as many folds as groups."""
    groups, inverse = np.unique(group, return_inverse=True)
    shuffled = np.random.default_rng(seed).permutation(len(groups))
    return np.asarray((shuffled % max(1, min(folds, len(groups))))[inverse], dtype=np.int64)


def boost(data: Any, parameters: Mapping[str, Any], seed: int, *rounds: int, **watched: Any) -> Any:
    """Train the trees that predict ratios from the features."""
    return lightgbm.train({**_HUBER, **_FIXED, **parameters, "seed": seed}, data, *rounds, **watched)


def _data(matrix: Floats, ratio: Floats) -> Any:
    return lightgbm.Dataset(matrix, ratio, params={"verbosity": -1}, free_raw_data=False)


def held_out(group: Integers, settings: TrainingSettings) -> tuple[Integers, Integers]:
    """Return the rows that a search trains and tests on: a sample, with one share of the groups held out."""
    rng = np.random.default_rng(settings.seeds[0])
    sample = np.sort(rng.permutation(len(group))[:_TUNING_ROWS])
    held = group_folds(group[sample], 4, settings.seeds[0] + 1) == 0
    return sample[~held], sample[held]


def search(matrix: Floats, ratio: Floats, parts: tuple[Integers, Integers], settings: TrainingSettings) -> Parameters:
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
        learnt_from, tested_on = (_data(matrix[rows], ratio[rows]) for rows in parts)
        stops = [lightgbm.early_stopping(_EARLY_STOP, verbose=False), _give_up(trial)]
        parameters = {"metric": "l1", **parameters}
        booster = boost(learnt_from, parameters, settings.seeds[0], _MAX_TREES, valid_sets=[tested_on], callbacks=stops)
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
