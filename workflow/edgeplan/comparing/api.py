"""Compares the ways to serve a model on this machine: `edgeplan.compare`."""

from __future__ import annotations

import heapq
import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import Unpack

from edgeplan.comparing import ways
from edgeplan.comparing.result import Comparison, Held, LeftOut, Row, Verdict, read
from edgeplan.comparing.ways import Ran, Server, Session, Source, Turns, Way
from edgeplan.devices.pairs import PairFile, load_pair
from edgeplan.engines.registry import SETTINGS
from edgeplan.errors import EdgeplanError, ParamsError, require_known
from edgeplan.graph.model_file import model_sha256
from edgeplan.graph.onnx.prepare import OpenParts, Preparation, prepare_file
from edgeplan.measurement.lock import machine_lock
from edgeplan.measurement.others import DISTURBED, Others
from edgeplan.measurement.references import References
from edgeplan.measurement.settings import TimeBudget
from edgeplan.support.files import FilePath
from edgeplan.support.machine import fingerprint
from edgeplan.support.numerics import around_median
from edgeplan.support.scratch import ScratchFolder
from edgeplan.support.tensors import Array, relative_error
from edgeplan.support.workers import ColdRunError

_TURN_SECONDS = 0.3  # of later inferences in a turn
_MOST_TURNS = 8
#: After so many turns a way is given up that never came so near to the best of any goal; the last one holds for all others.
_NEAR = (2.5, 1.5, 1.3, 1.15)
_HOPELESS = 3.0  # an engine so far from the best by its first way has no other tried
_PLANNING_SHARE, _PLANNING_SECONDS = 0.2, 10.0  # of the budget, and at most
_TURN_PATIENCE_SECONDS, _TURN_PATIENCE = 5.0, 10.0  # of a turn, and so many times the shortest one


@dataclass
class Tried:
    """A way that was tried, how its sessions ran in each turn, and how long the last turn took."""

    way: Way
    turns: list[list[Ran]] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def firsts_ms(self) -> tuple[float, ...]:
        """Return when the last session had answered once, by turn."""
        return tuple(max(one.first_ms for one in ran) for ran in self.turns)

    @property
    def latencies_ms(self) -> tuple[float, ...]:
        """Return the median time of a later request, by turn."""
        return tuple(median(one.later_ms for one in ran) for ran in self.turns)

    @property
    def rates(self) -> tuple[float, ...]:
        """Return the requests a second of all sessions, by turn."""
        return tuple(sum(one.per_second for one in ran) for ran in self.turns)


#: What a way costs in its best turn, by what is asked of it.
_COSTS: Mapping[str, Callable[[Tried], float]] = {
    "start": lambda tried: min(tried.firsts_ms),
    "one": lambda tried: min(tried.latencies_ms),
    "many": lambda tried: 1 / max(tried.rates),
}


