"""The program of a cold start as the bytes of program.bin, made from linked steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, count, pairwise
from typing import Any, NamedTuple

from edgeplan.runtime.library import LibraryInfo
from edgeplan.runtime.linking import LinkedStep
from edgeplan.runtime.native import words
from edgeplan.runtime.program_file import COLD_START_KIND, NOTHING, Border, Section, border_row, packed
from edgeplan.runtime.recipes import Instruction, recipes_of
from edgeplan.runtime.tape import Numbers, Tape, Written, record_sections
from edgeplan.support.machine import machine_text

_SOURCES = {
    "none": words.NO_WEIGHTS,
    "cached_read": words.COPIED,
    "cached_mmap": words.MAPPED,
    "raw": words.RAW,
    "shared": words.SHARED,
}


class ModelFile(NamedTuple):
    """A row of `Section.FILES`: a file of the raw model, and what tells whether it is still the same.

    Attributes:
        path: when the plan was built.
        size: bytes.
        stamp: what the file system said of it when its contents were known to be these (`support.stamps`).
        checksum: of its contents, which decide where the stamp is another one.
    """

    path: str
    size: int
    stamp: Numbers
    checksum: int = 0


@dataclass(frozen=True)
class ColdProgram:
    """Holds what a cold start runs, before it is packed.

    Attributes:
        facts: of the model, the schedule and sizes, by the names of `program_file.FACTS`.
        lanes: steps that are prepared by the core that executes, then by each of the others.
        inputs, outputs: at the border.
        files: of the model.
        tape: what the steps' calls need.
        steps: in order of execution.
        later: for each step how later runs execute it, on all cores; None where the cold start does the same.
    """

    facts: dict[str, Any]
    lanes: tuple[Sequence[int], ...]
    inputs: Sequence[Border]
    outputs: Sequence[Border]
    files: Sequence[ModelFile]
    tape: Tape
    steps: Sequence[LinkedStep]
    later: Sequence[LinkedStep | None]


def cold_program(
    program: ColdProgram, info: LibraryInfo, *, continuous: bool = False, extra: Sequence[LinkedStep] = ()
) -> bytes:
    """The program of a cold start as bytes.

    Records are numbered: the steps', those of later runs in the order of the steps that have one, then `extra`.

    Args:
        program: with places and checksums of its weights.
        info: the library that it was linked with.
        continuous: whether kernels of later runs are prepared between runs.
        extra: more steps, made by the same tape, for measuring.

    Raises:
        KeyError: weights of a step are to be raw that cannot be (`recipes.can_be_raw`).
    """
    steps, written = program.steps, Written(program.tape)
    records, raw, recipes = list[list[int]](), list[Numbers](), list[Instruction]()
    for number, step in enumerate((*steps, *filter(None, program.later), *extra)):
        for slot, recipe in enumerate(recipes_of(step) if step.source == "raw" else ()):
            target, source, offset, size, conversion = step.slots[slot]
            first, end = len(recipes), len(recipes) + len(recipe)
            raw.append((number, slot, source, target, offset, size, conversion, first, end))
            recipes += recipe
        weights = (_SOURCES[step.source], step.segment, step.weight_bytes, step.place)
        records.append(written.record(step.calls, weights, [(target, offset) for target, _, offset, _, _ in step.slots]))
    later, ends = count(len(steps)), [0, *accumulate(map(len, program.lanes))]
    facts = {
        **program.facts, **written.facts, "steps": len(steps), "machine": machine_text(), "version": info.version,
        "commit": info.commit, "isa": info.isa, "library": info.path, "continuous": continuous,
    }  # fmt: skip
    sections: dict[Section, Any] = {
        **written.sections,
        Section.INPUTS: [border_row(border) for border in program.inputs],
        Section.OUTPUTS: [border_row(border) for border in program.outputs],
        **record_sections(records),
        Section.STEP_NAMES: [step.name for step in steps],
        Section.LATER: [NOTHING if step is None else next(later) for step in program.later],
        Section.TODO: [k for lane in program.lanes for k in lane],
        Section.BOUNDS: [bound for lane in pairwise(ends) for bound in lane],
        Section.CHECKSUMS: [step.checksum for step in steps],
        Section.FILES: program.files,
        Section.RAW: raw,
        Section.RECIPES: recipes,
    }
    return packed(COLD_START_KIND, facts, sections)
