"""Asks a board's worker for batches, on the host's side, and goes on where a link was cut.

Each row is checked against what was asked for: a worker is believed its times, and nothing else.
"""

from __future__ import annotations

import getpass
import logging
import os
import platform
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

import edgeplan.errors
from edgeplan import __version__
from edgeplan.devices.config import DeviceFile
from edgeplan.engines.base import EngineNode, apart
from edgeplan.errors import DeviceError, EdgeplanError, FormatError
from edgeplan.graph.ir import Graph
from edgeplan.graph.kernel_nodes import copies_graph
from edgeplan.measurement.board import wire
from edgeplan.measurement.board.link import Link, LinkCutError, open_link, start_failure
from edgeplan.measurement.local import sources_digest
from edgeplan.measurement.lock import WAIT_SECONDS
from edgeplan.measurement.records import (
    COLUMNS,
    AnySubject,
    Batch,
    FileSubject,
    MachineFacts,
    Measurement,
    MeasuringConditions,
    NodeMembers,
    Subject,
)
from edgeplan.measurement.references import ReferenceTimes

#: Times of runs and references, us: from a nanosecond to a day.
_LEAST_US, _MOST_US = 1e-3, 8.64e10
_MOST_TEXT = 1000
#: Seconds by which a row may be dated after it has arrived.
_AHEAD_SECONDS = 60.0


def checked_measurement(row: wire.MeasuredRow, subject: AnySubject, batch: Batch, now: float, board: str) -> Measurement:
    """Make a measurement of a row that arrived `now`, seconds since the epoch, if it fits what was asked for."""
    if faults := [*_faults_of_times(row, batch, now), *_faults_of_nodes(row, subject)]:
        raise FormatError(
            f"a row does not fit what was asked for: {faults[0]}",
            where=f"{board}, subject {row.name}",
            next_step="nothing of it was stored; if the board is yours, bring the same edgeplan to it: edgeplan device deploy",
        )
    blocks = len(row.least_us)
    return Measurement(
        subject=row.name,
        sample=row.sample,
        nodes=row.nodes,
        **{name: np.array(getattr(row, name)) for name in COLUMNS},
        node_us=np.array(row.node_us).reshape(blocks, len(row.nodes)),
        nominal=batch.nominal,
        exponents=batch.settings.reference_exponents,
        seconds=row.seconds,
    )


def _faults_of_times(row: wire.MeasuredRow, batch: Batch, now: float) -> Iterator[str]:
    settings, blocks = batch.settings, len(row.least_us)
    if row.sample != batch.sample:
        yield f"sample {row.sample} instead of {batch.sample}"
    if not settings.blocks <= blocks <= settings.blocks + settings.extra_blocks:
        yield f"{blocks} blocks instead of {settings.blocks} to {settings.blocks + settings.extra_blocks}"
    for name in ("least_us", "median_us", "compute_us", "bandwidth_us"):
        values = getattr(row, name)
        if len(values) != blocks:
            yield f"{name} has {len(values)} values for {blocks} blocks"
        elif not _within(np.array(values), _LEAST_US, _MOST_US):
            yield f"{name} is out of range"
    if any(least > median for least, median in zip(row.least_us, row.median_us, strict=False)):
        yield "a least time is above the median"
    dates = np.array(row.measured_at)
    if len(dates) != blocks or not _within(dates, 0.0, now + _AHEAD_SECONDS) or (np.diff(dates) < 0).any():
        yield "measured_at is not a date a block, in order, in the past"


def _faults_of_nodes(row: wire.MeasuredRow, subject: AnySubject) -> Iterator[str]:
    blocks = len(row.least_us)
    operators = _operators(subject)
    if row.nodes and not operators:
        yield "it has nodes, and none were asked for"
    if len(row.node_us) != blocks * len(row.nodes):
        yield f"node_us has {len(row.node_us)} values for {blocks} blocks of {len(row.nodes)} nodes"
    elif row.node_us and not _within(np.array(row.node_us), 0.0, _MOST_US):
        yield "node_us is out of range"
    if any(len(text) > _MOST_TEXT for node in row.nodes for text in _texts(node)):
        yield "a text of a node is too long"
    if strangers := {member for node in row.nodes for member in node.members}.difference(operators):
        yield f"a node holds {min(strangers)[:80]!r}, which is no operator of the graph"


