"""ONNX files: reading their message, saying by name whatever else a path may lead to, and files beside that hold tensors.

A model is untrusted, so what it names must lie in its folder. The files themselves may be symbolic links within that folder,
or to the folder where the model, a link too, really lies: so the cache of huggingface_hub keeps both. Hard links are files as
any other: package managers and caches install by them.
"""

from __future__ import annotations

import os
import re
import shlex
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from edgeplan.errors import ModelError
from edgeplan.support.files import files_sha256
from edgeplan.support.lazy import lazily

if TYPE_CHECKING:
    import onnx
    from google.protobuf import message
    from google.protobuf.message import Message
else:
    onnx, message = lazily("onnx"), lazily("google.protobuf.message")

Kind = TypeVar("Kind", bound="Message")
#: Messages of ONNX that tensors lie in, at whatever depth.
_HOLDERS = frozenset(
    {"GraphProto", "NodeProto", "AttributeProto", "FunctionProto", "SparseTensorProto", "TensorProto", "TrainingInfoProto"}
)
_BESIDE = "keep the external data beside the model, under the names it had when the model was saved"
_AGAIN = "the file may be truncated: copy or export the model again, with its external data"
#: What protobuf can read; larger models keep their weights in files of their own.
_LARGEST_FILE_BYTES = (1 << 31) - 1
_LOOKED_AT_BYTES = 1 << 24  # of a message without operators
_DAMAGED = "the file may be corrupt or truncated: copy or export it again"


def read_message(path: Path) -> onnx.ModelProto:
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
    return (model, *(external_file(model, location, 0, "a tensor") for location in external_locations(read_message(model))))


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
            what = "larger than 2 GB, which no ONNX file can be"
            next_step = "save the weights beside the model: onnx.save(model, path, save_as_external_data=True)"
            raise ModelError(what, where=str(path), next_step=next_step)
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


@dataclass(frozen=True, slots=True)
class External:
    """Where external data of a tensor lies: a file in the model's folder, and bytes there.

    The length is None where the model leaves it out: as many as the tensor has.
    """

    location: str
    offset: int
    length: int | None


def external_place(entries: Mapping[str, str]) -> External | None:
    """Where a tensor lies by the entries of its `external_data`; None if they do not say."""
    try:
        offset, length = (int(entries.get(key) or fallback) for key, fallback in (("offset", "0"), ("length", "-1")))
    except ValueError:
        return None
    given = bool(entries.get("length"))
    if not isinstance(entries.get("location"), str) or offset < 0 or (given and length < 0):
        return None
    return External(entries["location"], offset, length if given else None)


def require_inside(model: Path, location: str, what: str) -> None:
    """Refuse external data outside the model's folder by the name that the model has for the file."""
    inside = Path(os.path.normpath(location))  # `..` behind a folder that is a link leads elsewhere: `external_file` sees that
    if not location or inside.is_absolute() or inside.parts[:1] == (os.pardir,):
        raise ModelError(f"{what} lies in {location!r}, outside the model's folder", where=str(model), next_step=_BESIDE)


def external_file(model: Path, location: str, needed: int, what: str) -> Path:
    """Return the file of external data at a location that a model names, which holds so many bytes at least.

    Messages say whose data they are (`what`): "weight 'w'".
    """
    require_inside(model, location, what)
    lies = f"{what} lies in {location!r}"
    path = model.parent / location
    try:
        real, roots = path.resolve(), {model.parent.resolve(), model.resolve().parent}
        if not any(real.is_relative_to(root) for root in roots):
            what = f"{lies}, which is a symbolic link to {real}, outside the model's folder"
            next_step = f"copy the files themselves: cp -rL {shlex.quote(str(model.parent))} NEW_FOLDER"
            raise ModelError(what, where=str(model), next_step=next_step)
        if path.is_dir():
            raise ModelError(f"{lies}, which is a folder", where=str(model), next_step=_BESIDE)
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            if size < needed:
                head = file.read(HEAD_BYTES)
                found = file_kind(head, path)
                holds = f"is {found.what}" if found else f"ends at byte {size}, before byte {needed}"
                raise ModelError(f"{lies}, which {holds}", where=str(path), next_step=found.next_step if found else _AGAIN)
    except FileNotFoundError as error:
        raise ModelError(f"{lies}, which is missing", where=str(model), next_step=_BESIDE) from error
    except (OSError, RuntimeError, ValueError) as error:  # a circle of links; a null byte in the name
        reason = getattr(error, "strerror", None) or str(error)
        next_step = f"ls -l {shlex.quote(str(path))} shows who may read it: chmod u+r, or copy it"
        raise ModelError(f"{lies}, which cannot be read: {reason}", where=str(path), next_step=next_step) from error
    return path


