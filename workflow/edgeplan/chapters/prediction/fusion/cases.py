"""Describes test networks, which of them are compared, and what their times say (nn-Meter, section 4.1 and Inequality 1).

Timing single operators would charge each with the call and with conversions of layout at its ends, and then everything looks
fused. So every network of a test case has the same ends: a 1 x 1 convolution gives the tensor `x`, a pooling that skips nearly
all of it takes the result, and differences between networks leave only what the operators cost in between. `x` is also read by
a side branch that costs next to nothing, so that an operator under test is not fused with the stem.

Pairs are tried on large tensors once, and, where the next operator is element-wise and no fusion was seen, on small ones in
many blocks, each closed by a separator (a pooling, which no such operator fuses with). What is large costs its memory traffic,
what is small its launch, and fusion may save either: an activation that the engine applies in a second pass, inside one kernel,
saves only the launch.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType
from typing import Literal

import numpy as np
import numpy.typing as npt
from scipy.stats import norm as normal
from scipy.stats import t as student

from edgeplan.chapters.prediction.settings import FusionSettings
from edgeplan.graph.builder import GraphBuilder
from edgeplan.graph.ir import Graph

_SIDE_FEATURES = 4

#: Kinds of operators on feature maps and on rows of features, in the order of the paper's permutation.
MAP_KINDS = (
    "conv", "dwconv", "bn", "relu", "relu6", "hswish", "hsigmoid", "add", "mul", "concat", "split", "maxpool", "avgpool", "gap",
    "reshape", "transpose", "lrn",
)  # fmt: skip
ROW_KINDS = ("fc", "relu", "relu6", "hswish", "hsigmoid", "add", "mul")
BINARY = frozenset({"add", "mul", "concat"})


@dataclass(frozen=True)
class Probe:
    """A probe is one test network.

    Attributes:
        reads: channels of the network's input, which a 1 x 1 convolution reads; 0: `x` is the input itself.
        channels, size: channels, height and width of the tensor `x` that operators start from (or `size` rows of features).
        other: whether there is a second operand; `x` is then made from it, as in a residual block.
        operators: the operators under test, one behind the other; of those with two operands the second one reads what the
            block starts from.
        shared: the second operand of every block is also read by a side branch.
        tapped: the operator under test at this place is also read by a side branch, or, where there is a second operand, as
            that of the next block (-1: none).
        blocks: how often the operators under test are repeated, a separator behind each time; 0: once, without separator.
    """

    reads: int
    channels: int
    size: int
    other: bool = False
    operators: tuple[str, ...] = ()
    right: tuple[str, ...] = ()
    shared: bool = False
    tapped: int = -1
    twice: bool = False
    blocks: int = 0
    rows: bool = False

    def graph(self) -> Graph:
        """Build the probe's network; networks that agree in their beginnings name them alike."""
        width = self.reads or self.channels
        b = GraphBuilder("probe", (self.size, width) if self.rows else (1, width, self.size, self.size))
        x = self._stem(b, b.input) if self.reads else b.input
        other = ""
        if self.other:  # as in residual blocks, `x` is made from the second operand
            other, x = x, self._stem(b, x)
        outputs = [_side(b, x)]
        for what in self.right:
            other = _apply(b, what, other, "")
        for _ in range(max(1, self.blocks)):
            x, start = self._block(b, x, other, outputs)
            if self.blocks:  # a residual is what the block before started from, read for the last time
                x = _apply(b, "softmax" if self.rows else "maxpool", x, "")
                other = start
        x = b.fc(x, _SIDE_FEATURES, bias=False) if self.rows else b.maxpool(x, 1, -(-self.size // 2))
        return b.build(*outputs, *([] if x in outputs else [x]))

    def _block(self, b: GraphBuilder, x: str, other: str, outputs: list[str]) -> tuple[str, str]:
        """Append the operators under test; return their result, and the second operand that they leave for a next block."""
        first, operand = x, other
        start = x
        if self.shared:
            outputs.append(_side(b, other))
        for place, what in enumerate(self.operators):
            before = x
            x = _apply(b, what, x, operand)
            operand = first if what in BINARY else operand
            if place == self.tapped and self.other and self.blocks:
                start = x
            elif place == self.tapped:
                outputs.append(_side(b, x))
            if self.twice and place == len(self.operators) - 1:
                outputs.append(_side(b, _apply(b, what, before, other)))
        return x, start

    def _stem(self, b: GraphBuilder, source: str) -> str:
        return b.fc(source, self.channels) if self.rows else b.conv(source, self.channels, 1)


def _side(b: GraphBuilder, x: str) -> str:
    shape = b.shape(x)
    return b.fc(x, _SIDE_FEATURES, bias=False) if len(shape) == 2 else b.maxpool(x, 1, max(shape[2:]))


def _apply(b: GraphBuilder, what: str, x: str, other: str) -> str:
    """Append one operator; `open`, `swap`, `join` are the steps of a channel shuffle, `conv3` a 3 x 3 convolution."""
    return _BUILDERS[what](b, x, other) if what in _BUILDERS else b.activation(x, what)


def _halves(b: GraphBuilder, x: str) -> str:
    half = b.channels(x) // 2
    return b.split(x, (half, b.channels(x) - half))[0]


def _reshape(b: GraphBuilder, x: str) -> str:
    rows, columns, *rest = b.shape(x)
    return b.reshape(x, (rows, columns, rest[0] * 2, rest[1] // 2) if rest else (rows // 2, columns * 2))


def _open(b: GraphBuilder, x: str) -> str:
    n, c, h, w = b.shape(x)
    return b.reshape(x, (n, 2, c // 2, h, w))


def _join(b: GraphBuilder, x: str) -> str:
    n, inner, outer, h, w = b.shape(x)
    return b.reshape(x, (n, inner * outer, h, w))


def _misjoin(b: GraphBuilder, x: str) -> str:
    n, inner, outer, h, w = b.shape(x)
    return b.reshape(x, (n, inner * outer, h * 2, w // 2))


_BUILDERS: Mapping[str, Callable[[GraphBuilder, str, str], str]] = MappingProxyType(
    {
        "conv": lambda b, x, _: b.conv(x, b.channels(x), 1),
        "conv3": lambda b, x, _: b.conv(x, b.channels(x), 3),
        "dwconv": lambda b, x, _: b.dwconv(x, 3),
        "fc": lambda b, x, _: b.fc(x, b.channels(x)),
        "bn": lambda b, x, _: b.bn(x),
        "add": lambda b, x, other: b.add(x, other),
        "mul": lambda b, x, other: b.mul(x, other),
        "concat": lambda b, x, other: b.concat([x, other]),
        "split": lambda b, x, _: _halves(b, x),
        "maxpool": lambda b, x, _: b.maxpool(x, 3, 1, 1),
        "avgpool": lambda b, x, _: b.avgpool(x, 3, 1, 1),
        "softmax": lambda b, x, _: b.softmax(x),
        "gap": lambda b, x, _: b.gap(x),
        "reshape": lambda b, x, _: _reshape(b, x),
        "transpose": lambda b, x, _: b.transpose(x, (0, 1, 3, 2)),
        "lrn": lambda b, x, _: b.lrn(x),
        "open": lambda b, x, _: _open(b, x),
        "swap": lambda b, x, _: b.transpose(x, (0, 2, 1, 3, 4)),
        "join": lambda b, x, _: _join(b, x),
        "misjoin": lambda b, x, _: _misjoin(b, x),
    }
)


Decision = Literal["fused", "separate", "undecided"]
Connection = Literal["single", "multi-inbound", "multi-outbound"]


#: Measures graphs: normalised block minima of each in us (blocks,); the second argument asks for the k-th measurement of the
#: same graphs, made afresh. None stands for what the time did not suffice for.
Measure = Callable[[Sequence[Graph], int], Sequence[npt.NDArray[np.float64] | None]]

#: A sum of probe times: probe and its sign.
Terms = tuple[tuple[Probe, int], ...]

_TINY_US = 1e-3
#: An undecided case is measured this often before it may be given up, and by cautious settings what decides for several cases
#: or for whole models before it is believed: the noise of one measurement is itself not known well, and a disturbance may
#: outlast it.
_LEAST_MEASUREMENTS = 3
#: What settings that are not cautious take for fused is measured this often.
_LEAST_FUSED = 2
#: From so many blocks on their median absolute deviation tells their spread, which outliers do not change.
_ENOUGH_BLOCKS = 9
#: What so many cases share decides for several: disturbed once, it would decide all of them wrongly.
_SHARED_BY = 3


@dataclass(frozen=True)
class Case:
    """A test case times two operators apart and together.

    Attributes:
        pair: name of the rule, `"<first>_<next>"` or `"<first>+<last>_<next>"`.
        small: whether the probes are of many small tensors rather than of a large one.
        op1, op2, both: probe times that add up to the time of the first operator(s), of the next one, and of both connected.
    """

    pair: str
    connection: Connection
    context: str
    op1: Terms
    op2: Terms
    both: Terms
    small: bool = False

    @property
    def key(self) -> tuple[str, str, str]:
        """Return the key of the rule that the case informs, whatever the size of its probes."""
        return self.pair, self.connection, self.context

    @property
    def probes(self) -> tuple[Probe, ...]:
        """Return the probes to time."""
        return tuple(dict.fromkeys(probe for terms in (self.op1, self.op2, self.both) for probe, _ in terms))


@dataclass(frozen=True)
class CaseOutcome:
    """An outcome summarises the times of a case.

    Attributes:
        margin: saving over the time of the cheaper operator; compared with alpha.
        noise: standard error of the margin.
        reason: why no further measurement could decide the case, where its kind tells.
    """

    op1_us: float
    op2_us: float
    both_us: float
    margin: float
    noise: float
    decision: Decision
    repeats: int
    reason: str = ""


_NO_TIME = CaseOutcome(0.0, 0.0, 0.0, 0.0, 0.0, "undecided", 0, "the time for this stage was over")


class Timings:
    """Holds the times of probes, over as many measurements as were asked for."""

    def __init__(self, measure: Measure, settings: FusionSettings) -> None:
        self._measure, self._settings = measure, settings
        self._blocks: dict[Probe, list[npt.NDArray[np.float64]]] = {}

    def require(self, probes: Sequence[Probe], repeats: int) -> None:
        """Measure until each probe was measured `repeats` times, or the time is over."""
        for repeat in range(repeats):
            missing = [p for p in dict.fromkeys(probes) if len(self._blocks.get(p, ())) == repeat]
            if missing:
                for probe, block_us in zip(missing, self._measure([p.graph() for p in missing], repeat), strict=True):
                    if block_us is not None:
                        self._blocks.setdefault(probe, []).append(block_us)

    def known(self, case: Case) -> bool:
        """Tell whether each probe of a case was measured."""
        return all(probe in self._blocks for probe in case.probes)

    def repeats(self, probe: Probe) -> int:
        """Count the measurements of a probe."""
        return len(self._blocks[probe])

    def time(self, probe: Probe) -> tuple[float, float]:
        """Return a probe's median time over all blocks and its standard error, in microseconds.

        What few blocks say of their own spread is little: the middle one of three deviations is often small by chance, the
        standard deviation sometimes. So cautious settings take the latter until there are enough for outliers to be passed
        over, and widen the error as Student's t is wider than a normal distribution at `confidence` standard errors.
        """
        blocks = np.concatenate(self._blocks[probe])
        count, median = len(blocks), float(np.median(blocks))
        if self._settings.cautious and 1 < count < _ENOUGH_BLOCKS:
            spread = float(np.std(blocks, ddof=1))
        else:
            spread = 1.4826 * float(np.median(np.abs(blocks - median)))  # of a normal distribution with these deviations
        error = 1.2533 * spread / np.sqrt(count)  # of the median rather than the mean
        if self._settings.cautious:
            error *= _wider(count, self._settings.confidence)
        floor = self._settings.noise_floor * median / np.sqrt(len(self._blocks[probe]))
        return median, float(np.hypot(error, floor))


@cache
def _wider(count: int, confidence: float) -> float:
    """Return the ratio of Student's t for so many values to a normal quantile at `confidence` standard errors."""
    return float(student.ppf(normal.cdf(confidence), count - 1) / confidence) if count > 1 else 1.0


def judge(case: Case, timings: Timings, settings: FusionSettings) -> CaseOutcome:
    """Apply Inequality 1 to a measured case.

    With S the saving T1 + T2 - T12 and m the time of the cheaper operator, fused means S > alpha m. The decision is clear when
    S - alpha m is `confidence` standard errors from 0 (a probe that occurs several times counts once). An operator whose time
    cannot be told from 0, such as a reshape, is not the cheaper one: saving half of nothing would prove nothing. Where neither
    can be told, or, on large maps, the cheaper one is too small a share of the other for a saving to be told from how that one
    varies with what stands around it (`material_share`), the case is undecided. So it is where the saving is less than half of
    what can be told, but what cannot may be as much as such a share: the saving may be the whole of it. And so it is where both
    together take longer than one by one by as much as alpha m: two nodes would not, so the engine runs something else, perhaps
    one slow node.
    """
    (op1, error1), (op2, error2), (both, _) = (_total(timings, (terms, 1.0)) for terms in (case.op1, case.op2, case.both))
    operators = ((op1, error1, case.op1), (op2, error2, case.op2))
    seen = [operator for operator in operators if operator[0] > settings.confidence * operator[1]]
    cheaper, error, terms = min(seen or operators, key=lambda operator: operator[0])
    saving = op1 + op2 - both
    excess, excess_error = _total(timings, (case.op1, 1.0), (case.op2, 1.0), (case.both, -1.0), (terms, -settings.alpha))
    decision: Decision = "undecided"
    material = case.small or cheaper > settings.material_share * max(op1, op2)
    if seen and material and abs(excess) > settings.confidence * excess_error:
        unseen = [op[0] + settings.confidence * op[1] for op in operators if op not in seen]
        hidden = max(unseen, default=0.0) > settings.material_share * cheaper
        doubtful = hidden or _dearer(saving, excess_error, cheaper, settings)
        decision = "fused" if excess > 0 else "undecided" if doubtful else "separate"
    scale = max(cheaper, error, _TINY_US)
    repeats = max(timings.repeats(p) for p in case.probes)
    return CaseOutcome(op1, op2, both, saving / scale, excess_error / scale, decision, repeats)


def _dearer(saving: float, error: float, cheaper: float, settings: FusionSettings) -> bool:
    return saving < error - settings.alpha * cheaper


def rewritten(case: Case, timings: Timings, settings: FusionSettings) -> CaseOutcome:
    """Measure a chain (both) and the same operators in an order of elements that makes them no such chain (op1).

    Where both run the same nodes they take the same time. `fused` means that they clearly do not: the engine runs a kernel of
    its own for the chain, faster or slower. The margin is the difference over the shorter time, compared with
    `rewritten_difference`.
    """
    for repeats in range(1, settings.max_rounds + 1):
        timings.require(case.probes, repeats)
        if not timings.known(case):
            return _NO_TIME
        other, _ = _total(timings, (case.op1, 1.0))
        chain, _ = _total(timings, (case.both, 1.0))
        difference, error = _total(timings, (case.op1, 1.0), (case.both, -1.0))
        scale = max(min(other, chain), _TINY_US)
        excess = abs(difference) - settings.rewritten_difference * scale
        if abs(excess) > settings.confidence * error and repeats >= _before_belief(settings):
            break
    clear = abs(excess) > settings.confidence * error
    decision: Decision = "undecided" if not clear else "fused" if excess > 0 else "separate"
    return CaseOutcome(other, 0.0, chain, abs(difference) / scale, error / scale, decision, repeats)


def nearest_plan(case: Case, timings: Timings, settings: FusionSettings) -> CaseOutcome:
    """Measure a case of two candidate plans (op1, op2) and pick the one whose time is nearest to what really runs (both).

    The decision `fused` stands for the first plan, `separate` for the second; the margin is where the real time lies between
    them, in units of their difference (0 at the middle, positive towards the first). Both plans are sums of probes timed apart,
    which are off by some percent in what stands around them: of plans that differ by less than `material_share` of what really
    runs nothing can be told.
    """
    for repeats in range(1, settings.max_rounds + 1):
        timings.require(case.probes, repeats)
        if not timings.known(case):
            return _NO_TIME
        first, second, both = (_total(timings, (terms, 1.0))[0] for terms in (case.op1, case.op2, case.both))
        gap, gap_error = _total(timings, (case.op1, 1.0), (case.op2, -1.0))
        middle, error = _total(timings, (case.op1, 0.5), (case.op2, 0.5), (case.both, -1.0))
        clear = abs(gap) > settings.confidence * gap_error + _TINY_US and abs(middle) > settings.confidence * error
        alike = abs(gap) < settings.material_share * both
        if (clear or alike) and repeats >= _before_belief(settings):
            break
    scale = max(abs(gap), _TINY_US)
    towards_first = abs(both - first) < abs(both - second)
    decision: Decision = "undecided" if alike or not clear else "fused" if towards_first else "separate"
    margin = abs(middle) / scale * (1 if towards_first else -1)
    reason = "both plans take about as long" if alike else ""
    return CaseOutcome(first, second, both, margin, error / scale, decision, repeats, reason)


def _total(timings: Timings, *sums: tuple[Terms, float]) -> tuple[float, float]:
    """Return a weighted sum of probe times and its standard error."""
    weights: dict[Probe, float] = {}
    for terms, factor in sums:
        for probe, sign in terms:
            weights[probe] = weights.get(probe, 0.0) + sign * factor
    found = [(weight, *timings.time(probe)) for probe, weight in weights.items()]
    return sum(w * t for w, t, _ in found), math.sqrt(sum((w * e) ** 2 for w, _, e in found))


def decide(cases: Sequence[Case], timings: Timings, settings: FusionSettings) -> Mapping[Case, CaseOutcome]:
    """Measure cases and judge them; unclear ones are measured again, up to `max_rounds` times.

    Those that further measurements could not settle (`_may_clear`) are measured three times; by cautious settings savings
    beyond belief (`_incredible`) are, too, and probes that several cases share; by others what is fused is measured twice.
    """
    outcomes: dict[Case, CaseOutcome] = {}
    open_cases = list(dict.fromkeys(cases))
    uses = Counter(probe for case in open_cases for probe in case.probes)
    timings.require([probe for probe, count in uses.items() if count >= _SHARED_BY], _before_belief(settings))
    for repeats in range(1, settings.max_rounds + 1):
        timings.require([probe for case in open_cases for probe in case.probes], repeats)
        outcomes.update({c: judge(c, timings, settings) if timings.known(c) else _NO_TIME for c in open_cases})
        open_cases = [case for case in open_cases if _still_open(outcomes[case], repeats, settings)]
        if not open_cases:
            break
    return outcomes


def _still_open(outcome: CaseOutcome, repeats: int, settings: FusionSettings) -> bool:
    """Tell whether a case is to be measured again after so many measurements."""
    if outcome.decision == "undecided":
        return repeats < _LEAST_MEASUREMENTS or _may_clear(outcome, settings)
    if not settings.cautious:  # rules are few among pairs: one disturbance would make one
        return outcome.decision == "fused" and repeats < min(_LEAST_FUSED, settings.max_rounds)
    return repeats < _before_belief(settings) and _incredible(outcome, settings)


def _before_belief(settings: FusionSettings) -> int:
    """Return the least number of measurements of a case that decides for more than one pair."""
    return min(_LEAST_MEASUREMENTS, settings.max_rounds) if settings.cautious else 1


def _incredible(outcome: CaseOutcome, settings: FusionSettings) -> bool:
    """Tell whether more is saved than the cheaper operator takes, by as much as alpha: seldom true, often a disturbance."""
    return outcome.decision == "fused" and outcome.margin > 1 + settings.alpha


def _may_clear(outcome: CaseOutcome, settings: FusionSettings) -> bool:
    """Tell whether further measurements could decide a case: not where the noise hides even a full saving many times over."""
    hopeless = 4 * math.sqrt(settings.max_rounds)
    return outcome.noise * settings.confidence < hopeless and not _dearer(outcome.margin, outcome.noise, 1.0, settings)


def why_undecided(outcome: CaseOutcome, settings: FusionSettings) -> str:
    """Return why an undecided case is not measured further (see `_may_clear`); "" for one that is decided."""
    if outcome.decision != "undecided":
        return ""
    if outcome.reason:
        return outcome.reason
    if outcome.repeats >= settings.max_rounds:
        return f"unclear after {outcome.repeats} measurements"
    if outcome.margin < -outcome.noise:
        return "dearer together than one by one: the engine runs something else"
    return "too noisy to tell a saving from a cost"
