"""Describes a comparison: what each way of serving a model took here, and what follows from it for each goal."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import TypeAdapter, ValidationError

from edgeplan.chapters.partition.checked.fastest import fastest
from edgeplan.errors import FormatError, ParamsError, SlowerError
from edgeplan.measurement.process.job import STOCK_TOLERANCE
from edgeplan.support.files import write_atomically

Goal = Literal["one", "at_once", "many", "memory", "start"]
Verdict = Literal["slower", "faster", "the same", "not told apart", "not known"]
_MIB = 1 << 20
_APART = 1.01  # ways within a hundredth of each other are as good


@dataclass(frozen=True, slots=True)
class Row:
    """Tells how a way of serving a model ran: medians of turns, each of which is in new processes.

    Attributes:
        name: of the way, for people.
        engine: name of the setting, `edgeplan` for a plan of this package.
        version: of the engine.
        threads: of each session.
        sessions: processes that serve side by side, each on processors of its own.
        first_ms: from exec to the first answer, all sessions started at once.
        latency_ms: of a later request, while all sessions serve.
        low_ms, high_ms: 95 % interval of that median; the range where there are fewer than six turns.
        per_second: requests a second, of all sessions together.
        at_once_ms: of so many requests that come at once, from one queue; by the later requests of each session.
        peak_bytes: the most memory of all sessions together; pages that they share are counted in each.
        difference: largest one of the outputs from ONNX Runtime's, relative to the largest magnitude; None where not known.
        firsts_ms, latencies_ms, rates, at_onces_ms: by turn.
    """

    name: str
    engine: str
    version: str
    threads: int
    sessions: int
    first_ms: float
    latency_ms: float
    low_ms: float
    high_ms: float
    per_second: float
    at_once_ms: float
    peak_bytes: int
    difference: float | None
    firsts_ms: tuple[float, ...]
    latencies_ms: tuple[float, ...]
    rates: tuple[float, ...]
    at_onces_ms: tuple[float, ...]

    @property
    def is_right(self) -> bool:
        """Tell whether its outputs are ONNX Runtime's within what stock engines differ by, as far as is known."""
        return self.difference is None or self.difference <= STOCK_TOLERANCE


@dataclass(frozen=True, slots=True)
class LeftOut:
    """Names a way, or an engine, that did not run or was ended, and the reason."""

    name: str
    reason: str


@dataclass(frozen=True, slots=True)
class Held:
    """Tells how a model ran by a way beside another one, or beside a kept comparison.

    Attributes:
        name: of the way.
        latency_ms, other_ms: of a later request of the model, and of the other.
        ratio: how many times as long the model takes.
        low, high: ends of its interval.
        rounds: that it comes from.
        verdict: of the model.
        reason: why there is none.
    """

    name: str
    latency_ms: float
    other_ms: float
    ratio: float
    low: float
    high: float
    rounds: int
    verdict: Verdict
    reason: str = ""


@dataclass(frozen=True)
class Comparison:
    """The ways of serving a model on this machine, as they ran.

    Attributes:
        model: name of the file.
        sha256: of its content.
        machine: fingerprint of the machine.
        processors: that were used.
        seconds: that all of it took.
        others: share of the processors' time that other work had.
        compute_us: time of a load of reference, as a yardstick of the machine's clock.
        at_once: requests that come at once.
        rows: by way.
        left_out: what did not run.
        held: how the model ran beside another; empty where none was given.
        interrupted: whether it was ended before its time.
        format_version: of this document.
    """

    model: str
    sha256: str
    machine: str
    processors: tuple[int, ...]
    seconds: float
    others: float
    compute_us: float
    at_once: int
    rows: tuple[Row, ...]
    left_out: tuple[LeftOut, ...] = ()
    held: tuple[Held, ...] = ()
    interrupted: bool = False
    format_version: Literal[1] = 1

    def best(self, goal: Goal) -> Row | None:
        """Return the way that is best for a goal, of those whose outputs are right; None where none ran."""
        return min(self._for(goal), key=_COSTS[goal], default=None)

    def _for(self, goal: Goal) -> list[Row]:
        return [row for row in self.rows if row.is_right and (row.sessions == 1 or goal in ("many", "at_once"))]

    def advice(self) -> tuple[str, ...]:
        """Return a sentence for each goal."""
        return tuple(self._advised(goal, best) for goal in _COSTS if (best := self.best(goal)) is not None)

    def _advised(self, goal: Goal, best: Row) -> str:
        told = {
            "one": f"one request: {best.name}: {best.latency_ms:.4g} ms ({best.low_ms:.4g} to {best.high_ms:.4g})",
            "at_once": f"{self.at_once} at once: {best.name}: {best.at_once_ms:.4g} ms until the last is answered",
            "many": f"per second: {best.name}: {best.per_second:.4g} requests",
            "memory": f"least memory: {best.name}: {best.peak_bytes / _MIB:.4g} MiB",
            "start": f"first answer: {best.name}: {best.first_ms:.4g} ms after its process is started",
        }[goal]
        found = fastest({row.name: _TURNS[goal](row) for row in self._for(goal)}, way=best.name)
        if goal == "memory" or not found.next_best:
            return told
        unsure = "" if found.low > _APART else ": they are not told apart"
        return f"{told}; {found.next_best} takes {found.margin:.3g} times as long ({found.low:.3g} to {found.high:.3g}){unsure}"

    def require(self, allowed: float) -> None:
        """Refuse a model that is slower than what it was held against.

        Args:
            allowed: share that it may be slower by, such as 0.05.

        Raises:
            SlowerError: it is for certain slower by more, by one of the ways.
        """
        for held in self.held:
            if held.verdict == "slower" and held.low > 1 + allowed:
                raise SlowerError(
                    f"it takes {held.ratio:.3g} times as long ({held.low:.3g} to {held.high:.3g}) by {held.name}; "
                    f"{1 + allowed:.3g} are allowed",
                    where=self.model,
                    next_step="see what changed in the model: edgeplan predict shows each kernel",
                )

    def document(self) -> dict[str, Any]:
        """Return what `--json` prints, and what `--against` takes."""
        return asdict(self)


