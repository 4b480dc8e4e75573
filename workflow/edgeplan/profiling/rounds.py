"""Measures the candidates of a model in rounds: some steps are started cold with one candidate each, every stage timed.

A block gives every candidate one sample, at the widths in turn; equal steps of the model take different candidates in the same
round, which saves rounds. Blocks repeat, so the samples of a candidate lie apart in time; two reference loads are timed around
every round and divided out. The first block is a quick look: candidates that can be in no good plan are left out of the others.

What is timed is the native code of a session (`measurement.process.record_bench`) on linked steps, where a cold run meets it:
nothing of the library's objects is there yet, activations lie in the session's region and were just written by the step before,
as many bytes as the model has weights have passed through the caches since the step was prepared. First touches of the region
are kept out, since which step pays for a huge page depends on its neighbours; they are charged apart, by size
(`profiles.profile_of`).

oneDNN divides work among threads when a primitive is created, so a primitive that executes on n cores is created with n threads
set; its weights may even differ. Transformations always run on the one core that prepares.
"""

from __future__ import annotations

import ctypes
import gc
import logging
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np

from edgeplan.errors import NoiseError
from edgeplan.graph.ir import Graph
from edgeplan.graph.steps import Lowered
from edgeplan.measurement.others import Preemption, switches
from edgeplan.measurement.process import page_cache
from edgeplan.measurement.process.inputs import Array, random_inputs
from edgeplan.measurement.process.interference import LIMIT, Clock
from edgeplan.measurement.process.record_bench import Bench, Prepared
from edgeplan.measurement.settings import TimeBudget
from edgeplan.profiling.samples import Trials
from edgeplan.profiling.settings import Cores, ProfileSettings
from edgeplan.profiling.store import NOISE, Row
from edgeplan.profiling.subjects import Group, subject
from edgeplan.runtime.dnnl import Dnnl
from edgeplan.runtime.lowering import lower
from edgeplan.runtime.weights import WeightLocation, locate_weights
from edgeplan.support.cpus import calmer, pinned

log = logging.getLogger(__name__)
_REPEAT_BLOCKS = 2  # blocks in which the second creation of equal steps is timed
_PREPARING = ("read:big", "create:big", "transform:big")
_EXECUTING = ("first:1", "warm:1")
_clock = time.perf_counter_ns
_NS_PER_MS = 1e6
#: What passes through the caches between a step's preparation and its execution: all weights, as far as caches are that large.
_LEAST_FLUSH_BYTES, _MOST_FLUSH_BYTES = 2 << 20, 64 << 20


@dataclass(frozen=True, slots=True)
class Round:
    """A round says which steps are started cold, with which candidate each, and how many processors execute.

    Of the steps in `repeats` the preparation after an equal step's is timed too, or after their own where the model has no
    equal.
    """

    choice: Mapping[int, int]
    width: int
    repeats: frozenset[int]


@dataclass(frozen=True, slots=True)
class Sample:
    """A sample is one time, and whether other work took a processor away meanwhile."""

    ms: float
    disturbed: bool = False


@dataclass
class RoundTimes:
    """Holds the samples of a round by stage and step. The stages are those of `store.Row`."""

    stages: dict[str, dict[int, list[Sample]]] = field(default_factory=dict)

    def add(self, stage: str, step: int, nanoseconds: int, *, preempted: bool = False) -> None:
        """Add one sample of a stage."""
        self.stages.setdefault(stage, {}).setdefault(step, []).append(Sample(nanoseconds / _NS_PER_MS, preempted))


