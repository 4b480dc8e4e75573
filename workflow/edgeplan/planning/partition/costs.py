"""This module holds the costs that a partition is planned from: steps, their options on two processors, hand-overs (in ms)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

CPU, GPU, SPLIT = range(3)
#: Names of the three kinds of options, as documents and people say them.
KINDS = ("cpu", "gpu", "split")
Choice = tuple[int, ...]
ENGINE, READER, NONE = "engine", "reader", "none"


@dataclass(frozen=True, slots=True)
class Option:
    """One way to run a step.

    Attributes:
        kind: `CPU` or `GPU` for whole on one processor, `SPLIT` for both at once.
        cpu_ms, gpu_ms: busy time on each processor; of a split the times beside each other.
        cpu_share: part of the step that the CPU does, 0 to 1.
        dimension: what a split divides, e.g. "channels" or "batch"; "" for whole.
        implementation: name of the kernels, "" where there is no choice.
        index: position among the step's options in the document.
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
    """A pair step is an operator of the model with its options.

    Attributes:
        name: unique in the model.
        inputs: positions of the steps whose outputs it reads, all before its own.
        options: at least one of them whole.
        load: "compute" or "bandwidth", by which contention is looked up.
        to_cpu_ms, to_gpu_ms: moving its output into the memory of a processor that does not have
            all of it; 0 where memory is shared. A split's output counts whole.
        error: relative error of its predicted times; a split has to gain more than that.
        unsplittable: why it has no split, as the document says it; "" if it does not.
    """

    name: str
    inputs: tuple[int, ...]
    options: tuple[Option, ...]
    load: str = "compute"
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
    """Pair costs are those of one model on a pair of processors.

    Attributes:
        model: its name.
        names: of the processors, CPU first.
        steps: in an order in which each follows what it reads; plans that run one step at a time
            keep it.
        cpu_to_gpu_ms, gpu_to_cpu_ms: until one processor has seen that the other is done.
        contention: factors (>= 1) on the CPU's and the GPU's times while different steps run side
            by side, by the loads of the CPU's and the GPU's step; pairs that are not there do not
            disturb each other.
        sha256: of the document, "" without one.
        copies: who moves outputs where memory is not shared: `ENGINE` moves them beside everything else, the `READER` is busy
            with it, one input after the other.
    """

    model: str
    names: tuple[str, str]
    steps: tuple[PairStep, ...]
    cpu_to_gpu_ms: float = 0.0
    gpu_to_cpu_ms: float = 0.0
    contention: Mapping[tuple[str, str], tuple[float, float]] | None = None
    sha256: str = ""
    copies: str = ENGINE

    @cached_property
    def occupying(self) -> bool:
        """Tell whether processors are busy with moving what they read."""
        return self.copies == READER and any(s.to_cpu_ms or s.to_gpu_ms for s in self.steps)

    @cached_property
    def synchronisation_ms(self) -> tuple[tuple[float, ...], ...]:
        """From the end of a step until another knows that it may start, [its kind][the other's]."""
        forth, back = self.cpu_to_gpu_ms, self.gpu_to_cpu_ms
        return ((0.0, forth, forth), (back, 0.0, back), (back, forth, max(forth, back)))

    @cached_property
    def delays_ms(self) -> tuple[tuple[tuple[float, ...], ...], ...]:
        """From the end of a step until a reader may start, [step][its kind][the reader's]; moving by readers is no delay."""
        if self.occupying:
            return (self.synchronisation_ms,) * len(self.steps)
        tables: dict[tuple[float, float], tuple[tuple[float, ...], ...]] = {}
        for s in self.steps:
            if (moves := (s.to_cpu_ms, s.to_gpu_ms)) not in tables:
                both = max(moves)
                movement = ((0.0, moves[1], moves[1]), (moves[0], 0.0, moves[0]), (*moves, both))
                tables[moves] = tuple(
                    tuple(a + b for a, b in zip(wait, move, strict=True))
                    for wait, move in zip(self.synchronisation_ms, movement, strict=True)
                )
        return tuple(tables[s.to_cpu_ms, s.to_gpu_ms] for s in self.steps)

    @cached_property
    def readers(self) -> tuple[tuple[int, ...], ...]:
        """Return positions of the steps that read each step's output."""
        readers: list[list[int]] = [[] for _ in self.steps]
        for k, step in enumerate(self.steps):
            for i in step.inputs:
                readers[i].append(k)
        return tuple(map(tuple, readers))

    @cached_property
    def disturbed(self) -> bool:
        """Tell whether steps side by side slow each other down."""
        return any(factor > 1 for pair in (self.contention or {}).values() for factor in pair)

    def factors(self, on_cpu: int, on_gpu: int) -> tuple[float, float]:
        """Return factors on the times of two different steps while they run side by side."""
        pair = (self.steps[on_cpu].load, self.steps[on_gpu].load)
        return (self.contention or {}).get(pair, (1.0, 1.0))

    @cached_property
    def load_weights(self) -> tuple[dict[str, tuple[float, float]], dict[str, tuple[float, float]]]:
        """Return weights of busy times on the CPU and the GPU, by load, whose sums no makespan is below.

        While both processors run different steps each gets less done. Weights of at most 1 for
        which weight over factor, added over both processors, is at most 1 for every pair of loads
        pay for no more than the time that passes, alone or side by side. What both do of one
        split at a time counts once. Without contention these are the plain loads.
        """
        loads = sorted({s.load for s in self.steps})
        pairs = {(a, b): (self.contention or {}).get((a, b), (1.0, 1.0)) for a in loads for b in loads}
        beside_cpu = {b: min(min(1.0, pairs[a, b][1] * (1 - 1 / pairs[a, b][0])) for a in loads) for b in loads}
        beside_gpu = {a: min(min(1.0, pairs[a, b][0] * (1 - 1 / pairs[a, b][1])) for b in loads) for a in loads}
        return {b: (1.0, w) for b, w in beside_cpu.items()}, {a: (w, 1.0) for a, w in beside_gpu.items()}

    def weighed_ms(self, option: Option, load: str) -> tuple[float, float]:
        """Return the summands of an option in the two sums of `load_weights`."""
        both = min(option.cpu_ms, option.gpu_ms)
        first, second = (
            both + weights[load][CPU] * (option.cpu_ms - both) + weights[load][GPU] * (option.gpu_ms - both)
            for weights in self.load_weights
        )
        return first, second

    def chosen(self, choice: Sequence[int]) -> list[Option]:
        """Return the chosen options, by step."""
        return [s.options[o] for s, o in zip(self.steps, choice, strict=True)]

    def part(self, positions: Sequence[int]) -> PairCosts:
        """Some of the steps, in order, without what they read from others."""
        local = {k: i for i, k in enumerate(positions)}
        steps = (replace(self.steps[k], inputs=tuple(local[i] for i in self.steps[k].inputs if i in local)) for k in positions)
        return replace(self, steps=tuple(steps))
