"""Files of linked programs and their reserves: one digest, one parse.

A line of JSON with its digest. A program's tables stand behind it, with a digest of their own in the line: a cold start without
surprises does not look at them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

import msgspec

from edgeplan.errors import FormatError
from edgeplan.runtime.linked import AGAIN, NO_TABLES, LinkedProgram, Reserve
from edgeplan.support.files import read_whole, write_atomically

_VERSION = '"format_version":5,'
_HEAD = f'{{{{{_VERSION}"body_sha256":"{{digest}}","body":'
_HEAD_BYTES = len(_HEAD.format(digest="0" * 64))
#: Made once, when this module is imported: this builds the schemas.
_DECODERS: Mapping[type[Any], msgspec.json.Decoder[Any]] = MappingProxyType(
    {kind: msgspec.json.Decoder(kind) for kind in (LinkedProgram, Reserve)}
)
Document = TypeVar("Document", LinkedProgram, Reserve)


def write_linked(document: LinkedProgram | Reserve, path: Path) -> str:
    """Write a linked program or its reserve, with a digest of it, atomically; returns the digest."""
    tables = b""
    if isinstance(document, LinkedProgram):
        tables = bytes(document.tables_json)
        known = document.tables_sha256 or hashlib.sha256(tables).hexdigest()
        document = msgspec.structs.replace(document, tables_json=NO_TABLES, tables_sha256=known)
    body = msgspec.json.encode(document)
    digest = hashlib.sha256(body).hexdigest()
    content = b"".join((_HEAD.format(digest=digest).encode(), body, b"}\n", tables))
    write_atomically(path, lambda temporary: temporary.write_bytes(content))
    return digest


def read_reserve(path: Path, program: LinkedProgram) -> Reserve:
    """Read the reserve of a program; see `read_linked`."""
    return read_linked(path, Reserve, program.reserve_sha256)


def read_linked(path: Path, document: type[Document] = LinkedProgram, wanted: str = "") -> Document:  # type: ignore[assignment]
    """Read a linked program, or its reserve: one digest, one parse.

    Args:
        path: of the file.
        document: what it holds.
        wanted: the digest it must have, if that is known.

    Raises:
        FormatError: missing, of another format version, changed since it was written, or not fitting.
    """
    try:
        content = read_whole(path)
    except OSError as error:
        raise FormatError(f"cannot read the program: {error.strerror}", where=str(path), next_step=AGAIN) from error
    end = content.find(b"\n") + 1 or len(content)  # within JSON as it is written here there is no other
    head, body = bytes(content[:_HEAD_BYTES]), memoryview(content)[_HEAD_BYTES : end - 2]
    digest = hashlib.sha256(body).hexdigest()
    whole = content[end - 2 : end] == b"}\n" and (document is LinkedProgram or end == len(content))
    if not whole or head != _HEAD.format(digest=digest).encode() or (wanted and digest != wanted):
        what = "is of another format version" if _VERSION.encode() not in head else "was changed after it was written"
        raise FormatError(f"the program {what}", where=str(path), next_step=AGAIN)
    try:
        found: Document = _DECODERS[document].decode(body)
    except msgspec.DecodeError as error:
        raise FormatError(f"the program does not fit: {error}", where=str(path), next_step=AGAIN) from error
    if isinstance(found, LinkedProgram):
        msgspec.structs.force_setattr(found, "tables_json", msgspec.Raw(memoryview(content)[end:]))
    return found
