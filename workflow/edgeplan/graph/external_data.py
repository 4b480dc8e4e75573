"""Files beside a model that hold its tensors (ONNX's external data): which they are, and where in them a tensor lies.

A model is untrusted, so what it names must lie in its folder. The files themselves may be symbolic links within that folder,
or to the folder where the model, a link too, really lies: so the cache of huggingface_hub keeps both. Hard links are files as
any other: package managers and caches install by them.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from edgeplan.errors import ModelError
from edgeplan.graph.file_kinds import HEAD_BYTES, file_kind
from edgeplan.support.lazy import lazily

if TYPE_CHECKING:
    import onnx
    from google.protobuf.message import Message
else:
    onnx = lazily("onnx")

Kind = TypeVar("Kind", bound="Message")
#: Messages of ONNX that tensors lie in, at whatever depth.
_HOLDERS = frozenset(
    {"GraphProto", "NodeProto", "AttributeProto", "FunctionProto", "SparseTensorProto", "TensorProto", "TrainingInfoProto"}
)

_BESIDE = "keep the external data beside the model, under the names it had when the model was saved"
_AGAIN = "the file may be truncated: copy or export the model again, with its external data"


@dataclass(frozen=True, slots=True)
class External:
    """External data of a tensor lies in a file beside the model.

    Attributes:
        location: path of the file, relative to the model's folder.
        offset: of its first byte there.
        length: in bytes; None where the model leaves it out: as many as the tensor has.
    """

    location: str
    offset: int
    length: int | None


def external(entries: Mapping[str, str]) -> External | None:
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
    """Return the file of external data.

    Args:
        model: the model's file.
        location: path of the other, as the model names it.
        needed: bytes that it must hold at least.
        what: whose data they are, for messages: "weight 'w'".
    """
    require_inside(model, location, what)
    lies = f"{what} lies in {location!r}"
    path = model.parent / location
    try:
        real, roots = path.resolve(), {model.parent.resolve(), model.resolve().parent}
        if not any(real.is_relative_to(root) for root in roots):
            raise ModelError(
                f"{lies}, which is a symbolic link to {real}, outside the model's folder",
                where=str(model),
                next_step=f"copy the files themselves: cp -rL {shlex.quote(str(model.parent))} NEW_FOLDER",
            )
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


def everything(message: Message, kind: type[Kind]) -> Iterator[Kind]:
    """Yield all messages of a kind in an ONNX message: of its graph, branches, bodies, functions and attributes."""
    if isinstance(message, kind):
        yield message
    if message.DESCRIPTOR.name == "TensorProto":  # looking at its fields would copy the values
        return
    for field, value in message.ListFields():
        if field.message_type is not None and field.message_type.name in _HOLDERS:
            for part in value if hasattr(value, "extend") else (value,):
                yield from everything(part, kind)


def outside(message: Message) -> Iterator[tuple[onnx.TensorProto, dict[str, str]]]:
    """Yield the tensors of a message that lie in other files, with what their `external_data` say."""
    for tensor in everything(message, onnx.TensorProto):
        if tensor.data_location == onnx.TensorProto.EXTERNAL:
            yield tensor, {entry.key: entry.value for entry in tensor.external_data}


def external_locations(model: onnx.ModelProto) -> dict[str, str]:
    """Return the files of external data that a model names, sorted, each with a tensor that lies there."""
    found = {entries.get("location"): tensor.name for tensor, entries in outside(model)}
    return dict(sorted((location, name) for location, name in found.items() if isinstance(location, str)))
