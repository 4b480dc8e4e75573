"""Tries folders before anything is measured, and tells what is wrong with those that may not be written to."""

from __future__ import annotations

import errno
import os
import shlex
from pathlib import Path

from edgeplan.errors import StoreError

#: How a user names another folder, unless the caller knows better.
INSTEAD = "choose another folder with -o / --rows"
STATE_INSTEAD = "export XDG_STATE_HOME=/a/folder/of/yours"
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT)
_NOT_ALLOWED = (errno.EACCES, errno.EPERM)
_NO_FOLDER = (errno.ENOTDIR, errno.EEXIST)
#: What a user can do something about, wherever it comes up.
_CAUSES = frozenset((*_NO_ROOM, *_NOT_ALLOWED, *_NO_FOLDER, errno.EISDIR, errno.EROFS, errno.ENAMETOOLONG, errno.EFBIG))


def state_base() -> str:
    """Return the folder that the state folder lies in, "" if there is none."""
    given = os.environ.get("XDG_STATE_HOME", "")
    if given.startswith(os.sep):  # others are to be ignored, says the XDG base directory specification
        return given
    try:
        return str(Path.home() / ".local/state")
    except RuntimeError:
        return ""


def cannot_write(error: OSError, path: Path, *, instead: str = "") -> StoreError:
    """Return the error for a file or folder that could not be written, with what to do by its cause.

    A user names another folder by what `instead` says; without, that follows from the path.
    """
    where = str(path)
    base = state_base()
    instead = instead or (STATE_INSTEAD if base and path.is_relative_to(base) else INSTEAD)
    ask = f"{instead}, or ask for write permission"
    if error.errno in _NO_ROOM:
        what = "the disk is full"
        following = "free some space and run the same command again: nothing that was stored before is lost"
    elif error.errno == errno.EFBIG:
        what, following = f"cannot write: {error.strerror}", "raise the limit on the size of files: ulimit -f unlimited"
    elif error.errno == errno.EROFS:
        what, following = "cannot write: the file system is read-only", instead
    elif error.errno in _NOT_ALLOWED:
        what, following = f"cannot write: {error.strerror}", ask
    elif error.errno == errno.ENOENT:
        what, following = f"cannot write: {error.strerror}", f"mkdir -p {shlex.quote(str(path.parent))}"
    elif error.errno == errno.EISDIR:
        what, following = "cannot write: this is a folder", "name a file"
    elif error.errno in _NO_FOLDER and (file := _file_on_the_way(path)):
        what, following = f"cannot write: {file} is a file, not a folder", f"name a folder: {instead}"
    else:
        what, following = f"cannot write: {error.strerror or error}", ask
    return StoreError(what, where=where, next_step=following)


def _file_on_the_way(path: Path) -> Path | None:
    return next((part for part in (path, *path.parents) if os.path.lexists(part) and not part.is_dir()), None)


def require_writable(folder: Path, *, instead: str = "") -> None:
    """Try whether files can be written to a folder, which need not be there yet; StoreError. Leaves nothing behind."""
    from tempfile import TemporaryFile  # noqa: PLC0415  who only runs a plan writes nothing

    try:
        place = folder
        while not place.exists() and place != place.parent:
            place = place.parent
        with TemporaryFile(dir=place) as file:
            file.write(bytes(4096))  # a full disk shows when something is written
            file.flush()
    except OSError as error:
        raise cannot_write(error, folder, instead=instead) from error


def expected(error: OSError) -> StoreError | None:
    """Return the error to show for one of the system that nobody has caught; None if a user can do nothing about it."""
    if error.errno not in _CAUSES or not error.filename:
        return None
    return cannot_write(error, Path(os.fsdecode(error.filename)))
