"""What tests do to plan folders."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from edgeplan.runtime.dnnl import Dnnl
from edgeplan.runtime.folder import COLD_START, read_folder, write_plan
from edgeplan.runtime.linked import LinkedProgram, Reserve
from edgeplan.runtime.preparation import Shared, read_reserve
from edgeplan.runtime.tape_file import TapeArrays, read_tape


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


def program_in(folder: Path) -> LinkedProgram:
    """The program of a plan of a cold start."""
    return read_folder(folder, COLD_START).program_of(LinkedProgram)


def reserve_in(folder: Path) -> Reserve:
    """The steps of its program, and those of later runs."""
    return read_reserve(read_folder(folder, COLD_START))


def tape_in(folder: Path) -> TapeArrays:
    """The calls of its program."""
    return read_tape(read_folder(folder, COLD_START), program_in(folder))


def shared_in(dnnl: Dnnl, folder: Path) -> Shared:
    """What a session of it has in common."""
    return Shared(dnnl, program_in(folder), folder, tape=tape_in(folder), reserve=lambda: reserve_in(folder))


def with_digests(folder: Path) -> None:
    """Put the digests of files right that were changed."""
    plan = read_folder(folder, COLD_START)
    write_plan(folder, COLD_START, plan.made_for, plan.scheduled(dict), plan.predicted(dict), tuple(plan.files))
