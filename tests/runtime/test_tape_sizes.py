"""Sizes in a plan folder that was changed: nothing is read or written outside the memory, the weights and the raw values."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace as changed
from plan_folders import program_in, reserve_in, rewrite, shared_in, tape_in

from edgeplan.engines.base import random_inputs
from edgeplan.errors import FormatError
from edgeplan.graph.builder import GraphBuilder
from edgeplan.graph.ir import Graph
from edgeplan.planning.document import Plan
from edgeplan.runtime import constants
from edgeplan.runtime.cold_executor import ColdSession
from edgeplan.runtime.dnnl import Dnnl
from edgeplan.runtime.linked import LinkedStep
from edgeplan.runtime.native import words
from edgeplan.runtime.plan_folder import build_plan_folder
from edgeplan.runtime.preparation import Preparer
from edgeplan.runtime.tape import NUMBER_OF
from edgeplan.runtime.tape_file import TapeArrays

_SOURCES = ("cached_mmap", "cached_read", "raw")
Change = Callable[[TapeArrays], None]


@pytest.fixture
def graph() -> Graph:
    """A net with memories of several sizes, parts of others (split) and reshaped ones (fc) among them."""
    b = GraphBuilder("net", (1, 3, 16, 16))
    x = b.conv_bn(b.input, 32, 3, 2)
    one, other = b.split(x, [16, 16])
    return b.build(b.fc(b.flatten(b.gap(b.add(b.conv_bn(one, 16, 3), other))), 10))


@pytest.fixture
def planned_folder(dnnl: Dnnl, planned: Callable[..., Plan], graph: Graph, model: Path) -> Callable[[str], Path]:
    def build(source: str) -> Path:
        plan = planned(model, graph, sources=[source], queued=[False])
        return build_plan_folder(dnnl, model, plan, model.parent / source)

    return build


def _forged(folder: Path, change: Change) -> Path:
    """The folder with other calls, and all digests put right."""
    tape = tape_in(folder)
    change(tape)
    rewrite(folder, tape=tape)
    return folder


def _run(dnnl: Dnnl, folder: Path, graph: Graph) -> Mapping[str, np.ndarray]:
    with ColdSession(dnnl, folder, threads=2) as session:
        return session.run(random_inputs(graph))


def _memories(tape: TapeArrays) -> np.ndarray:
    rows = (tape.tape.functions == NUMBER_OF["dnnl_memory_create"]) & (tape.tape.kinds == words.CALL)
    return np.flatnonzero(rows)


def _at_the_end(tape: TapeArrays) -> None:
    """Every memory begins within the arena, and ends behind it."""
    tape.tape.values[_memories(tape), 3] = tape.program.arena_bytes - 16


def _of_a_part(tape: TapeArrays) -> None:
    """Of parts of others the library does not give a size."""
    parts = tape.tape.functions == NUMBER_OF["dnnl_memory_desc_create_submemory"]
    handles = tape.tape.values[parts & (tape.tape.kinds == words.CALL), 0]
    rows = [row for row in _memories(tape) if tape.tape.values[row, 1] in handles]
    assert rows
    tape.tape.values[rows, 3] = tape.program.arena_bytes - 64


def _slot(offset: int) -> Change:
    """Move the first slot of the first step with weights."""

    def change(tape: TapeArrays) -> None:
        at = _with_slots(tape)
        size = int(tape.tape.records[at + words.HEAD_BYTES])
        tape.tape.records[at + words.HEAD + tape.tape.records[at + words.HEAD_GROUPS] + 1] = size - offset

    return change


def _with_slots(tape: TapeArrays) -> int:
    starts, records = tape.tape.record_starts, tape.tape.records
    return next(int(at) for at in starts if records[at + words.HEAD_SLOTS])


def _less_weights(tape: TapeArrays) -> None:
    tape.tape.records[_with_slots(tape) + words.HEAD_BYTES] = 128


def _more_weights(tape: TapeArrays) -> None:
    """Of raw weights no more than the tape itself says how many there are."""
    tape.tape.records[_with_slots(tape) + words.HEAD_BYTES] = 1 << 40


def _destinations(tape: TapeArrays) -> list[int]:
    """Where in the records the memories stand that calls write to."""
    records, found = tape.tape.records, []
    for start in tape.tape.record_starts:
        groups, slots, calls = records[start + words.HEAD_GROUPS : start + words.HEAD_BLOCK]
        at = start + words.HEAD + groups + 2 * slots
        for _ in range(calls):
            last = at + 2 + 2 * records[at + 1]
            found += [k + 1 for k in range(at + 2, last, 2) if records[k] == constants.ARG_DST]
            at = last
    return found


def _smaller_memory(tape: TapeArrays) -> None:
    """All calls write to the memory of the input, which is smaller than what most of them write, and lies where it may."""
    start = tape.tape.record_starts[0]
    groups, slots = tape.tape.records[start + words.HEAD_GROUPS], tape.tape.records[start + words.HEAD_SLOTS]
    call = start + words.HEAD + groups + 2 * slots
    number, memory = tape.tape.records[call + 2 : call + 4]
    assert number == constants.ARG_SRC
    tape.tape.records[_destinations(tape)] = memory


def _not_made(tape: TapeArrays) -> None:
    """Calls take what the steps do not say that they need."""
    for start in tape.tape.record_starts:
        count = tape.tape.records[start + words.HEAD_GROUPS]
        tape.tape.records[start + words.HEAD : start + words.HEAD + count] = 0


@pytest.mark.parametrize("source", _SOURCES)
@pytest.mark.parametrize(
    "change", [_at_the_end, _of_a_part, _slot(16), _less_weights, _more_weights, _smaller_memory, _not_made]
)
def test_calls_that_lead_out_of_their_memory_are_refused(
    dnnl: Dnnl, graph: Graph, planned_folder: Callable[[str], Path], source: str, change: Change
) -> None:
    folder = planned_folder(source)
    _run(dnnl, _forged(folder, lambda _: None), graph)
    with pytest.raises(FormatError, match=r"does not fit|do not fit") as caught:
        _run(dnnl, _forged(folder, change), graph)
    assert caught.value.where
    assert "edgeplan plan cold-start" in caught.value.next_step


def test_a_memory_that_just_fits_is_taken(dnnl: Dnnl, graph: Graph, planned_folder: Callable[[str], Path]) -> None:
    """The arena ends with what is needed, but for alignment: a cache line less and something is outside."""
    folder = planned_folder("cached_mmap")
    program = program_in(folder)
    with shared_in(dnnl, folder) as shared:
        tape = shared.tape.tape
        made = [tape.values[row] for row in _memories(shared.tape)]
        needed = max(int(row[3]) + dnnl.size(shared.objects.descriptor(int(row[1]))) for row in made)
    assert needed <= program.arena_bytes < needed + 4096
    rewrite(folder, changed(program, arena_bytes=needed))
    _run(dnnl, folder, graph)
    rewrite(folder, changed(program, arena_bytes=needed - 4))
    with pytest.raises(FormatError, match="does not fit"):
        _run(dnnl, folder, graph)


def _slot_bytes(slot: int, by: int) -> Callable[[LinkedStep], LinkedStep]:
    def change(step: LinkedStep) -> LinkedStep:
        slots = [list(row) for row in step.slots]
        slots[slot][3] += by
        return changed(step, slots=tuple(map(tuple, slots)), weight_bytes=step.weight_bytes + (1 << 20))

    return change


def _raw_bytes(step: LinkedStep) -> LinkedStep:
    """Half of the weight is read, over the input channels, and all of the rest."""
    weight, *others = step.raw
    return changed(
        step,
        raw=(changed(weight, size=weight.size // 2, shape=(weight.shape[0], weight.shape[1] // 2, *weight.shape[2:])), *others),
    )


@pytest.mark.parametrize("change", [_slot_bytes(0, -64), _slot_bytes(1, 1 << 19), _raw_bytes], ids=["target", "copied", "raw"])
def test_transforming_stays_within_raw_values_and_weights(
    dnnl: Dnnl, planned_folder: Callable[[str], Path], change: Callable[[LinkedStep], LinkedStep]
) -> None:
    folder = planned_folder("raw")
    reserve = reserve_in(folder)
    k = [k for k, step in enumerate(reserve.steps) if step.kind == "conv"][-1]
    assert [conversion >= 0 for *_, conversion in reserve.steps[k].slots] == [True, False]
    with shared_in(dnnl, folder) as shared:
        Preparer(shared).transformed(k)
    steps = list(reserve.steps)
    steps[k] = change(steps[k])
    other = changed(reserve, steps=tuple(steps))
    with shared_in(dnnl, folder, other, 2 << 20) as shared, pytest.raises(FormatError, match="weights of other sizes"):
        Preparer(shared).transformed(k)


def test_an_output_outside_the_arena_is_refused(planned_folder: Callable[[str], Path]) -> None:
    folder = planned_folder("cached_read")
    program = program_in(folder)
    output = changed(program.outputs[0], offset=program.arena_bytes - 4)
    with pytest.raises(ValueError, match="outside the arena"):
        changed(program, outputs=(output,))
