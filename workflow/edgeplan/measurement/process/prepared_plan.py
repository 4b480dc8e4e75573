"""Turns a plan folder into an artefact that the worker of cold starts loads."""

from __future__ import annotations

import hashlib
from pathlib import Path

from edgeplan.engines.cold import Artefact
from edgeplan.measurement.process.job import PrepareResult
from edgeplan.runtime.folder import PLAN_NAME, PROGRAM_NAME
from edgeplan.runtime.linked_file import read_linked
from edgeplan.runtime.preparation import CACHE_NAME, TAPE_NAME

_DIGITS = 12


def prepared(folder: Path) -> PrepareResult:
    """Describe a plan folder as a prepared artefact: every file that a first run reads is named in it.

    Its engine version changes with its content.

    Raises:
        FormatError: it is not a plan folder.
    """
    program = read_linked(folder / PROGRAM_NAME)
    names = [PROGRAM_NAME, PLAN_NAME, TAPE_NAME] + ([CACHE_NAME] if program.cache_bytes else [])
    files = [(folder / name).resolve() for name in names]
    if "raw" in program.sources:
        beside = [(folder / Path(file.path).name, Path(file.path)) for file in program.files]
        files += [near.resolve() if near.is_file() else far for near, far in beside]
    digest = hashlib.sha256((folder / PROGRAM_NAME).read_bytes()).hexdigest()[:_DIGITS]
    artefact = Artefact(main=files[0], files=tuple(files), note=f"layout {program.layout}")
    return PrepareResult(engine_version=f"{program.library_version}+{digest}", artefact=artefact)
