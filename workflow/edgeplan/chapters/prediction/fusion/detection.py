"""Detects fusion rules by timing alone (nn-Meter, section 4.1): no engine's name occurs here."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, field, replace

import pandas as pd

from edgeplan.chapters.prediction.fusion.cases import (
    BINARY,
    MAP_KINDS,
    ROW_KINDS,
    Case,
    CaseOutcome,
    Connection,
    Decision,
    Measure,
    Probe,
    Terms,
    Timings,
    decide,
    nearest_plan,
    rewritten,
    why_undecided,
)
from edgeplan.chapters.prediction.settings import FusionSettings
from edgeplan.graph.fusion_rules import Contexts, FusionRules, Provenance, Rule
from edgeplan.graph.kinds import ELEMENTWISE

#: Before large tensors a stem reads few channels, so that its own time, and the noise of it, stay small.
STEM_CHANNELS = 3
_ROW_STEM_FEATURES = 8
_SIZE_STEP = 8
#: Kinds behind which no second operand of the first shape fits.
_RESHAPING = frozenset({"concat", "split", "reshape", "gap"})
#: Kinds that engines run in the plain layout only.
_LAYOUT_BOUND = frozenset({"split", "reshape", "transpose"})
#: Contexts of cases about structure rather than channels.
SHARED, ARMS, DUPLICATE = "shared", "left|right", "duplicate"
STRUCTURES = frozenset({SHARED, ARMS, DUPLICATE})
#: Kinds whose rules are asked for every class of channel counts.
SENSITIVE = ("conv", "dwconv", "bn")


def skipped_pairs() -> dict[str, str]:
    """Return the ordered pairs that are not tested, with the reason; rules take them as not fused."""
    found = {}
    for first in dict.fromkeys((*MAP_KINDS, *ROW_KINDS)):
        for after in dict.fromkeys((*MAP_KINDS, *ROW_KINDS)):
            pair = f"{first}_{after}"
            if "reshape" in (first, after):
                found[pair] = "a reshape moves no data: where it runs cannot be seen in time, and makes no difference"
            elif first == "gap":
                found[pair] = "what follows a global pooling has too little to do to be timed"
            elif {first, after} & {"fc"} and not {first, after} <= set(ROW_KINDS):
                found[pair] = "a fully connected layer has rows of features at its ends, the other kind feature maps"
            elif first in _RESHAPING and after in ("add", "mul"):
                found[pair] = "the shapes of the operands cannot agree"
    return found


def base(settings: FusionSettings, channels: int, *, other: bool = False, reads: int = 0, blocks: int = 0) -> Probe:
    """Return a probe without operators under test, whose activations have about as many elements as the settings ask for."""
    reads = reads or (settings.channels[settings.classes.names()[0]] if blocks else STEM_CHANNELS)
    if blocks:
        return Probe(reads, channels, max(2, round(math.sqrt(settings.small_elements / channels))), other, blocks=blocks)
    size = max(1, round(math.sqrt(settings.elements / channels) / _SIZE_STEP)) * _SIZE_STEP
    if reads == STEM_CHANNELS and channels % settings.classes.alignments[-2]:
        reads = settings.channels[str(settings.classes.alignments[-1])]  # so that `x` is held as such channels are elsewhere
    return Probe(reads, channels, size, other)


def times(probe: Probe, empty: Probe) -> Terms:
    """Return the terms whose sum is the time of a probe's operators alone."""
    return ((probe, 1), (empty, -1))


def connected(empty: Probe, first: Sequence[str], after: str, *, tapped: bool = False) -> tuple[Terms, Terms, Terms]:
    """Return the times of the first operators, of the one behind them, and of all connected."""
    place = len(first) - 1 if tapped else -1
    op1 = replace(empty, operators=tuple(first), tapped=place)
    both = replace(empty, operators=(*first, after), tapped=place)
    alone = _after(empty, first)
    return times(op1, empty), times(replace(alone, operators=(after,)), alone), times(both, empty)


def _after(empty: Probe, first: Sequence[str]) -> Probe:
    """Return the probe whose `x` has the shape that the first operators write."""
    channels = empty.channels
    for what in first:
        if what == "concat":
            channels *= 2
        elif what == "split":
            channels //= 2
    return replace(empty, channels=channels)


