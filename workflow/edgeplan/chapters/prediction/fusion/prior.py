"""Takes rules of another machine with the same engine where timing here leaves open what fuses.

What fuses follows from the engine and its version far more than from the machine. So where a prior is given, the rules are the
prior's, and each clear decision that contradicts it replaces it: at twice the usual confidence, as among hundreds of cases some
are clear and wrong, or at the usual one where the prior is of another version.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pandas as pd

from edgeplan.chapters.prediction.fusion.builders import STRUCTURES
from edgeplan.chapters.prediction.fusion.settings import FusionSettings
from edgeplan.graph.fusion_rules import FusionRules, Rule, read_rules
from edgeplan.workspace import shipped_rules

_SAME_VERSION, _OTHER_VERSION = 2.0, 1.0  # of the confidence that settings ask for


def find_prior(names: Iterable[str], engine: str) -> FusionRules | None:
    """Return the shipped rules of the first named device with this engine; None where no named device has it."""
    for name in names:
        rules = read_rules(shipped_rules(name, where="fusion.prior"))
        if rules.provenance.engine == engine:
            return rules
    return None


def with_prior(timed: FusionRules, cases: pd.DataFrame, prior: FusionRules, settings: FusionSettings) -> FusionRules:
    """Return the prior's rules, replaced where timing here clearly contradicts them.

    Args:
        timed: what timing alone found.
        cases: its test cases (`detection.COLUMNS`).
        prior: rules of the same engine on another machine.
        settings: of the detection.

    Returns:
        Rules with the provenance and the undecided cases of `timed`; `provenance.prior` names the prior.
    """
    ours, theirs = timed.provenance, prior.provenance
    factor = _SAME_VERSION if ours.version == theirs.version else _OTHER_VERSION
    clear = (cases["margin"] - settings.alpha).abs() > factor * settings.confidence * cases["noise"]
    decided = cases[clear & (cases["decision"] != "undecided")]
    context = decided["context"].str.removesuffix("small").str.strip()
    tables: dict[str, dict[str, Rule]] = {"single": dict(prior.pairs), "multi-inbound": dict(prior.inbound)}
    for (pair, connection, label), part in decided.groupby([decided["pair"], decided["connection"], context]):
        rules = tables.get(str(connection), {})
        if pair in rules and label not in STRUCTURES and len(set(part["decision"])) == 1:
            fused = bool(part["decision"].iloc[0] == "fused")
            rules[pair] = _replaced(rules[pair], str(label), prior.contexts.order, fused=fused)
    named = f"{theirs.device}, {theirs.engine} {theirs.version}"
    return prior.model_copy(
        update={
            "provenance": ours.model_copy(update={"prior": named}),
            "pairs": tables["single"],
            "inbound": tables["multi-inbound"],
            "undecided": timed.undecided,
        }
    )


def _replaced(rule: Rule, label: str, order: Sequence[str], *, fused: bool) -> Rule:
    """Return a rule that says `fused` in one context, and in others what it said before."""
    if not label:
        return fused
    known = rule if isinstance(rule, dict) else dict.fromkeys((*order, *(f"{a}|{b}" for a in order for b in order)), rule)
    return {**known, label: fused} if label in known else rule
