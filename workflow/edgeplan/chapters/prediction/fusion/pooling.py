"""Pools the test cases of a pair in two sizes into one decision."""

from __future__ import annotations

import math

from edgeplan.chapters.prediction.fusion.cases import CaseOutcome, Decision
from edgeplan.chapters.prediction.fusion.settings import FusionSettings


def pooled(small: CaseOutcome, large: CaseOutcome, settings: FusionSettings) -> Decision:
    """Pool the outcomes of a pair in two sizes, where small probes alone decide nothing.

    Margins are averaged, weighted by their inverse variances. So a saving on large maps, part of which may be that of caches,
    is no proof where small ones lean against it.
    """
    excess = [outcome.margin - settings.alpha for outcome in (small, large)]
    unclear = [abs(e) <= settings.confidence * o.noise for e, o in zip(excess, (small, large), strict=True)]
    if not unclear[0] or (large.decision == "undecided" and not (unclear[1] and _material(large, settings))):
        return large.decision  # one that is undecided for another reason has no say
    # both sides times the sum of variances: the noise of either may be nothing
    over = excess[0] * large.noise**2 + excess[1] * small.noise**2
    if abs(over) <= settings.confidence * small.noise * large.noise * math.hypot(small.noise, large.noise):
        return "undecided"
    return "fused" if over > 0 else "separate"


def _material(outcome: CaseOutcome, settings: FusionSettings) -> bool:
    cheaper, dearer = sorted((outcome.op1_us, outcome.op2_us))
    return cheaper > settings.material_share * dearer
