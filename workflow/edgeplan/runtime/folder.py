"""A plan folder, whatever its kind: `plan.json` says what it is and what it was made for.

What is executed stands in `program.bin`, which the native library runs, or in `program.json`, which Python does: of a pair of
processors, or of a GPU. `plan.json` holds the kind, what the plan was made for, the schedule and the prediction; files that
never change afterwards stand in it with their digests. A folder is written aside and put in place at once, and read once into
one value, a `PlanFolder`. It is trusted as a program is: digests find damage, not forgery.
"""

from __future__ import annotations

import ctypes
import errno
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar

import msgspec

from edgeplan.errors import EdgeplanError, FormatError, ModelError, StoreError
from edgeplan.runtime.folder_lock import changing, work_folder
from edgeplan.runtime.program_file import PROGRAM_BIN, Border, ProgramHead, read_head
from edgeplan.support.files import files_sha256, read_whole, write_atomically
from edgeplan.support.lazy import sha256
from edgeplan.writable import cannot_write

if TYPE_CHECKING:
    from edgeplan.runtime.gpu_program import GpuProgram
    from edgeplan.runtime.streaming.program import StreamProgram

FORMAT = 11  # those of 10 were run by Python alone
PLAN_NAME, PROGRAM_NAME, WEIGHTS_NAME = "plan.json", "program.json", "weights.bin"
#: Of a plan of a cold start: its transformed weights.
CACHE_NAME = "weights.cache"
#: Of a plan of memory: the folder of a plan in finer parts, for smaller budgets.
FINER_NAME = "finer"
#: Of a plan of a cold start: the folder of a plan for another processor, which takes over (`edgeplan.handover`).
LATER_NAME = "later"
#: Of a plan that a stock engine answers: the folder of what was made of the model for it.
ENGINE_FILES = "engine"
#: What a plan is of: the commands `edgeplan plan ...` make one each.
Kind = Literal["cold-start", "gpu-start", "memory", "partition", "engine"]
COLD_START: Final = "cold-start"
#: A cold start on a GPU, which `edgeplan plan cold-start` plans for a device that is one.
GPU_START: Final = "gpu-start"
MEMORY: Final = "memory"
PARTITION: Final = "partition"
#: A plan of a pair that a stock engine answers, since it is the fastest way.
ENGINE: Final = "engine"
#: Files that a plan folder of any kind may hold.
_FILES = frozenset({PLAN_NAME, PROGRAM_BIN, PROGRAM_NAME, WEIGHTS_NAME, CACHE_NAME, "kernels.cache"})
_FILES |= {FINER_NAME, LATER_NAME, ENGINE_FILES}
#: Of format versions before: files of plans of cold starts and of memory, then of all.
_EARLIER_COLD, _EARLIER_MEMORY = frozenset({"program.tape", "reserve.json"}), frozenset({"schedules.bin"})
_EARLIER = _EARLIER_COLD | _EARLIER_MEMORY | {"profile.json", "model.json", "pair.json", "costs.json", "alone"}
_OF_PAIR = b'{"lanes":2'  # the beginning of its program
_HERE, _EXCHANGE = -100, 2  # AT_FDCWD, RENAME_EXCHANGE of renameat2(2)
_BUILDING = ".planning-"  # of folders beside a plan; those of killed processes go with the next planning
_DAMAGED, _OTHER_FORMAT = "the plan is damaged: ", "the plan has another format: another version of edgeplan made it"
Part = TypeVar("Part")


def plan_again(kind: str = "") -> str:
    """The next step where a plan cannot be used: the command that makes it again."""
    command = {GPU_START: COLD_START, ENGINE: PARTITION}.get(kind, kind)
    return f"plan the model again: edgeplan plan {command or 'cold-start, memory or partition'}"