def messages_of(message: Message, kind: type[Kind]) -> Iterator[Kind]:
    """Yield all messages of a kind in an ONNX message: of its graph, branches, bodies, functions and attributes."""
    if isinstance(message, kind):
        yield message
    if message.DESCRIPTOR.name == "TensorProto":  # looking at its fields would copy the values
        return
    for field, value in message.ListFields():
        if field.message_type is not None and field.message_type.name in _HOLDERS:
            for part in value if hasattr(value, "extend") else (value,):
                yield from messages_of(part, kind)


def outside(message: Message) -> Iterator[tuple[onnx.TensorProto, dict[str, str]]]:
    """Yield the tensors of a message that lie in other files, with what their `external_data` say."""
    for tensor in messages_of(message, onnx.TensorProto):
        if tensor.data_location == onnx.TensorProto.EXTERNAL:
            yield tensor, {entry.key: entry.value for entry in tensor.external_data}


def external_locations(model: onnx.ModelProto) -> dict[str, str]:
    """Return the files of external data that a model names, sorted, each with a tensor that lies there."""
    found = {entries.get("location"): tensor.name for tensor, entries in outside(model)}
    return dict(sorted((location, name) for location, name in found.items() if isinstance(location, str)))


#: How much of a file is looked at.
HEAD_BYTES = 1 << 16
_TF2ONNX = "convert it: pip install tf2onnx, then python -m tf2onnx.convert"
_KERAS = f"export it: model.export('saved') in Keras, then {_TF2ONNX.removeprefix('convert it: ')} --saved-model saved"
_TORCH = 'export the model from its program: torch.onnx.export(model, (inputs,), "model.onnx")'
_DOWNLOAD = "download it again: open its address in a browser, and take the link to the file itself (GitHub: Raw)"


class FileKind(NamedTuple):
    """A file kind names what a file is ("a Git LFS pointer"), with advice for it."""

    what: str
    next_step: str


#: Bytes at a place of a file: what it is, and the next step, which may name its path. A safetensors file begins with the 8
#: bytes of a length, and a JSON document.
_MARKS: tuple[tuple[int, bytes, str, str], ...] = (
    (0, b"version https://git-lfs.github.com/spec/", "a Git LFS pointer", "git lfs pull, in its repository"),
    (0, b"/annex/objects/", "a git-annex pointer", "git annex get {}"),
    (0, b"\x1f\x8b", "a file packed by gzip", "unpack it: gunzip {} (tar xzf for a .tar.gz)"),
    (0, b"BZh", "a file packed by bzip2", "unpack it: bunzip2 {}"),
    (0, b"\xfd7zXZ\0", "a file packed by xz", "unpack it: unxz {}"),
    (0, b"\x28\xb5\x2f\xfd", "a file packed by Zstandard", "unpack it: unzstd {}"),
    (0, b"7z\xbc\xaf\x27\x1c", "a 7-Zip archive", "unpack it: 7z x {}"),
    (0, b"Rar!\x1a\x07", "a RAR archive", "unpack it: unrar x {}"),
    (0, b"\x89HDF\r\n\x1a\n", "an HDF5 file, as Keras writes models", _KERAS),
    (0, b"\x93NUMPY", "an array of NumPy", "name an ONNX model; arrays are no models"),
    (0, b"GGUF", "a GGUF file of weights", "take an ONNX file of the model"),
    (0, b"\x80\x02", "a file that Python pickled, as PyTorch once wrote weights", _TORCH),
    (0, b"\x80\x03", "a file that Python pickled", _TORCH),
    (0, b"\x80\x04", "a file that Python pickled", _TORCH),
    (0, b"\x7fELF", "a program", "name an ONNX model"),
    (0, b"%PDF", "a PDF document", "name an ONNX model"),
    (4, b"TFL3", "a TFLite model", _TF2ONNX + " --tflite {} --output model.onnx"),
    (4, b"ORTM", "a model in ONNX Runtime's own format", "take the ONNX file that it was converted from"),
    (257, b"ustar", "a tar archive", "unpack it: tar xf {}"),
    (8, b'{"', "a safetensors file, which holds weights and no operators", _TORCH),
)
#: Operators that nearly all TensorFlow graphs hold; a name is a length-delimited field of protobuf.
_TENSORFLOW = re.compile(rb"[\x0a\x12][\x01-\x7f](?:Placeholder|VarHandleOp|StatefulPartitionedCall|NoOp|VariableV2)")
#: Text from the first byte to the last one looked at.
_TEXT = re.compile(rb"[\t\n\r\x20-\x7e\x80-\xff]+")


