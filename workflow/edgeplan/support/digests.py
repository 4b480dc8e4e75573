"""Digests small files by SHA-256 without OpenSSL, which takes 3.4 MiB of memory; large files are for `hashlib`."""

from __future__ import annotations

try:
    from _sha2 import sha256  # type: ignore[import-not-found]  # Python 3.12 and later
except ImportError:
    try:
        from _sha256 import sha256  # type: ignore[import-not-found]  # Python 3.11
    except ImportError:  # an interpreter built without it
        from hashlib import sha256

__all__ = ["sha256"]
