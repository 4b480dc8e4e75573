"""This module holds the costs that a partition is planned from: steps, their options on two processors, hand-overs (in ms)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

CPU, GPU, SPLIT = range(3)
#: Names of the three kinds of options, as documents and people say them.
KINDS = ("cpu", "gpu", "split")
Choice = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Option:
    """One way to run a step: whole on the processor of its kind, or `SPLIT`.

    The times are busy times of each processor, of a split beside each other; its `dimension` is what it divides, the share what
    the CPU does. `index` is its position among the step's options in the document.
    """

    kind: int
    cpu_ms: float
    gpu_ms: float
    cpu_share: float
    dimension: str = ""
    implementation: str = ""
    index: int = 0

    @property
    def span_ms(self) -> float:
        """Time from the start, which is one for both processors, to the end of the slower part."""
        return max(self.cpu_ms, self.gpu_ms)

    def text(self) -> str:
        """Describe the option in words."""
        if self.kind != SPLIT:
            return f"whole on the {KINDS[self.kind].upper()}"
        over = f" over {self.dimension}" if self.dimension else ""
        return f"split{over}, {100 * self.cpu_share:.3g} % on the CPU"


@dataclass(frozen=True, slots=True)
class PairStep:
    """An operator of the model with its options, at least one of them whole; it reads outputs of steps before its own.

    Attributes:
        to_cpu_ms, to_gpu_ms: moving its output into the memory of a processor that does not have all of it; 0 where memory is
            shared. A split's output counts whole.
        error: relative error of its predicted times; a split has to gain more than that.
        unsplittable: why it has no split, as the document says it; "" if it does not.
    """

    name: str
    inputs: tuple[int, ...]
    options: tuple[Option, ...]
    to_cpu_ms: float = 0.0
    to_gpu_ms: float = 0.0
    error: float = 0.0
    unsplittable: str = ""

    def best(self, kind: int) -> Option | None:
        """Return the fastest option of a kind, None if it has none."""
        return min((o for o in self.options if o.kind == kind), key=lambda o: o.span_ms, default=None)

    @property
    def best_whole(self) -> Option:
        """Return the fastest option on one processor."""
        return min((o for o in self.options if o.kind != SPLIT), key=lambda o: o.span_ms)


@dataclass(frozen=True)
class PairCosts:
    """The costs of one model on a pair, the CPU's name first, in an order in which each step follows what it reads.

    A hand-over takes until one processor has seen that the other is done. The digest is the document's, "" without one.
    """

    model: str
    names: tuple[str, str]
    steps: tuple[PairStep, ...]
    cpu_to_gpu_ms: float = 0.0
    gpu_to_cpu_ms: float = 0.0
    sha256: str = ""

    @cached_property
    def synchronisation_ms(self) -> tuple[tuple[float, ...], ...]:
        """From the end of a step until another knows that it may start, [its kind][the other's]."""
        forth, back = self.cpu_to_gpu_ms, self.gpu_to_cpu_ms
        return ((0.0, forth, forth), (back, 0.0, back), (back, forth, max(forth, back)))

    def delay_ms(self, k: int, kind: int, reader: int) -> float:
        """From the end of step `k` until a reader may start, by their kinds."""
        moves = (self.steps[k].to_cpu_ms, self.steps[k].to_gpu_ms)
        movement = ((0.0, moves[1], moves[1]), (moves[0], 0.0, moves[0]), (*moves, max(moves)))
        return self.synchronisation_ms[kind][reader] + movement[kind][reader]

    @cached_property
    def readers(self) -> tuple[tuple[int, ...], ...]:
        """Return positions of the steps that read each step's output."""
        readers: list[list[int]] = [[] for _ in self.steps]
        for k, step in enumerate(self.steps):
            for i in step.inputs:
                readers[i].append(k)
        return tuple(map(tuple, readers))

    def chosen(self, choice: Sequence[int]) -> list[Option]:
        """Return the chosen options, by step."""
        return [s.options[o] for s, o in zip(self.steps, choice, strict=True)]

    def splits(self, choice: Sequence[int]) -> int:
        """Return the number of steps that a choice splits."""
        return sum(option.kind == SPLIT for option in self.chosen(choice))


@dataclass(frozen=True, slots=True)
class PairSpan:
    """When a step runs (ms): it starts on both processors at once; where it has no part it ends as it starts."""

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


EQUAL = 0.5


def single(costs: PairCosts, processor: int) -> Choice:
    """Everything on one processor; what it cannot run, on the other."""
    best = [s.best(processor) or s.best_whole for s in costs.steps]
    return tuple(s.options.index(o) for s, o in zip(costs.steps, best, strict=True))


def better_single(costs: PairCosts) -> tuple[str, float]:
    """Name and makespan of the better single processor."""
    found = {KINDS[p]: in_sequence(costs, single(costs, p)).makespan_ms for p in (CPU, GPU)}
    name = min(found, key=found.__getitem__)
    return name, found[name]


def at_ratio(costs: PairCosts, cpu_share: float) -> Choice:
    """Split every operator that can be split at the ratio nearest to one; others where they are fastest."""
    return tuple(s.options.index(nearest(s, cpu_share) or s.best_whole) for s in costs.steps)


def nearest(step: PairStep, cpu_share: float, dimension: str | None = None) -> Option | None:
    """Return the split whose ratio is nearest, the fastest of equally near ones."""
    splits = [o for o in step.options if o.kind == SPLIT and dimension in {None, o.dimension}]
    return min(splits, key=lambda o: (abs(o.cpu_share - cpu_share), o.span_ms), default=None)


def equal(costs: PairCosts) -> Choice:
    """One half for each processor: "Equal" of EOP's section 5.1."""
    return at_ratio(costs, EQUAL)


def fixed(costs: PairCosts) -> Choice:
    """The one ratio that is best for all operators together: "Fixed" of EOP's section 5.1, there for each subgraph."""
    ratios = sorted({o.cpu_share for s in costs.steps for o in s.options if o.kind == SPLIT} or {EQUAL})
    step = max(len(ratios) * len(costs.steps) // _TRIED, 1)
    choices = [at_ratio(costs, ratio) for ratio in ratios[::step]]
    return min(choices, key=lambda choice: in_sequence(costs, choice).makespan_ms)


_TRIED = 200_000  # steps simulated to find the fixed ratio; beyond it fewer ratios are tried


def greedy(costs: PairCosts) -> Choice:
    """Every operator for itself, as LiPG splits (5.2, 5.4): the option that ends first, hand-overs not counted."""
    return tuple(s.options.index(min(s.options, key=lambda o: o.span_ms)) for s in costs.steps)
