"""A pair's plan folder holds sub-steps on two lanes, with kernels chosen, places given and weights beside them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec

from edgeplan.runtime.dnnl import Dnnl
from edgeplan.runtime.linked import Border
from edgeplan.runtime.partitioned.program import Partitioned, program_of
from edgeplan.runtime.program import Program
from edgeplan.runtime.weights import WeightLocation

_ALIGNMENT = 64
_CHUNK_BYTES = 1 << 24


@dataclass(frozen=True, slots=True)
class PairProgram:
    """A model on two lanes, ready to be made and run.

    Attributes:
        program: its sub-steps in an order that fits both lanes, with the CPU's implementations, and places in memory.
        lanes: of each sub-step: 0, the CPU's, or 1, the GPU's.
        needed: how many sub-steps of the other lane must be done before each starts.
        origin: for each sub-step, the number of the model's step that it is (a part of).
        below: what integers of an input stay below, for those that places of an axis are picked by.
    """

    program: Program
    lanes: tuple[int, ...]
    needed: tuple[int, ...]
    origin: tuple[int, ...]
    below: Mapping[str, int]

    @property
    def inputs(self) -> tuple[Border, ...]:
        """Return the inputs of the model."""
        p = self.program
        return tuple(Border(n, p.shapes[n], p.offsets[n], p.dtype(n), self.below.get(n, 2)) for n in p.inputs)  # type: ignore[arg-type]


class ProcessorSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A processor of a pair: its engine's name, the cores it computes on, and options as device files write them."""

    engine: str
    cores: tuple[int, ...] = ()
    options: dict[str, str] = {}


class PairSchedule(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where each step of a model runs, and on what.

    Attributes:
        pair: name of the pair.
        processors: of each lane.
        synchronisation: how the lanes wait for each other: "polling" or "events".
        plan: the partition document but for what it predicts (`planning.partition.plan`).
    """

    pair: str
    processors: tuple[ProcessorSpec, ...]
    synchronisation: str
    plan: dict[str, Any]


class PairPrediction(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The prediction of a pair's plan: the rest of the partition document, and its costs.

    Attributes:
        plan: the rest of the partition document.
        costs: the cost document.
    """

    plan: dict[str, Any]
    costs: msgspec.Raw


def pair_program(dnnl: Dnnl, partitioned: Partitioned, model: Path, threads: int = 1) -> PairProgram:
    """The program of a partition; its weights lie in the model's files.

    Args:
        dnnl: the library of the CPU.
        partitioned: the partition, made for the CPU's blocks.
        model: the ONNX file.
        threads: of the CPU's steps.

    Raises:
        ModelError: oneDNN offers no implementation of a step, or the weights cannot be found.
    """
    program = program_of(dnnl, partitioned, model, threads)
    lanes = tuple(int(lane) for lane in partitioned.lanes)
    limits = partitioned.lowered.limits
    return PairProgram(program, lanes, partitioned.needed, tuple(partitioned.ranged.origin), limits)


def write_pair_weights(made: PairProgram, model: Path, weights: Path) -> PairProgram:
    """Copy the weights of a program into a file of its folder, those that several steps read once.

    Args:
        made: the program.
        model: the ONNX file that its weights lie in or beside.
        weights: the file to write, in the folder of the plan.

    Returns:
        The program, its weights in the folder.

    Raises:
        OSError: the weights cannot be read, or the folder cannot be written.
    """
    used = {name for step in made.program.steps for name in step.weights.values()}
    places = {name: location for name, location in made.program.weights.items() if name in used}
    runs = _runs(places.values())
    at: dict[tuple[str, int], int] = {}
    with weights.open("wb") as target:
        for file, begin, end in runs:
            at[file, begin] = target.seek(-(-target.tell() // _ALIGNMENT) * _ALIGNMENT)
            with (model.parent / file).open("rb") as source:
                left = end - source.seek(begin)
                while left and (chunk := source.read(min(_CHUNK_BYTES, left))):
                    left -= target.write(chunk)
    moved = {}
    for name, place in places.items():
        begin = max(start for file, start, _ in runs if file == place.file and start <= place.offset)
        offset = at[place.file, begin] + place.offset - begin
        moved[name] = replace(place, file=weights.name, offset=offset)
    return replace(made, program=replace(made.program, weights=moved))


def _runs(places: Any) -> Sequence[tuple[str, int, int]]:
    """Bytes of files that hold weights, those that overlap or touch in one: file, first byte, and the one after the last."""
    found: list[tuple[str, int, int]] = []
    location: WeightLocation
    for location in sorted(places, key=lambda place: (place.file, place.offset)):
        begin, end = location.offset, location.offset + location.size
        if found and found[-1][0] == location.file and begin <= found[-1][2]:
            found[-1] = (location.file, found[-1][1], max(end, found[-1][2]))
        else:
            found.append((location.file, begin, end))
    return found
