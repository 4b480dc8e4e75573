"""Predicts models by what an engine executes: each node, the whole, how far it may be off, and what to measure next."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from types import MappingProxyType
from typing import Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from edgeplan.graph.nodes import ExecutedModel, NodeConfig
from edgeplan.predictors.nodes.features import Floats, Integers, Table, spill
from edgeplan.predictors.nodes.kernels import Kernels
from edgeplan.support.lazy import lazily
from edgeplan.support.numerics import nine_digits

optimize = lazily("scipy.optimize")  # training alone needs it

#: Bytes of a context at which half of what a node costs more is reached.
_HALF_BYTES = 2e6
_FEWEST_MODELS = 8  # for a relation of their own
_FEWEST_WRONG = 5  # nodes far off for a bound of their own
_TRUSTED = 0.1  # relative error beyond which a model weighs less
_REWEIGHTED = 5

Source = Literal["measured", "learnt", "guessed"]
NOTHING: Mapping[str, float] = MappingProxyType({})

#: Without an interval: predictions of which guesses make up more than this share of the time. Of 164 models, each family left
#: out of training in turn, 90 % intervals held for 91 % of the 87 below, for 78 % of 32 above that were at most half guessed.
MOST_GUESSED = 0.1
#: A whole is known well enough at this deviation: whole models differ by as much from the sums of their measured nodes.
_ENOUGH = 0.05
#: Keys of fewer samples are measured first where they take this share of the time.
_FEW_SAMPLES, _MATTERS = 10, 0.02
#: Measuring a node takes so long, and so many of its runs, s.
_NODE_SECONDS, _NODE_RUNS = 0.04, 60
#: Before all that is chosen by its variance.
_FIRST = 1e9
#: Of a normal deviation, what 90 % lie within; bounds of a node are at most so far off, as logarithms.
_TWO_SIDED, _MOST_BOUND = 1.645, 5.0
_MOST_SCALED = 2.5  # deviations by which one measured node moves its siblings


class Strict(BaseModel):
    """Refuses unknown fields, and numbers that are not finite."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class Relation(Strict):
    """Relates a model to its nodes: call + scale x sum + nodes x (each + warm x c / (c + 2 MB) + cold x spilled share).

    What lies between two nodes is in no cache of the core where a context c passes through, and in none at all where it spills.

    Attributes:
        call_us: what an inference of one node takes without the node.
        scale: of the sum of nodes measured alone.
        node_us: of each node.
        warm_node_us: of each node more, where the core's own caches hold nothing of it.
        cold_node_us: likewise, where the last cache does not.
    """

    call_us: float = Field(ge=0)
    scale: float = Field(default=1.0, gt=0)
    node_us: float = Field(default=0.0, ge=0)
    warm_node_us: float = Field(default=0.0, ge=0)
    cold_node_us: float = Field(default=0.0, ge=0)

    def total(self, sums: Floats, nodes: Floats, context: Floats | float, spilled: Floats | float) -> Floats:
        """Return us of models (n,) by sums of their nodes in us, numbers of nodes, contexts, and shares that spill."""
        extra = self.node_us + self.warm_node_us * context / (context + _HALF_BYTES) + self.cold_node_us * spilled
        return np.asarray(self.call_us + self.scale * sums + nodes * extra)

    @staticmethod
    def fit(call_us: float, us: Sequence[float], sums: Floats, nodes: Floats, context: Floats, spilled: Floats) -> Relation:
        """Fit the four numbers to whole models by relative error; models that are far off weigh less."""
        if len(us) < _FEWEST_MODELS:
            return Relation(call_us=call_us)
        measured = np.array(us, np.float64)
        columns = [sums, nodes, nodes * context / (context + _HALF_BYTES), nodes * spilled]
        design = np.column_stack(columns) / measured[:, None]
        target = np.maximum(measured - call_us, 0.0) / measured
        weight, found = np.ones(len(us)), np.zeros(len(columns))
        for _ in range(_REWEIGHTED):
            found = optimize.nnls(design * weight[:, None], target * weight)[0]
            weight = np.sqrt(np.minimum(1.0, _TRUSTED / np.maximum(np.abs(target - design @ found), 1e-9)))
        if found[0] <= 0:  # overheads explain all of these models: none of them tells what a sum is worth
            return Relation(call_us=call_us)
        scale, node, warm, cold = (nine_digits(float(one)) for one in found)
        return Relation(call_us=call_us, scale=scale, node_us=node, warm_node_us=warm, cold_node_us=cold)


