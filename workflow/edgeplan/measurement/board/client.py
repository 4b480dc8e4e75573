"""Asks a board's worker for batches, on the host's side, and goes on where a link was cut."""

from __future__ import annotations

import getpass
import logging
import os
import platform
import time
import uuid
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import Any

import msgspec

import edgeplan.errors
from edgeplan import __version__
from edgeplan.devices.config import DeviceFile
from edgeplan.errors import DeviceError, EdgeplanError, FormatError
from edgeplan.graph.ir import Graph
from edgeplan.measurement.board.checks import checked
from edgeplan.measurement.board.link import Link, LinkCutError, open_link, start_failure
from edgeplan.measurement.board.sources import sources_digest
from edgeplan.measurement.board.wire import (
    WIRE_VERSION,
    Answer,
    AskedCheck,
    AskedNames,
    AskedNodes,
    CheckedBoard,
    Done,
    ExecutedNodeMembers,
    Hello,
    MeasuredRow,
    Note,
    OpenDevice,
    OpenedDevice,
    ReferencesTimed,
    Refused,
    Request,
    TimeReferences,
    asked_batch,
    device_fields,
    graph_document,
)
from edgeplan.measurement.lock import WAIT_SECONDS
from edgeplan.measurement.measurer import Batch, MachineFacts, MeasuringConditions, NodeMembers
from edgeplan.measurement.records import Measurement, Subject
from edgeplan.measurement.references import ReferenceTimes

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
_Handler = Callable[[Answer], None]


class _TellingError(Exception):
    """Carries the error that a user is told."""

    def __init__(self, error: EdgeplanError) -> None:
        super().__init__(str(error))
        self.error = error


class _RefusedError(_TellingError):
    """The worker refused a request; the link goes on."""


class _UnreachableError(_TellingError):
    """This error says that no worker answered."""


