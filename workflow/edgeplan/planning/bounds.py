"""Bounds a cold start from below, and counts what a choice of candidates reads and stores."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from edgeplan.planning.profile import BIG, LITTLE, Candidate, Fresh, Profile, execute_ms, prepare_ms


def work_bound_ms(profile: Profile) -> float:
    """Sum each step's least (preparation + execution) core-milliseconds of any candidate, and divide it by the cores.

    Contention and what is paid before the first step do not count, and of the factors of a fresh process only those that make
    a stage cheaper do: no schedule of the profile's machine ends sooner, whatever overlaps.
    """
    profile = replace(profile, fresh=Fresh(*(min(factor, 1.0) for factor in profile.fresh.factors)))
    work = sum(min(_work_ms(profile, c) for c in layer.candidates) for layer in profile.layers)
    return work / profile.cores


def _work_ms(profile: Profile, c: Candidate) -> float:
    classes = (BIG,) if profile.equal else (BIG, LITTLE)
    widths = {profile.narrow, profile.big_cores}
    prepare = min(sum(prepare_ms(profile, c, core, overlapped=False)) for core in classes)
    return prepare + min(width * execute_ms(profile, c, width, overlapped=False) for width in widths)


def fewest_read_bytes(profile: Profile) -> int:
    """Return the fewest bytes that any candidates read, over all steps: what must come from disk with nothing cached."""
    return sum(min(c.read_bytes for c in layer.candidates) for layer in profile.layers)


def read_bytes(candidates: Iterable[Candidate]) -> int:
    """Return bytes that chosen candidates read."""
    return sum(c.read_bytes for c in candidates)


def cache_bytes(candidates: Iterable[Candidate]) -> int:
    """Return bytes that chosen candidates store beside the model: the storage overhead of Table 4."""
    return sum(c.cache_bytes for c in candidates)
