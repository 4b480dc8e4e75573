"""The fastest of several ways to run a model, by inferences in turn, and how sure that is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

_RESAMPLES, _SEED = 2000, 1
_ENDS = (2.5, 97.5)  # per cent
#: After so many turns a way whose least time is so many times the least of all is given up.
_SURE_AFTER, _HOPELESS = 3, 1.4
#: Ways that take up to so many times as long as the fastest are opened once more: processes of one plan differ by that.
_NEAR = 1.25


@dataclass(frozen=True, slots=True)
class Fastest:
    """The fastest way, and its margin over the next one, as a `PairCheck` tells them."""

    way: str
    median_ms: Mapping[str, float]
    next_best: str
    margin: float
    low: float
    high: float


def fastest(*rounds: Mapping[str, Sequence[float]], way: str = "") -> Fastest:
    """Choose the way of the least time, the mean of its medians of all rounds, or hold one chosen before against the others.

    Args:
        rounds: of new processes each; by way, the time of each turn. Turns of one number met the same seconds, and are
            resampled together. A way that was given up has fewer. Only ways of every round are chosen, and the first of equally
            fast ones: the simplest stands first.
        way: chosen before; "": the fastest.
    """
    found = {name: [np.median(one[name]) for one in rounds if name in one] for name in rounds[0]}
    medians = {name: float(np.mean(own)) for name, own in found.items()}
    able = [name for name, own in found.items() if len(own) == len(rounds)]
    way = way if way in medians else min(able, key=medians.__getitem__)
    others = [name for name in able if name != way] or [name for name in medians if name != way]
    if not others:
        return Fastest(way, medians, "", 1.0, 1.0, 1.0)
    second, rng = min(others, key=medians.__getitem__), np.random.default_rng(_SEED)
    both = [[one[way], one[second]] for one in rounds if way in one and second in one]
    own, other = np.mean([_drawn(pair, rng) for pair in both], axis=0)
    low, high = np.percentile(other[1:] / own[1:], _ENDS)
    return Fastest(way, medians, second, float(other[0] / own[0]), float(low), float(high))


def _drawn(times_ms: Sequence[Sequence[float]], rng: np.random.Generator) -> npt.NDArray[np.float64]:
    """Return the median of each of some ways in the turns that all had, then its medians in resampled turns."""
    turns = min(map(len, times_ms))
    drawn = np.vstack([np.arange(turns), rng.integers(0, turns, (_RESAMPLES, turns))])
    return np.array([np.median(np.asarray(one)[drawn], axis=1) for one in times_ms])


def near(found: Fastest) -> list[str]:
    """Name the ways that may be the fastest in other processes, too."""
    return [name for name, ms in found.median_ms.items() if ms <= _NEAR * found.median_ms[found.way]]


def worth_a_turn(times_ms: Mapping[str, Sequence[float]]) -> list[str]:
    """The ways that may still be the fastest: a way none of whose turns comes near to the best of another is given up."""
    least = {name: min(own) for name, own in times_ms.items()}
    best = min(least.values(), default=0.0)
    return [name for name, ms in least.items() if len(times_ms[name]) < _SURE_AFTER or ms <= _HOPELESS * best]
