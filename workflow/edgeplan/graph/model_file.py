"""Reading the message of an ONNX file; whatever else a path may lead to is said by name."""

from __future__ import annotations

import shlex
import stat
from pathlib import Path
from typing import TYPE_CHECKING

from edgeplan.errors import ModelError
from edgeplan.graph.external_data import external_file, external_locations, require_inside
from edgeplan.graph.file_kinds import HEAD_BYTES, file_kind, folder_kind, foreign_graph
from edgeplan.support.files import files_sha256
from edgeplan.support.lazy import lazily

if TYPE_CHECKING:
    import onnx
    from google.protobuf import message
else:
    onnx, message = lazily("onnx"), lazily("google.protobuf.message")

#: What protobuf can read; larger models keep their weights in files of their own.
_LARGEST_FILE_BYTES = (1 << 31) - 1
_LOOKED_AT_BYTES = 1 << 24  # of a message without operators
_DAMAGED = "the file may be corrupt or truncated: copy or export it again"


def read_model(path: Path) -> onnx.ModelProto:
    """Return the message of an ONNX file, without external data."""
    content = _content(path)
    try:
        model = onnx.load_model_from_string(content)
    except (message.DecodeError, ValueError) as error:
        if found := foreign_graph(content[:_LOOKED_AT_BYTES], path):
            raise _no_model(found.what, path, found.next_step) from error
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise ModelError(f"not a readable ONNX model: {reason}", where=str(path), next_step=_DAMAGED) from error
    if not model.graph.node and (found := foreign_graph(content[:_LOOKED_AT_BYTES], path)):
        raise _no_model(found.what, path, found.next_step)
    for location, name in external_locations(model).items():
        require_inside(path, location, f"constant {name!r}")
    return model


def model_files(model: Path) -> tuple[Path, ...]:
    """Return the ONNX file and the files of external data that it names, in the order of their names; all lie in its folder."""
    return (model, *(external_file(model, location, 0, "a tensor") for location in external_locations(read_model(model))))


def model_sha256(model: Path) -> str:
    """SHA-256 of a model: of its file, followed by its external data files in the order of their names."""
    try:
        return files_sha256(model_files(model))
    except OSError as error:
        raise cannot_read(Path(error.filename), error) from error


def cannot_read(path: Path, error: OSError) -> ModelError:
    """Return the error for a file, of a model or beside it, that the system does not hand out."""
    if isinstance(error, PermissionError):
        next_step = f"chmod u+r {shlex.quote(str(path))}, or ask its owner; ls -l shows who may read it"
    else:
        next_step = "check the path and the disk"
    return ModelError(f"cannot read the model: {error.strerror or error}", where=str(path), next_step=next_step)


def _content(path: Path) -> bytes:
    try:
        status = path.stat()
        if stat.S_ISDIR(status.st_mode):
            kind = folder_kind(path)
            raise _no_model(kind.what, path, kind.next_step)
        if not stat.S_ISREG(status.st_mode):
            raise _no_model("a pipe or device", path, "save it to a file, and name that")
        if status.st_size > _LARGEST_FILE_BYTES:
            raise ModelError(
                "larger than 2 GB, which no ONNX file can be",
                where=str(path),
                next_step="save the weights beside the model: onnx.save(model, path, save_as_external_data=True)",
            )
        with path.open("rb") as file:
            head = file.read(HEAD_BYTES)
            if found := file_kind(head, path):
                raise _no_model(found.what, path, found.next_step)
            file.seek(0)
            return file.read()
    except FileNotFoundError as error:
        link = f": it is a link to {path.readlink()}, which is not there" if path.is_symlink() else ""
        next_step = "check the path; the file must be an ONNX model"
        raise ModelError(f"no model file {path}{link}", next_step=next_step) from error
    except (OSError, ValueError) as error:  # a path with a null byte is a ValueError
        raise cannot_read(path, error if isinstance(error, OSError) else OSError(str(error))) from error


def _no_model(what: str, path: Path, next_step: str) -> ModelError:
    return ModelError(f"not an ONNX model but {what}", where=str(path), next_step=next_step)