class Bench:
    """A bench serves one model, and keeps what was seen of each way.

    All sessions together use the processors, within a budget of seconds; a pair lends its second processor.
    """

    def __init__(
        self,
        turns: Turns,
        source: Source,
        device: FilePath,
        processors: tuple[int, ...],
        budget: TimeBudget,
        at_once: int = 1,
        pair: PairFile | None = None,
    ) -> None:
        self._turns, self._source, self._device, self._processors, self._budget = turns, source, device, processors, budget
        self._at_once, self._pair = at_once, pair
        self._planning_seconds = min(_PLANNING_SHARE * budget.left_s, _PLANNING_SECONDS)
        self._servers, self._refused = dict[str, Server](), dict[str, EdgeplanError]()
        self._reference, self._differences = list[Array](), dict[str, float]()
        self._tried, self.left_out = list[Tried](), list[LeftOut]()

    @property
    def rows(self) -> tuple[Row, ...]:
        """Return what is told of the ways that ran."""
        return tuple(self._row(tried) for tried in self._tried if tried.turns)

    def server(self, name: str) -> Server:
        """Return what serves the model by an engine, made when it is first asked for.

        Raises:
            EdgeplanError: it cannot be made.
        """
        if name in self._refused:
            raise self._refused[name]
        if name not in self._servers:
            seconds = self._planning_seconds if name == ways.OWN else max(self._budget.left_s, 1.0)
            try:
                self._servers[name] = ways.serve(name, self._source, self._device, self._processors, seconds, self._pair)
            except EdgeplanError as error:
                self._refused[name] = error
                raise
        return self._servers[name]

    def measure(self, wanted: Sequence[Way]) -> None:
        """Run each way once, then those that may be best for some goal, one after the other, as long as the budget lasts."""
        self._take_reference()
        for way in wanted:
            tried = Tried(way)
            if not self._refused.keys().isdisjoint(way.engines):
                continue  # said once
            if self._budget.over:
                self.left_out.append(LeftOut(way.name, "not tried: the time was over"))
            elif not way.beside and (times := self._behind(way.engine)) > _HOPELESS:
                self.left_out.append(LeftOut(way.name, f"not tried: its engine took {times:.1f} times as long as the best"))
            else:
                self._tried.append(tried)
                self._turn(tried)
        for turn in range(1, _MOST_TURNS):
            alive = [tried for tried in self._worth_a_turn() if tried.seconds < self._budget.left_s]
            for tried in alive if turn % 2 == 0 else alive[::-1]:
                if tried.seconds < self._budget.left_s:
                    self._turn(tried)

    def _take_reference(self) -> None:
        """Keep ONNX Runtime's outputs, if it serves the model; else its row says why not."""
        try:
            session = self.server(ways.REFERENCE).session(len(self._processors), self._processors, 0)
            self._turns.run([session], seconds=0.0, patience=max(self._budget.left_s, 1.0), blocks=0, save=True)
            self._reference = self.server(ways.REFERENCE).outputs()
        except EdgeplanError:
            return

    def _worth_a_turn(self) -> list[Tried]:
        """Return the ways that may still be the best for a goal: each that came near to the best in one of its turns."""
        ran = [tried for tried in self._tried if tried.turns]
        best = {goal: min(map(cost, ran), default=0.0) for goal, cost in _COSTS.items()}

        def is_near(tried: Tried) -> bool:
            near = _NEAR[min(len(tried.turns), len(_NEAR)) - 1]
            return any(cost(tried) <= near * best[goal] for goal, cost in _COSTS.items())

        return [tried for tried in ran if is_near(tried)]

    def _behind(self, engine: str) -> float:
        """Return how many times as long an engine's best way takes as the best of all, by the goal that it is nearest for."""
        ran = [tried for tried in self._tried if tried.turns]
        own = [tried for tried in ran if tried.way.engine == engine]
        return min((min(map(cost, own)) / min(map(cost, ran)) for cost in _COSTS.values() if own), default=1.0)

    def _turn(self, tried: Tried) -> None:
        """Run a way once, in new processes; one that fails is left out from then on."""
        way, began = tried.way, time.monotonic()
        try:
            runs = int(_TURN_SECONDS * 1e3 / tried.latencies_ms[-1]) if tried.turns else 0
            sessions, first = self._sessions(way, runs), way.engines[0]
            shortest = min((t.seconds for t in self._tried if t.turns), default=_TURN_PATIENCE_SECONDS)
            patience = min(max(self._budget.left_s, 1.0), _TURN_PATIENCE_SECONDS + _TURN_PATIENCE * shortest)
            began, save = time.monotonic(), bool(self._reference) and first not in self._differences
            tried.turns += self._turns.run(sessions, seconds=_TURN_SECONDS, patience=patience, save=save)
            if save:
                self._differences[first] = relative_error(self.server(first).outputs(), self._reference)
        except EdgeplanError as error:
            refused = [name for name in way.engines if name in self._refused]
            name = Way("", 0, 0, refused[0]).title if refused else way.name
            self.left_out.append(LeftOut(name, error.reason if isinstance(error, ColdRunError) else error.what))
            tried.seconds = math.inf
        else:
            tried.seconds = time.monotonic() - began

    def _sessions(self, way: Way, runs: int) -> list[Session]:
        """Return the sessions of a way, those on the CPU first."""
        cores, pair = self._processors, self._pair
        found = list[Session]()
        if way.engine:
            places = way.places(ways.host_cores(pair) if pair and way.beside else cores)
            found = [self.server(way.engine).session(way.threads, place, runs) for place in places]
        if pair and way.beside:
            both = cores if way.beside == ways.SPLIT else ways.beside_cores(pair)
            found.append(self.server(way.beside).session(1, both, runs))
        return found

    def _row(self, tried: Tried) -> Row:
        way, latencies, (low, high, _) = tried.way, tried.latencies_ms, around_median(tried.latencies_ms)
        peak = max(sum(one.peak for one in ran) for ran in tried.turns)
        differences = [self._differences[name] for name in way.engines if name in self._differences]
        at_once = tuple(queued_ms([one.later_ms for one in ran], self._at_once) for ran in tried.turns)
        return Row(
            way.name, "+".join(way.engines), ", ".join(self._servers[name].version for name in way.engines), way.threads,
            len(tried.turns[0]), median(tried.firsts_ms), median(latencies), low, high, median(tried.rates), median(at_once),
            peak, max(differences, default=None), tried.firsts_ms, latencies, tried.rates, at_once,
        )  # fmt: skip


