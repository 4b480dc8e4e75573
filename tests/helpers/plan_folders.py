"""What tests do to plan folders."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from edgeplan.runtime.dnnl import Dnnl
from edgeplan.runtime.folder import COLD_START, PROGRAM_NAME, encoded, read_folder, write_plan
from edgeplan.runtime.linked import LinkedProgram, Reserve
from edgeplan.runtime.native.words import Tape
from edgeplan.runtime.preparation import Shared, read_reserve
from edgeplan.runtime.tape_file import TAPE_NAME, TapeArrays, read_tape, write_tape


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
    """The calls of its program, which may be changed."""
    found = read_tape(read_folder(folder, COLD_START), program_in(folder))
    return dataclasses.replace(found, tape=Tape(*(array.copy() for array in found.tape)))


def shared_in(dnnl: Dnnl, folder: Path, reserve: Reserve | None = None, weights_bytes: int = 0) -> Shared:
    """What a session of it has in common, with other steps or more memory for weights if they are given."""
    program, known = program_in(folder), reserve or reserve_in(folder)
    program = replace(program, weights_bytes=program.weights_bytes + weights_bytes)
    return Shared(dnnl, program, folder, tape=tape_in(folder), reserve=lambda: known)


def rewrite(folder: Path, program: LinkedProgram | None = None, tape: TapeArrays | None = None) -> None:
    """Write another program or tape, all digests put right."""
    plan = read_folder(folder, COLD_START)
    if program is not None:
        (folder / PROGRAM_NAME).write_bytes(encoded(replace(program, files=(), cache_stamp=())))
    if tape is not None:
        write_tape(tape, folder / TAPE_NAME)
    write_plan(folder, COLD_START, plan.made_for, plan.scheduled(dict), plan.predicted(dict), tuple(plan.files))
