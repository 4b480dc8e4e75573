"""Runs the ways to serve a model in turns, within a budget of seconds; those that are clearly worse have no further turn."""

from __future__ import annotations

import heapq
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median

from edgeplan.comparing.result import LeftOut, Row
from edgeplan.comparing.turns import Ran, Session, Turns
from edgeplan.comparing.ways import OWN, REFERENCE, SPLIT, Server, Source, Way, beside_cores, host_cores, serve
from edgeplan.devices.pairs import PairFile
from edgeplan.errors import EdgeplanError
from edgeplan.measurement.settings import TimeBudget
from edgeplan.support.files import FilePath
from edgeplan.support.numerics import around_median
from edgeplan.support.tensors import Array, relative_error
from edgeplan.support.workers import ColdRunError

_SECONDS = 0.3  # of later inferences in a turn
_MOST_TURNS = 8
#: After so many turns a way is given up that never came so near to the best of any goal; the last one holds for all others.
_NEAR = (2.5, 1.5, 1.3, 1.15)
_HOPELESS = 3.0  # an engine so far from the best by its first way has no other tried
_PLANNING_SHARE, _PLANNING_SECONDS = 0.2, 10.0  # of the budget, and at most
_PATIENCE_SECONDS, _PATIENCE = 5.0, 10.0  # of a turn, and so many times the shortest one


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

    Args:
        turns: what starts sessions.
        source: the model.
        device: of the engine onednn, for plans.
        processors: that all sessions together may use.
        budget: seconds for all of it.
        at_once: requests that come at once.
        pair: whose second processor serves, too; None without.
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
            seconds = self._planning_seconds if name == OWN else max(self._budget.left_s, 1.0)
            try:
                self._servers[name] = serve(name, self._source, self._device, self._processors, seconds, self._pair)
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
            session = self.server(REFERENCE).session(len(self._processors), self._processors, 0)
            self._turns.run([session], seconds=0.0, patience=max(self._budget.left_s, 1.0), blocks=0, save=True)
            self._reference = self.server(REFERENCE).outputs()
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
            runs = int(_SECONDS * 1e3 / tried.latencies_ms[-1]) if tried.turns else 0
            sessions, first = self._sessions(way, runs), way.engines[0]
            shortest = min((t.seconds for t in self._tried if t.turns), default=_PATIENCE_SECONDS)
            patience = min(max(self._budget.left_s, 1.0), _PATIENCE_SECONDS + _PATIENCE * shortest)
            began, save = time.monotonic(), bool(self._reference) and first not in self._differences
            tried.turns += self._turns.run(sessions, seconds=_SECONDS, patience=patience, save=save)
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
            places = way.places(host_cores(pair) if pair and way.beside else cores)
            found = [self.server(way.engine).session(way.threads, place, runs) for place in places]
        if pair and way.beside:
            found.append(self.server(way.beside).session(1, cores if way.beside == SPLIT else beside_cores(pair), runs))
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
    """Return when the last of some requests is answered that come at once, each taken by the session that is free first.

    Args:
        each_ms: of a request, by session.
        requests: how many.
    """
    free, last = [(0.0, ms) for ms in sorted(each_ms)], 0.0  # a heap: when a session is free, and how long it takes
    for _ in range(requests):
        since, ms = free[0]
        heapq.heapreplace(free, (since + ms, ms))
        last = max(last, since + ms)
    return last