class BoardMeasurer:
    """Measures on a board by its worker, which it starts when it is first asked.

    Args:
        device: a device whose transport is not local.
    """

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
        found = self._one(TimeReferences(runs=reference_runs, seconds=seconds), ReferencesTimed)
        return ReferenceTimes(found.compute_us, found.bandwidth_us)

    def measure(self, batch: Batch) -> list[Measurement]:
        """Have a batch measured: over a link that is cut meanwhile, the rows that the board has kept, and the rest."""
        rows = self._rows(asked_batch(batch, uuid.uuid4().hex, WAIT_SECONDS), batch)
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
        return list(self._rows(AskedNames(key=batch.key, sample=batch.sample, names=batch.names), batch).values())

    def executed(self, graphs: Sequence[Graph]) -> Iterable[NodeMembers]:
        """Have the board load the graphs."""
        found = list[NodeMembers]()
        for start in range(0, len(graphs), _GRAPHS):
            part = graphs[start : start + _GRAPHS]
            told = self._all(AskedNodes(graphs=tuple(map(graph_document, part))), ExecutedNodeMembers, len(part))
            if len(told) != len(part):
                raise self._unasked(f"nodes of {len(told)} graphs instead of {len(part)}")
            for graph, one in zip(part, told, strict=True):
                if strangers := {name for node in one.members for name in node} - graph.by_name.keys():
                    raise self._unasked(f"a node holds {min(strangers)[:80]!r}, which is no operator of the graph")
                found.append(one.members)
        return found

    def check(self, seconds: float) -> CheckedBoard:
        """Have the board watched for so many seconds."""
        found: CheckedBoard = self._one(AskedCheck(seconds=seconds), CheckedBoard)
        if len(found.compute_us) != len(found.bandwidth_us):
            raise self._unasked("windows of two lengths")
        return found

    def close(self) -> None:
        """Let go of the worker."""
        if self._link is not None:
            self._link.close()
            self._link = None

    def _rows(self, request: Request, batch: Batch) -> dict[str, Measurement]:
        """Ask for rows of a batch; each is checked before anything else is done with it."""
        subjects = dict(zip(batch.names, batch.subjects, strict=True))
        found = dict[str, Measurement]()

        def take(answer: Answer) -> None:
            if not isinstance(answer, MeasuredRow) or answer.name not in subjects:
                raise self._unasked(answer.name if isinstance(answer, MeasuredRow) else type(answer).__name__)
            if answer.name in found:
                raise self._unasked(f"row {answer.name} twice")
            found[answer.name] = checked(answer, subjects[answer.name], batch, time.time(), self._name)

        self._asked(request, take, found.clear)
        return found

    def _one(self, request: Request, kind: type[Any]) -> Any:
        found = self._all(request, kind, 1)
        if not found:
            raise self._unasked("nothing")
        return found[0]

    def _all(self, request: Request, kind: type[Any], most: int) -> list[Any]:
        found = list[Any]()

        def take(answer: Answer) -> None:
            if not isinstance(answer, kind) or len(found) == most:
                raise self._unasked(type(answer).__name__)
            found.append(answer)

        self._asked(request, take, found.clear)
        return found

    def _asked(self, request: Request, take: _Handler, again: Callable[[], object] = lambda: None) -> None:
        """Ask until the request is answered; a link that is cut is opened anew while there is patience.

        Args:
            request: what to ask.
            take: is given each answer.
            again: is called before the request is asked again.
        """
        cut_at, pause = 0.0, _FIRST_PAUSE_SECONDS
        while True:
            try:
                link = self._opened_link()
                again()
                self._exchanged(link, request, take)
            except LinkCutError as error:
                fault = error
            except _RefusedError as refused:
                raise refused.error from None
            except BaseException:
                self._drop()  # what else comes over it belongs to this request
                raise
            else:
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
        """Return the link, opened where there is none; a board that was never reached is not waited for."""
        if self._link is None:
            try:
                self._link = self._connected()
            except _UnreachableError as error:
                if self._facts is None:
                    raise error.error from None
                raise LinkCutError(error.error.what) from error
            except _RefusedError as refused:
                raise refused.error from None
        return self._link

    def _exchanged(self, link: Link, request: Request, take: _Handler) -> None:
        """Send a request and take its answers, up to `Done`."""
        link.send(request)
        notes = 0
        while True:
            answer = link.receive(_SILENCE_SECONDS)
            match answer:
                case Note():
                    if answer.text:
                        log.warning("%s: %s", self._name, answer.text)
                        notes += 1
                    if notes > _MOST_NOTES:
                        raise self._unasked(f"{notes} notes")
                case Refused():
                    raise _RefusedError(self._refusal(answer))
                case Done():
                    if answer.affinity:
                        self._conditions = MeasuringConditions(answer.affinity, answer.load_1min)
                    return
                case _:
                    take(answer)

    def _connected(self) -> Link:
        """Open a link and the device behind it."""
        link = open_link(self._device)
        try:
            self._greeted(link)
            opened = list[OpenedDevice]()
            request = OpenDevice(
                wire=WIRE_VERSION,
                version=__version__,
                device=dict(device_fields(self._device)),
                client=_client(),
                now=time.time(),
            )
            asked_at = time.time()
            self._exchanged(link, request, lambda answer: opened.append(answer) if isinstance(answer, OpenedDevice) else None)
            self._recognise(opened, asked_at)
        except LinkCutError as error:
            code, said = link.ended()
            link.drop()
            raise _UnreachableError(start_failure(self._device, code, said)) from error
        except BaseException:
            link.drop()
            raise
        return link

    def _greeted(self, link: Link) -> None:
        hello = link.receive(_START_SECONDS)
        if not isinstance(hello, Hello):
            raise self._unasked(type(hello).__name__)
        if (hello.wire, hello.version) != (WIRE_VERSION, __version__):
            raise FormatError(
                f"the board has edgeplan {hello.version} with lines of version {hello.wire}, this machine {__version__} with "
                f"{WIRE_VERSION}",
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

    def _recognise(self, answers: Sequence[OpenedDevice], asked_at: float) -> None:
        """Take what a board says of itself."""
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

    def _refusal(self, refused: Refused) -> EdgeplanError:
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