def map_cases(
    settings: FusionSettings, name: str, firsts: Iterable[str], afters: Sequence[str], *, small: bool = False
) -> Iterator[Case]:
    """Yield pairs on feature maps whose channel count is of the named class; small ones only before element-wise operators."""
    skipped = skipped_pairs()
    for first in firsts:
        for after in afters:
            pair = f"{first}_{after}"
            repeatable = after in ELEMENTWISE and first not in _RESHAPING | _LAYOUT_BOUND
            if pair not in skipped and (repeatable or not small):
                other = bool({first, after} & BINARY)
                empty = base(settings, settings.channels[name], other=other, blocks=settings.blocks if small else 0)
                if {first, after} & _LAYOUT_BOUND and not other:
                    # a conversion that each pays alone, and both together once, would look like a saving: take what needs none
                    empty = replace(base(settings, settings.channels[str(settings.classes.alignments[-1])]), reads=0)
                context = name if first in SENSITIVE else ""
                yield Case(pair, connection(after), context, *connected(empty, (first,), after), small)


def row_cases(settings: FusionSettings) -> Iterator[Case]:
    """Yield test cases of pairs with a fully connected layer."""
    for first in ROW_KINDS:
        for after in ROW_KINDS:
            pair = f"{first}_{after}"
            if "fc" in (first, after) and pair not in skipped_pairs():
                other = bool({first, after} & BINARY)
                empty = Probe(_ROW_STEM_FEATURES, settings.features, settings.rows, other, blocks=settings.blocks, rows=True)
                yield Case(pair, connection(after), "", *connected(empty, (first,), after), small=True)


def inbound_cases(settings: FusionSettings, labels: Sequence[str], first: Sequence[str], after: str) -> Iterator[Case]:
    """Yield test cases of operators of one context, joined with a tensor of the same or another context.

    Where the contexts differ there is one large probe: in a chain of blocks all but the first would read what the block before
    wrote.
    """
    for own in labels:
        for other in labels:
            small = own == other
            reads, blocks = settings.channels[other], settings.blocks if small else 0
            empty = base(settings, settings.channels[own], reads=reads, other=True, blocks=blocks)
            yield Case(_name(first, after), "multi-inbound", f"{own}|{other}", *connected(empty, first, after), small=small)


def chain_case(
    settings: FusionSettings, name: str, first: Sequence[str], after: str, *, context: str = "", small: bool
) -> Case:
    """Return the test case of a further operator behind several that fuse, on channels of the named class."""
    empty = base(
        settings, settings.channels[name], other=bool({*first, after} & BINARY), blocks=settings.blocks if small else 0
    )
    return Case(_name(first, after), connection(after), context, *connected(empty, first, after), small)


def _name(first: Sequence[str], after: str) -> str:
    return f"{first[0]}_{after}" if len(first) == 1 else f"{first[0]}+{first[-1]}_{after}"


def shared_case(settings: FusionSettings, name: str) -> Case:
    """Return the case of a sum in whose kernel the second operand cannot be overwritten, since a side branch reads it too."""
    empty = replace(base(settings, settings.channels[name], other=True, blocks=settings.blocks), shared=True)
    return Case("conv_add", "multi-inbound", SHARED, *connected(empty, ("conv",), "add"), small=True)


def outbound_case(settings: FusionSettings, name: str, first: str, after: str) -> Case:
    """Return the test case of a pair whose first operator is also read by a side branch."""
    empty = base(settings, settings.channels[name], other=bool({first, after} & BINARY), blocks=settings.blocks)
    return Case(f"{first}_{after}", "multi-outbound", "", *connected(empty, (first,), after, tapped=True), small=True)


def duplicate_case(settings: FusionSettings, name: str) -> Case:
    """Return the test case of the same activation computed twice: fused means that it ran once."""
    empty = base(settings, settings.channels[name])
    once = replace(empty, operators=("relu",))
    single = times(once, empty)
    twice = times(replace(once, twice=True), replace(once, tapped=0))  # the second result is read by a side branch in both
    return Case("relu_relu", "multi-outbound", DUPLICATE, single, single, (*single, *twice))


def shuffle_case(settings: FusionSettings, name: str) -> Case:
    """Return the case of a channel shuffle (both) against three like operators that end in another shape (op1)."""
    empty = base(settings, settings.channels[name])
    shuffle, other = (times(replace(empty, operators=("open", "swap", last)), empty) for last in ("join", "misjoin"))
    return Case("reshape+transpose_reshape", "single", "", other, (), shuffle)


