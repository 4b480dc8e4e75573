"""This module estimates how long the stage of the chapter takes."""

from __future__ import annotations

from collections.abc import Sequence

from edgeplan.chapters.joint.settings import JointParams

# Typical of two cores, not of this machine: two plans of a model, a start behind one that counts for nothing, and two models in
# turns by three ways.
_PLANS_S, _START_S, _ROUNDS_S = 80.0, 5.0, 45.0


def estimate(params: JointParams, engines: Sequence[str]) -> dict[str, float]:
    """Seconds that all devices take, where nothing is stored yet; engines do not matter."""
    del engines
    s = params.joint
    each = _PLANS_S + s.turns * (2 + len(s.beside)) * _START_S
    pairs = len(s.pairs_of) * _PLANS_S + len(s.pairs) * (s.pair_turns + 1) * _ROUNDS_S
    models = {"first inferences within a budget": len(s.devices) * len(s.models) * each}
    return models | ({"models in turns": len(s.devices) * pairs} if s.pairs else {})
