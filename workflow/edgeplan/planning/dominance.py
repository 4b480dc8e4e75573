"""Finds the candidates that can be in a plan: those that no other one beats, and those that a planner may take."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from edgeplan.planning.profile import BIG, LITTLE, Candidate, Profile, prepare_ms


def _costs(profile: Profile, c: Candidate) -> tuple[float, ...]:
    """Return every cost through which a candidate can enter a plan of this machine, weights being in memory."""
    core = BIG if profile.equal else LITTLE
    return (
        sum(prepare_ms(profile, c, BIG, overlapped=False)),
        sum(prepare_ms(profile, c, core, overlapped=True)),
        *(c.execute_ms[w] for w in sorted({profile.narrow, profile.big_cores})),  # the same factors for all
    )


def _disk_costs(profile: Profile, c: Candidate) -> tuple[float, ...]:
    """Return the costs that also count where weights come from the disk: bytes, and the preparation after their arrival."""
    places = ((BIG, True), (BIG if profile.equal else LITTLE, False))
    stages = [prepare_ms(profile, c, core, overlapped=True, main=main) for core, main in places]
    return (float(c.read_bytes), *(read + transform for read, _, transform in stages))


def undominated(profile: Profile, *, disk: bool = False) -> tuple[tuple[int, ...], ...]:
    """Return for each step the positions of candidates that no other beats in preparation and execution (Algorithm 1, line 1).

    Of equal ones the first stays. With weights in memory, a plan never gets worse by exchanging a candidate for one that
    dominates it, so no optimum is lost. With a disk the bounds stay, but what is prepared sooner may make the main core begin
    another preparation that waits: an optimum may be lost, which has not been seen.

    Args:
        profile: profile of the model.
        disk: weights come from the disk: a candidate must also be beaten in bytes to read, and in what waits for them.
    """
    kept = []
    for layer in profile.layers:
        costs = [_costs(profile, c) + (_disk_costs(profile, c) if disk else ()) for c in layer.candidates]
        kept.append(
            tuple(
                i
                for i, mine in enumerate(costs)
                if not any(
                    all(a <= b for a, b in zip(other, mine, strict=True)) and (other != mine or j < i)
                    for j, other in enumerate(costs)
                    if j != i
                )
            )
        )
    return tuple(kept)


def pareto(profile: Profile, *, disk: bool = False) -> Profile:
    """Return the profile with undominated candidates only (Algorithm 1, line 1); `disk` as in `undominated`."""
    return selected(profile, undominated(profile, disk=disk))


def selected(profile: Profile, positions: Sequence[Sequence[int]]) -> Profile:
    """Return the profile with the candidates at those positions only, by step."""
    layers = tuple(
        replace(layer, candidates=tuple(layer.candidates[i] for i in kept))
        for layer, kept in zip(profile.layers, positions, strict=True)
    )
    return replace(profile, layers=layers)