def arms_case(settings: FusionSettings, name: str) -> Case:
    """Return the case of two convolutions into one sum: plans that fuse the left (op1) or the right (op2), what runs (both)."""
    empty = base(settings, settings.channels[name], other=True)

    def of(*operators: str, right: tuple[str, ...] = ()) -> Terms:
        return times(replace(empty, operators=operators, right=right), empty)

    left, right = (*of("conv", "add"), *of("conv3")), (*of("conv"), *of("conv3", "add"))
    return Case("conv_add", "multi-inbound", ARMS, left, right, of("conv", "add", right=("conv3",)))


def connection(after: str) -> Connection:
    """Return the connection of an operator of a kind to the ones before it."""
    return "multi-inbound" if after in BINARY else "single"


COLUMNS = (
    "pair", "connection", "context", "t_op1_us", "t_op2_us", "t_pair_us", "margin", "noise", "decision", "repeats",
    "why_undecided",
)  # fmt: skip
_ACTIVATIONS = ("relu", "relu6", "hswish", "hsigmoid")
_SHUFFLE = ("reshape", "transpose", "reshape")
#: What is asked behind two operators that fuse: second -> third.
_CHAINS: Mapping[str, tuple[str, ...]] = {
    "bn": ("add", "relu", "hswish"),
    "add": ("relu", "bn", "add"),
    "relu": ("add", "bn", "mul", "relu6"),
}
#: Kinds whose kernels are asked whether they take in a reader though their output has another one, too.
_SHARING = ("conv", "dwconv", "bn", "add", "mul")
_CONVOLUTIONS = frozenset({"conv", "dwconv"})


@dataclass
class _Detection:
    settings: FusionSettings
    timings: Timings
    outcomes: dict[Case, CaseOutcome] = field(default_factory=dict)
    decisions: dict[tuple[str, str, str], str] = field(default_factory=dict)

    def run(self, cases: Iterable[Case]) -> None:
        """Decide cases that are not decided yet."""
        self.add(decide([c for c in cases if c not in self.outcomes], self.timings, self.settings))

    def run_maps(self, name: str, firsts: Sequence[str], afters: Sequence[str]) -> None:
        """Decide pairs on feature maps: on small ones, then on large ones what is unclear there.

        On small maps a saving is the dispatch of a node, on large ones a map that is not written and read again between two:
        which of them stands out from the noise depends on the engine. Where a node is clearly dispatched, a saving on large
        maps is that of caches or of a layout, and proves nothing.
        """
        # what the stem writes may keep a layout that pooling would not: only small probes put a pooling before each operator
        large = [first for first in firsts if first in _CONVOLUTIONS or name == self.settings.classes.names()[0]]
        self.run(map_cases(self.settings, name, firsts, afters, small=True))
        cases = map_cases(self.settings, name, large, afters)
        self.run([c for c in cases if self.decisions.get(c.key, "undecided") == "undecided"])

    def add(self, outcomes: Mapping[Case, CaseOutcome]) -> None:
        """Keep outcomes; of a pair tried in two sizes the small one decides if it is clear, else both do."""
        for case, outcome in outcomes.items():
            first = next((known for other, known in self.outcomes.items() if other.key == case.key), None)
            self.outcomes[case] = outcome
            if first is None:
                self.decisions[case.key] = outcome.decision
            elif self.decisions[case.key] == "undecided":
                self.decisions[case.key] = pooled_decision(first, outcome, self.settings)

    def fused(self, pair: str, context: str = "", connection: str = "single") -> bool:
        """Tell whether a pair counts as fused, which takes a clear outcome.

        An unclear relu goes as relu6, a bounded one, does, and back. What is unclear in one class of channel counts goes as it
        does in the others, if they agree.
        """
        decision = self.decisions.get((pair, connection, context))
        if decision == "undecided" and pair.endswith(("_relu", "_relu6")):
            twin = pair.removesuffix("6") if pair.endswith("6") else f"{pair}6"
            decision = self.decisions.get((twin, connection, context))
        if decision == "undecided" and context not in STRUCTURES:
            classes = (c for p, k, c in self.decisions if (p, k) == (pair, connection) and c not in STRUCTURES)
            return {self.decisions[pair, connection, c] for c in classes} - {"undecided"} == {"fused"}
        return decision == "fused"

    def differs(self, pair: str, one: str, other: str) -> bool:
        """Tell whether a pair is clearly fused in one context and clearly not in another."""
        return {self.decisions.get((pair, "single", context)) for context in (one, other)} == {"fused", "separate"}


