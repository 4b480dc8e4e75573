"""What tests do to plan folders."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from edgeplan.runtime import loops
from edgeplan.runtime.program_file import PROGRAM_BIN, Section, rows_of


def body_of(folder: Path) -> dict[str, Any]:
    """What `plan.json` says."""
    found: dict[str, Any] = json.loads((folder / "plan.json").read_bytes())["body"]
    return found


def changed_plan(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Write `plan.json` with something changed, as if it had been planned so."""
    path = folder / "plan.json"
    document = json.loads(path.read_bytes())
    change(document["body"])
    body = json.dumps(document["body"], separators=(",", ":"))
    digest = hashlib.sha256(body.encode()).hexdigest()
    path.write_text(f'{{"format_version":{document["format_version"]},"sha256":"{digest}","body":{body}}}\n')


class RecordHead(NamedTuple):
    """The head of a record of a program (native/src/loops/loops.h)."""

    source: int
    segment: int
    weight_bytes: int
    place: int
    groups: int
    slots: int
    calls: int

    @property
    def cached(self) -> bool:
        """Tell whether weights come from the cache."""
        return self.source in (loops.COPIED, loops.MAPPED)


def records_in(folder: Path) -> tuple[list[RecordHead], list[RecordHead | None]]:
    """The heads of the steps of a cold start, and of those of later runs; None where these do the same."""
    path = folder / PROGRAM_BIN
    records, starts, later = rows_of(path, Section.RECORDS, Section.RECORD_STARTS, Section.LATER)
    heads = [RecordHead(*records[at : at + loops.HEAD].tolist()) for at in starts]
    return heads[: len(later)], [heads[number] if number >= 0 else None for number in later]
