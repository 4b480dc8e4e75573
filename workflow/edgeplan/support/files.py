"""Reads and writes files that cross a border: atomic writes, validated YAML and JSON."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from edgeplan.errors import EdgeplanError, FormatError, StoreError
from edgeplan.support.lazy import lazily, sha256
from edgeplan.writable import STATE_INSTEAD, cannot_write, state_base

if TYPE_CHECKING:
    import tempfile

    import pydantic
    import yaml
else:  # who runs plans reads no documents of users
    pydantic, tempfile, yaml = lazily("pydantic"), lazily("tempfile"), lazily("yaml")

Model = TypeVar("Model", bound="pydantic.BaseModel")
FilePath = str | os.PathLike[str]
_CHUNK_BYTES = 1 << 20


def write_atomically(path: Path, write: Callable[[Path], object], *, sync: bool = True) -> None:
    """Call `write` on a temporary file beside `path`, then rename it: readers see the old file or the new one, never a half.

    Without `sync` nobody waits until the new file is on the disk, and a power failure may leave a half.
    """
    temporary: Path | None = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".tmp")
        os.close(handle)
        temporary = Path(name)
        write(temporary)
        if sync:
            with temporary.open("rb+") as file:
                os.fsync(file.fileno())
        temporary.chmod(0o644)
        temporary.replace(path)
    except OSError as error:
        if temporary is not None:
            temporary.unlink(missing_ok=True)
        raise cannot_write(error, path) from error
    except BaseException:
        if temporary is not None:
            temporary.unlink(missing_ok=True)
        raise


def state_folder() -> Path:
    """Return the folder of what outlives any workspace: journals, and who this machine is."""
    base = state_base()
    if not base:
        raise StoreError(
            "this user has no home folder to keep measurements in", where="the environment, HOME", next_step=STATE_INSTEAD
        )
    return Path(base) / "edgeplan"


def read_whole(path: Path) -> bytearray:
    """Return the bytes of a file, by as few calls as there are: what a cold start reads is read by this."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        content = bytearray(os.fstat(descriptor).st_size)
        rest = memoryview(content)
        while rest and (got := os.readv(descriptor, [rest])):
            rest = rest[got:]
    finally:
        os.close(descriptor)
    missing = len(rest)  # it was cut short meanwhile
    rest.release()
    return content[:-missing] if missing else content


def files_sha256(files: Sequence[Path]) -> str:
    """Return the digest of the contents of files, one after the other."""
    state = sha256()
    for path in files:
        with path.open("rb") as file:
            while chunk := file.read(_CHUNK_BYTES):
                state.update(chunk)
    return str(state.hexdigest())


def write_text(path: Path, text: str) -> None:
    """Write text atomically, as UTF-8 in any locale; names of files that are no text are written with escapes."""
    write_atomically(path, lambda temporary: temporary.write_text(text, encoding="utf-8", errors="backslashreplace"))


def write_json(path: Path, value: Any) -> None:
    """Write JSON atomically, indented, in the order given."""
    write_text(path, json.dumps(value, indent=2) + "\n")


def read_yaml(path: Path, model: type[Model], error: type[EdgeplanError], what: str) -> Model:
    """Read a YAML file into a pydantic model."""
    try:
        raw = yaml.safe_load(path.read_bytes())  # finds the encoding itself: UTF-8, or what a byte order mark says
    except OSError as failure:
        raise error(f"cannot read {what}: {failure.strerror}", where=str(path), next_step="check the path") from failure
    except (yaml.YAMLError, UnicodeDecodeError) as failure:
        raise error(f"{what} is not valid YAML: {failure}", where=str(path), next_step="correct the syntax") from failure
    return validate(raw, model, error, what, str(path))


#: pydantic's name for a field that a model does not have.
_UNKNOWN = "extra_forbidden"


def validate(raw: Any, model: type[Model], error: type[EdgeplanError], what: str, where: str) -> Model:
    """Validate a document read from `where`."""
    if not isinstance(raw, Mapping):
        raise error(f"{what} must be a mapping of keys to values", where=where, next_step="compare with a shipped example")
    try:
        return model.model_validate(raw)
    except pydantic.ValidationError as failure:
        found = [(".".join(map(str, e["loc"])) or "document", e["type"], e["msg"]) for e in failure.errors()]
        problems = "; ".join(f"{field}: {'no such field' if kind == _UNKNOWN else told}" for field, kind, told in found)
        unknown = ", ".join(field for field, kind, _ in found if kind == _UNKNOWN)
        gone = f"; leave out {unknown}, or see in CHANGELOG.md what became of it" if unknown else ""
        raise error(f"{what} does not fit: {problems}", where=where, next_step=f"correct the named fields{gone}") from failure


def read_json(path: Path, model: type[Model], what: str) -> Model:
    """Read a JSON document into a pydantic model."""
    try:
        raw = json.loads(path.read_bytes())  # finds the encoding itself, as `read_yaml`
    except OSError as failure:
        raise FormatError(
            f"cannot read {what}: {failure.strerror}", where=str(path), next_step="run the stage that writes it"
        ) from failure
    except ValueError as failure:
        raise FormatError(
            f"{what} is not valid JSON: {failure}", where=str(path), next_step="run the stage that writes it again"
        ) from failure
    return validate(raw, model, FormatError, what, str(path))


_CLOCK_SECONDS = 0.02  # more than a tick of the slowest kernel clock (10 ms)


def stamp(status: os.stat_result) -> tuple[int, int, int, int, int]:
    """Return a stamp that changes when anybody writes to a file, replaces it or moves it: its number, size and times.

    The last is set by the kernel alone (ctime), so that a file whose time of modification was put back is noticed too. Damage
    below the file system is not, for which file systems and disks have checksums of their own. Files of the model are trusted
    in the same way.
    """
    return (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)


def settled_stamp(path: Path) -> tuple[int, int, int, int, int]:
    """The stamp of a file just written, once a later change would show in it: clocks of file systems are coarse."""
    time.sleep(_CLOCK_SECONDS)
    return stamp(path.stat())
