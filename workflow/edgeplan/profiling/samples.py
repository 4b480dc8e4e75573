"""Writes every candidate of every step as records of one linked program, which a bench prepares and executes one by one.

A plan's program holds one implementation of each step; this one holds them all, at every width, with a place for the
transformed weights of the step at trial besides those of the steps that run around it.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Self

import numpy as np
import numpy.typing as npt
from msgspec.structs import replace as changed

from edgeplan.profiling.subjects import Group, ProfilingSubject
from edgeplan.runtime.creation import aligned, paged
from edgeplan.runtime.dnnl import Dnnl
from edgeplan.runtime.executable import Executable, Worker, transformed
from edgeplan.runtime.linking import LinkedStep, Linker, can_be_raw
from edgeplan.runtime.packed_programs import ColdProgram, ModelFile, cold_program
from edgeplan.runtime.program import Program
from edgeplan.runtime.program_file import Border, checksum
from edgeplan.runtime.tape import Recorder
from edgeplan.support.files import stamp


@dataclass(frozen=True, slots=True)
class TrialProgram:
    """A program whose records a bench prepares, as `runtime.packed_programs` makes it, and the file of its cached weights."""

    content: bytes
    cache: Path | None


class Trials:
    """Trials hold the candidates of a model under one home layout, linked, for some numbers of cores that execute.

    Weights of a step at trial are made from the model file. Those that a cold start always has from its cache come from a file
    like that, `own`, which holds them as they are: steps execute with their own weights, since some processors take several
    times as long over denormal numbers. Another file, `cache`, is read as a weight cache would be, the weights of each step
    from its segment on. `linked` has the first candidates at places of their own; weights as at trial. Candidates, and their
    numbers in `trying`, are told by step, position, and cores that execute.
    """

    def __init__(self, dnnl: Dnnl, subject: ProfilingSubject, model: Path, widths: Sequence[int], scratch: Path) -> None:
        self.subject, self._widths, self._info, self._model = subject, tuple(widths), dnnl.info, model
        self.group: dict[int, Group] = {index: group for group in subject.groups for index in group.steps}
        self._recorder = Recorder()
        self._linker = Linker(self._recorder, subject.program, max(widths))
        self._places, self.segments, self.weights_bytes = self._laid_out()
        self.own = scratch / f"own-{subject.program.home}.bin"
        self.candidates: dict[tuple[int, int, int], LinkedStep] = {}
        with dnnl.without_primitive_cache(), _Own(self._recorder, subject.program, model, self.own) as own:
            # the tables must hold whatever was made before
            for index, group in sorted(self.group.items()):
                for position in range(len(group.sizes)):
                    for width in self._widths:
                        self.candidates[index, position, width] = self._link(index, position, width, own)
        self.numbers = {key: number for number, key in enumerate(self.candidates, len(subject.program.steps))}
        self.cache = self._stand_in(scratch)
        steps, narrow = range(len(subject.program.steps)), self._widths[0]
        firsts = [changed(self.candidates[index, 0, narrow], place=self.place(index, narrow)) for index in steps]
        self.linked = self._program(firsts, self.own, (1 + len(self._widths)) * self.weights_bytes)

    def _laid_out(self) -> tuple[dict[int, int], dict[int, int], int]:
        """Return for each step its place among the weights in memory, at trial, its segment in a cache; and the size of all."""
        places, segments, at, end = {}, {}, 0, 0
        for index, group in sorted(self.group.items()):
            largest = max(size.weights for size in group.sizes)
            places[index], segments[index] = at, end
            at, end = at + aligned(largest), end + paged(largest)
        return places, segments, at

    def _link(self, index: int, position: int, width: int, own: _Own) -> LinkedStep:
        step, implementation = self.subject.program.steps[index], self.group[index].implementations[position]
        raw = can_be_raw(step, self.subject.program.types)
        linked, created = self._linker.step(step, implementation, "raw" if raw else "cached_read", width)
        linked.place = self._places[index]
        if linked.cached:
            linked.segment = own.segment(transformed(self._recorder, step, created, own.read(index), own.worker).data)
        return linked

    def _stand_in(self, scratch: Path) -> Path:
        """Return a file of enough bytes, as any is read alike: the largest of the model's, else one that is written."""
        size = sum(paged(max(s.weights for s in group.sizes)) for group in self.group.values())
        files = {self._model, *(self._model.parent / w.file for w in self.subject.program.weights.values())}
        path = max(files, key=lambda file: file.stat().st_size)
        if path.stat().st_size < size:
            path = _stand_in_cache(scratch / f"weights-{size}.bin", size)
        return path

    def _program(self, steps: Sequence[LinkedStep], cache: Path, weights_bytes: int) -> ColdProgram:
        found, status = self.subject.program, cache.stat()
        paths = [(self._model.parent / name).resolve() for name in self._linker.files]
        facts = {
            "model": found.name,
            "threads": max(self._widths),
            "layout": found.home,
            "equal_cores": True,
            "little_ratio": 1.0,
            "widen_from": len(steps),
            "arena_bytes": aligned(max(found.arena_bytes, found.scratch_offset + self._linker.scratch_bytes)),
            "weights_bytes": weights_bytes,
            "cache_bytes": status.st_size,
        }
        if status.st_size:
            facts["stamp"] = stamp(status)
        inputs, outputs = (
            [Border(name, found.shapes[name], found.offsets[name], found.dtype(name)) for name in names]
            for names in (found.inputs, found.outputs)
        )
        files = [ModelFile(str(path), path.stat().st_size, stamp(path.stat())) for path in paths]
        return ColdProgram(facts, (range(len(steps)),), inputs, outputs, files, self._linker.tape, steps, [None] * len(steps))

    def _written(self, linked: ColdProgram, cache: Path, extra: Sequence[LinkedStep] = ()) -> TrialProgram:
        return TrialProgram(cold_program(linked, self._info, extra=extra), cache if linked.facts["cache_bytes"] else None)

    @cached_property
    def trying(self) -> TrialProgram:
        """Every candidate, for `record`; the program's own steps are the first ones, at places of their own."""
        return self._written(self.linked, self.own, tuple(self.candidates.values()))

    @cached_property
    def raw(self) -> TrialProgram:
        """The first candidates at the places of steps at trial."""
        return self._written(self._at_trial, self.own)

    @cached_property
    def _at_trial(self) -> ColdProgram:
        steps = [self.candidates[index, 0, self._widths[0]] for index in range(len(self.subject.program.steps))]
        return self._program(steps, self.own, self.weights_bytes)

    @cached_property
    def cached(self) -> TrialProgram:
        """The same, with weights that are mapped from `cache`."""
        steps = [
            changed(step, source="cached_mmap", segment=self.segments[index]) if step.weight_bytes else step
            for index, step in enumerate(self._at_trial.steps)
        ]
        return self._written(self._program(steps, self.cache, self.weights_bytes), self.cache)

    def only(self, candidates: Sequence[tuple[int, int, int]]) -> tuple[TrialProgram, range]:
        """A program of some candidates (step, position and width of each), and the numbers of their records."""
        chosen = [self.candidates[candidate] for candidate in candidates]
        first = len(self.subject.program.steps)
        return self._written(self._at_trial, self.own, chosen), range(first, first + len(chosen))

    def is_raw(self, index: int) -> bool:
        """Tell whether a step's weights are made from the model file at trial; it may have none."""
        return self.candidates[index, 0, self._widths[0]].source == "raw"

    def place(self, index: int, width: int) -> int:
        """A place of its own for the weights of a step's first candidate."""
        return self._places[index] + (1 + self._widths.index(width)) * self.weights_bytes


