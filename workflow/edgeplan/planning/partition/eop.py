"""EOP's planner (VEE 2022), Algorithms 1 to 3 as written; line numbers in comments are the paper's.

Where the text leaves a choice:

* An operator's samples (Algorithm 1, line 4) are the times of its options: of splits by their share
  of the processor, of whole ones at 1. Its dimensions are those of its splits.
* Line 8 takes the dimension with the least T of equation 2 over all ratios.
* cm of equation 2 is what splitting adds: one hand-over there, one back, and moving the output. It
  is constant, as in the paper.
* The ratios (1, 0) and (0, 1) are the whole operator, without cm; so equation 3 holds for every
  split that is taken.
* Key operators take more than 95 % of the time (section 3.3): the fewest, by time on their faster
  processor.
* Algorithm 2 minimises T(op1) + T(op2), of which each term has a ratio of its own. Once each has
  its least (line 8), moving both (lines 10, 11) cannot lower the sum: *as written* it gains
  nothing. Figure 5 draws something else: a processor begins its part of the second operator when it
  has ended its part of the first, so a pair takes the larger of the processors' sums. That is
  `overlapped`; it lets the second operator begin before its input is there, so its estimate is none
  that an execution can keep.
* Conditions C1 to C3 are a recursion over the key operators: the least of the last alone and the
  last two tuned together.
* Other operators run whole where they are faster (Algorithm 3, line 10).
* A ratio becomes the operator's split nearest to it. The result is what an execution in sequence
  takes under the costs; the paper's AT (equation 4), a sum of estimates, is kept beside it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from edgeplan.planning.partition.costs import CPU, GPU, SPLIT, Choice, Option, PairCosts, PairStep, nearest

PATTERNS = ("constant", "linear", "staircase")
_STAIRS = range(2, 33)  # numbers of stairs that are tried
_SAME = 1e-9  # of the longest time: errors that differ by less are rounding
_LEVERAGE = 1e-9


@dataclass(frozen=True, slots=True)
class Pattern:
    """A pattern of time over share, a + b of the share or of its stairs, fitted to samples.

    The width of a stair is a share of the input, 0 for other patterns; the error is the root mean square of what each sample is
    off by when it is left out.
    """

    name: str
    base_ms: float
    slope_ms: float
    width: float
    error_ms: float

    def at(self, shares: npt.ArrayLike) -> Floats:
        """Estimated times (ms) of shares of the input, at least 0; a share of 0 takes nothing."""
        x = np.asarray(shares, dtype=np.float64)
        feature = _stairs(x, self.width) if self.width else x
        return np.where(x > 0, np.maximum(self.base_ms + self.slope_ms * feature, 0.0), 0.0)


def fitted_pattern(shares: Sequence[float], times_ms: Sequence[float]) -> Pattern:
    """Return the pattern of least error."""
    fitted = fits(shares, times_ms)
    least = min(p.error_ms for p in fitted) + _SAME * max(map(abs, times_ms))
    return next(p for p in fitted if p.error_ms <= least)


def fits(shares: Sequence[float], times_ms: Sequence[float]) -> list[Pattern]:
    """Fit every pattern that has samples enough, those of fewer parameters first; see `fitted_pattern`."""
    x, t = np.asarray(shares, dtype=np.float64), np.asarray(times_ms, dtype=np.float64)
    n = len(x)
    mean = float(t.mean())
    alone = _rms((t - mean) * n / (n - 1)) if n > 1 else 0.0
    candidates = [Pattern("constant", mean, 0.0, 0.0, alone)]
    if n > 2:  # two parameters
        a, b, _, left_out = _regress(x[None, :], t)
        candidates.append(Pattern("linear", float(a[0]), float(b[0]), 0.0, _rms(left_out[0])))
    if n > 3:  # three parameters
        widths = x.max() / np.asarray(_STAIRS)
        a, b, errors, left_out = _regress(np.stack([_stairs(x, w) for w in widths]), t)
        best = int(errors.sum(axis=1).argmin())
        # Without a sample the sum of squares falls by residual times left-out residual: its width
        # is chosen by what remains.
        residuals = t - a[:, None] - b[:, None] * np.stack([_stairs(x, w) for w in widths])
        chosen = (errors.sum(axis=1)[:, None] - residuals * left_out).argmin(axis=0)
        error = _rms(left_out[chosen, np.arange(n)])
        candidates.append(Pattern("staircase", float(a[best]), float(b[best]), float(widths[best]), error))
    return candidates


def _stairs(x: Floats, width: float) -> Floats:
    return np.asarray(np.ceil(x / width - _SAME), dtype=np.float64)


def _rms(values: Floats) -> float:
    return float(np.sqrt(np.mean(values**2)))


def _regress(features: Floats, t: Floats) -> tuple[Floats, Floats, Floats, Floats]:
    """Least squares, a feature each row: intercepts, slopes, squared residuals, left-out ones."""
    n = len(t)
    centre = features.mean(axis=1, keepdims=True)
    offset = features - centre
    spread = (offset**2).sum(axis=1, keepdims=True)
    flat = spread <= 0
    spread = np.where(flat, 1.0, spread)
    b = np.where(flat[:, 0], 0.0, (offset * (t - t.mean())).sum(axis=1) / spread[:, 0])
    a = t.mean() - b * centre[:, 0]
    residual = t - a[:, None] - b[:, None] * features
    leverage = 1 / n + np.where(flat, 0.0, offset**2 / spread)
    # A sample that decides the slope alone leaves the others' mean behind.
    alone = leverage > 1 - _LEVERAGE
    left_out = np.where(alone, (t - t.mean()) * n / (n - 1), residual / np.where(alone, 1.0, 1 - leverage))
    return a, b, residual**2, left_out


def fitted_costs(costs: PairCosts) -> PairCosts:
    """The same costs; both times of each split are those of the patterns over its dimension, whole ones as measured."""
    return replace(costs, steps=tuple(replace(s, options=_fitted(s)) for s in costs.steps))


def patterns(step: PairStep, dimension: str) -> tuple[Pattern | None, Pattern | None]:
    """Return the patterns of a step's splits over a dimension and of it whole, by share of the step, on the CPU and the GPU."""
    splits = [o for o in step.options if o.kind == SPLIT and o.dimension == dimension]
    found: list[Pattern | None] = []
    for processor in (CPU, GPU):
        samples = [(o.cpu_share, o.cpu_ms) if processor == CPU else (1 - o.cpu_share, o.gpu_ms) for o in splits]
        whole = step.best(processor)
        samples += [(1.0, whole.span_ms)] if whole is not None else []
        found.append(fitted_pattern(*zip(*samples, strict=True)) if samples else None)
    return found[0], found[1]