def queued_ms(each_ms: Sequence[float], requests: int) -> float:
    """Return when the last of some requests is answered that come at once, each taken by the session that is free first."""
    free, last = [(0.0, ms) for ms in sorted(each_ms)], 0.0  # a heap: when a session is free, and how long it takes
    for _ in range(requests):
        since, ms = free[0]
        heapq.heapreplace(free, (since + ms, ms))
        last = max(last, since + ms)
    return last


#: Looks at what was found so far, after so many rounds; each claims by an interval that is wrong once in 200 times.
_ROUNDS, _LEVEL = (10, 15, 20), 0.995
_BLOCKS, _SECONDS = 6, 0.08  # of each model in a round, and of each block at least
_PATIENCE_SECONDS = 10.0  # with a round, whatever the budget
#: Within this of each other two models are as fast; less than half of it is no difference that a verdict is given for.
_ALIKE = 0.04
_STARTS_DIFFER = 0.05  # figures of other processes at another time, on a quiet machine


def _in_turns(turns: Turns, way: Way, ours: Bench, theirs: Bench, processors: tuple[int, ...], budget: TimeBudget) -> Held:
    """Start a session of each model in each round, and have them infer in turns: whatever load there is meets both.

    A session serves both in one way; the first round is in any case, whatever the budget.
    """
    own, other, ratios, runs, seconds = list[float](), list[float](), list[float](), 0, 0.0
    while not ratios or (len(ratios) < _ROUNDS[-1] and seconds < budget.left_s):
        began = time.monotonic()
        pair = [[bench.server(way.engine).session(way.threads, processors, runs)] for bench in (ours, theirs)]
        step = 1 if len(ratios) % 2 == 0 else -1  # who is started first
        ran = turns.run(*pair[::step], seconds=_SECONDS, patience=max(budget.left_s, _PATIENCE_SECONDS), blocks=_BLOCKS)
        (mine,), (yours,) = ran[::step]
        own.append(mine.later_ms)
        other.append(yours.later_ms)
        ratios.append(median(median(a) / median(b) for a, b in zip(mine.blocks, yours.blocks, strict=True)))
        runs = int(_BLOCKS * _SECONDS * 1e3 / max(own[-1], other[-1]))
        seconds = time.monotonic() - began
        if len(ratios) in _ROUNDS and ratio_verdict(ratios)[2] != "not told apart":
            break
    low, high, verdict = ratio_verdict(ratios)
    few = f"a verdict takes {_ROUNDS[0]} rounds: give more seconds" if len(ratios) < _ROUNDS[0] else ""
    return Held(way.name, median(own), median(other), median(ratios), low, high, len(ratios), verdict, few)


def ratio_verdict(ratios: Sequence[float]) -> tuple[float, float, Verdict]:
    """Return the ends of the interval of the median of all rounds' ratios, and what follows."""
    low, high, sure = around_median(ratios, _LEVEL)
    return low, high, _verdict(median(ratios), low, high, _ALIKE) if sure else "not known"


def _verdict(found: float, low: float, high: float, alike: float) -> Verdict:
    if low > 1 and found > 1 + alike / 2:
        return "slower"
    if high < 1 and found < 1 - alike / 2:
        return "faster"
    return "the same" if 1 - alike < low and high < 1 + alike else "not told apart"


def with_kept(now: Comparison, kept: Comparison) -> tuple[Held, ...]:
    """Hold a comparison against an earlier one, way by way; where the machine was another, or busy, there is no verdict."""
    before, busy = {row.name: row for row in kept.rows}, max(now.others, kept.others)
    reason = "" if (now.machine, now.processors) == (kept.machine, kept.processors) else "it is of another machine"
    if not reason and busy > DISTURBED:
        reason = f"other work had {100 * busy:.0f} % of the time: hold it against the file of the other model"
    clock = now.compute_us / kept.compute_us
    return tuple(_with_row(row, before[row.name], clock, reason) for row in now.rows if row.name in before)


