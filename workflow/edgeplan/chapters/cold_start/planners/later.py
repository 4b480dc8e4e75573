"""Chooses kernels for later runs: those that are fastest once they have run, whatever preparation takes (NNV12, 3.5)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence
from functools import partial

from edgeplan.errors import FormatError
from edgeplan.planning.document import Plan
from edgeplan.planning.profile import BIG, UNCACHED, Candidate, Layer, Profile, kernel_name, prepare_ms


def fastest_warm(profile: Profile) -> tuple[int, ...]:
    """Return for each step the position of the candidate that executes fastest on all big cores once it has run.

    Warm times decide: the first execution in a process touches memory for the first time, and some kernels do in it what
    they never do again. Of equally fast ones the one that is prepared soonest is taken.
    """

    def fastest(candidates: Sequence[Candidate]) -> int:
        costs = [(c.warm(profile.big_cores), sum(prepare_ms(profile, c, BIG, overlapped=False))) for c in candidates]
        return costs.index(min(costs))

    return tuple(fastest(layer.candidates) for layer in profile.layers)


def profile_for(made: Plan, profiles: Sequence[Profile]) -> Profile:
    """Return the profile of the plan's home layout."""
    for profile in profiles:
        if profile.layout == made.layout and len(profile.layers) == len(made.steps):
            return profile
    raise FormatError(f"no profile of layout {made.layout}", where=f"plan of {made.model}", next_step="profile the model again")


#: Later inferences within which a kernel must repay what it takes to prepare beside the one of the cold start.
REPAID_WITHIN = 20


def repaid(made: Plan, profile: Profile) -> tuple[int, ...]:
    """Return for each step the position of the candidate that takes the least over `REPAID_WITHIN` later inferences.

    The paper's K_warm asks for warm times alone. But what differs by the noise of a profile only is not worth reading and
    transforming weights for, of which large layers have a hundred megabytes: second inferences of AlexNet took five times as
    long as those without other kernels, and later ones no less. The kernel of the cold start has its weights, and is made
    anew if it executes on fewer cores in that one. And what a kernel takes more in its first execution (oneDNN's `gemm:jit`
    generates code then, for longer than ShuffleNetV2's cold start) all steps that it is new for must repay together.

    Args:
        made: the plan of the cold start.
        profile: of its home layout, all candidates.
    """

    def total(k: int, position: int) -> float:
        candidate = profile.layers[k].candidates[position]
        read, create, transform = prepare_ms(profile, candidate, BIG, overlapped=False)
        if candidate.implementation != made.step(k).implementation:
            preparing = read + create + transform
        else:
            preparing = create if made.equal_cores and k < made.widen_from else 0.0
        return REPAID_WITHIN * candidate.warm(profile.big_cores) + preparing / profile.cores

    def kept(k: int) -> int:
        return [c.implementation for c in profile.layers[k].candidates].index(made.step(k).implementation)

    steps = range(len(profile.layers))
    paid = {kernel_name(made.step(k).implementation) for k in steps}
    refused: set[str] = set()
    while True:
        chosen = tuple(min(_allowed(profile.layers[k], kept(k), refused), key=partial(total, k)) for k in steps)
        gains, once = defaultdict[str, float](float), defaultdict[str, float](float)
        for k, o in enumerate(chosen):
            candidate = profile.layers[k].candidates[o]
            if (kernel := kernel_name(candidate.implementation)) not in paid:
                gains[kernel] += total(k, kept(k)) - total(k, o)
                first = candidate.execute_ms[profile.big_cores] - candidate.warm(profile.big_cores)
                once[kernel] = max(once[kernel], first)
        if not (unpaid := {kernel for kernel, gain in gains.items() if gain <= once[kernel]}):
            return chosen
        refused |= unpaid


def _allowed(layer: Layer, kept: int, refused: Collection[str]) -> list[int]:
    """Return the cold start's candidate, and those whose weights are made from the model's, as those of later runs are."""
    others = enumerate(layer.candidates)
    return [kept, *(o for o, c in others if c.source in UNCACHED and kernel_name(c.implementation) not in refused)]


def with_warm_kernels(made: Plan, profiles: Sequence[Profile]) -> Plan:
    """Return the plan with the kernels for later runs (K_warm, as `repaid` has it), under its home layout.

    Args:
        made: the plan of the cold start, which stays as it is.
        profiles: what it was made from.
    """
    profile = profile_for(made, profiles)
    chosen = zip(profile.layers, repaid(made, profile), strict=True)
    return made.with_later([layer.candidates[o].implementation for layer, o in chosen])
