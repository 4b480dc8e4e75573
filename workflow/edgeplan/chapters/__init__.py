"""The chapters: each asks one question, and owns the stages, tables, figures and commands that answer it."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType

#: Folders beside this module in the order of the report, each with a `chapter.py`. A new chapter is a folder and a line here.
NAMES = ("prediction", "cold_start", "memory", "partition")


def chapter_modules(name: str) -> Iterator[ModuleType]:
    """Yield the modules of a name in the chapters' folders, where they have one: `chapter`, `commands`."""
    for chapter in NAMES:
        if (Path(__file__).parent / chapter / f"{name}.py").is_file():
            yield import_module(f"edgeplan.chapters.{chapter}.{name}")
