"""The program of a cold start as the bytes of program.bin, made from a linked one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from edgeplan.runtime.library import LibraryInfo
from edgeplan.runtime.linked import Linked, LinkedStep
from edgeplan.runtime.program_file import COLD_START_KIND, NOTHING, Section, border_row, packed
from edgeplan.runtime.recipes import Instruction, recipes_of
from edgeplan.runtime.tape import Compiled, Compiler, record, tape_facts, tape_sections
from edgeplan.support.machine import machine_text


def cold_program(linked: Linked, info: LibraryInfo, *, continuous: bool = False, extra: Sequence[LinkedStep] = ()) -> bytes:
    """The program of a cold start as bytes.

    Records are numbered: the steps', those of later runs in the order of the steps that have one, then `extra`.

    Args:
        linked: the program, with places and checksums of its weights.
        info: the library that it was linked with.
        continuous: whether kernels of later runs are prepared between runs.
        extra: more steps, made of the same tables, for measuring.

    Raises:
        ValueError: weights of a step are to be raw that cannot be (`recipes.can_be_raw`).
    """
    program, steps = linked.program, linked.steps
    again = [step for step in linked.later if step is not None]
    compiled = Compiler(linked.tables).compiled()
    made = _Records(compiled)
    for step in (*steps, *again, *extra):
        made.add(step)
    numbers = iter(range(len(steps), len(steps) + len(again)))
    lanes = (program.main, *program.queues)
    ends = np.cumsum([0, *map(len, lanes)])
    facts = {
        "threads": program.threads, "steps": len(steps), "model": program.model, "machine": machine_text(),
        "version": info.version, "commit": info.commit, "isa": info.isa, "layout": program.layout, "library": info.path,
        **tape_facts(compiled), "arena_bytes": program.arena_bytes, "weights_bytes": program.weights_bytes,
        "equal_cores": program.equal_cores, "widen_from": program.widen_from, "continuous": continuous,
        "cache_bytes": program.cache_bytes, "little_ratio": program.little_ratio,
    }  # fmt: skip
    if program.cache_stamp:
        facts["stamp"] = program.cache_stamp
    sections: dict[Section, Any] = {
        **tape_sections(compiled),
        Section.INPUTS: [border_row(border) for border in program.inputs],
        Section.OUTPUTS: [border_row(border) for border in program.outputs],
        Section.RECORDS: np.array(made.words, np.int64),
        Section.RECORD_STARTS: made.starts,
        Section.STEP_NAMES: [step.name for step in steps],
        Section.LATER: [NOTHING if step is None else next(numbers) for step in linked.later] or [NOTHING] * len(steps),
        Section.TODO: [k for lane in lanes for k in lane],
        Section.BOUNDS: _pairs(ends),
        Section.CHECKSUMS: [step.checksum for step in steps],
        Section.FILES: [(file.path, file.size, file.stamp, file.checksum) for file in program.files],
        Section.RAW: made.raw,
        Section.RECIPES: [tuple(row) for row in made.recipes],
    }
    return packed(COLD_START_KIND, facts, sections)


def _pairs(ends: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    return np.stack([ends[:-1], ends[1:]], axis=1)


class _Records:
    """Records of steps, one after the other, and how their raw weights are made."""

    def __init__(self, compiled: Compiled) -> None:
        self._compiled = compiled
        self.words: list[int] = []
        self.starts: list[int] = []
        self.raw: list[tuple[int, ...]] = []
        self.recipes: list[Instruction] = []

    def add(self, step: LinkedStep) -> None:
        """Count one record more of the program."""
        if step.source == "raw":
            for slot, instructions in enumerate(recipes_of(step)):
                target, source, offset, size, conversion = step.slots[slot]
                first = len(self.recipes)
                self.recipes += instructions
                row = (len(self.starts), slot, source, target, offset, size, conversion, first, len(self.recipes))
                self.raw.append(row)
        self.starts.append(len(self.words))
        self.words += record(self._compiled, step)
