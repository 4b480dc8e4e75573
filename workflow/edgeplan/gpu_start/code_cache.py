"""Keeps machine code of kernels in one file, by what it was compiled from and for; what is stale or damaged is not there.

The first line is JSON: for each code a key, its size and its digest. The codes follow it in that order. A key is a digest of
the source, its options and what the processor says its code depends on, so that code of another driver, device or source is
never found. A digest is compared before a code is used: a flipped byte or a file that was cut short makes it absent.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec

from edgeplan.opencl.building import ProgramSource
from edgeplan.support.digests import sha256
from edgeplan.support.files import write_atomically

_FORMAT = 1
_MOST_BYTES = 1 << 30


class _Entry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    key: str
    size: int
    sha256: str


class _Head(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    format: int
    entries: tuple[_Entry, ...]


@dataclass(frozen=True, slots=True)
class _Part:
    content: memoryview
    sha256: str


def code_key(identity: str, source: ProgramSource) -> str:
    """Return the key of a source's code for a processor whose code depends on `identity`."""
    parts = (identity, source.text, *source.options)
    return str(sha256("\0".join(parts).encode()).hexdigest())


class CodeCache:
    """A code cache is a file of machine code, read whole.

    Args:
        path: of the file, which need not be there.
        identity: what code of the processor depends on.

    Attributes:
        problem: why nothing is found in it, if something is wrong with the whole file; "".
    """

    def __init__(self, path: Path, identity: str) -> None:
        self.path, self.problem, self._identity = path, "", identity
        self._parts: dict[str, _Part] = {}
        try:
            if path.stat().st_size > _MOST_BYTES:
                self.problem = "is too large"
                return
            raw = path.read_bytes()
        except OSError as error:
            self.problem = f"cannot be read: {error.strerror}"
            return
        content, at, end = memoryview(raw), raw.find(b"\n") + 1, len(raw)
        try:
            head = msgspec.json.decode(content[:at], type=_Head)
        except msgspec.DecodeError:
            self.problem = "is damaged"
            return
        if head.format != _FORMAT:
            self.problem = f"is of format {head.format}"
            return
        for entry in head.entries:
            if not 0 <= entry.size <= end - at:
                self.problem = "was cut short"
                return
            self._parts[entry.key] = _Part(content[at : at + entry.size], entry.sha256)
            at += entry.size

    def get(self, source: ProgramSource) -> bytes | None:
        """Return the code of a source; None where there is none for this processor, or a damaged one."""
        found = self._parts.get(code_key(self._identity, source))
        if found is None or sha256(found.content).hexdigest() != found.sha256:
            return None
        return bytes(found.content)


def write_codes(path: Path, identity: str, codes: Mapping[ProgramSource, bytes]) -> None:
    """Write the machine code of sources for a processor, atomically."""
    entries = tuple(_Entry(code_key(identity, s), len(code), str(sha256(code).hexdigest())) for s, code in codes.items())
    head = msgspec.json.encode(_Head(_FORMAT, entries)) + b"\n"
    write_atomically(path, lambda temporary: temporary.write_bytes(b"".join((head, *codes.values()))))
