"""A plan refined where it runs: blocks are shifted to the processor that waited at a split, and what is faster is kept."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass

import numpy as np

from edgeplan.chapters.partition.checked.own_sweep import Spans, quantile, spans_of
from edgeplan.chapters.partition.checked.shifting import Parts, shifted
from edgeplan.chapters.partition.eop.sweeps import Orders, SweptModel, executable_parts, session_of
from edgeplan.chapters.partition.measuring.opened import Opened
from edgeplan.runtime.partitioned.program import Assignment, Split
from edgeplan.runtime.partitioned.sections import extent

#: Runs of each of two plans in a round, in turn, and rounds at most.
RUNS, ROUNDS = 5, 8
#: What is kept is faster by at least this share: less is what runs differ by.
_FASTER = 0.005


@dataclass(frozen=True, slots=True)
class Refined:
    """A refined plan has its blocks where both processors wait least.

    Attributes:
        assigned: where each step runs.
        parts: of the split steps, by step, what both processors took in the session that was kept.
        before_ms, after_ms: time of a run, when refining began and when it ended.
        shifted: splits that ended elsewhere than they began.
    """

    assigned: tuple[Assignment, ...]
    parts: dict[int, Parts]
    before_ms: float
    after_ms: float
    shifted: int


def refine(pair: Opened, subject: SweptModel, assigned: Sequence[Assignment], orders: Orders | None, seconds: float) -> Refined:
    """Shift blocks to who waited as long as that makes the model faster, and for a number of seconds at most.

    Args:
        pair: whose GPU notes times.
        subject: the model.
        assigned: where each step runs.
        orders: of both processors' steps; None for one step at a time.
        seconds: that all of it may take; a round that has begun is ended.
    """
    until, before = time.monotonic() + seconds, tuple(assigned)
    kept, (spans, *_) = before, _in_turn(pair, subject, [before], orders)
    began_ms = kept_ms = float(np.median(spans.whole))
    most = len(before)
    for _ in range(ROUNDS):
        wanted = shifts(subject, pair.block, kept, parts_of(spans, kept), most)
        if not wanted or time.monotonic() >= until:
            break
        other = tuple(wanted.get(k, one) for k, one in enumerate(kept))
        own, theirs = _in_turn(pair, subject, [kept, other], orders)
        spans, kept_ms = own, float(np.median(own.whole))
        if float(np.median(theirs.whole)) < kept_ms * (1 - _FASTER):
            kept, spans, kept_ms = other, theirs, float(np.median(theirs.whole))
        else:
            most = len(wanted) // 2  # those that wait longest alone
    count = sum(one != other for one, other in zip(before, kept, strict=True))
    return Refined(kept, parts_of(spans, kept), began_ms, kept_ms, count)


def shifts(
    subject: SweptModel, block: int, assigned: Sequence[Assignment], parts: dict[int, Parts], most: int
) -> dict[int, Split]:
    """The splits that are to be shifted by a block, by step: those at which a processor waited longest.

    Args:
        subject: the model.
        block: channels of a block of the layout `blocked16`.
        assigned: where each step runs.
        parts: of the split steps, what both processors took.
        most: of them.
    """
    found: dict[int, Split] = {}
    longest = sorted(parts, key=lambda k: -abs(parts[k][0] - parts[k][1]))
    for k in longest[:most]:
        one = assigned[k]
        assert isinstance(one, Split)  # noqa: S101  it has two parts
        end = shifted(extent(subject.lowered, block, subject.lowered.steps[k], one.dimension), one.end, parts[k])
        if end != one.end:
            found[k] = Split(end, one.dimension)
    return found


def parts_of(spans: Spans, assigned: Sequence[Assignment]) -> dict[int, Parts]:
    """Return the times of both parts of each split step; one whose part the GPU has no kernel for is none."""
    found = {}
    for k, one in enumerate(assigned):
        if isinstance(one, Split) and np.isfinite(spans.parts[:, :, k]).all():
            found[k] = quantile(spans.parts[0][:, k]), quantile(spans.parts[1][:, k])
    return found


def _in_turn(
    pair: Opened, subject: SweptModel, plans: Sequence[Sequence[Assignment]], orders: Orders | None
) -> tuple[Spans, ...]:
    """Return the times of some plans, one run of each after the other."""
    with ExitStack() as stack:
        made = [executable_parts(pair, subject, list(assigned), orders) for assigned in plans]
        sessions = [stack.enter_context(session_of(pair, subject, one)) for one in made]
        rounds = [
            [spans_of(session, one, subject, 1) for session, one in zip(sessions, made, strict=True)] for _ in range(RUNS)
        ]
    return tuple(
        Spans(
            np.concatenate([spans.parts for spans in own], axis=1),
            np.concatenate([spans.whole for spans in own]),
            np.concatenate([spans.busy for spans in own]),
        )
        for own in zip(*rounds, strict=True)
    )