def _texts(node: EngineNode) -> tuple[str, ...]:
    return node.name, node.op_type, node.implementation, node.tensor, node.input_layout, node.output_layout


def _operators(subject: AnySubject) -> AbstractSet[str]:
    """Return the operators that nodes may hold: none where no nodes were asked for, or where an engine describes its own."""
    if isinstance(subject, Subject):
        return subject.graph.by_name.keys() if subject.profiled else frozenset()
    if isinstance(subject, FileSubject):
        return frozenset()
    with suppress(FormatError):
        return copies_graph(subject.config, subject.copies, apart=apart(subject.config), around=True).by_name.keys()
    return frozenset()


def _within(values: npt.NDArray[np.float64], least: float, most: float) -> bool:
    return bool(np.isfinite(values).all() and (values >= least).all() and (values <= most).all())


log = logging.getLogger(__name__)
#: A worker gives a sign of life every half minute; a board may take a minute to start Python.
_SILENCE_SECONDS, _START_SECONDS = 180.0, 120.0
_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 0.5, 20.0
#: Words of a worker on one request.
_MOST_NOTES = 10_000
#: Graphs of one request for executed nodes.
_GRAPHS = 32
#: Where rows say how far a board's clock was from the host's, seconds.
CLOCK_OFFSET = "clock_offset_s"
_Handler = Callable[[wire.Answer], None]


