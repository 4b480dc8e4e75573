"""Digests the code of each stage, by which DVC tells what is current."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from edgeplan.engines.registry import PROCESSORS
from edgeplan.support.sources import PACKAGE, digest, imported

#: Digests of the code of each stage, which DVC reads as params. Words, comments and where a module stands are no part of them.
CODE = Path("workflow/code.json")


def noted_code() -> Mapping[str, str]:
    """Read the digests in the workspace's file, by stage; none where it has none."""
    return json.loads(CODE.read_text(encoding="utf-8")) if CODE.is_file() else {}


def code_digest(module: str) -> str:
    """Return the digest of a stage's code: of the modules that its own imports, and of sources beside them."""
    found = imported(module)
    if PACKAGE / "devices/pairs.py" in found:  # which imports the processors of pairs by their names
        own = (one.processor for one in PROCESSORS.values() if one.processor.startswith("edgeplan."))
        found = found.union(*(imported(name.partition(":")[0]) for name in own))
    return digest(found)
