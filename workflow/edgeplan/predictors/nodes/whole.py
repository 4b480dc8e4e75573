"""Relates a model's time to the sum of its nodes, and says how far a sum may be off."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from edgeplan.predictors.nodes.features import Floats
from edgeplan.support.lazy import lazily
from edgeplan.support.rounding import nine_digits

optimize = lazily("scipy.optimize")  # training alone needs it

#: Bytes of a context at which half of what a node costs more is reached.
_HALF_BYTES = 2e6
_FEWEST_MODELS = 8  # for a relation of their own
_FEWEST_WRONG = 5  # nodes far off for a bound of their own
_TRUSTED = 0.1  # relative error beyond which a model weighs less
_REWEIGHTED = 5


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class Relation(_Strict):
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


class Trust(_Strict):
    """Says how far predictions may be off, as seen out of fold.

    Attributes:
        nominal: coverage of intervals.
        quantile: half width of an interval over its deviation.
        model_deviation: of log time of a model whose nodes are all measured.
        measured_deviation: of log time of a node that was measured.
        together: share of the variance that nodes of one key have in common.
        guess: deviation from which on a node is guessed.
        models: whole models behind these figures.
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

    The others are warned of least that way, so that most warnings are right.

    Args:
        deviation: of each node (n,).
        off: absolute error of log time (n,).
    """
    wrong = np.sort(deviation[off > np.log(1.5)])
    return nine_digits(float(np.quantile(wrong, 0.3))) if len(wrong) >= _FEWEST_WRONG else Trust().guess
