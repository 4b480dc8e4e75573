"""The program of a plan of memory as the bytes of program.bin, made from a streamed one and its schedules."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, count, pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from edgeplan.runtime import loops
from edgeplan.runtime.library import LibraryInfo
from edgeplan.runtime.linking import Instruction, LinkedStep, recipes_of
from edgeplan.runtime.program_file import (
    COLD_START_KIND,
    MEMORY_KIND,
    NOTHING,
    UNIT,
    Border,
    Section,
    border_row,
    checksum,
    packed,
)
from edgeplan.runtime.streaming.calls import creator_of
from edgeplan.runtime.streaming.program import StreamProgram
from edgeplan.runtime.streaming.schedules import BF16, F16, Schedule
from edgeplan.runtime.tape import Numbers, RecordedTape, Recorder, Tape, Written, record_sections
from edgeplan.support.files import stamp
from edgeplan.support.machine import machine_text

_SOURCES = {
    "none": loops.NO_WEIGHTS,
    "cached_read": loops.COPIED,
    "cached_mmap": loops.MAPPED,
    "raw": loops.RAW,
    "shared": loops.SHARED,
}


class ModelFile(NamedTuple):
    """A row of `Section.FILES`: a file of the raw model, and what tells whether it is still the same.

    The stamp is what the file system said of it when its contents were known to be these (`support.files.stamp`); where it is
    another one, the checksum of the contents decides. The path is that of when the plan was built.
    """

    path: str
    size: int
    stamp: Numbers
    checksum: int = 0


@dataclass(frozen=True)
class ColdProgram:
    """Holds what a cold start runs, before it is packed.

    Facts are of the model, the schedule and sizes, by the names of `program_file.FACTS`; the tape is what the steps' calls
    need. Lanes are steps that are prepared by the core that executes, then by each of the others. Steps are in order of
    execution, `later` is of each how later runs execute it, on all cores; None where the cold start does the same.
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
    """The program of a cold start as bytes, with places and checksums of its weights.

    Records are numbered: the steps', those of later runs in the order of the steps that have one, then `extra`, more steps made
    by the same tape, for measuring. `continuous`: kernels of later runs are prepared between runs. KeyError where weights of a
    step are to be raw that cannot be (`linking.can_be_raw`).
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


_HALVES = {BF16: 1, F16: 2}


class Budgeted(NamedTuple):
    """A schedule, and what it was planned for: bytes over idle, ms predicted, ms proven to be the least."""

    budget_bytes: int
    predicted_ms: float
    lower_bound_ms: float
    placed: Schedule


class Measured(NamedTuple):
    """Numbers of a profile that sessions of a program are told.

    `bytes_per_ms` are of reading the file of weights (0: nobody knows), `others` is the share of the processors' time that
    other work had meanwhile, 0 to 1. Pages of the library that making kernels and executing them need are the first and number
    of each run.
    """

    bytes_per_ms: float = 0.0
    others: float = 0.0
    making: Sequence[int] = ()
    running: Sequence[int] = ()


class TapedProgram:
    """A streamed program whose kernels are written down, to be packed with its schedules.

    DeviceError where a kernel is not offered by this library.
    """

    def __init__(self, program: StreamProgram) -> None:
        self.program = program
        recorder = Recorder()
        self._library, tape = recorder.info, RecordedTape(recorder)
        creator = creator_of(recorder, program)
        with recorder.without_primitive_cache():  # what is offered in a fresh process
            recorder.set_threads(program.threads)
            made = [creator.create(one.step, one.implementation, generate=False) for one in program.kernels]
            recorder.set_threads(1)
            calls = [tape.calls(created, program.threads) for created in made]
        written = Written(tape)
        records = [written.record(of_kernel, bound=False) for of_kernel in calls]
        self._facts = written.facts
        self._sections = {**written.sections, **record_sections(records), **_rows_of(program)}

    def packed(
        self,
        weights: Path,
        schedules: Sequence[Budgeted],
        *,
        isolated: bool = False,
        readers: Sequence[int] = (),
        measured: Measured | None = None,
    ) -> bytes:
        """The program as bytes, with schedules: the plan's own, then those for other budgets by ascending budget.

        The file of weights is where it stays. `isolated`: memory is filled before each inference; else these follow each other.
        Readers are processors that reading threads may use; none: any. Without `measured` nothing was measured yet.
        """
        program, known = self.program, measured or Measured()
        version, commit, isa = program.library
        layout = next((one for one in program.layouts.values() if one != "nchw"), "nchw")
        halved = any(step.stored_bytes != step.weight_bytes for step in program.steps)
        facts = {
            **self._facts, "threads": program.threads, "steps": len(program.steps), "model": program.model,
            "machine": machine_text(), "version": version, "commit": commit, "isa": isa, "layout": layout,
            "library": self._library.path, "arena_bytes": schedules[0].placed.arena_bytes,
            "weights_bytes": program.weights_bytes, "stamp": stamp(weights.stat()), "isolated": isolated,
            "halves": _HALVES[program.halves] if halved else 0, "checksum": checksum_of(weights),
            "bytes_per_ms": known.bytes_per_ms, "others": known.others,
        }  # fmt: skip
        sections: dict[Section, Any] = {
            **self._sections,
            Section.SCHEDULES: [
                (one.budget_bytes, one.placed.arena_bytes, one.predicted_ms, one.lower_bound_ms) for one in schedules
            ],
            Section.PLACES: np.concatenate([_places(one.placed) for one in schedules]),
            Section.PAGES_MAKING: list(known.making),
            Section.PAGES_RUNNING: list(known.running),
            Section.READERS: list(readers),
        }
        return packed(MEMORY_KIND, facts, sections)


def checksum_of(path: Path) -> int:
    """The digest of a file, by which native code tells that it is whole."""
    return checksum(np.memmap(path, np.uint8, "r")) if path.stat().st_size else checksum(b"")


def _rows_of(program: StreamProgram) -> dict[Section, Any]:
    """The steps of a program, and what they work on."""
    firsts = accumulate((len(step.operands) for step in program.steps), initial=0)
    return {
        Section.INPUTS: [border_row(border) for border in program.inputs],
        Section.OUTPUTS: [border_row(border) for border in program.outputs],
        Section.STEP_NAMES: program.step_names,
        Section.STEPS: [
            (step.kernel, first, step.weights_at, step.weight_bytes, step.stored_bytes)
            for step, first in zip(program.steps, firsts, strict=False)
        ],
        Section.OPERANDS: [(operand.buffer, operand.offset) for step in program.steps for operand in step.operands],
        Section.BUFFERS: [(buffer.size, buffer.lower, buffer.upper) for buffer in program.buffers],
    }


def _places(placed: Schedule) -> npt.NDArray[np.int32]:
    """The addresses of a schedule in units, then what its loads wait for."""
    addresses = np.array([*placed.buffer_offset, *placed.weight_offset], np.int64)
    units = np.where(addresses >= 0, addresses // UNIT, -1)
    if np.any((addresses % UNIT != 0) & (addresses >= 0)):
        raise ValueError(f"an address is no multiple of {UNIT}")
    return np.concatenate([units, placed.after, placed.again]).astype(np.int32)