def detect(
    measure: Measure, settings: FusionSettings, provenance: Provenance | None = None
) -> tuple[FusionRules, pd.DataFrame]:
    """Find what a device fuses.

    Returns:
        The rules, and one row for each test case (`COLUMNS`; times in microseconds, margin and noise relative to the cheaper
        operator's time). Undecided pairs stand in the rules as in other classes of channel counts or as not fused,
        undecided chains as their pair does; all are named there. For pairs that are not tested see `skipped_pairs`.
    """
    d = _Detection(settings, Timings(measure, settings))
    best, worst = settings.classes.names()[0], str(settings.classes.alignments[-1])
    d.run_maps(best, MAP_KINDS, MAP_KINDS)
    d.run(row_cases(settings))
    d.run_maps(worst, SENSITIVE, (*_ACTIVATIONS, "bn"))
    contexts = _contexts(d, best, worst)
    if contexts.order:
        d.run(inbound_cases(settings, contexts.order, ("conv",), "add"))
    _ask_chains(d, best, contexts.order)
    _ask_structure(d, best)
    rows = []
    for c, o in d.outcomes.items():
        context = " ".join(filter(None, (c.context, "small" if c.small else "")))
        told = astuple(o)[:-1]  # the reason is told by `why_undecided`
        rows.append((c.pair, c.connection, context, *told, why_undecided(o, settings)))
    rules = _rules(d, contexts, provenance or Provenance(alpha=settings.alpha))
    return rules, pd.DataFrame(rows, columns=list(COLUMNS))


def _contexts(d: _Detection, best: str, worst: str) -> Contexts:
    """Group channel classes by what fuses in them; no contexts where the best and the worst class agree in everything."""
    settings = d.settings
    names = settings.classes.names()
    telling = {head: [b for b in (*_ACTIVATIONS, "bn") if d.differs(f"{head}_{b}", best, worst)] for head in SENSITIVE}
    if not any(telling.values()):
        return Contexts()
    tables: dict[str, dict[str, str]] = {}
    for head, afters in telling.items():
        for name in names:
            d.run_maps(name, (head,), afters)
        tables[head] = {}
        for name in names:
            votes = [d.fused(f"{head}_{b}", name) == d.fused(f"{head}_{b}", best) for b in afters]
            tables[head][name] = best if 2 * sum(votes) >= len(votes) else worst
    return Contexts(
        classes=settings.classes, conv=tables["conv"], dwconv=tables["dwconv"], carried=tables["bn"], order=(best, worst)
    )


def _ask_chains(d: _Detection, best: str, labels: Sequence[str]) -> None:
    """Test a further operator behind several that fuse, in every context."""
    for second, thirds in _CHAINS.items():
        asked = [third for third in thirds if _pair_fused(d, "conv", third, best)]
        joining = [third for third in asked if labels and connection(third) != "single"]
        for name in labels or (best,):
            first = _fused_chain(d, second, name, alone=not labels)
            for small in (True, False) if first else ():
                cases = [
                    chain_case(d.settings, name, first, third, context=name if labels else "", small=small)
                    for third in asked
                    if third not in joining
                ]
                d.run([c for c in cases if d.decisions.get(c.key, "undecided") == "undecided"])
        if _pair_fused(d, "conv", second, best):
            for third in joining:
                d.run(inbound_cases(d.settings, labels, ("conv", second), third))


def _fused_chain(d: _Detection, second: str, name: str, *, alone: bool) -> tuple[str, ...]:
    """Return the operators from a convolution to `second` that fuse in a context: some sums only join behind a batch norm."""
    if connection(second) == "single" or alone:
        return ("conv", second) if _pair_fused(d, "conv", second, name) else ()
    context = f"{name}|{name}"
    if d.fused(f"conv_{second}", context, "multi-inbound"):
        return ("conv", second)
    return ("conv", "bn", second) if d.fused(f"conv+bn_{second}", context, "multi-inbound") else ()


def _ask_structure(d: _Detection, best: str) -> None:
    """Test operators with several in- and outbounds, duplicates and channel shuffle."""
    settings = d.settings
    for first in _SHARING:
        after = next((b for b in _ACTIVATIONS if _pair_fused(d, first, b, best)), "")
        if after:
            d.run([outbound_case(settings, best, first, after)])
    d.run([duplicate_case(settings, best)])
    case = shuffle_case(settings, best)
    d.add({case: rewritten(case, d.timings, settings)})
    if _pair_fused(d, "conv", "add", best):
        d.run([shared_case(settings, best)])
        case = arms_case(settings, best)
        d.add({case: nearest_plan(case, d.timings, settings)})


