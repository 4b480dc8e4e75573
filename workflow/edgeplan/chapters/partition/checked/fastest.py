"""The fastest of several ways to run a model, by inferences in turn, and how sure that is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

_RESAMPLES, _SEED = 2000, 1
_ENDS = (2.5, 97.5)  # per cent
#: After so many turns a way whose least time is so many times the least of all is given up.
_SURE_AFTER, _HOPELESS = 3, 1.4


@dataclass(frozen=True, slots=True)
class Fastest:
    """The fastest way, and its margin over the next one.

    Attributes:
        way: name of it.
        median_ms: of every way, by name.
        next_best: name of the way that it is held against; "" where there is no other.
        margin: time of that one over its own, in the turns that both had.
        low, high: ends of the margin's 95 % interval.
    """

    way: str
    median_ms: Mapping[str, float]
    next_best: str
    margin: float
    low: float
    high: float


def fastest(times_ms: Mapping[str, Sequence[float]], way: str = "") -> Fastest:
    """Choose the way of the least median, or hold one that was chosen against the others.

    Args:
        times_ms: by way, the time of each turn; turns of one number met the same seconds, and are resampled together. A way
            that was given up has fewer. The first of equally fast ways is taken: the simplest stands first.
        way: chosen before; "": the fastest.
    """
    names = list(times_ms)
    medians = {name: float(np.median(own)) for name, own in times_ms.items()}
    way = way if way in medians else min(names, key=medians.__getitem__)
    others = [name for name in names if name != way]
    if not others:
        return Fastest(way, medians, "", 1.0, 1.0, 1.0)
    second = min(others, key=medians.__getitem__)
    turns = min(len(times_ms[way]), len(times_ms[second]))
    drawn = np.random.default_rng(_SEED).integers(0, turns, (_RESAMPLES, turns))
    table = [np.asarray(times_ms[name][:turns]) for name in (way, second)]
    own, other = (np.median(one[drawn], axis=1) for one in table)
    low, high = np.percentile(other / own, _ENDS)
    margin = float(np.median(table[1]) / np.median(table[0]))
    return Fastest(way, medians, second, margin, float(low), float(high))


def worth_a_turn(times_ms: Mapping[str, Sequence[float]]) -> list[str]:
    """The ways that may still be the fastest: a way none of whose turns comes near to the best of another is given up."""
    least = {name: min(own) for name, own in times_ms.items()}
    best = min(least.values(), default=0.0)
    return [name for name, ms in least.items() if len(times_ms[name]) < _SURE_AFTER or ms <= _HOPELESS * best]
