"""Digests of SHA-256 are made without OpenSSL, which takes 3.4 MiB of memory, unless something else has loaded it."""

from __future__ import annotations

import sys
from typing import Any

try:
    from _sha2 import sha256 as _lean  # type: ignore[import-not-found]  # Python 3.12 and later
except ImportError:
    try:
        from _sha256 import sha256 as _lean  # type: ignore[import-not-found]  # Python 3.11
    except ImportError:  # an interpreter built without it
        from hashlib import sha256 as _lean


def sha256(content: bytes | bytearray | memoryview = b"") -> Any:
    """Return the hash of a content: OpenSSL's, which is five times as fast, where something else has loaded it."""
    loaded = sys.modules.get("hashlib")
    return (loaded.sha256 if loaded is not None else _lean)(content)
