"""This module estimates how long the stage of the chapter takes."""

from __future__ import annotations

from collections.abc import Sequence

from edgeplan.chapters.joint.settings import JointParams

# Typical of two cores, not of this machine: two plans of a small model, and a start behind one that counts for nothing.
_PLANS_S, _START_S = 50.0, 2.5


def estimate(params: JointParams, engines: Sequence[str]) -> dict[str, float]:
    """Seconds that all devices take, where nothing is stored yet; engines do not matter."""
    del engines
    s = params.joint
    each = _PLANS_S + s.turns * (2 + len(s.beside)) * _START_S
    return {"first inferences within a budget": len(s.devices) * len(s.models) * each}