class BoardMeasurer:
    """Measures on a board, a device whose transport is not local, by its worker, which it starts when first asked."""

    def __init__(self, device: DeviceFile) -> None:
        assert device.board is not None  # noqa: S101  who calls has looked
        self._device, self._board = device, device.board
        self._name = f"device {device.name!r}"
        self._link: Link | None = None
        self._facts: MachineFacts | None = None
        self._conditions = MeasuringConditions((), 0.0)

    def describe(self) -> MachineFacts:
        """Tell what decides rows there."""
        if self._facts is None:
            self._opened_link()
        assert self._facts is not None  # noqa: S101  of a link that is open
        return self._facts

    def held(self) -> AbstractContextManager[None]:
        """Leave the lock to the worker, which holds the board for a batch at a time."""
        return nullcontext()

    def nominal(self, reference_runs: int, seconds: float | None = None) -> ReferenceTimes:
        """Have the board time the references."""
        found = self._one(wire.TimeReferences(runs=reference_runs, seconds=seconds), wire.ReferencesTimed)
        return ReferenceTimes(found.compute_us, found.bandwidth_us)

    def measure(self, batch: Batch) -> list[Measurement]:
        """Have a batch measured: over a link that is cut meanwhile, the rows that the board has kept, and the rest."""
        rows = self._rows(wire.asked_batch(batch, uuid.uuid4().hex, WAIT_SECONDS), batch)
        asked = zip(batch.names, batch.subjects, strict=True)
        if missing := [name for name, one in asked if name not in rows and isinstance(one, Subject)]:
            raise FormatError(
                f"{len(missing)} rows of a batch did not come, and the worker says that it is done",
                where=self._name,
                next_step=f"bring the same edgeplan to the board: edgeplan device deploy {self._device.name}",
            )
        return [rows[name] for name in batch.names if name in rows]

    def conditions(self) -> MeasuringConditions:
        """Tell in what conditions the last batch was measured there."""
        return self._conditions

    def kept(self, batch: Batch) -> list[Measurement]:
        """Hand over what the board has in its journal of a batch's subjects."""
        return list(self._rows(wire.AskedNames(key=batch.key, sample=batch.sample, names=batch.names), batch).values())

    def executed(self, graphs: Sequence[Graph]) -> Iterable[NodeMembers]:
        """Have the board load the graphs."""
        found = list[NodeMembers]()
        for start in range(0, len(graphs), _GRAPHS):
            part = graphs[start : start + _GRAPHS]
            told = self._all(
                wire.AskedNodes(graphs=tuple(map(wire.require_sendable, part))), wire.ExecutedNodeMembers, len(part)
            )
            if len(told) != len(part):
                raise self._unasked(f"nodes of {len(told)} graphs instead of {len(part)}")
            for graph, one in zip(part, told, strict=True):
                if strangers := {name for node in one.members for name in node} - graph.by_name.keys():
                    raise self._unasked(f"a node holds {min(strangers)[:80]!r}, which is no operator of the graph")
                found.append(one.members)
        return found

    def check(self, seconds: float) -> wire.CheckedBoard:
        """Have the board watched for so many seconds."""
        found: wire.CheckedBoard = self._one(wire.AskedCheck(seconds=seconds), wire.CheckedBoard)
        if len(found.compute_us) != len(found.bandwidth_us):
            raise self._unasked("windows of two lengths")
        return found

    def close(self) -> None:
        """Let go of the worker."""
        if self._link is not None:
            self._link.close()
            self._link = None

    def _rows(self, request: wire.Request, batch: Batch) -> dict[str, Measurement]:
        """Ask for rows of a batch; each is checked before anything else is done with it."""
        subjects = dict(zip(batch.names, batch.subjects, strict=True))
        found = dict[str, Measurement]()

        def take(answer: wire.Answer) -> None:
            if not isinstance(answer, wire.MeasuredRow) or answer.name not in subjects:
                raise self._unasked(answer.name if isinstance(answer, wire.MeasuredRow) else type(answer).__name__)
            if answer.name in found:
                raise self._unasked(f"row {answer.name} twice")
            found[answer.name] = checked_measurement(answer, subjects[answer.name], batch, time.time(), self._name)

        self._asked(request, take, found.clear)
        return found

    def _one(self, request: wire.Request, kind: type[Any]) -> Any:
        found = self._all(request, kind, 1)
        if not found:
            raise self._unasked("nothing")
        return found[0]

    def _all(self, request: wire.Request, kind: type[Any], most: int) -> list[Any]:
        found = list[Any]()

        def take(answer: wire.Answer) -> None:
            if not isinstance(answer, kind) or len(found) == most:
                raise self._unasked(type(answer).__name__)
            found.append(answer)

        self._asked(request, take, found.clear)
        return found

    def _asked(self, request: wire.Request, take: _Handler, again: Callable[[], object]) -> None:
        """Ask until it is answered, `again` before each time; a link that is cut is opened anew while there is patience."""
        cut_at, pause = 0.0, _FIRST_PAUSE_SECONDS
        while True:
            try:
                link = self._opened_link()
                again()
                refused = self._exchanged(link, request, take)
            except LinkCutError as error:
                fault = error
            except BaseException:
                self._drop()  # what else comes over it belongs to this request
                raise
            else:
                if refused is not None:
                    raise refused
                return
            self._drop()
            cut_at = cut_at or time.monotonic()
            if time.monotonic() + pause > cut_at + self._board.reconnect_seconds:
                raise DeviceError(
                    f"the link to {self._board.place} was cut, and did not come back in {self._board.reconnect_seconds:g} s",
                    where=": ".join(filter(None, [self._name, str(fault)])),
                    next_step="see that the board is up, then run the same command again: it has kept what it measured",
                ) from fault
            log.warning("%s: the link was cut; it is tried again in %.1f s", self._name, pause)
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)

    def _opened_link(self) -> Link:
        """Return the link, opened where there is none."""
        self._link = self._link or self._connected()
        return self._link

    def _exchanged(self, link: Link, request: wire.Request, take: _Handler) -> EdgeplanError | None:
        """Send a request and take its answers, up to `Done`; return why the worker refused it: the link goes on."""
        link.send(request)
        notes = 0
        while True:
            answer = link.receive(_SILENCE_SECONDS)
            match answer:
                case wire.Note():
                    if answer.text:
                        log.warning("%s: %s", self._name, answer.text)
                        notes += 1
                    if notes > _MOST_NOTES:
                        raise self._unasked(f"{notes} notes")
                case wire.Refused():
                    return self._refusal(answer)
                case wire.Done():
                    if answer.affinity:
                        self._conditions = MeasuringConditions(answer.affinity, answer.load_1min)
                    return None
                case _:
                    take(answer)

    def _connected(self) -> Link:
        """Open a link and the device behind it; a board that was never reached is not waited for."""
        link = open_link(self._device)
        try:
            self._greeted(link)
            opened = list[wire.OpenedDevice]()
            fields, asked_at = dict(wire.device_fields(self._device)), time.time()
            request = wire.OpenDevice(
                wire=wire.WIRE_VERSION, version=__version__, device=fields, client=_client(), now=asked_at
            )
            refused = self._exchanged(
                link, request, lambda answer: opened.append(answer) if isinstance(answer, wire.OpenedDevice) else None
            )
            self._recognise(refused, opened, asked_at)
        except LinkCutError as error:
            failure = start_failure(self._device, *link.ended())
            link.drop()
            raise (failure if self._facts is None else LinkCutError(failure.what)) from error
        except BaseException:
            link.drop()
            raise
        return link

    def _greeted(self, link: Link) -> None:
        hello = link.receive(_START_SECONDS)
        if not isinstance(hello, wire.Hello):
            raise self._unasked(type(hello).__name__)
        if (hello.wire, hello.version) != (wire.WIRE_VERSION, __version__):
            raise FormatError(
                f"the board has edgeplan {hello.version} with lines of version {hello.wire}, this machine {__version__} with "
                f"{wire.WIRE_VERSION}",
                where=self._name,
                next_step=f"edgeplan device deploy {self._device.name}",
            )
        wanted = self._device.architecture
        if wanted and hello.architecture != wanted:
            raise DeviceError(
                f"the board is a {hello.architecture}, and its file says {wanted}",
                where=f"{self._name}, field architecture",
                next_step="correct the field, or the transport: another machine may have answered",
            )

    def _recognise(self, refused: EdgeplanError | None, answers: Sequence[wire.OpenedDevice], asked_at: float) -> None:
        """Take what a board says of itself."""
        if refused is not None:
            raise refused
        if len(answers) != 1:
            raise self._unasked(f"a device opened {len(answers)} times")
        opened, name = answers[0], self._device.name
        environment = opened.environment
        if opened.sources != sources_digest(self._device.engine):
            raise FormatError(
                "the board's edgeplan measures by other sources than this machine's",
                where=self._name,
                next_step=f"edgeplan device deploy {name}",
            )
        known = self._facts.fingerprint if self._facts else self._device.fingerprint
        if known and environment.fingerprint != known:
            raise DeviceError(
                f"another board answers: its fingerprint is {environment.fingerprint}, not {known}",
                where=f"{self._name} at {self._board.place}",
                next_step="give each board a device file and a name of its own; if this one was changed, correct `fingerprint`",
            )
        if environment.emulated and not self._device.emulated:
            raise DeviceError(
                "the board is emulated, and what it measures says nothing of any chip",
                where=self._name,
                next_step="take a real one; for tests of the way there: emulated: true in the device file",
            )
        facts: dict[str, Any] = msgspec.to_builtins(environment, builtin_types=(tuple,))
        facts = {key: list(value) if isinstance(value, tuple) else value for key, value in facts.items()}
        facts[CLOCK_OFFSET] = round(opened.clock - asked_at, 1)
        self._facts = self._facts or MachineFacts(opened.engine_version, environment.fingerprint, facts)

    def _drop(self) -> None:
        if self._link is not None:
            self._link.drop()
            self._link = None

    def _refusal(self, refused: wire.Refused) -> EdgeplanError:
        """Make the error that a worker names; of no other class than the package's own."""
        kind = getattr(edgeplan.errors, refused.error, None)
        if not (isinstance(kind, type) and issubclass(kind, EdgeplanError)):
            kind = DeviceError
        where = f"{self._name} at {self._board.place}{f': {refused.where}' if refused.where else ''}"
        return kind(refused.what, where=where, next_step=refused.next_step)

    def _unasked(self, what: str) -> FormatError:
        return FormatError(
            f"the worker answers what was not asked for: {what[:200]}",
            where=self._name,
            next_step=f"nothing of it was stored; edgeplan device deploy {self._device.name} brings the same edgeplan to it",
        )


def _client() -> str:
    """Say who asks, for those who wait."""
    user = "somebody"
    with suppress(OSError, KeyError):
        user = getpass.getuser()
    return f"{user} at {platform.node() or 'a host'}, process {os.getpid()}"[:200]