def _fitted(step: PairStep) -> tuple[Option, ...]:
    dimensions = {o.dimension for o in step.options if o.kind == SPLIT}
    known: Mapping[str, tuple[Pattern | None, Pattern | None]] = {name: patterns(step, name) for name in dimensions}
    return tuple(_on(o, *known[o.dimension]) if o.kind == SPLIT else o for o in step.options)


def _on(option: Option, cpu: Pattern | None, gpu: Pattern | None) -> Option:
    cpu_ms = float(cpu.at(option.cpu_share)) if cpu is not None else option.cpu_ms
    gpu_ms = float(gpu.at(1 - option.cpu_share)) if gpu is not None else option.gpu_ms
    return replace(option, cpu_ms=cpu_ms, gpu_ms=gpu_ms)


Floats = npt.NDArray[np.float64]
KEY_SHARE = 0.95
_RATIOS = 100  # steps of .01
_CPU_SHARES = np.arange(_RATIOS + 1) / _RATIOS


@dataclass(frozen=True)
class Matched:
    """An operator's patterns on the CPU and the GPU (Algorithm 1), None where it cannot run; "" for no dimension.

    Times and what splitting adds are by ratio, shape (101,), infinite where it cannot run.
    """

    dimension: str
    patterns: tuple[Pattern | None, Pattern | None]
    cpu_ms: Floats
    gpu_ms: Floats
    cm_ms: Floats

    @property
    def total_ms(self) -> Floats:
        """T of equation 2, by ratio."""
        return np.maximum(self.cpu_ms, self.gpu_ms) + self.cm_ms


@dataclass(frozen=True)
class Eop:
    """A decision of EOP: the option of each step, AT of equation 4 from the patterns, and of key operators the CPU's share."""

    choice: Choice
    estimate_ms: float
    key: tuple[int, ...]
    ratios: tuple[float, ...]
    matched: tuple[Matched, ...]


def pattern_match(costs: PairCosts, k: int) -> Matched:
    """Match patterns to operator `k` by Algorithm 1."""
    step = costs.steps[k]
    dimensions = sorted({o.dimension for o in step.options if o.kind == SPLIT})  # 2
    found = [_matched(costs, step, d) for d in dimensions or [""]]  # 3-7
    return min(found, key=lambda m: float(m.total_ms.min()))  # 8, 9