def file_kind(head: bytes, path: Path) -> FileKind | None:
    """Tell the kind of a file that is known to be no ONNX model, by its first `HEAD_BYTES` bytes; commands name the path."""
    if not head:
        return FileKind("an empty file", "copy, download or export it again")
    quoted = shlex.quote(str(path))
    for place, mark, what, next_step in _MARKS:
        if head.startswith(mark, place):
            return FileKind(what, next_step.format(quoted))
    if head.startswith(b"PK\x03\x04"):
        return _zip(head, quoted)
    return _text(head, path) if _TEXT.fullmatch(head) else None


def foreign_graph(content: bytes, path: Path) -> FileKind | None:
    """Tell the kind of a protobuf message, or its beginning, without an ONNX graph: TensorFlow numbers its fields alike."""
    if not _TENSORFLOW.search(content):
        return None
    quoted = shlex.quote(str(path.parent if path.name == "saved_model.pb" else path))
    how = f"--saved-model {quoted}" if path.name == "saved_model.pb" else f"--graphdef {quoted} --inputs NAMES --outputs NAMES"
    return FileKind("a TensorFlow graph", f"{_TF2ONNX} {how} --output model.onnx")


def folder_kind(path: Path) -> FileKind:
    """Tell the kind of a folder that was named in place of a model file."""
    try:
        names = sorted(entry.name for entry in path.iterdir())
    except OSError:
        names = []
    if "saved_model.pb" in names:
        return FileKind("a SavedModel of TensorFlow", f"{_TF2ONNX} --saved-model {shlex.quote(str(path))} --output model.onnx")
    if "program.json" in names and "plan.json" in names:
        return FileKind("a plan folder", f"edgeplan run {shlex.quote(str(path))}, or name the model that it was made from")
    models = [name for name in names if name.endswith(".onnx")]
    if models:
        return FileKind("a folder", f"name a file in it: {shlex.quote(str(path / models[0]))}")
    return FileKind("a folder", "name an ONNX file")


def _zip(head: bytes, quoted: str) -> FileKind:
    if b"data.pkl" in head or b"constants.pkl" in head:
        return FileKind("a file of PyTorch", _TORCH)
    if b"config.json" in head and b"model.weights.h5" in head:
        return FileKind("a Keras model", _KERAS)
    if b".npy" in head:
        return FileKind("arrays of NumPy", "name an ONNX model; arrays are no models")
    return FileKind("a zip archive", f"unpack it: unzip {quoted}")


def _text(head: bytes, path: Path) -> FileKind:
    start = head.lstrip(b"\xef\xbb\xbf \t\r\n").lower()
    command = f"onnx.save(onnx.load({str(path)!r}, format='textproto'), 'model.onnx')"
    for pattern, what, next_step in (
        (rb"<(!doctype html|html|head|body)", "an HTML page: what a failed download leaves", _DOWNLOAD),
        (rb"<.*<net ", "an XML document, as OpenVINO writes models", "take the ONNX file that it was converted from"),
        (rb"<", "an XML document", _DOWNLOAD),
        (rb"[{\[]", "a JSON document", "name an ONNX model; what a failed download says may stand in it"),
        (rb"ir_?version\s*:", "an ONNX model as text", f"python -c {shlex.quote(f'import onnx; {command}')}"),
        (rb"(.*\n)?outs:", "a pointer of DVC", "dvc pull, and name the file itself"),
    ):
        if re.match(pattern, start, re.DOTALL):
            return FileKind(what, next_step)
    return FileKind("a text", "name an ONNX model")
