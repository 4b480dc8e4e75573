"""What test cases of a pair in two sizes say together."""

from __future__ import annotations

from edgeplan.fusion.cases import Decision, Outcome
from edgeplan.fusion.settings import FusionSettings


def pooled(small: Outcome, large: Outcome, settings: FusionSettings) -> Decision:
    """What the outcomes of a pair in two sizes say together, where small probes alone decide nothing.

    Margins are averaged, weighted by their inverse variances. So a saving on large maps, part of which may be that of caches,
    is no proof where small ones lean against it.
    """
    both = (small, large)
    excess = [outcome.margin - settings.alpha for outcome in both]
    unclear = [abs(over) <= settings.confidence * outcome.noise for over, outcome in zip(excess, both, strict=True)]
    if not unclear[0] or (large.decision == "undecided" and not (unclear[1] and _material(large, settings))):
        return large.decision  # one that is undecided for another reason has no say
    weights = [outcome.noise**-2 for outcome in both]
    over = sum(weight * value for weight, value in zip(weights, excess, strict=True)) / sum(weights)
    if abs(over) <= settings.confidence * sum(weights) ** -0.5:
        return "undecided"
    return "fused" if over > 0 else "separate"


def _material(outcome: Outcome, settings: FusionSettings) -> bool:
    cheaper, dearer = sorted((outcome.op1_us, outcome.op2_us))
    return cheaper > settings.material_share * dearer
