"""The worker measures on the board that it runs on, for a host that speaks to it in lines: `edgeplan worker`.

Lines come on standard input and go to standard output. It executes nothing of what it reads, opens no port, and leaves
nothing behind but its journal. Where the link is cut it ends its batch, journals it, and goes. No batch begins while the board
is hot, and none counts during which it was throttled.
"""

from __future__ import annotations

import contextlib
import logging
import os
import platform
import queue
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from edgeplan import __version__
from edgeplan.devices.config import DeviceFile, GateSettings
from edgeplan.errors import BusyError, DeviceError, EdgeplanError, FormatError, NoiseError
from edgeplan.measurement.board import wire
from edgeplan.measurement.board.wire import BatchId, MeasuredRow
from edgeplan.measurement.device_check import watch
from edgeplan.measurement.local import Local, sources_digest
from edgeplan.measurement.lock import WAIT_SECONDS, machine_lock
from edgeplan.measurement.records import Batch
from edgeplan.support.answers import LineReader
from edgeplan.support.files import state_folder, validate
from edgeplan.support.machine import emulated
from edgeplan.support.own_process import take_stdout
from edgeplan.support.store import Journal
from edgeplan.writable import expected

#: Rows that nobody has asked for since then are in a host's store, or wanted no more.
_KEPT_SECONDS = 14 * 86400.0