def _with_row(row: Row, other: Row, clock: float, reason: str) -> Held:
    """Hold a way against the same one of another time; the ends allow for a clock that was another, and for other processes."""
    (low, high, sure), (least, most, known) = around_median(row.latencies_ms), around_median(other.latencies_ms)
    low, high = low / most / max(clock, 1) / (1 + _STARTS_DIFFER), high / least / min(clock, 1) * (1 + _STARTS_DIFFER)
    reason = reason or ("" if sure and known else "one of them had too few turns: give more seconds")
    ratio, rounds = row.latency_ms / other.latency_ms, min(len(row.latencies_ms), len(other.latencies_ms))
    verdict: Verdict = "not known" if reason else _verdict(ratio, low, high, 2 * _STARTS_DIFFER)
    return Held(row.name, row.latency_ms, other.latency_ms, ratio, low, high, rounds, verdict, reason)


_LOOKS = 8  # at the reference, before and after


def compare(
    model: FilePath,
    *,
    device: FilePath = "cpu-onednn",
    budget_seconds: float = 60.0,
    engine: Sequence[str] = (),
    against: FilePath = "",
    pair: FilePath = "",
    at_once: int = 16,
    **given: Unpack[OpenParts],
) -> Comparison:
    """Serve a model in all ways that there are on this machine, in turns, and tell what each takes.

    An interrupt from the keyboard ends it; what is known by then is returned.

    Args:
        model: ONNX file.
        device: name of a device file, or a path to one: its processors are used, and plans are made for it.
        budget_seconds: that all of it may take.
        engine: those to compare; without any, all that are known; with a model to hold it against, ONNX Runtime.
        pair: name of a pair file, or a path to one: its second processor serves alone, beside the first, and in a split.
        at_once: requests that come at once, for one of the goals.
        against: ONNX file of another model, or a comparison that was kept as .json.
        given: what the file leaves open (`OpenParts`), and that of the other model, too.

    Raises:
        ModelError: a model cannot be read, or what it leaves open is not given.
        ParamsError: there is no such engine, or no time is given.
        FormatError: what was kept is no comparison.
        BusyError: another process is measuring on this machine.
    """
    began, budget, wanted = time.monotonic(), TimeBudget.of(budget_seconds), Preparation.given(**given)
    if not budget_seconds >= 1:
        raise ParamsError(f"nothing runs in {budget_seconds:g} s", where="--budget-seconds", next_step="give 10 or more")
    require_known("engine", engine, [*ways.engines(), *SETTINGS], "--engine")
    kept = read(Path(against)) if Path(against).suffix == ".json" else None
    other = Path(against) if str(against) and kept is None else None
    names, processors = tuple(engine) or ((ways.REFERENCE,) if other else ways.engines()), ways.processors_of(device)
    two = load_pair(pair) if pair else None
    held, left_out, interrupted = list[Held](), list[LeftOut](), False
    with ExitStack() as stack:
        scratch = Path(stack.enter_context(ScratchFolder("compare")))
        stack.enter_context(machine_lock(budget_seconds))
        turns, benches = stack.enter_context(Turns()), list[Bench]()
        for path in filter(None, (Path(model), other)):
            source = prepare_file(path, wanted, scratch / f"{len(benches)}.onnx")
            benches.append(
                Bench(turns, Source(source, scratch / f"of-{len(benches)}"), device, processors, budget, at_once, two)
            )
        watch, references = Others(processors), References()
        clock = references.time(_LOOKS).compute_us
        try:
            if other is None:
                benches[0].measure(ways.all_ways(names, len(processors), two))
            for number, name in enumerate(names if other else ()):
                way = Way(name, len(processors), 1)
                try:
                    part = budget.part(1 / (len(names) - number))
                    held.append(_in_turns(turns, way, benches[0], benches[1], processors, part))
                except EdgeplanError as error:
                    left_out.append(LeftOut(way.title, error.what))
        except KeyboardInterrupt:
            interrupted = True
        found = Comparison(
            model=Path(model).name, sha256=model_sha256(Path(model)), machine=fingerprint(), processors=processors,
            seconds=time.monotonic() - began, others=watch.share(), compute_us=min(clock, references.time(_LOOKS).compute_us),
            at_once=at_once, rows=benches[0].rows,
            left_out=(*benches[0].left_out, *left_out), held=tuple(held), interrupted=interrupted,
        )  # fmt: skip
    return found if kept is None else replace(found, held=with_kept(found, kept))
