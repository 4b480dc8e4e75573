"""Turns a plan folder into an artefact that the worker of cold starts loads."""

from __future__ import annotations

from pathlib import Path

from edgeplan.engines.cold import Artefact
from edgeplan.measurement.process.job import PrepareResult
from edgeplan.runtime.folder import COLD_START, PLAN_NAME, PROGRAM_NAME, read_folder
from edgeplan.runtime.linked import LinkedProgram
from edgeplan.runtime.preparation import CACHE_NAME, RESERVE_NAME
from edgeplan.runtime.tape_file import TAPE_NAME

_DIGITS = 12


def prepared(folder: Path) -> PrepareResult:
    """Describe a plan folder as a prepared artefact: every file that a first run reads is named in it.

    Its engine version changes with its content.
    """
    plan = read_folder(folder, COLD_START)
    program = plan.program_of(LinkedProgram)
    names = [PROGRAM_NAME, PLAN_NAME, TAPE_NAME, RESERVE_NAME] + ([CACHE_NAME] if program.cache_bytes else [])
    files = [(folder / name).resolve() for name in names]
    if "raw" in program.sources:
        beside = [(folder / Path(file.path).name, Path(file.path)) for file in program.files]
        files += [near.resolve() if near.is_file() else far for near, far in beside]
    artefact = Artefact(main=files[0], files=tuple(files), note=f"layout {program.layout}")
    return PrepareResult(engine_version=f"{plan.made_for.library}+{plan.sha256[:_DIGITS]}", artefact=artefact)