class _Own:
    """Writes transformed weights of a model, each once, to a file in the form of a weight cache."""

    def __init__(self, recorder: Recorder, program: Program, model: Path, path: Path) -> None:
        self.worker = Worker(recorder)
        self._stack = ExitStack()
        self.read = self._stack.enter_context(Executable(recorder, program, model.parent)).read
        self._file = self._stack.enter_context(path.open("wb"))
        self._known: dict[tuple[int, int], int] = {}
        self._end = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def segment(self, content: npt.NDArray[np.uint8]) -> int:
        """Where weights begin in the file."""
        key = (content.nbytes, checksum(content))
        if key not in self._known:
            self._known[key] = self._end
            self._file.write(content.tobytes().ljust(paged(content.nbytes), b"\0"))
            self._end += paged(content.nbytes)
        return self._known[key]


def _stand_in_cache(path: Path, size: int) -> Path:
    """Return a file of `size` bytes on the disk, to be read as a cache of transformed weights would be."""
    chunk = np.random.default_rng(0).integers(0, 256, 1 << 20, dtype=np.uint8).tobytes()
    with path.open("wb") as file:
        left = max(size, mmap.PAGESIZE)
        while left > 0:
            left -= file.write(chunk[:left])
        file.flush()
        os.fsync(file.fileno())
    return path
