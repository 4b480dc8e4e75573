"""Detecting fusion rules by timing alone (nn-Meter, section 4.1): no engine's name occurs here."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import pandas as pd

from edgeplan.fusion import builders
from edgeplan.fusion.cases import Case, Measure, Outcome, Timings, decide, nearest_plan, rewritten
from edgeplan.fusion.probes import MAP_KINDS
from edgeplan.fusion.rules import Contexts, FusionRules, Provenance, Rule
from edgeplan.fusion.settings import FusionSettings

COLUMNS = (
    "pair", "connection", "context", "t_op1_us", "t_op2_us", "t_pair_us", "margin", "noise", "decision", "repeats",
)  # fmt: skip
_ACTIVATIONS = ("relu", "relu6", "hswish", "hsigmoid")
_SHUFFLE = ("reshape", "transpose", "reshape")
#: What is asked behind two operators that fuse: second -> third.
_CHAINS: Mapping[str, tuple[str, ...]] = {
    "add": ("relu", "bn", "add"),
    "relu": ("add", "bn", "mul", "relu6"),
    "bn": ("add", "relu", "hswish"),
}
_OUTBOUND_PAIRS = 4
_CONVOLUTIONS = frozenset({"conv", "dwconv"})


@dataclass
class _Detection:
    settings: FusionSettings
    timings: Timings
    outcomes: dict[Case, Outcome] = field(default_factory=dict)
    decisions: dict[tuple[str, str, str], str] = field(default_factory=dict)

    def run(self, cases: Iterable[Case]) -> None:
        """Decide cases that are not decided yet."""
        self.add(decide([c for c in cases if c not in self.outcomes], self.timings, self.settings))

    def run_maps(self, name: str, firsts: Sequence[str], afters: Sequence[str]) -> None:
        """Decide pairs on feature maps: on small ones, then on large ones what did not fuse there.

        On small maps a saving is the dispatch of a node, on large ones a map that is not written and read again between two:
        which of them stands out from the noise depends on the engine.
        """
        # what the stem writes may keep a layout that pooling would not: only small probes put a pooling before each operator
        large = [first for first in firsts if first in _CONVOLUTIONS or name == self.settings.classes.names()[0]]
        self.run(builders.map_cases(self.settings, name, firsts, afters, small=True))
        cases = builders.map_cases(self.settings, name, large, afters)
        self.run([c for c in cases if self.decisions.get(c.key) != "fused"])

    def add(self, outcomes: Mapping[Case, Outcome]) -> None:
        """Keep outcomes; a pair is fused if a probe of either size clearly shows it."""
        for case, outcome in outcomes.items():
            self.outcomes[case] = outcome
            found = {self.outcomes[c].decision for c in self.outcomes if c.key == case.key}
            self.decisions[case.key] = next((decision for decision in ("fused", "separate") if decision in found), "undecided")

    def fused(self, pair: str, context: str = "", connection: str = "single") -> bool:
        """Whether a pair counts as fused: where that is clear. An unclear relu6, a bounded relu, goes as relu does."""
        decision = self.decisions.get((pair, connection, context))
        if decision == "undecided" and pair.endswith("_relu6"):
            decision = self.decisions.get((pair.removesuffix("6"), connection, context))
        return decision == "fused"

    def differs(self, pair: str, one: str, other: str) -> bool:
        """Whether a pair is clearly fused in one context and clearly not in another."""
        return {self.decisions.get((pair, "single", context)) for context in (one, other)} == {"fused", "separate"}


def detect(
    measure: Measure, settings: FusionSettings, provenance: Provenance | None = None
) -> tuple[FusionRules, pd.DataFrame]:
    """Find what a device fuses.

    Args:
        measure: times graphs, e.g. on a bench; called with further graphs as answers raise questions.
        settings: threshold, confidence, probes.
        provenance: stands in the rules.

    Returns:
        The rules, and one row for each test case (`COLUMNS`; times in microseconds, margin and noise relative to the cheaper
        operator's time). Undecided cases stand in the rules as not fused, and are named there; for pairs that are not
        tested see `builders.skipped_pairs`.
    """
    d = _Detection(settings, Timings(measure, settings))
    best, worst = settings.classes.names()[0], str(settings.classes.alignments[-1])
    d.run_maps(best, MAP_KINDS, MAP_KINDS)
    d.run(builders.row_cases(settings))
    d.run_maps(worst, builders.SENSITIVE, (*_ACTIVATIONS, "bn"))
    contexts = _contexts(d, best, worst)
    if contexts.order:
        d.run(builders.inbound_cases(settings, contexts.order, ("conv",)))
    _ask_structure(d, best)
    rules = _rules(d, contexts, provenance or Provenance(alpha=settings.alpha))
    return rules, frame(d.outcomes)


def frame(outcomes: Mapping[Case, Outcome]) -> pd.DataFrame:
    """Test cases as a table."""
    rows = [
        (
            c.pair,
            c.connection,
            " ".join(filter(None, (c.context, "small" if c.small else ""))),
            o.op1_us,
            o.op2_us,
            o.both_us,
            o.margin,
            o.noise,
            o.decision,
            o.repeats,
        )
        for c, o in outcomes.items()
    ]
    return pd.DataFrame(rows, columns=list(COLUMNS))


def _contexts(d: _Detection, best: str, worst: str) -> Contexts:
    """Group channel classes by what fuses in them; no contexts where the best and the worst class agree in everything."""
    settings = d.settings
    names = settings.classes.names()
    telling = {head: [b for b in (*_ACTIVATIONS, "bn") if d.differs(f"{head}_{b}", best, worst)] for head in builders.SENSITIVE}
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


def _ask_structure(d: _Detection, best: str) -> None:
    """Three operators, several in- and outbounds, duplicates, channel shuffle."""
    settings = d.settings
    for second, thirds in _CHAINS.items():
        if _pair_fused(d, "conv", second, best):
            chains = [(("conv", second), third) for third in thirds if _pair_fused(d, "conv", third, best)]
            for small in (True, False):
                cases = [builders.chain_case(settings, best, first, third, small=small) for first, third in chains]
                d.run([c for c in cases if d.decisions.get(c.key) != "fused"])
    singles = [
        (a, b) for a in ("conv", "dwconv", "bn", "add") for b in _ACTIVATIONS if a != "add" and _pair_fused(d, a, b, best)
    ]
    d.run([builders.outbound_case(settings, best, a, b) for a, b in singles[:_OUTBOUND_PAIRS]])
    d.run([builders.duplicate_case(settings, best)])
    case = builders.shuffle_case(settings, best)
    d.add({case: rewritten(case, d.timings, settings)})
    if _pair_fused(d, "conv", "add", best):
        case = builders.arms_case(settings, best)
        d.add({case: nearest_plan(case, d.timings, settings)})


def _pair_fused(d: _Detection, first: str, after: str, best: str) -> bool:
    return d.fused(f"{first}_{after}", best if first in builders.SENSITIVE else "", builders.connection(after))


def _rules(d: _Detection, contexts: Contexts, provenance: Provenance) -> FusionRules:
    pairs: dict[str, Rule] = {}
    inbound: dict[str, Rule] = {}
    grouped: dict[tuple[str, str], dict[str, bool]] = {}
    for pair, connection, context in d.decisions:
        if connection != "multi-outbound" and context != "left|right" and pair != "+".join(_SHUFFLE[:2]) + "_" + _SHUFFLE[2]:
            grouped.setdefault((pair, connection), {})[context] = d.fused(pair, context, connection)
    for (pair, connection), by_context in grouped.items():
        rule = _rule(by_context, contexts)
        (inbound if connection == "multi-inbound" else pairs)[pair] = rule
    outbound = [d.fused(p, c, k) for p, k, c in d.decisions if k == "multi-outbound" and c != "duplicate"]
    several = any(rule if isinstance(rule, bool) else any(rule.values()) for rule in inbound.values())
    arms = d.decisions.get(("conv_add", "multi-inbound", "left|right"))
    shuffle = "+".join(_SHUFFLE[:2]) + "_" + _SHUFFLE[2]
    undecided = [" ".join(filter(None, key)) for key, decision in d.decisions.items() if decision == "undecided"]
    return FusionRules(
        provenance=provenance.model_copy(update={"cases": len(d.decisions)}),
        pairs=pairs,
        inbound=inbound,
        multi_inbound=(2 if arms == "separate" else 1) if several else 0,
        # the branch beside it is the left-most reader: fused means with the right-most
        multi_outbound=2 if outbound and 2 * sum(outbound) > len(outbound) else 0,
        merges_duplicates=d.fused("relu_relu", "duplicate", "multi-outbound"),
        patterns=(_SHUFFLE,) if d.fused(shuffle) else (),
        contexts=contexts,
        undecided=tuple(undecided),
    )


def _rule(by_context: Mapping[str, bool], contexts: Contexts) -> Rule:
    """One answer where all contexts agree, else one for each label (or pair of labels)."""
    labels = contexts.order
    wanted = {*labels, *(f"{a}|{b}" for a in labels for b in labels)}
    known = {context: fused for context, fused in by_context.items() if context in wanted}
    if len(set(known.values())) > 1:
        return known
    return next(iter(known.values())) if known else next(iter(by_context.values()))
