"""Trains a device's predictor of nodes: what they take, how whole models relate to them, how far predictions may be off."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from edgeplan.graph.nodes import ExecutedModel
from edgeplan.predictors.nodes.features import Floats, spill
from edgeplan.predictors.nodes.kernels import Kernels
from edgeplan.predictors.nodes.learner import Samples, Tuned, learn, out_of_fold, time_of, with_stretch
from edgeplan.predictors.nodes.predictor import NodePredictor, Relation, Trust, common_share, conformal, guess_bound
from edgeplan.predictors.settings import TrainingSettings
from edgeplan.support.numerics import nine_digits

_STRETCH_ROWS = 20.0  # rows that a factor of 1 on deviations counts as
_STRETCH_BOUNDS = (0.5, 4.0)
_NORMAL_90 = 1.645
_NORMAL_50 = 0.6745
_FEWEST_MODELS = 10  # for a quantile of their own
_USUAL = Trust()


@dataclass(frozen=True)
class MeasuredModel:
    """Holds what is executed of a whole model, us of an inference, and those measured of nodes, by `NodeConfig.key`."""

    model: ExecutedModel
    us: float
    known: dict[str, float]


@dataclass(frozen=True)
class CrossValidated:
    """Holds predictions of samples by what was learnt without their models.

    Attributes:
        us: predicted (n,).
        deviation: of log time, before it is stretched (n,).
        folds: what was learnt without the groups of a fold, and these groups.
    """

    us: Floats
    deviation: Floats
    folds: tuple[tuple[Kernels, frozenset[int]], ...]


def train(
    samples: Samples,
    models: Sequence[MeasuredModel],
    call_us: float,
    cache_bytes: float,
    settings: TrainingSettings,
    prior: NodePredictor | None = None,
) -> tuple[NodePredictor, CrossValidated]:
    """Train on all samples; intervals are calibrated on whole models, each by what was learnt without its nodes.

    Nodes that were first seen in a model are of the group of its name; `call_us` is what an inference of one node takes without
    the node.
    """
    of_prior, tuned = prior.kernels if prior else None, Tuned()
    kernels = learn(samples, cache_bytes, settings, of_prior, tuned)
    us, deviation = np.full(len(samples), np.nan), np.full(len(samples), np.nan)
    folds = []
    for learnt, held in out_of_fold(samples, cache_bytes, settings, of_prior, tuned):
        us[held], deviation[held] = time_of(learnt, samples.take(held))
        folds.append((learnt, frozenset(samples.group[held].tolist())))
    checked = CrossValidated(us, deviation, tuple(folds))
    seen = np.isfinite(us)
    stretch = _stretches(samples, checked) if seen.any() else {}
    relation = _relation(kernels, models, call_us) if models else Relation(call_us=call_us)
    trust = _trust(samples, checked, stretch) if seen.any() else _USUAL
    whole = NodePredictor(with_stretch(kernels, stretch), relation, trust.model_copy(update={"nominal": settings.interval}))
    return _calibrated(whole, samples, models, checked, stretch), checked


def _stretches(samples: Samples, checked: CrossValidated) -> dict[str, float]:
    """Return by kind what deviations are to be multiplied by, so that 90 % of errors lie within 1.645 of them."""
    scaled, kinds = np.abs(np.log(checked.us / samples.us)) / checked.deviation, samples.kinds
    result = {}
    for kind in sorted(set(kinds.tolist())):
        own = scaled[(kinds == kind) & np.isfinite(scaled)]
        if len(own):
            wanted = np.log(max(float(np.quantile(own, 0.9)) / _NORMAL_90, 1e-3)) * len(own) / (len(own) + _STRETCH_ROWS)
            result[kind] = nine_digits(float(np.clip(np.exp(wanted), *_STRETCH_BOUNDS)))
    return result


def _trust(samples: Samples, checked: CrossValidated, stretch: dict[str, float]) -> Trust:
    seen = np.flatnonzero(np.isfinite(checked.us))
    error = np.log(checked.us / samples.us)[seen]
    deviation = checked.deviation[seen] * np.array([stretch.get(kind, 1.0) for kind in samples.kinds[seen]])
    keys = samples.keys
    groups = [(int(samples.group[place]), keys[place]) for place in seen.tolist()]
    together = nine_digits(common_share(error / deviation, groups))
    return Trust(together=together, guess=guess_bound(deviation, np.abs(error)))


def _relation(kernels: Kernels, models: Sequence[MeasuredModel], call_us: float) -> Relation:
    """Fit the relation of whole models to their nodes: measured ones where there are, else predicted ones."""
    alone = NodePredictor(kernels, Relation(call_us=0.0), _USUAL)
    sums = np.array([alone.predict(one.model, one.known).latency_us for one in models])
    nodes = np.array([float(sum(node.times for node in one.model.nodes)) for one in models])
    context = np.array([float(one.model.context_bytes) for one in models])
    return Relation.fit(call_us, [one.us for one in models], sums, nodes, context, spill(context, kernels.cache_bytes))


def _calibrated(
    whole: NodePredictor, samples: Samples, models: Sequence[MeasuredModel], checked: CrossValidated, stretch: dict[str, float]
) -> NodePredictor:
    """Return the predictor with a model's own deviation and the quantile of intervals by whole models."""
    if len(models) < _FEWEST_MODELS:
        return whole
    off = np.array([np.log(whole.predict(one.model, one.known).latency_us / one.us) for one in models])
    own = nine_digits(max(0.01, float(np.median(np.abs(off))) / _NORMAL_50))
    trust = whole.trust.model_copy(update={"model_deviation": own})
    names = {name: number for number, name in enumerate(samples.names)}
    blind = [replace(whole, kernels=with_stretch(kernels, stretch)) for kernels, _ in checked.folds]
    scores = []
    for one in models:
        number = names.get(one.model.name, -1)
        by = next((b for b, (_, groups) in zip(blind, checked.folds, strict=True) if number in groups), whole)
        said = by.predict(one.model)
        scores.append(abs(np.log(said.latency_us / one.us)) / np.hypot(said.deviation, own))
    quantile = max(0.1, conformal(np.array(scores), trust.nominal))
    return replace(whole, trust=trust.model_copy(update={"quantile": quantile, "models": len(models)}))


def refitted(predictor: NodePredictor, models: Sequence[MeasuredModel]) -> NodePredictor:
    """Return the predictor with the relation of whole models to their nodes as these models alone have it."""
    return replace(predictor, relation=_relation(predictor.kernels, models, predictor.relation.call_us))