class Trust(Strict):
    """Says how far predictions may be off, as seen out of fold.

    Attributes:
        quantile: half width of an interval over its deviation.
        model_deviation: of log time of a model whose nodes are all measured.
        measured_deviation: of log time of a node that was measured.
        together: share of the variance that nodes of one key have in common.
        guess: deviation from which on a node is guessed.
    """

    nominal: float = Field(default=0.9, gt=0.5, lt=1)
    quantile: float = Field(default=1.645, gt=0)
    model_deviation: float = Field(default=0.07, ge=0)
    measured_deviation: float = Field(default=0.04, ge=0)
    together: float = Field(default=0.5, ge=0, le=1)
    guess: float = Field(default=0.4, gt=0)
    models: int = Field(default=0, ge=0)


def conformal(scores: Floats, nominal: float) -> float:
    """Return the split conformal quantile of scores (n,)."""
    rank = min(len(scores), int(np.ceil((len(scores) + 1) * nominal)))
    return nine_digits(float(np.sort(scores)[rank - 1]))


def common_share(scaled: Floats, groups: Sequence[object]) -> float:
    """Return the share of the variance of scaled errors that members of a group have in common, over all pairs (0 to 1)."""
    bounded = np.clip(scaled, -3.0, 3.0)  # one wild error is no sign of many
    number = {group: place for place, group in enumerate(dict.fromkeys(groups))}
    at = np.array([number[group] for group in groups], np.int64)
    count, sums = np.bincount(at), np.bincount(at, bounded)
    squares = np.bincount(at, bounded**2)
    paired = count > 1
    if not paired.any():
        return Trust().together
    # A group of many pairs is one observation of what they have in common.
    between = ((sums**2 - squares)[paired] / (count * (count - 1.0))[paired]).mean()
    return float(np.clip(between / max(1e-9, (squares[paired] / count[paired]).mean()), 0.05, 0.95))


def guess_bound(deviation: Floats, off: Floats) -> float:
    """Return the deviation from which on nodes are guessed: 70 % of those off by half and more lie above it.

    The others are warned of least that way, so that most warnings are right; `off` is the absolute error of log time (n,).
    """
    wrong = np.sort(deviation[off > np.log(1.5)])
    return nine_digits(float(np.quantile(wrong, 0.3))) if len(wrong) >= _FEWEST_WRONG else Trust().guess


@dataclass(frozen=True)
class PredictedNode:
    """Tells of one executed node: us of all its runs in an inference, their own bounds, its share of the model's time."""

    name: str
    config: NodeConfig
    us: float
    low_us: float
    high_us: float
    source: Source
    share: float


@dataclass(frozen=True)
class NodePrediction:
    """Tells what an inference of one model is predicted to take.

    Attributes:
        interval_us: nominal bounds; None where too much is guessed.
        deviation: of log latency, by its nodes alone.
    """

    latency_us: float
    interval_us: tuple[float, float] | None
    deviation: float
    nodes: tuple[PredictedNode, ...]

    def share(self, source: Source) -> float:
        """Return the share of the nodes' time that is known so."""
        total = sum(node.us for node in self.nodes)
        return sum(node.us for node in self.nodes if node.source == source) / total if total else 0.0


