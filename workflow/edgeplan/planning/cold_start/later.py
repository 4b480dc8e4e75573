"""Kernels for later runs: those that are fastest once they have run, whatever their preparation takes (NNV12 section 3.5)."""

from __future__ import annotations

from collections.abc import Sequence

from edgeplan.errors import FormatError
from edgeplan.planning.cold_start.plan import Plan
from edgeplan.planning.cold_start.profile import BIG, Candidate, Profile, prepare_ms


def fastest_warm(profile: Profile) -> tuple[int, ...]:
    """For each step the position of the candidate that executes fastest on all big cores once it has run.

    By warm times: the first execution in a process touches memory for the first time, and some kernels do in it what they
    never do again. Of equally fast ones the one that is prepared soonest.
    """

    def fastest(candidates: Sequence[Candidate]) -> int:
        costs = [(c.warm(profile.big_cores), sum(prepare_ms(profile, c, BIG, overlapped=False))) for c in candidates]
        return costs.index(min(costs))

    return tuple(fastest(layer.candidates) for layer in profile.layers)


def profile_for(made: Plan, profiles: Sequence[Profile]) -> Profile:
    """The profile of the plan's home layout.

    Raises:
        FormatError: there is none.
    """
    for profile in profiles:
        if profile.layout == made.layout and len(profile.layers) == len(made.steps):
            return profile
    raise FormatError(f"no profile of layout {made.layout}", where=f"plan of {made.model}", next_step="profile the model again")


def with_warm_kernels(made: Plan, profiles: Sequence[Profile]) -> Plan:
    """The plan with the kernels of K_warm for later runs, under its home layout.

    Args:
        made: the plan of the cold start, which stays as it is.
        profiles: what it was made from.

    Raises:
        FormatError: none is of the plan's layout.
    """
    profile = profile_for(made, profiles)
    chosen = zip(profile.layers, fastest_warm(profile), strict=True)
    return made.with_later([layer.candidates[o].implementation for layer, o in chosen])
