"""This module simulates a plan under its costs: start and end of every step.

One step is under way at a time: the next starts when the one before has ended, its processors know it, and its inputs are in
their memory.
"""

from __future__ import annotations

from dataclasses import dataclass

from edgeplan.planning.partition.costs import CPU, GPU, SPLIT, Choice, PairCosts


@dataclass(frozen=True, slots=True)
class PairSpan:
    """When a step runs (ms).

    Attributes:
        start_ms: on both processors at once if it is split.
        cpu_end_ms, gpu_end_ms: end of its part on each; its start where it has none.
    """

    start_ms: float
    cpu_end_ms: float
    gpu_end_ms: float

    @property
    def end_ms(self) -> float:
        """End of the slower part."""
        return max(self.cpu_end_ms, self.gpu_end_ms)


@dataclass(frozen=True, slots=True)
class PairTimeline:
    """A timeline holds the simulated times of all steps."""

    makespan_ms: float
    spans: tuple[PairSpan, ...]


def in_sequence(costs: PairCosts, choice: Choice) -> PairTimeline:
    """Execute one step at a time, in the order of the steps.

    An output is moved into a processor's memory once, before its first reader there; both
    directions move at once.
    """
    now, before = 0.0, -1
    spans: list[PairSpan] = []
    there: list[set[int]] = []
    for step, option in zip(costs.steps, costs.chosen(choice), strict=True):
        if before >= 0:
            now += costs.synchronisation_ms[before][option.kind]
        moved = [0.0, 0.0]
        for processor in (CPU, GPU):
            if option.kind in {processor, SPLIT}:
                for i in step.inputs:
                    if processor not in there[i]:
                        there[i].add(processor)
                        source = costs.steps[i]
                        moved[processor] += source.to_gpu_ms if processor == GPU else source.to_cpu_ms
        now += max(moved)
        spans.append(PairSpan(now, now + option.cpu_ms, now + option.gpu_ms))
        there.append({option.kind} - {SPLIT})
        now, before = spans[-1].end_ms, option.kind
    return PairTimeline(now, tuple(spans))