@dataclass
class _Rows:
    """Holds the distinct nodes of a model: us and deviation of one run each, runs in an inference (n,); its context."""

    configs: list[NodeConfig]
    keys: tuple[str, ...]
    us: Floats
    deviation: Floats
    runs: Floats
    measured: np.ndarray[tuple[int], np.dtype[np.bool_]]
    samples: Integers
    place: Integers
    context: float
    spilled: float

    def variance(self, total: float) -> tuple[Floats, Floats]:
        """Return time by deviation of each, over the total, and the same of its key: nodes of one key err together (n,)."""
        own = self.us * self.runs * self.deviation / total
        _, code = np.unique(self.keys, return_inverse=True)
        return own, np.asarray(np.bincount(code, own)[code], np.float64)

    def relative(self, total: float) -> float:
        """Return the deviation of the whole, as a share of it."""
        own, key = self.variance(total)
        return math.sqrt(float((own * key).sum()))  # squares of keys' sums


@dataclass(frozen=True)
class NodePredictor:
    """Predicts what models take on one device.

    Attributes:
        speed: what times of the quiet machine were multiplied by, so that they are those of its usual moments.
    """

    kernels: Kernels
    relation: Relation
    trust: Trust
    device: str = ""
    engine: str = ""
    engine_version: str = ""
    measured_at: str = ""
    speed: float = 1.0

    def predict(self, model: ExecutedModel, known: Mapping[str, float] = NOTHING) -> NodePrediction:
        """Predict one model and its nodes; `known` are measured us of a run, by `NodeConfig.key`."""
        rows = self._rows(model, known)
        total = self._total(rows)
        deviation = rows.relative(total) * self.relation.scale
        half = self.trust.quantile * math.hypot(deviation, self.trust.model_deviation)
        nodes, bound = [], np.exp(np.minimum(_TWO_SIDED * rows.deviation, _MOST_BOUND))
        for node, place in zip(model.nodes, rows.place.tolist(), strict=True):
            us = float(rows.us[place]) * node.times
            source: Source = "measured" if rows.measured[place] else "learnt"
            if not rows.measured[place] and rows.deviation[place] > self.trust.guess:
                source = "guessed"
            factor = float(bound[place])
            share = self.relation.scale * us / total
            nodes.append(PredictedNode(node.name, node.config, us, us / factor, us * factor, source, share))
        guessed = sum(node.share for node in nodes if node.source == "guessed")
        interval = None if guessed > MOST_GUESSED else (total * math.exp(-half), total * math.exp(half))
        return NodePrediction(total, interval, deviation, tuple(nodes))

    def nodes_us(self, configs: Sequence[NodeConfig], context_bytes: float) -> Floats:
        """Return us of nodes by themselves, in a model of so many bytes of weights (n,)."""
        table = Table.of(configs)
        said = self.kernels.estimate(table, spread=False)
        us = said.near + said.far * spill(np.array([float(context_bytes)]), self.kernels.cache_bytes)
        return np.asarray(us[table.place])

    def predict_many(self, models: Sequence[ExecutedModel]) -> Floats:
        """Return us of each model, without intervals (models,); equal nodes that are one object take the least time."""
        counts = np.array([len(model.nodes) for model in models], np.int64)
        nodes = list(chain.from_iterable(model.nodes for model in models))
        table = Table.of([node.config for node in nodes])
        said = self.kernels.estimate(table, spread=False)
        of = np.repeat(np.arange(len(models)), counts)
        times = np.fromiter((node.times for node in nodes), np.float64, len(nodes))
        context = np.array([model.context_bytes for model in models], np.float64)
        spilled = spill(context, self.kernels.cache_bytes)
        us = (said.near[table.place] + said.far[table.place] * spilled[of]) * times
        sums, runs = (np.bincount(of, each, len(models)).astype(np.float64) for each in (us, times))
        return self.relation.total(sums, runs, context, spilled)

    def to_measure(
        self, model: ExecutedModel, known: Mapping[str, float] = NOTHING, *, seconds: float = 5.0, most: int = 25
    ) -> list[NodeConfig]:
        """Return the nodes to measure next, the most telling first: no more than fit into the time, none once it is enough.

        Keys of few samples that matter come first; then what weighs most in the variance of the whole.
        """
        rows = self._rows(model, known)
        total = self._total(rows)
        result: list[NodeConfig] = []
        while len(result) < most:
            time = rows.us * rows.runs / total
            named = {rows.keys[place] for place in np.flatnonzero(rows.measured)}
            few = (rows.samples < _FEW_SAMPLES) & np.array([name not in named for name in rows.keys], np.bool_)
            first = few & ~rows.measured & (time > _MATTERS)
            if not first.any() and rows.relative(total) < _ENOUGH:
                break
            own, of_key = rows.variance(total)
            weight = np.where(first, _FIRST + time, own * of_key) * ~rows.measured
            best = int(weight.argmax()) if len(weight) else 0
            if not weight.any() or (seconds := seconds - _NODE_SECONDS - _NODE_RUNS * float(rows.us[best]) / 1e6) < 0:
                break
            result.append(rows.configs[best])
            siblings = np.array([name == rows.keys[best] for name in rows.keys]) & ~rows.measured
            count = sum(name == rows.keys[best] for name in rows.keys) - int(siblings.sum())
            rows.deviation[siblings] *= self._unknown(count + 1) / self._unknown(count)
            rows.measured[best], rows.deviation[best] = True, self.trust.measured_deviation
        return result

    def _gain(self, count: int) -> float:
        """Return the best linear guess at what nodes of a key have in common, by the mean of so many of them."""
        return self.trust.together * count / (1.0 + self.trust.together * (count - 1.0))

    def _unknown(self, count: int) -> float:
        """Return the share of a deviation that is left when so many siblings are measured."""
        return math.sqrt(max(1e-6, 1.0 - self.trust.together * self._gain(count)))

    def _total(self, rows: _Rows) -> float:
        return float(self.relation.total((rows.us * rows.runs).sum(), rows.runs.sum(), rows.context, rows.spilled))

    def _rows(self, model: ExecutedModel, known: Mapping[str, float]) -> _Rows:
        table = Table.of([node.config for node in model.nodes])
        said = self.kernels.estimate(table)
        spilled = float(spill(np.array(model.context_bytes), self.kernels.cache_bytes))
        us = said.near + said.far * spilled
        count = len(us)
        first = np.full(count, -1)
        first[table.place[::-1]] = np.arange(len(table.place))[::-1]
        configs = [model.nodes[place].config for place in first.tolist()]
        runs = np.bincount(table.place, [node.times for node in model.nodes], count).astype(np.float64)
        measured = np.zeros(count, np.bool_)
        rows = _Rows(
            configs, table.keys, us, said.deviation.copy(), runs, measured, said.rows, table.place, model.context_bytes, spilled
        )
        if known:
            self._take(rows, np.array([known.get(config.key, math.nan) for config in configs]))
        return rows

    def _take(self, rows: _Rows, known: Floats) -> None:
        """Put in what was measured, and correct what has the same key: nodes of one key err together, as seen out of fold."""
        rows.measured = np.isfinite(known)
        for key in {rows.keys[place] for place in np.flatnonzero(rows.measured)}:
            of_key = np.array([name == key for name in rows.keys])
            seen, rest = of_key & rows.measured, of_key & ~rows.measured
            scaled = np.log(known[seen] / rows.us[seen]) / rows.deviation[seen]
            common = float(np.clip(scaled, -_MOST_SCALED, _MOST_SCALED).mean()) * self._gain(int(seen.sum()))
            rows.us[rest] *= np.exp(common * rows.deviation[rest])
            rows.deviation[rest] *= self._unknown(int(seen.sum()))
        rows.us[rows.measured] = known[rows.measured]
        rows.deviation[rows.measured] = self.trust.measured_deviation