def _pair_fused(d: _Detection, first: str, after: str, best: str) -> bool:
    return d.fused(f"{first}_{after}", best if first in SENSITIVE else "", connection(after))


def _rules(d: _Detection, contexts: Contexts, provenance: Provenance) -> FusionRules:
    pairs: dict[str, Rule] = {}
    inbound: dict[str, Rule] = {}
    grouped: dict[tuple[str, str], dict[str, bool]] = {}
    for (pair, connection, context), decision in d.decisions.items():
        if "+" in pair and decision == "undecided":  # the first operator decides (Algorithm 1, line 5)
            head = f"{pair.split('+')[0]}_{pair.split('_')[1]}"
            grouped.setdefault((pair, connection), {})[context] = _in_context(d, head, connection, context, contexts)
            continue
        if connection != "multi-outbound" and context not in STRUCTURES and pair != "+".join(_SHUFFLE[:2]) + "_" + _SHUFFLE[2]:
            grouped.setdefault((pair, connection), {})[context] = d.fused(pair, context, connection)
    for (pair, connection), by_context in grouped.items():
        rule = _rule(by_context, contexts)
        (inbound if connection == "multi-inbound" else pairs)[pair] = rule
    sharing = {p.split("_")[0]: d.fused(p, c, k) for p, k, c in d.decisions if k == "multi-outbound" and c != DUPLICATE}
    several = any(rule if isinstance(rule, bool) else any(rule.values()) for rule in inbound.values())
    arms = d.decisions.get(("conv_add", "multi-inbound", ARMS))
    shuffle = "+".join(_SHUFFLE[:2]) + "_" + _SHUFFLE[2]
    undecided = [" ".join(filter(None, key)) for key, decision in d.decisions.items() if decision == "undecided"]
    return FusionRules(
        provenance=provenance.model_copy(update={"cases": len(d.decisions)}),
        pairs=pairs,
        inbound=inbound,
        multi_inbound=(2 if arms == "separate" else 1) if several else 0,
        # the branch beside it is the left-most reader: fused means with the right-most
        multi_outbound=2 if sharing and all(sharing.values()) else 0,
        sharing=tuple(kind for kind, fused in sharing.items() if fused),
        sums_overwrite=d.decisions.get(("conv_add", "multi-inbound", SHARED)) == "separate",
        merges_duplicates=d.fused("relu_relu", DUPLICATE, "multi-outbound"),
        patterns=(_SHUFFLE,) if d.fused(shuffle) else (),
        contexts=contexts,
        undecided=tuple(undecided),
    )


def _in_context(d: _Detection, pair: str, connection: str, context: str, contexts: Contexts) -> bool:
    """Return the decision on a pair in a context, or, without one, in the context that fuses most."""
    best = contexts.order[0] if contexts.order else ""
    asked = (c for c in (context, best, *(c for p, k, c in d.decisions if (p, k) == (pair, connection))))
    return next((d.fused(pair, c, connection) for c in asked if (pair, connection, c) in d.decisions), False)


def _rule(by_context: Mapping[str, bool], contexts: Contexts) -> Rule:
    """Return one answer where all contexts agree, else one for each label (or pair of labels)."""
    labels = contexts.order
    wanted = {*labels, *(f"{a}|{b}" for a in labels for b in labels)}
    known = {context: fused for context, fused in by_context.items() if context in wanted}
    if len(set(known.values())) > 1:
        return known
    return next(iter(known.values())) if known else next(iter(by_context.values()))


def pooled_decision(small: CaseOutcome, large: CaseOutcome, settings: FusionSettings) -> Decision:
    """Pool the outcomes of a pair in two sizes, where small probes alone decide nothing.

    Margins are averaged, weighted by their inverse variances. So a saving on large maps, part of which may be that of caches,
    is no proof where small ones lean against it.
    """
    cheaper, dearer = sorted((large.op1_us, large.op2_us))
    material = cheaper > settings.material_share * dearer
    excess = [outcome.margin - settings.alpha for outcome in (small, large)]
    unclear = [abs(e) <= settings.confidence * o.noise for e, o in zip(excess, (small, large), strict=True)]
    if not unclear[0] or (large.decision == "undecided" and not (unclear[1] and material)):
        return large.decision  # one that is undecided for another reason has no say
    # both sides times the sum of variances: the noise of either may be nothing
    over = excess[0] * large.noise**2 + excess[1] * small.noise**2
    if abs(over) <= settings.confidence * small.noise * large.noise * math.hypot(small.noise, large.noise):
        return "undecided"
    return "fused" if over > 0 else "separate"
