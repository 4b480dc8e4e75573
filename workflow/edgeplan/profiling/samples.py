"""Writes every candidate of every step as rows of one linked program, which the executor interprets for the profiler.

A plan's program holds one implementation of each step; this one holds them all, at every width, with a place for the
transformed weights of the step at trial besides those of the steps that run around it.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from msgspec.structs import replace as changed

from edgeplan.profiling.memory import stand_in_cache
from edgeplan.profiling.subjects import Group, ProfilingSubject
from edgeplan.runtime.creation import aligned
from edgeplan.runtime.dnnl import Dnnl
from edgeplan.runtime.linked import Linked, LinkedStep, converted, linked_of
from edgeplan.runtime.linking import Linker, Recorder
from edgeplan.runtime.memory import PAGE_BYTES, Bytes, checksum
from edgeplan.runtime.program import Program
from edgeplan.runtime.weight_cache import key_of, paged, stamp


class Trials:
    """Trials hold the candidates of a model under one home layout, linked.

    Args:
        dnnl: the library.
        subject: steps and candidates.
        model: the model file.
        widths: numbers of cores that execute.
        scratch: folder for a stand-in of the weight cache.

    Attributes:
        group: the group of each step.
        linked: the tables, with the first candidates; weights are made from the model file.
        raw: the same, with the places of steps at trial for the weights.
        cached: the same, with weights in `cache`.
        cache: a file that is read as a weight cache would be.
        weights_bytes: transformed weights of the model.
    """

    def __init__(self, dnnl: Dnnl, subject: ProfilingSubject, model: Path, widths: Sequence[int], scratch: Path) -> None:
        self.subject, self._widths = subject, tuple(widths)
        self.group: dict[int, Group] = {index: group for group in subject.groups for index in group.steps}
        self._recorder = Recorder()
        self._linker = Linker(self._recorder, subject.program, max(widths))
        self._linked: dict[tuple[int, int, int], LinkedStep] = {}
        self._checksums: dict[tuple[int, int], int] = {}
        self._places, self._segments, self.weights_bytes = self._laid_out()
        with dnnl.without_primitive_cache():  # the tables must hold whatever was made before
            for index, group in sorted(self.group.items()):
                for position in range(len(group.sizes)):
                    for width in self._widths:
                        self._linked[index, position, width] = self._link(index, position, width)
        steps, narrow = range(len(subject.program.steps)), self._widths[0]
        self.linked = self._program(model, [self.first_candidate(index, narrow) for index in steps])
        self.raw = self._program(model, [self.step(index, 0, narrow) for index in steps])
        self.cache = self._stand_in(scratch, model)
        key = key_of(self._content(0, PAGE_BYTES).tobytes())
        stored = [self.stored(index, 0, narrow, "cached_mmap") for index in steps]
        self.cached = self._program(model, stored, key, self.cache.stat().st_size)

    def _laid_out(self) -> tuple[dict[int, int], dict[int, int], int]:
        """Return for each step its place among the weights in memory, at trial, its segment in a cache; and the size of all."""
        places, segments, at, end = {}, {}, 0, PAGE_BYTES
        for index, group in sorted(self.group.items()):
            largest = max(size.weights for size in group.sizes)
            places[index], segments[index] = at, end
            at, end = at + aligned(largest), end + paged(largest)
        return places, segments, at

    def _link(self, index: int, position: int, width: int) -> LinkedStep:
        group = self.group[index]
        row, _ = self._linker.step(self.subject.program.steps[index], group.implementations[position], "raw", width)
        row["place"] = self._places[index]
        return converted(row, LinkedStep)

    def _stand_in(self, scratch: Path, model: Path) -> Path:
        """Return a file of enough bytes, as any is read alike: the largest of the model's, else one that is written."""
        size = PAGE_BYTES + sum(paged(max(s.weights for s in group.sizes)) for group in self.group.values())
        files = {model, *(model.parent / w.file for w in self.subject.program.weights.values())}
        path = max(files, key=lambda file: file.stat().st_size)
        if path.stat().st_size < size:
            path = stand_in_cache(scratch / f"weights-{size}.bin", size)
        return path

    def _content(self, offset: int, size: int) -> Bytes:
        return np.fromfile(self.cache, np.uint8, size, offset=offset)  # not mapped: pages that are cannot be evicted

    def _program(self, model: Path, steps: Sequence[LinkedStep], cache_key: str = "", cache_bytes: int = 0) -> Linked:
        found = self.subject.program
        paths = [(model.parent / name).resolve() for name in self._linker.files]
        document: dict[str, Any] = {
            "model": found.name,
            "threads": max(self._widths),
            "layout": found.home,
            "equal_cores": True,
            "little_ratio": 1.0,
            "main": tuple(range(len(steps))),
            "queues": (),
            "widen_from": len(steps),
            "files": [_file(path) for path in paths],
            **self._linker.tables(),
            "steps": steps,
            "inputs": [_border(found, name) for name in found.inputs],
            "outputs": [_border(found, name) for name in found.outputs],
            "arena_bytes": aligned(max(found.arena_bytes, found.scratch_offset + self._linker.scratch_bytes)),
            "weights_bytes": (1 + len(self._widths)) * self.weights_bytes,
            "cache_key": cache_key,
            "cache_bytes": cache_bytes,
            "cache_stamp": stamp(self.cache.stat()) if cache_bytes else (),
        }
        return linked_of(document)

    def step(self, index: int, position: int, width: int) -> LinkedStep:
        """Return a step at trial: a candidate, made for so many cores, its weights from the model file."""
        return self._linked[index, position, width]

    def first_candidate(self, index: int, width: int) -> LinkedStep:
        """Return a step's first candidate, with a place of its own for its weights."""
        step = self._linked[index, 0, width]
        shift = (1 + self._widths.index(width)) * self.weights_bytes
        return changed(step, place=step.place + shift)

    def stored(self, index: int, position: int, width: int, source: str) -> LinkedStep:
        """Return a step at trial whose weights lie in the cache; steps without weights stay as they are."""
        step = self.step(index, position, width)
        if not step.weight_bytes:
            return step
        segment = self._segments[index]
        key = (index, step.weight_bytes)
        if key not in self._checksums:
            self._checksums[key] = checksum(self._content(segment, step.weight_bytes))
        return changed(step, source=source, segment=segment, checksum=self._checksums[key])


def _file(path: Path) -> dict[str, Any]:
    status = path.stat()
    return {"path": str(path), "size": status.st_size, "stamp": stamp(status), "sha256": ""}


def _border(program: Program, name: str) -> dict[str, Any]:
    return {"name": name, "shape": program.shapes[name], "offset": program.offsets[name], "dtype": program.dtype(name)}
