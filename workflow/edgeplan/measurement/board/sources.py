"""Digests the sources that decide what a board's times mean: host and board must agree."""

from __future__ import annotations

import hashlib
from functools import cache

from edgeplan.engines.registry import engine_protocol
from edgeplan.support.protocols import digest


@cache
def sources_digest(engine: str) -> str:
    """Return the digest of an engine's measuring and mapping protocols: their names and sources, as on this machine."""
    found = [engine_protocol(face, engine) for face in ("measure", "mapping")]
    told = "\n".join(f"{one.name} {digest(one.sources)}" for one in found)
    return hashlib.sha256(told.encode()).hexdigest()