class JournalLine(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Holds a row, and the batch that it was measured for."""

    batch: BatchId
    row: MeasuredRow


#: Reads a line.
_LINE = msgspec.json.Decoder(JournalLine)


class BoardJournal:
    """Keeps the rows of one key of a device that this board has measured, by whichever worker.

    Each row is in it, synced, before it is sent, so that a link that is cut loses none.
    """

    def __init__(self, device: str, key: str) -> None:
        self.path = journal_folder() / device / f"{key}.jsonl"
        _delete_old(self.path.parent)
        self._journal: Journal | None = None
        self._lines = list[JournalLine]()
        self._read_bytes = 0
        self._look()
        #: Numbers of the lines that the host knows of, or has been told of before this worker began.
        self._told = set(range(len(self._lines)))

    def kept(self, names: Iterable[str], sample: int) -> list[MeasuredRow]:
        """Find the last row of each name; the host knows all rows from now on."""
        self._look()
        self._told = set(range(len(self._lines)))
        return list(self._last(self._told, set(names), sample).values())

    def of_batch(self, batch: str, names: Sequence[str], sample: int) -> list[MeasuredRow]:
        """Find what was measured for a batch, and what another worker has measured since the host asked.

        The latter is the work of a worker that lost its host: it ended its batch alone.
        """
        self._look()
        own = {number for number, line in enumerate(self._lines) if line.batch == batch}
        others = set(range(len(self._lines))) - self._told
        found = {**self._last(others, set(names), sample), **self._last(own, set(names), sample)}
        self._told |= {n for n in others if self._lines[n].row.name in found and self._lines[n].row.sample == sample}
        return list(found.values())

    def commit(self, batch: str, rows: Sequence[MeasuredRow]) -> None:
        """Keep rows: each is on the disk when this returns. The caller holds the board."""
        if self._journal is None:  # not before: it takes back half a line, which another worker may be writing
            self._journal = Journal(self.path)
        for row in rows:
            self._journal.commit(msgspec.to_builtins(JournalLine(batch, row)))
        self._look()
        self._told |= {number for number, line in enumerate(self._lines) if line.batch == batch}

    def _last(self, numbers: Iterable[int], names: set[str], sample: int) -> Mapping[str, MeasuredRow]:
        rows = (self._lines[number].row for number in sorted(numbers))
        return {row.name: row for row in rows if row.sample == sample and row.name in names}

    def _look(self) -> None:
        """Read the lines that were added since the last look."""
        if not self.path.is_file():
            return
        with self.path.open("rb") as file:
            file.seek(self._read_bytes)
            added = file.read()
        whole = added[: added.rfind(b"\n") + 1]
        try:
            self._lines += map(_LINE.decode, whole.splitlines())
        except msgspec.DecodeError as error:
            raise FormatError(
                f"the journal of the board is damaged: {error}",
                where=str(self.path),
                next_step="delete that file on the board; what no host has is measured again",
            ) from error
        self._read_bytes += len(whole)


def journal_folder() -> Path:
    """Name the folder of all journals of this board."""
    return state_folder() / "worker"


def _delete_old(folder: Path) -> None:
    for path in folder.glob("*.jsonl"):
        with contextlib.suppress(FileNotFoundError):
            if time.time() - path.stat().st_mtime > _KEPT_SECONDS:
                path.unlink()


#: How often a batch that was throttled is measured again.
THROTTLED_AGAIN = 2
_LOOK_SECONDS = 5.0
#: A Raspberry Pi: its processor's frequency is capped, or it is throttled or too hot, now.
_PI_COMMAND, _PI_NOW = "vcgencmd", 0b1110


@dataclass(frozen=True, slots=True)
class GateLook:
    """Records the hottest thermal zone (None: none exposed), throttlings so far, and whether the board is throttled now."""

    celsius: float | None
    throttles: int
    throttled: bool


class Gate:
    """Looks at a board, whose kernel's files lie below `root`, before and after a batch; `pause` waits between two looks."""

    def __init__(self, settings: GateSettings, root: Path = Path("/"), pause: Callable[[float], object] = time.sleep) -> None:
        self._settings, self._root, self._pause = settings, root, pause
        self._before = GateLook(None, 0, throttled=False)

    def wait(self) -> None:
        """Wait until the board is fit."""
        end = time.monotonic() + self._settings.wait_seconds
        told = ""
        while True:
            self._before = self.look()
            reason = self._unfit(self._before)
            if not reason:
                return
            if time.monotonic() >= end:
                raise NoiseError(
                    f"the board is not fit to measure: {reason}",
                    where=f"its state for {self._settings.wait_seconds:.0f} s, after which the wait ends",
                    next_step="cool it, end other work on it, set its governor; or change `gate` in the device file",
                )
            if reason.partition(":")[0] != told.partition(":")[0]:
                log.warning("a batch waits: %s", reason)
            told = reason
            self._pause(_LOOK_SECONDS)

    def disturbed(self) -> str:
        """Say why the batch since `wait` does not count; "" if it does."""
        after = self.look()
        if after.throttles > self._before.throttles or after.throttled:
            return "its processor was throttled"
        ceiling = self._settings.max_celsius
        if ceiling is not None and after.celsius is not None and after.celsius > ceiling:
            return f"it grew hotter than {ceiling:g} degrees: {after.celsius:.1f}"
        return ""

    def look(self) -> GateLook:
        """Look at temperature and throttling."""
        zones = [int(text) / 1000 for text in self._texts("sys/class/thermal/thermal_zone*/temp") if _whole(text)]
        counts = self._texts("sys/devices/system/cpu/cpu*/thermal_throttle/core_throttle_count")
        return GateLook(max(zones, default=None), sum(int(text) for text in counts if _whole(text)), _pi_throttled())

    def _unfit(self, look: GateLook) -> str:
        settings = self._settings
        if settings.max_celsius is not None and look.celsius is not None and look.celsius > settings.max_celsius:
            return f"too hot: {look.celsius:.1f} degrees, and the gate lets up to {settings.max_celsius:g} pass"
        if look.throttled:
            return "throttled: its processor says so"
        governors = set(self._texts("sys/devices/system/cpu/cpu*/cpufreq/scaling_governor"))
        if settings.governor and governors - {settings.governor}:
            return f"governor: it is {', '.join(sorted(governors))}, and the gate asks for {settings.governor}"
        return ""

    def _texts(self, pattern: str) -> list[str]:
        found = []
        for path in sorted(self._root.glob(pattern)):
            try:
                found.append(path.read_text(encoding="ascii").strip())
            except (OSError, ValueError):  # zones that are off cannot be read
                continue
        return found


def _whole(text: str) -> bool:
    return text.removeprefix("-").isdecimal()


def _pi_throttled() -> bool:
    command = shutil.which(_PI_COMMAND)
    if command is None:
        return False
    try:
        done = subprocess.run([command, "get_throttled"], capture_output=True, text=True, check=False, timeout=5)  # noqa: S603  no shell
        return bool(int(done.stdout.strip().partition("=")[2] or "0", 0) & _PI_NOW)
    except (OSError, ValueError, subprocess.TimeoutExpired):
        return False


log = logging.getLogger(__name__)
#: A sign of life, so that a host tells a board that measures from one that is gone.
ALIVE_SECONDS = 30.0
#: A host that asks nothing for so long has gone without the link having noticed.
_IDLE_SECONDS = 6 * 3600.0
#: How long one look at a lock lasts that another process holds.
_LOCK_SECONDS = 1.0
_SAY_EVERY = 30
_LONGEST = 2000


class HostGoneError(Exception):
    """The host is gone, and nothing is being measured."""


class Answers:
    """Sends lines to the host; once the link is cut they go nowhere."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor, self._lock = descriptor, threading.Lock()
        self.gone = threading.Event()

    def send(self, answer: wire.Answer) -> None:
        """Send a line to the host."""
        rest = memoryview(wire.line_of(answer))
        with self._lock:
            try:
                while rest and not self.gone.is_set():
                    rest = rest[os.write(self._descriptor, rest) :]
            except OSError:
                self.gone.set()


class Requests:
    """Reads lines from the host in a thread of its own: the end of the input tells that the host is `gone`."""

    def __init__(self, descriptor: int, gone: threading.Event) -> None:
        self._reader, self._gone = LineReader(descriptor, wire.MAX_REQUEST_BYTES), gone
        self._lines: queue.Queue[bytes | EdgeplanError | None] = queue.Queue(maxsize=2)
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        try:
            while (line := self._reader.next()) is not None:
                self._lines.put(line)
        except FormatError as error:
            self._lines.put(error)
        self._gone.set()
        self._lines.put(None)

    def __iter__(self) -> Iterator[wire.Request]:
        """Yield what the host asks, until it goes."""
        with contextlib.suppress(queue.Empty):
            while (line := self._lines.get(timeout=_IDLE_SECONDS)) is not None:
                if isinstance(line, EdgeplanError):
                    raise line
                yield wire.request_of(line)


class WorkerSession:
    """A session serves a host with one device."""

    def __init__(self, device: DeviceFile, opened: wire.OpenDevice, answers: Answers) -> None:
        self._device, self._client, self._answers = device, opened.client, answers
        ahead = opened.now - time.monotonic()  # the host's time, whatever the board's clock does
        self._local, self._gate = Local(device, lambda: ahead + time.monotonic()), Gate(device.gate)
        self._journals: dict[str, BoardJournal] = {}

    def opened(self) -> wire.OpenedDevice:
        """Tell which engine and board are here."""
        self._device.check_cores()
        facts = self._local.describe()
        environment = dict(facts.environment)
        if emulated():
            environment["emulated"] = True
        return wire.OpenedDevice(
            engine_version=facts.engine_version,
            sources=sources_digest(self._device.engine),
            environment=msgspec.convert(environment, wire.BoardEnvironment),
            clock=time.time(),
        )

    def answer(self, request: wire.Request) -> None:
        """Answer a request; `Done` is the last line."""
        done = wire.Done()
        match request:
            case wire.TimeReferences():
                with self._held(WAIT_SECONDS):
                    times = self._local.nominal(request.runs, request.seconds)
                self._answers.send(wire.ReferencesTimed(compute_us=times.compute_us, bandwidth_us=times.bandwidth_us))
            case wire.AskedNames():
                for row in self._journal(request.key).kept(request.names, request.sample):
                    self._answers.send(row)
            case wire.AskedBatch():
                for row in self._measured(request):
                    self._answers.send(row)
                conditions = self._local.conditions()
                done = wire.Done(affinity=conditions.affinity, load_1min=conditions.load_1min)
            case wire.AskedNodes():
                for members in self._local.executed(request.graphs):
                    self._answers.send(wire.ExecutedNodeMembers(members=members))
            case wire.AskedCheck():
                found = watch(self._device, request.seconds)
                self._answers.send(
                    wire.CheckedBoard(
                        compute_us=found.compute_us,
                        bandwidth_us=found.bandwidth_us,
                        shared=found.shared,
                        load_1min=found.environment["load_1min"],
                        problems=tuple(problem[:_LONGEST] for problem in found.problems),
                    )
                )
            case wire.OpenDevice():
                raise FormatError("a device is open already", where="lines to a board", next_step="start another worker")
        self._answers.send(done)

    def _measured(self, asked: wire.AskedBatch) -> list[wire.MeasuredRow]:
        """Measure what the journal lacks of a batch. All rows are in it when this returns; nobody holds the machine then."""
        batch, journal = wire.batch_of(asked), self._journal(asked.key)
        with self._held(asked.wait_s):
            known = {row.name: row for row in journal.of_batch(asked.batch, batch.names, batch.sample)}
            rest = {name: one for name, one in zip(batch.names, batch.subjects, strict=True) if name not in known}
            if rest:
                journal.commit(asked.batch, self._fresh(replace(batch, names=(*rest,), subjects=(*rest.values(),))))
        rows = {row.name: row for row in journal.of_batch(asked.batch, batch.names, batch.sample)} | known
        return [rows[name] for name in batch.names if name in rows]

    def _fresh(self, batch: Batch) -> list[wire.MeasuredRow]:
        """Measure a batch while the board is fit."""
        for _ in range(1 + THROTTLED_AGAIN):
            self._gate.wait()
            found = self._local.measure(batch)
            reason = self._gate.disturbed()
            if not reason:
                return [wire.row_message(one) for one in found]
            log.warning("a batch is measured again: %s meanwhile", reason)
        raise NoiseError(
            f"the board cannot be measured: {reason} in {1 + THROTTLED_AGAIN} batches on end",
            where=f"device {self._device.name!r}",
            next_step="cool it, give it a better supply, or cap its frequency; or raise gate.max_celsius in the device file",
        )

    def _journal(self, key: str) -> BoardJournal:
        if key not in self._journals:
            self._journals[key] = BoardJournal(self._device.name, key)
        return self._journals[key]

    @contextlib.contextmanager
    def _held(self, wait_s: float) -> Iterator[None]:
        """Hold the board; the host is told for whom it waits."""
        end, looks = time.monotonic() + wait_s, 0
        with contextlib.ExitStack() as stack:
            while True:
                if self._answers.gone.is_set():
                    raise HostGoneError
                try:
                    stack.enter_context(machine_lock(_LOCK_SECONDS, name=self._client, quiet=True))
                    break
                except BusyError as error:
                    if time.monotonic() >= end:
                        raise
                    if looks % _SAY_EVERY == 0:
                        self._answers.send(wire.Note(text=f"waiting: {error.what}"[:_LONGEST]))
                    looks += 1
            yield


class _ToHost(logging.Handler):
    """Sends warnings to the host as notes."""

    def __init__(self, answers: Answers) -> None:
        super().__init__(logging.WARNING)
        self._answers = answers

    def emit(self, record: logging.LogRecord) -> None:
        """Send a warning to the host."""
        self._answers.send(wire.Note(text=record.getMessage()[:_LONGEST]))


def _serve(requests: Requests, answers: Answers) -> None:
    """Answer a host until it goes."""
    about = {"python": platform.python_version(), "architecture": platform.machine()}
    answers.send(wire.Hello(wire=wire.WIRE_VERSION, version=__version__, **about))
    threading.Thread(target=_live, args=(answers,), daemon=True).start()
    session: WorkerSession | None = None
    try:
        for request in requests:
            try:
                if isinstance(request, wire.OpenDevice) and session is None:
                    session = _opened(request, answers)
                elif session is None:
                    answers.send(_refused(FormatError("no device is open", next_step="name the device first")))
                else:
                    session.answer(request)
            except HostGoneError:
                return
            except Exception as error:  # noqa: BLE001  engines raise what they like; the host is told
                answers.send(_refused(error))
    except FormatError as error:  # what follows a line that cannot be read cannot be trusted to be one
        answers.send(_refused(error))


def _opened(request: wire.OpenDevice, answers: Answers) -> WorkerSession:
    if request.wire != wire.WIRE_VERSION or request.version != __version__:
        raise FormatError(
            f"the host has edgeplan {request.version} with lines of version {request.wire}, the board {__version__} with "
            f"{wire.WIRE_VERSION}",
            where="first line of the host",
            next_step="edgeplan device deploy NAME brings the same edgeplan to the board",
        )
    device = validate(request.device, DeviceFile, DeviceError, "the device", "the host")
    session = WorkerSession(device, request, answers)
    answers.send(session.opened())
    answers.send(wire.Done())
    return session


def _refused(error: Exception) -> wire.Refused:
    if isinstance(error, OSError):
        error = expected(error) or error
    if isinstance(error, EdgeplanError):
        told = (error.what[:_LONGEST], error.where[:_LONGEST], error.next_step[:_LONGEST])
        return wire.Refused(error=type(error).__name__, what=told[0], where=told[1], next_step=told[2])
    return wire.Refused(
        error=DeviceError.__name__,
        what=f"the engine failed: {type(error).__name__}: {error}"[:_LONGEST],
        where="the board",
        next_step="run the same subject there with edgeplan measure, or leave it out",
    )


def _live(answers: Answers) -> None:
    while not answers.gone.wait(ALIVE_SECONDS):
        answers.send(wire.Note())


def main() -> None:
    """Serve the host at standard input and output."""
    with contextlib.suppress(AttributeError, ValueError):
        signal.signal(signal.SIGHUP, signal.SIG_IGN)  # a batch is ended without the link
    answers = Answers(take_stdout())
    logging.getLogger().addHandler(_ToHost(answers))
    _serve(Requests(sys.stdin.fileno(), answers.gone), answers)
