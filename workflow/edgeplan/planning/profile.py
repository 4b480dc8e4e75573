"""Describes the profile a cold start is planned from: what each candidate of each step costs (NNV12, section 3.2; ms)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass, field, replace

from edgeplan.errors import FormatError

RAW = "raw"
SOURCES = (RAW, "cached_read", "cached_mmap", "none")
#: Of candidates that need no cache: their weights are made from the model's, or they have none.
UNCACHED = frozenset({RAW, "none"})
BIG, LITTLE = "big", "little"


def _misfit(what: str, where: str) -> FormatError:
    return FormatError(f"the profile does not fit: {what}", where=where, next_step="profile the model again")


def kernel_name(implementation: str) -> str:
    """Return the kernel of an implementation, whatever layouts it converts from and to."""
    return implementation.partition("+")[0].partition("@")[0]


@dataclass(frozen=True, slots=True)
class Candidate:
    """A candidate is one implementation of a step with one source of its weights.

    Attributes:
        implementation: the library's name of the kernel, "" for steps without choice.
        source: "raw" (read and transform), "cached_read", "cached_mmap" (already transformed) or "none" (no weights). Weights
            of some kinds of steps are always cached.
        read_ms, create_ms, transform_ms: preparation by core class; "big" always, "little" where it was measured.
        execute_ms: execution by width, the number of cores: the first one in a process, which is what a cold start pays.
        warm_ms: execution by width once it has run; by it kernels for later runs are chosen (section 3.5). Profiles of before
            it was kept have none: `warm` says what stands for it then.
        read_bytes, cache_bytes: read from the model file or the cache, and stored in the cache, 0 unless the source is cached.
        scratch_bytes: working memory of the kernel.
    """

    implementation: str
    source: str
    read_ms: Mapping[str, float]
    create_ms: Mapping[str, float]
    transform_ms: Mapping[str, float]
    execute_ms: Mapping[int, float]
    read_bytes: int = 0
    cache_bytes: int = 0
    scratch_bytes: int = 0
    warm_ms: Mapping[int, float] = field(default_factory=dict)

    def warm(self, width: int) -> float:
        """Return the execution at a width once it has run, ms; the first one where that was not measured."""
        return self.warm_ms.get(width, self.execute_ms[width])

    def stages_ms(self, core: str) -> tuple[float, float, float]:
        """Return the times to read, create and transform on a class of cores; those of "big" where no "little" was measured."""
        read, create, transform = (m.get(core, m[BIG]) for m in (self.read_ms, self.create_ms, self.transform_ms))
        return read, create, transform


@dataclass(frozen=True, slots=True)
class Layer:
    """A layer is a step of the execution order, a fused operator: its name, its ONNX operators, and at least one candidate."""

    name: str
    members: tuple[str, ...]
    candidates: tuple[Candidate, ...]


@dataclass(frozen=True, slots=True)
class Contention:
    """Contention multiplies costs (factors >= 1) while preparation overlaps with other work.

    Two preparations in one process slow each other down more than a preparation and an execution do. That loss is charged to
    the core that could do something else instead: it has a factor of its own (`main`), on all its preparation, chosen so that
    both together get done what was measured, while the others' factors stay: on creation and on reading from the cache, beside
    an execution. Steps whose weights are made from the model file, which moves and computes with many bytes, have factors of
    their own (`raw_...`), on creation and transformation, and on reading raw weights.
    """

    prepare: float = 1.0
    execute: float = 1.0
    read: float = 1.0
    main: float = 1.0
    raw_prepare: float = 1.0
    raw_read: float = 1.0
    raw_main: float = 1.0

    def preparing(self, source: str, *, main: bool) -> tuple[float, float]:
        """Return factors on reading, and on creation and transformation, of weights from a source."""
        if source == RAW:
            return (self.raw_main, self.raw_main) if main else (self.raw_read, self.raw_prepare)
        return (self.main, self.main) if main else (self.read, self.prepare)


@dataclass(frozen=True, slots=True)
class Fresh:
    """Holds the factors that scale profiled costs to those of a cold start in a fresh process.

    They are on reading into memory and on mapping cached weights, on the other stages, and on executions on all of several
    equal cores (`wide`). For each step that is executed while others are prepared `hand_over_ms` pass until the executing core
    has it.
    """

    read: float = 1.0
    map: float = 1.0
    create: float = 1.0
    transform: float = 1.0
    execute: float = 1.0
    wide: float = 1.0
    hand_over_ms: float = 0.0

    @property
    def factors(self) -> tuple[float, float, float, float, float, float]:
        """Return the factors, in the order of the fields."""
        return self.read, self.map, self.create, self.transform, self.execute, self.wide


@dataclass(frozen=True, slots=True)
class Disk:
    """Describes the disk that weights come from with the page cache evicted.

    It has a sequential bandwidth, 10^6 bytes a second, and a latency before the first byte of a file that is opened.
    """

    mb_per_s: float
    latency_ms: float = 0.0

    def transfer_ms(self, size: int) -> float:
        """Return the time for so many bytes, ms, once they flow."""
        return size / 1e3 / self.mb_per_s


@dataclass(frozen=True, slots=True)
class Profile:
    """A profile holds the costs of a model's steps under one home layout of 4-D activations.

    Attributes:
        big_cores: cores that execute.
        little_cores: cores that only prepare; 0: all cores are equal, and some of them prepare until execution widens.
        little_ratio: a preparation takes this many times its profiled time on a little core (an asymmetric chip stood for by
            waiting).
        layers: layers in order of execution.
        start_ms: paid besides any preparation or execution, whatever the plan: the program is read, threads are started, inputs
            and outputs are copied. Plans count it as paid first.
        noise: share of what was measured that was seen to be disturbed each time, 0 to 1: of the candidates' stages, the mean
            over all candidates, or of the starts, whichever is larger. Tables of profiles leave it out.
        others: share of the processors' time that other work had while it was measured, 0 to 1; likewise left out.
    """

    model: str
    layout: str
    big_cores: int
    little_cores: int
    little_ratio: float
    layers: tuple[Layer, ...]
    contention: Contention = Contention()
    start_ms: float = 0.0
    fresh: Fresh = Fresh()
    noise: float = 0.0
    others: float = 0.0

    @property
    def equal(self) -> bool:
        """Tell whether all cores are equal."""
        return self.little_cores == 0

    @property
    def narrow(self) -> int:
        """Return how many cores execute while others prepare: all big ones; of equal ones the widest width that leaves one."""
        if not self.equal:
            return self.big_cores
        return max((w for w in self.layers[0].candidates[0].execute_ms if w < self.big_cores), default=self.big_cores)

    @property
    def queues(self) -> int:
        """Return cores that prepare while others execute."""
        return self.big_cores - self.narrow if self.equal else self.little_cores

    @property
    def cores(self) -> int:
        """Return the number of cores."""
        return self.big_cores + self.little_cores


def check(profile: Profile) -> Profile:
    """Return the profile if it is complete and consistent."""
    where = f"{profile.model}, layout {profile.layout}"
    _check_factors(profile, where)
    if profile.big_cores < 1 or profile.little_cores < 0:
        raise _misfit(f"{profile.big_cores} big and {profile.little_cores} little cores", where)
    if not profile.layers:
        raise _misfit("it has no steps", where)
    widths = {profile.big_cores} | ({1} if profile.equal else set())
    for k, layer in enumerate(profile.layers):
        step = f"{where}, step {k} ({layer.name})"
        if not layer.candidates:
            raise _misfit("no candidate", step)
        for c in layer.candidates:
            _check_candidate(c, widths, f"{step}, candidate {c.implementation or 'without name'} from {c.source}")
        if len({(c.implementation, c.source) for c in layer.candidates}) < len(layer.candidates):
            raise _misfit("two candidates have the same implementation and source", step)
    if len({tuple(sorted(c.execute_ms)) for layer in profile.layers for c in layer.candidates}) > 1:
        raise _misfit("execution was not measured at the same widths everywhere", where)
    return profile


def _check_factors(profile: Profile, where: str) -> None:
    new = profile.fresh
    factors = [profile.little_ratio, *astuple(profile.contention)]
    if not all(math.isfinite(f) and f >= 1 for f in factors):
        raise _misfit(f"little_ratio and factors of contention must be at least 1, not {factors}", where)
    if not all(math.isfinite(f) and f > 0 for f in new.factors):
        raise _misfit(f"factors of a fresh process must be above 0, not {list(new.factors)}", where)
    for name, time in (("start_ms", profile.start_ms), ("hand_over_ms", new.hand_over_ms)):
        if not (math.isfinite(time) and time >= 0):
            raise _misfit(f"{name} must be at least 0, not {time}", where)


def _check_candidate(c: Candidate, widths: set[int], where: str) -> None:
    if c.source not in SOURCES:
        raise _misfit(f"source must be one of {', '.join(SOURCES)}, not {c.source!r}", where)
    for name, times in (("read_ms", c.read_ms), ("create_ms", c.create_ms), ("transform_ms", c.transform_ms)):
        if BIG not in times or set(times) - {BIG, LITTLE}:
            raise _misfit(f"{name} is by core class: big, and little where it was measured", where)
    if not widths <= set(c.execute_ms):
        raise _misfit(f"execute_ms misses a width of {sorted(widths)}", where)
    if not set(c.warm_ms) <= set(c.execute_ms):
        raise _misfit(f"warm_ms has another width than {sorted(c.execute_ms)}", where)
    times_ms = [t for m in (c.read_ms, c.create_ms, c.transform_ms, c.execute_ms, c.warm_ms) for t in m.values()]
    if not all(math.isfinite(t) and t >= 0 for t in times_ms):
        raise _misfit("a time is negative or not finite", where)
    if min(c.read_bytes, c.cache_bytes, c.scratch_bytes) < 0:
        raise _misfit("a size is negative", where)


def prepare_ms(
    profile: Profile, candidate: Candidate, core: str, *, overlapped: bool, main: bool = False
) -> tuple[float, float, float]:
    """Return read, create and transform times: the one place where factors and little cores' ratio enter preparation.

    The core is "big" or "little"; one that prepares among equal cores is a "big" one. `overlapped`: other cores work meanwhile;
    `main`: the main core prepares.
    """
    read, create, transform = candidate.stages_ms(core)
    fresh = profile.fresh
    read *= fresh.map if candidate.source == "cached_mmap" else fresh.read
    create, transform = create * fresh.create, transform * fresh.transform
    slow = profile.little_ratio if core == LITTLE else 1.0
    factors = profile.contention if overlapped else Contention()
    reading, making = factors.preparing(candidate.source, main=main)
    return read * slow * reading, create * slow * making, transform * slow * making


def execute_ms(profile: Profile, candidate: Candidate, width: int, *, overlapped: bool) -> float:
    """Return the execution time, ms, the one place where factors and the handing over enter execution."""
    fresh = profile.fresh
    time = candidate.execute_ms[width] * (fresh.wide if profile.equal and width > 1 else fresh.execute)
    return time * profile.contention.execute + fresh.hand_over_ms if overlapped else time


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
    dominates it, so no optimum is lost. With a disk a candidate must also be beaten in bytes to read, and in what waits for
    them; the bounds stay, but what is prepared sooner may make the main core begin another preparation that waits: an optimum
    may be lost, which has not been seen.
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
    return narrowed(profile, undominated(profile, disk=disk))


def narrowed(profile: Profile, positions: Sequence[Sequence[int]]) -> Profile:
    """Return the profile with the candidates at those positions only, by step."""
    layers = tuple(
        replace(layer, candidates=tuple(layer.candidates[i] for i in kept))
        for layer, kept in zip(profile.layers, positions, strict=True)
    )
    return replace(profile, layers=layers)


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