def _matched(costs: PairCosts, step: PairStep, dimension: str) -> Matched:
    splits = any(o.kind == SPLIT and o.dimension == dimension for o in step.options)
    times: list[Floats] = []
    found = patterns(step, dimension)  # 4-6
    for processor, pattern in zip((CPU, GPU), found, strict=True):
        shares = _CPU_SHARES if processor == CPU else 1 - _CPU_SHARES
        whole = step.best(processor)
        estimated = pattern.at(shares) if pattern is not None else np.where(shares > 0, np.inf, 0.0)
        inner = (shares > 0) & (shares < 1)
        allowed = (shares == 0) | (inner & splits) | ((shares == 1) & (whole is not None))
        times.append(np.where(allowed, estimated, np.inf))
    moved = max(step.to_cpu_ms, step.to_gpu_ms)
    inner = (_CPU_SHARES > 0) & (_CPU_SHARES < 1)
    cm = np.where(inner, costs.cpu_to_gpu_ms + costs.gpu_to_cpu_ms + moved, 0.0)
    return Matched(dimension, found, times[0], times[1], cm)


@dataclass(frozen=True, slots=True)
class Tuned:
    """Tuned operators are two with their time together and the positions of their ratios."""

    time_ms: float
    first: int
    second: int


def tune(before: Matched, op: Matched, *, overlapped: bool = False) -> Tuned:
    """Tune the ratio of an operator by Algorithm 2."""
    i, j = int(before.total_ms.argmin()), int(op.total_ms.argmin())  # 4-8
    best = Tuned(float(before.total_ms[i] + op.total_ms[j]), i, j)  # 9
    for sign in (1, -1):  # 10: the first to the CPU, the second to the GPU; 11: the reverse
        moves = np.arange(1, _RATIOS + 1) * sign
        first, second = i + moves, j - moves
        inside = (first >= 0) & (first <= _RATIOS) & (second >= 0) & (second <= _RATIOS)
        first, second = first[inside], second[inside]
        if overlapped and not len(first):
            continue
        if overlapped:
            both = np.maximum(before.cpu_ms[first] + op.cpu_ms[second], before.gpu_ms[first] + op.gpu_ms[second])
            times = both + before.cm_ms[first] + op.cm_ms[second]
        else:
            times = before.total_ms[first] + op.total_ms[second]
        if len(times) and float(times.min()) < best.time_ms:
            least = int(times.argmin())
            best = Tuned(float(times[least]), int(first[least]), int(second[least]))
    return best  # 12


def key_operators(costs: PairCosts) -> tuple[int, ...]:
    """Return the fewest operators that take more than 95 % of the time, in the order of the model."""
    times = [s.best_whole.span_ms for s in costs.steps]
    total, taken, key = sum(times), 0.0, []
    for k in sorted(range(len(times)), key=lambda k: (-times[k], k)):
        if taken > KEY_SHARE * total or not times[k]:
            break
        key.append(k)
        taken += times[k]
    return tuple(sorted(key))


def eop(costs: PairCosts, *, overlapped: bool = False, every: bool = False) -> Eop:
    """Decide the options of all operators by Algorithm 3.

    Ratios are tuned as Algorithm 2 is written, or as Figure 5 draws it (`overlapped`); of key operators, or of `every` one
    (figure 11).
    """
    key = tuple(range(len(costs.steps))) if every else key_operators(costs)
    matched = tuple(pattern_match(costs, k) for k in key)  # 2-5
    estimate, ratios = _recursion(matched, overlapped=overlapped)  # 6-9
    choice = []
    shares = dict(zip(key, zip(ratios, matched, strict=True), strict=True))
    for k, step in enumerate(costs.steps):
        if k in shares:
            share, match = shares[k]
            option = step.best(CPU) if share == 1 else step.best(GPU) if share == 0 else nearest(step, share, match.dimension)
            assert option is not None  # noqa: S101  ratios that cannot run take infinitely long
        else:  # 10
            option = step.best_whole
            estimate += option.span_ms
        choice.append(step.options.index(option))
    return Eop(tuple(choice), estimate, key, tuple(ratios), matched)  # 11


def _recursion(matched: tuple[Matched, ...], *, overlapped: bool) -> tuple[float, list[float]]:
    """C1 to C3 of section 3.3: the least time, by the last alone or the last two together."""
    least = [0.0]
    taken: list[tuple[int, ...]] = [()]
    for i, op in enumerate(matched):
        alone = int(op.total_ms.argmin())
        time = least[i] + float(op.total_ms[alone])  # C1
        last: tuple[int, ...] = (alone,)
        if i:
            pair = tune(matched[i - 1], op, overlapped=overlapped)  # C2
            if least[i - 1] + pair.time_ms < time:
                time, last = least[i - 1] + pair.time_ms, (pair.first, pair.second)
        least.append(time)
        taken.append(last)
    ratios: list[float] = []
    while len(ratios) < len(matched):
        ratios += [position / _RATIOS for position in reversed(taken[len(matched) - len(ratios)])]
    return least[-1], ratios[::-1]