class MadeFor(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The target of a plan, which is not run on anything else.

    The path of the ONNX file is that of when it was planned, its digest covers external data, the machine is its fingerprint,
    the library's version and processor features (`isa`) are oneDNN's. The driver is the version of the second processor's
    library or driver; "" where one processor computes alone.
    """

    model: str
    model_sha256: str
    machine: str
    library: str
    isa: str
    threads: int
    driver: str = ""


class EnginePlan(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A stock engine runs this, by a setting, one of `engines.registry.SETTINGS`, on processors, one thread each.

    Inputs and outputs are the model's, in its order. It opens the file `main` of the folder ("": the model's own), beside
    further files of the folder by role; shapes are those of its outputs, by its own names, where it keeps neither the model's
    names nor shapes.
    """

    setting: str
    processors: tuple[int, ...]
    inputs: tuple[Border, ...]
    outputs: tuple[Border, ...]
    main: str
    companions: dict[str, str]
    shapes: dict[str, tuple[int, ...]]


class StoredFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A file of the folder that never changes. While the file system says the same of it (`file_stamp`), it is whole."""

    sha256: str
    stamp: tuple[int, ...]


class _Document(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    format_version: int
    sha256: str
    body: msgspec.Raw


class _Body(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    kind: Kind
    made_for: MadeFor
    schedule: msgspec.Raw
    prediction: msgspec.Raw
    files: dict[str, StoredFile] = {}


class PlanFolder(msgspec.Struct, frozen=True, dict=True):
    """A plan folder as it was read.

    The schedule is JSON of what differs by kind: where and when what is run; the prediction JSON of what was predicted, and of
    what other plans of the program are made from. Files are those that never change, by name; the digest is of all of this, as
    `plan.json` says it.
    """

    path: Path
    kind: Kind
    made_for: MadeFor
    schedule: msgspec.Raw
    prediction: msgspec.Raw
    files: Mapping[str, StoredFile]
    sha256: str

    @cached_property
    def program(self) -> ProgramHead | StreamProgram | GpuProgram | EnginePlan:
        """Read the head of the program, or all of one that Python runs, when it is first asked for."""
        if self.kind in (COLD_START, MEMORY):
            return read_head(self.path / PROGRAM_BIN)
        if self.kind == ENGINE:
            return self.scheduled(EnginePlan)
        path, content = self.path / PROGRAM_NAME, self.content(PROGRAM_NAME)
        if self.kind == GPU_START:
            from edgeplan.runtime.gpu_program import GpuProgram  # noqa: PLC0415  each kind loads its own

            return decoded(content, GpuProgram, path, self.kind)
        from edgeplan.runtime.streaming.program import StreamProgram  # noqa: PLC0415  likewise

        return decoded(content, StreamProgram, path, self.kind)

    @property
    def head(self) -> ProgramHead:
        """The program of a plan of a cold start or of memory."""
        return self.program_of(ProgramHead)

    def program_of(self, kind: type[Part]) -> Part:
        """The program as a value of the kind that the plan's has; see `program`."""
        found = self.program
        assert isinstance(found, kind)  # noqa: S101  each kind of plan has its own
        return found

    def scheduled(self, part: type[Part]) -> Part:
        """The schedule as a value."""
        return decoded(self.schedule, part, self.path / PLAN_NAME, self.kind)

    def predicted(self, part: type[Part]) -> Part:
        """The prediction as a value."""
        return decoded(self.prediction, part, self.path / PLAN_NAME, self.kind)

    def content(self, name: str) -> bytes:
        """The bytes of a small file that never changes."""
        path = self.path / name
        try:
            content = path.read_bytes()
        except OSError as error:
            raise self._unfit(f"cannot read the plan: {error.strerror}", path) from error
        if sha256(content).hexdigest() != self._stored(name).sha256:
            raise self._unfit(f"the plan is damaged: {name} was changed after it was written", path)
        return content

    def require_whole(self, name: str) -> bool:
        """Refuse a large file that is not the one that was written.

        Return whether it had to be read for that: its stamp is another one, as after a move.
        """
        path, wanted = self.path / name, self._stored(name)
        try:
            if file_stamp(path) == wanted.stamp:
                return False
            found = files_sha256([path])
        except OSError as error:
            raise self._unfit(f"cannot read the weights: {error.strerror}", path, ModelError) from error
        if found != wanted.sha256:
            raise self._unfit("the weights are damaged: not those that were planned", path, ModelError)
        return True

    def _unfit(self, what: str, path: Path, kind: type[EdgeplanError] = FormatError) -> EdgeplanError:
        return kind(what, where=str(path), next_step=plan_again(self.kind))

    def _stored(self, name: str) -> StoredFile:
        if name not in self.files:
            raise self._unfit(f"the plan does not fit: it knows no file {name!r}", self.path / PLAN_NAME)
        return self.files[name]

    def require_here(self, machine: str, library: str, isa: str, *, driver: str = "") -> None:
        """Refuse a plan that was made for something else than there is here; see `MadeFor`."""
        made = self.made_for
        here = MadeFor(made.model, made.model_sha256, machine, library, isa, made.threads, driver)
        both = [(name, getattr(here, name), getattr(made, name)) for name in MadeFor.__struct_fields__]
        wrong = [f"{name} is {found}, the plan is for {planned}" for name, found, planned in both if found != planned]
        if wrong:
            raise self._unfit(f"the plan cannot be run here: {'; '.join(wrong)}", self.path)

    def require_model(self, given: Path | None = None) -> Path:
        """The ONNX file that the plan was made from: the one given, where it was, or beside the plan."""
        made, name = Path(self.made_for.model), Path(self.made_for.model).name
        for path in [given] if given else dict.fromkeys((made, self.path / name, self.path.parent / name, Path(name))):
            if self._is_of(path):
                return path
        if given:
            what = f"{given.name} {'is not the model that was planned' if given.is_file() else 'does not exist'}"
        else:
            what = f"the model {name!r} that was planned is not found, or was changed since"
        raise ModelError(what, where=str(given or self.path), next_step="name the ONNX file of the plan with --model")

    def _is_of(self, model: Path) -> bool:
        from edgeplan.graph.model_file import model_sha256  # noqa: PLC0415  this loads onnx

        try:
            return model.is_file() and model_sha256(model) == self.made_for.model_sha256
        except ModelError:  # one of its files may not be read, or it is no model
            return False


def read_folder(folder: Path, kind: str = "") -> PlanFolder:
    """Read what a plan folder is, of a kind that it has to be of; its program is read when it is first asked for."""
    path = folder / PLAN_NAME
    try:
        content = read_whole(path)
    except OSError as error:
        raise _no_plan(folder, error) from error
    try:
        document = msgspec.json.decode(content, type=_Document)
        if sha256(document.body).hexdigest() != document.sha256:
            raise _unreadable(path, f"{_DAMAGED}it was changed after it was written")
        if document.format_version != FORMAT:
            raise _unreadable(path, _OTHER_FORMAT)
        body = msgspec.json.decode(document.body, type=_Body)
        if kind and body.kind != kind:
            raise FormatError(f"the plan is one of {body.kind}, not of {kind}", where=str(folder), next_step=plan_again(kind))
    except msgspec.ValidationError as error:
        raise _unreadable(path, _OTHER_FORMAT) from error
    except msgspec.DecodeError as error:
        raise _unreadable(path, f"{_DAMAGED}{error}") from error
    return PlanFolder(folder, body.kind, body.made_for, body.schedule, body.prediction, body.files, document.sha256)


def _no_plan(folder: Path, error: OSError) -> FormatError:
    if not folder.is_dir():
        make = "make one: edgeplan plan cold-start, plan memory or plan partition"
        return FormatError("there is no plan folder", where=str(folder), next_step=make)
    return _unreadable(folder / PLAN_NAME, f"cannot read the plan: {error.strerror}")


def _unreadable(path: Path, what: str) -> FormatError:
    return FormatError(what, where=str(path), next_step=plan_again(_kind_by_files(path.parent)))


def _kind_by_files(folder: Path) -> str:
    """The kind of a plan that does not say it, for messages alone."""
    with suppress(OSError), (folder / PROGRAM_NAME).open("rb") as program:
        if program.read(len(_OF_PAIR)) == _OF_PAIR:
            return PARTITION
    if (folder / "pair.json").exists():
        return PARTITION
    if (folder / WEIGHTS_NAME).exists():
        return MEMORY
    return COLD_START if any((folder / name).exists() for name in (CACHE_NAME, *_EARLIER_COLD)) else ""


def decoded(content: bytes | bytearray | msgspec.Raw, kind: type[Part], path: Path, of: str) -> Part:
    """A part of a plan as a value."""
    try:
        return msgspec.json.decode(content, type=kind)
    except msgspec.ValidationError as error:
        raise FormatError(f"{_OTHER_FORMAT} ({error})", where=str(path), next_step=plan_again(of)) from error
    except msgspec.DecodeError as error:
        raise FormatError(f"{_DAMAGED}{error}", where=str(path), next_step=plan_again(of)) from error


def encoded(value: Any) -> bytes:
    """A value as a line of JSON; mappings of any kind are objects."""
    return msgspec.json.encode(value, enc_hook=dict)


def write_plan(folder: Path, kind: Kind, made_for: MadeFor, schedule: Any, prediction: Any, files: Sequence[str] = ()) -> None:
    """Write `plan.json`, atomically and behind the files that it knows: names of those that never change, as they are now.

    Schedule and prediction are values that JSON holds.
    """
    known = {name: StoredFile(files_sha256([folder / name]), file_stamp(folder / name)) for name in files}
    raw = (msgspec.Raw(encoded(schedule)), msgspec.Raw(encoded(prediction)))
    body = msgspec.json.encode(_Body(kind, made_for, *raw, known))
    content = msgspec.json.encode(_Document(FORMAT, str(sha256(body).hexdigest()), msgspec.Raw(body)))
    write_atomically(folder / PLAN_NAME, lambda temporary: temporary.write_bytes(content + b"\n"))


def file_stamp(path: Path) -> tuple[int, ...]:
    """Return a stamp that changes when anybody writes to a file or replaces it; a move of its folder changes nothing."""
    status = path.stat()
    return (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)


@contextmanager
def replacing(folder: Path) -> Iterator[Path]:
    """A folder to write a plan in, which takes the place of another one, or of none, at once when all is written.

    What ends this process leaves the old plan or the new one. Where something else lies in the folder, nothing is lost.
    """
    folder = folder.resolve()
    require_replaceable(folder)
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with work_folder(folder.parent, _BUILDING) as work:
            building = work / folder.name
            building.mkdir()
            yield building
            _put_in_place(building, folder)
    except (StoreError, OSError) as error:
        told = error if isinstance(error, StoreError) else cannot_write(error, folder)
        where = str(folder / Path(told.where).name) if _BUILDING in told.where else told.where
        kept = f"{told.next_step}; a plan that was there before still works"
        raise StoreError(told.what, where=where, next_step=kept) from error


def require_replaceable(folder: Path) -> None:
    """Refuse to put a plan in place of a folder that is none: neither empty nor an older plan."""
    if not folder.is_dir():
        return
    others = sorted(path.name for path in folder.iterdir() if path.name not in _FILES | _EARLIER and path.name[0] != ".")
    if others:
        what = f"the folder holds other things than a plan: {others[0]!r}"
        raise StoreError(what, where=str(folder), next_step="choose another folder with -o")


def _put_in_place(building: Path, folder: Path) -> None:
    """Exchange the two folders, or rename the first one. At no time there is none."""
    if not folder.exists():
        building.rename(folder)
        return
    with changing(folder):  # nobody is at its files meanwhile
        _exchange(building, folder)


def _exchange(building: Path, folder: Path) -> None:
    names = (_HERE, os.fsencode(building), _HERE, os.fsencode(folder))
    if ctypes.CDLL(None, use_errno=True).renameat2(*names, _EXCHANGE):
        number = ctypes.get_errno()
        if number not in (errno.EINVAL, errno.ENOSYS):
            raise OSError(number, os.strerror(number), str(folder))
        folder.rename(building.with_name(f"{folder.name}.old"))  # this file system exchanges nothing
        building.rename(folder)