_COSTS: Mapping[Goal, Callable[[Row], float]] = {
    "one": lambda row: row.latency_ms,
    "at_once": lambda row: row.at_once_ms,
    "many": lambda row: 1 / row.per_second,
    "memory": lambda row: row.peak_bytes,
    "start": lambda row: row.first_ms,
}
#: What a way costs in each turn.
_TURNS: Mapping[Goal, Callable[[Row], list[float]]] = {
    "one": lambda row: list(row.latencies_ms),
    "at_once": lambda row: list(row.at_onces_ms),
    "many": lambda row: [1 / rate for rate in row.rates],
    "memory": lambda row: [row.peak_bytes],
    "start": lambda row: list(row.firsts_ms),
}
#: Of what `--json` prints.
COMPARISON = TypeAdapter(Comparison)


def read(path: Path) -> Comparison:
    """Read a comparison that was kept.

    Raises:
        FormatError: the file holds none.
    """
    try:
        return COMPARISON.validate_json(path.read_bytes())
    except (OSError, ValidationError) as error:
        why = error.strerror if isinstance(error, OSError) else error.errors()[0]["msg"]
        next_step = f"name an ONNX file, or keep one: edgeplan compare model.onnx --json > {path.name}"
        raise FormatError(f"this is no comparison: {why}", where=str(path), next_step=next_step) from error


def share_of(text: str) -> float:
    """Return the share that a text such as `5%` or `0.05` names.

    Raises:
        ParamsError: it names none.
    """
    try:
        found = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        found = -1.0
    if not 0 <= found < float("inf"):
        raise ParamsError(f"{text!r} is no share", where="--fail-above", next_step="name one as in 5%")
    return found


def write_chart(found: Comparison, path: Path) -> None:
    """Draw all ways whose outputs are right, as SVG: a colour for each engine, a mark for each number of sessions."""
    from edgeplan.reporting.drawing import MARKERS, PALETTE, canvas, legend, name_axes, svg  # noqa: PLC0415  matplotlib is slow

    figure, (axis,) = canvas(9.5, 4.2)
    rows = [row for row in found.rows if row.is_right]
    engines, counts = (list(dict.fromkeys(values)) for values in ([r.engine for r in rows], [r.sessions for r in rows]))
    for row in rows:
        sure = [[max(row.latency_ms - row.low_ms, 0.0)], [max(row.high_ms - row.latency_ms, 0.0)]]
        axis.errorbar(
            [row.latency_ms], [row.per_second], xerr=sure, label=row.name, linestyle="none", markersize=6, capsize=2,
            color=PALETTE[engines.index(row.engine) % len(PALETTE)], marker=MARKERS[counts.index(row.sessions) % len(MARKERS)],
        )  # fmt: skip
    axis.set_xlim(left=0)
    axis.set_ylim(bottom=0)
    name_axes(axis, "a later request (ms)", "requests a second", found.model)
    legend(axis, beside=True)
    write_atomically(path, lambda temporary: temporary.write_bytes(svg(figure)))
