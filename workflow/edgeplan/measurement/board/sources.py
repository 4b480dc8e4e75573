"""Digests the sources that decide what a board's times mean: host and board must agree."""

from __future__ import annotations

import hashlib
from functools import cache

from edgeplan.engines.registry import ENGINES, engine_protocol
from edgeplan.support.sources import file_digest, imported


@cache
def sources_digest(engine: str) -> str:
    """Return the digest of what measures on an engine, as on this machine: names of protocols, and the modules imported."""
    names = [engine_protocol(face, engine).name for face in ("measure", "mapping")]
    modules = imported("edgeplan.measurement.local")
    session = ENGINES[engine].session.partition(":")[0]
    if session.startswith("edgeplan."):  # not of another package
        modules |= imported(session)
    return hashlib.sha256("\n".join([*names, *sorted(map(file_digest, modules))]).encode()).hexdigest()