@dataclass(frozen=True, slots=True)
class ModelToProfile:
    """A model to profile has its file, its steps, places of their weights, and seeded inputs, those of a cold start."""

    name: str
    dnnl: Dnnl
    path: Path
    lowered: Lowered
    weights: Mapping[str, WeightLocation]
    inputs: Mapping[str, Array]

    @classmethod
    def of(cls, dnnl: Dnnl, path: Path, graph: Graph, name: str = "") -> Self:
        """Read a model and draw its inputs."""
        lowered = lower(graph)
        shapes = {name: lowered.shapes[name] for name in lowered.inputs}
        inputs = random_inputs(shapes, 0, lowered.types, lowered.limits)
        return cls(name or path.stem, dnnl, path, lowered, locate_weights(path, lowered), inputs)


def release_freed() -> None:
    """Give freed memory back to the system, so that what is allocated next is touched for the first time, as in a cold run."""
    libc = ctypes.CDLL(None)
    if hasattr(libc, "malloc_trim"):
        libc.malloc_trim(ctypes.c_size_t(0))


class Harness:
    """Runs a model under one home layout round by round. oneDNN's cache of primitives is off meanwhile.

    A processor of each core class (`classes`) prepares and is timed, the `big` ones execute. The scratch folder is for a stand-
    in of the weight cache, on the disk the plan will lie on.
    """

    def __init__(self, model: ModelToProfile, home: str, cores: Cores, scratch: Path) -> None:
        self.dnnl = dnnl = model.dnnl
        self.inputs, self.classes, self.big, self.widths = model.inputs, cores.classes, cores.big, cores.widths
        self.subject = subject(dnnl, model.lowered, home, model.weights, len(cores.big))
        self.trials = Trials(dnnl, self.subject, model.path, self.widths, scratch)
        self.group = self.trials.group
        self._borders = self.trials.linked.inputs
        self.files = sorted({*map(Path, (file.path for file in self.trials.linked.files)), self.trials.cache})
        page_cache.read_through(self.files)
        flush = min(max(self.trials.weights_bytes, _LEAST_FLUSH_BYTES), _MOST_FLUSH_BYTES)
        self._flush = np.ones(flush // 4, np.float32)
        # what the arena holds of another step is no index: these run behind all steps before them, as in an inference
        self._picking = frozenset(i for i, step in enumerate(self.subject.program.steps) if step.picks_places)
        self._stack = ExitStack()
        self._stack.enter_context(dnnl.without_primitive_cache())
        program = self.trials.trying
        self.bench = self._stack.enter_context(Bench(program.content, dnnl.info.path, program.cache))
        self.memory = self.bench.memory  # first touches are charged apart
        self._reading, self._around = (
            self._stack.enter_context(Bench(program.content, dnnl.info.path, cache, self.bench))
            for cache in (self.trials.cache, program.cache)
        )
        self.first_candidates = {width: self._stand_in(width) for width in self.widths}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._stack.close()

    def _stand_in(self, width: int) -> list[Prepared]:
        """Return the first candidate of every step, executed once: what runs around the steps that are measured."""
        trials = self.trials
        with pinned(*self.big):
            prepared = [
                self._around.prepare(trials.numbers[index, 0, width], trials.place(index, width))
                for index in range(len(self.subject.program.steps))
            ]
            self.feed()
            self._around.execute(prepared, width)
            self.dnnl.set_threads(1)
        return prepared

    def feed(self) -> None:
        """Put the inputs into their places."""
        for border in self._borders:
            value = self.inputs[border.name]
            np.copyto(self.memory[border.offset : border.offset + border.size].view(border.dtype), value.ravel())

    def run(self, what: Round, warm_runs: int) -> RoundTimes:
        """Run one round of preparations and executions."""
        times = RoundTimes()
        release_freed()
        collecting = gc.isenabled()
        gc.disable()
        try:
            for core, processor in reversed(tuple(self.classes.items())):  # what the big core prepared last is executed
                with pinned(processor):
                    self._fetch(what, core, times)
                    # Last, so that steps execute with their own weights: a stand-in of a cache holds numbers of any kind, and
                    # Intel's processors take several times as long over denormal ones.
                    prepared = self._prepare(what, core, times)
            with pinned(*self.big):
                self._execute(what, prepared, "first", times)
                for _ in range(warm_runs):
                    self._execute(what, prepared, "warm", times)
            if what.repeats:
                with pinned(self.classes["big"]):
                    self._repeat(what, times)
        finally:
            self.bench.renew()
            if collecting:
                gc.enable()
        return times

    def _record(self, what: Round, index: int) -> int:
        return self.trials.numbers[index, what.choice[index], what.width]

    def _prepare(self, what: Round, core: str, times: RoundTimes) -> dict[int, Prepared]:
        """Prepare steps from the model file, each as the first of its equals: with no objects of the library made before."""
        self.dnnl.set_threads(1)
        prepared = {}
        for index in what.choice:
            self.bench.renew(kept=True)
            before = switches()
            prepared[index] = self.bench.prepare(self._record(what, index))
            preempted = switches() > before
            for stage, spent in prepared[index].spent.items():
                if stage == "create" or self.trials.is_raw(index):
                    times.add(f"{stage}:{core}", index, spent, preempted=preempted)
        return prepared

    def _fetch(self, what: Round, core: str, times: RoundTimes) -> None:
        """Fetch weights as from a cache that nobody touched: copied, or mapped."""
        wanted = [i for i, choice in what.choice.items() if self.trials.candidates[i, choice, what.width].weight_bytes]
        for source in ("cached_read", "cached_mmap"):
            self._reading.renew()
            for index in wanted:
                record, segment, before = self._record(what, index), self.trials.segments[index], switches()
                spent = self._reading.fetch(record, segment, mapped=source == "cached_mmap")
                times.add(f"{source}:{core}", index, spent, preempted=switches() > before)

    def _execute(self, what: Round, prepared: Mapping[int, Prepared], stage: str, times: RoundTimes) -> None:
        """Execute the steps, each behind the one before it, which brings its input into the caches, or behind all of them."""
        firsts = self.first_candidates[what.width]
        self.feed()
        if stage == "first":
            np.multiply(self._flush, np.float32(1), out=self._flush)  # as the other weights of the model do
        for index, ready in prepared.items():
            if index in self._picking or index - 1 in self._picking:
                self.feed()
                self._around.execute(firsts[:index], what.width)
            elif index - 1 not in prepared and index:
                self._around.execute(firsts[index - 1 : index], what.width)
            before, start = switches(), _clock()
            self.bench.execute((ready,), what.width)
            spent = _clock() - start
            times.add(f"{stage}:{what.width}", index, spent, preempted=switches() > before)
        self.dnnl.set_threads(1)

    def _repeat(self, what: Round, times: RoundTimes) -> None:
        """Prepare steps after an equal one: what they share is made once, so they are bound and transformed only."""
        for index in sorted(what.repeats & set(what.choice)):
            other = next((step for step in self.group[index].steps if step != index), index)
            # its raw weights are in the caches
            stages = {"create"} if other == index or not self.trials.is_raw(index) else {"create", "transform"}
            self.bench.renew()
            self.bench.prepare(self._record(what, index))
            before = switches()
            spent = self.bench.prepare(self.trials.numbers[other, what.choice[index], what.width]).spent
            preempted = switches() > before
            for stage in spent.keys() & stages:
                times.add(f"{stage}_again:big", index, spent[stage], preempted=preempted)


Samples = dict[str, list[Sample]]
#: Told the rows of a quick look: whether more is worth measuring.
Promising = Callable[[Sequence[Row]], bool]


@dataclass
class _Open:
    """Keeps a group that is being measured: the candidates still of interest, whose turn it is, and the samples of all."""

    group: Group
    alive: list[int]
    turn: list[int] = field(default_factory=list)
    samples: list[Samples] = field(default_factory=list)


def measure_groups(
    rig: Harness,
    groups: Collection[Group],
    settings: ProfileSettings,
    clock: Clock,
    advance: Callable[[int], None],
    budget: TimeBudget | None = None,
    promising: Promising = lambda _: True,
) -> list[Row]:
    """Measure at least one group of steps; the other steps of the model run along.

    The share of the work just done, in thousandths, is told to `advance`. Beyond the budget only the first block at each width
    is measured. If `promising` says no to the rows of the quick look, there is no more.
    """
    opened = [_Open(g, list(range(len(g.sizes))), samples=[{} for _ in g.sizes]) for g in groups]
    widths, budget = rig.widths, budget or TimeBudget()
    told = done = noisy = 0
    for block in range(settings.blocks + (0 if settings.strict else settings.retries)):
        width, again = widths[block % len(widths)], set[int]()
        if 0 <= block - (not settings.thorough) < _REPEAT_BLOCKS:  # not of those that only get a look
            again = {s for o in opened for s in o.group.steps}
        for o in opened:
            o.turn = (
                list(o.alive) if block < settings.blocks else [p for p in o.alive if _disturbed(o.samples[p], widths, width)]
            )
        rounds = max(-(-len(o.turn) // len(o.group.steps)) for o in opened)
        for number in range(rounds):
            if block >= len(widths) and budget.over:
                break
            choice = _choices(opened, number)
            times, scale, quiet = quiet_round(rig, Round(choice, width, frozenset(again)), settings, clock)
            done, noisy = done + 1, noisy + (not quiet)
            _collect(opened, choice, times, scale, quiet=quiet or settings.strict)
            share = min(int(1000 * (block + (number + 1) / rounds) / settings.blocks), 1000)
            advance(share - told)
            told = share
        if block == 0 and not promising(_rows(opened)):
            break
        if block == 0 or not settings.strict:
            for o in opened:
                o.alive = _of_interest(o.alive, o.samples, settings, sure=budget.over)
    advance(1000 - told)
    if settings.strict and noisy > settings.max_noisy_share * done:
        raise NoiseError(
            f"the machine is too busy to profile a model: {noisy} of {done} rounds stayed disturbed",
            where=f"home layout {rig.subject.program.home}",
            next_step=f"{calmer()} and run the same command again, or keep such figures with --on-noise keep",
        )
    return _rows(opened)


def undisturbed(samples: Sequence[Sample]) -> tuple[float, ...]:
    """Return the times that count, in ms: those that nobody disturbed, else the least of the others."""
    clean = tuple(s.ms for s in samples if not s.disturbed)
    return clean or (min(s.ms for s in samples),)


def _clean(samples: Sequence[Sample]) -> bool:
    return not all(s.disturbed for s in samples)


def _disturbed(samples: Samples, widths: Sequence[int], width: int) -> bool:
    """Tell whether a stage that a round of a width measures has disturbed samples only."""
    others = tuple(f":{w}" for w in widths if w != width)
    return any(not _clean(found) for stage, found in samples.items() if found and not stage.endswith(others))


def _choices(opened: Sequence[_Open], number: int) -> dict[int, int]:
    """Return the candidates of one round in execution order: equal steps take the next ones of theirs until all had a turn."""
    choice = {}
    for o in opened:
        for place, step in enumerate(o.group.steps, number * len(o.group.steps)):
            if place < len(o.turn):
                choice[step] = o.turn[place]
    return dict(sorted(choice.items()))


def quiet_round(rig: Harness, what: Round, settings: ProfileSettings, clock: Clock) -> tuple[RoundTimes, float, bool]:
    """Return one round: its times, their scale, and whether the machine stayed as it was.

    Where noise is refused, a quiet moment is waited for, and a round that was disturbed is run again, for as often as settings
    say.
    """
    for attempt in range(settings.retries + 1 if settings.strict else 1):
        beside = clock.watch.wait() if clock.watch else 1.0
        before, lost, start = clock.now(), Preemption.now(), time.perf_counter()
        times = rig.run(what, settings.warm_runs)
        lost, elapsed_ms = Preemption.now().since(lost), (time.perf_counter() - start) * 1e3
        # steps that other work of this machine preempted are known one by one; of stolen time only the sum is
        share = (lost.waited_ms if settings.strict else lost.stolen_ms) / elapsed_ms
        after, beside = clock.now(), max(beside, clock.watch.now()) if clock.watch else beside
        ends = clock.slowness(before), clock.slowness(after)
        drift = max(ends) / min(ends) - 1
        quiet = drift <= settings.max_drift and share <= settings.max_waiting and beside <= LIMIT
        if quiet:
            break
        drifted = f"the machine's speed moved by {100 * drift:.0f} %, threads waited {100 * share:.0f} % of the time"
        log.info("round disturbed: %s, processors took %.2f times as long (attempt %d)", drifted, beside, attempt + 1)
    return times, 1 / clock.slowness(before, after), quiet


def _collect(opened: Sequence[_Open], choice: Mapping[int, int], times: RoundTimes, scale: float, *, quiet: bool) -> None:
    for o in opened:
        for step in set(o.group.steps) & set(choice):
            samples = o.samples[choice[step]]
            for stage, by_step in times.stages.items():
                found = (Sample(s.ms * scale, s.disturbed or not quiet) for s in by_step.get(step, ()))
                samples.setdefault(stage, []).extend(found)


def _of_interest(alive: Sequence[int], samples: Sequence[Samples], settings: ProfileSettings, *, sure: bool) -> list[int]:
    """Return the candidates that are worth more samples than they have had."""
    costs = {p: (_prepare_ms(samples[p]), min(min(undisturbed(samples[p][stage])) for stage in _EXECUTING)) for p in alive}
    unsure = {p for p in alive if not all(_clean(samples[p][s]) for s in (*_PREPARING, *_EXECUTING) if samples[p].get(s))}

    def beaten(mine: Sequence[float], other: Sequence[float]) -> bool:
        """Tell whether `other` is clearly better in one stage, and gives up next to nothing for it in the other."""
        for clear, given in ((0, 1), (1, 0)):
            gain, loss = mine[clear] - other[clear], other[given] - mine[given]
            if other[clear] * settings.margin < mine[clear] and loss * settings.exchange < gain:
                return True
        return False

    return [
        p for p, mine in costs.items() if (p in unsure and not sure) or not any(beaten(mine, other) for other in costs.values())
    ]


def _prepare_ms(samples: Mapping[str, Sequence[Sample]]) -> float:
    return float(sum(np.median(undisturbed(samples[stage])) for stage in _PREPARING if samples.get(stage)))


def work_ms(steps: Sequence[Sequence[Row]]) -> float:
    """Return the time to prepare and execute all steps on one core, ms, each with the row of its candidate of the least sum."""

    def cost(row: Row) -> float:
        preparing = sum(np.median(row.samples_ms[stage]) for stage in _PREPARING if stage in row.samples_ms)
        return float(preparing + np.median(row.samples_ms["first:1"]))

    return sum(min(map(cost, rows)) for rows in steps)


def _rows(opened: Sequence[_Open]) -> list[Row]:
    now = time.time()
    return [_row(o.group, position, samples, now) for o in opened for position, samples in enumerate(o.samples)]


def _row(group: Group, position: int, samples: Samples, now: float) -> Row:
    sizes = group.sizes[position]
    times = {stage: undisturbed(found) for stage, found in samples.items() if found}
    if noise := sum(not _clean(found) for found in samples.values() if found) / max(len(times), 1):
        times[NOISE] = (noise,)
    kept = {stage: tuple(np.asarray(found, np.float32).tolist()) for stage, found in sorted(times.items())}
    name = group.implementations[position].name
    return Row(group.digest, name, position, sizes.raw, sizes.weights, sizes.scratch, kept, now)
