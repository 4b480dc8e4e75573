"""Turns a plan folder into an artefact that the worker of cold starts loads."""

from __future__ import annotations

from pathlib import Path

from edgeplan.engines.cold import Artefact
from edgeplan.measurement.process.job import PrepareResult
from edgeplan.runtime.folder import CACHE_NAME, COLD_START, read_folder
from edgeplan.runtime.program_file import PROGRAM_BIN, Section, rows_of, text_of

_DIGITS = 12


def prepared(folder: Path) -> PrepareResult:
    """Describe a plan folder as a prepared artefact: every file that a first run reads is named in it.

    Its engine version changes with its content.
    """
    plan, program = read_folder(folder, COLD_START), (folder / PROGRAM_BIN).resolve()
    files = [program, *([program.with_name(CACHE_NAME)] if plan.head.cache_bytes else []), *_model_files(program)]
    artefact = Artefact(main=program, files=tuple(files), note=f"layout {plan.head.layout}")
    return PrepareResult(engine_version=f"{plan.made_for.library}+{plan.sha256[:_DIGITS]}", artefact=artefact)


def _model_files(program: Path) -> list[Path]:
    """The model's files that raw weights are made from: beside the plan, else where they were when it was planned."""
    texts, files, raw = rows_of(program, Section.TEXT, Section.FILES, Section.RAW)
    if not len(raw):
        return []
    paths = [Path(text_of(texts, at)) for at in files["path"]]
    return [near.resolve() if (near := program.with_name(path.name)).is_file() else path for path in paths]
