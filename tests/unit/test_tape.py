"""Tapes: what compiled code works off. A damaged or forged one is refused, and steps are taken once."""

from __future__ import annotations

import dataclasses
import hashlib
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from edgeplan.errors import FormatError
from edgeplan.graph.builder import GraphBuilder
from edgeplan.graph.onnx.write import save_onnx
from edgeplan.planning.document import Plan
from edgeplan.runtime import native
from edgeplan.runtime.dnnl import Dnnl
from edgeplan.runtime.linked import LinkedProgram
from edgeplan.runtime.linked_file import read_linked
from edgeplan.runtime.native import words
from edgeplan.runtime.native.words import Tape
from edgeplan.runtime.objects import Objects
from edgeplan.runtime.plan_folder import build_plan_folder
from edgeplan.runtime.tape import NUMBER_OF, THREADS, Compiler
from edgeplan.runtime.tape_check import check
from edgeplan.runtime.tape_file import TapeArrays, read_tape, tape_of, write_tape

Planned = Callable[..., Plan]


@pytest.fixture(scope="module")
def folder(dnnl: Dnnl, planned: Planned, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The plan of a net whose tape has operations of every kind."""
    b = GraphBuilder("net", (1, 3, 16, 16))
    x = b.conv_bn(b.input, 16, 3, 2)
    x = b.concat([b.conv_bn(x, 16, 1), b.add(b.conv_bn(x, 16, 3), x)])
    graph = b.build(b.softmax(b.fc(b.flatten(b.gap(x)), 10)))
    model = tmp_path_factory.mktemp("tape") / "net.onnx"
    save_onnx(graph, model)
    return build_plan_folder(dnnl, model, planned(model, graph, widen_from=0), model.parent / "plan")


@pytest.fixture(scope="module")
def program(folder: Path) -> LinkedProgram:
    return read_linked(folder / "program.json")


def _copy(arrays: TapeArrays) -> TapeArrays:
    tape = Tape(*(field.copy() for field in arrays.tape))
    return dataclasses.replace(arrays, tape=tape, constants=arrays.constants.copy())


def test_a_tape_comes_back_from_its_file(program: LinkedProgram, folder: Path) -> None:
    made, read = tape_of(program), read_tape(folder / "program.tape", program)
    assert (made.scratch, made.blocks, made.program) == (read.scratch, read.blocks, read.program)
    for one, other in zip((*made.tape, made.constants), (*read.tape, read.constants), strict=True):
        assert np.array_equal(one, other)
    assert set(read.tape.kinds.tolist()) == {words.CALL, words.ASK, words.TELL, words.COPY, words.WALK}


def test_a_tape_tells_what_its_objects_are_made_from(program: LinkedProgram, folder: Path) -> None:
    read, compiled = read_tape(folder / "program.tape", program), Compiler(program).compiled()
    assert any(compiled.needs.values())
    for group in range(read.layout.groups):
        needs = read.needs(group)
        assert sorted(needs) == sorted(compiled.needs[group])
        assert all(set(read.needs(other)) <= set(needs[:place]) for place, other in enumerate(needs)), "in the order of need"
    assert "_compiled" not in vars(read)


@pytest.mark.parametrize("tenth", [0, 3, 7, 10])
def test_a_damaged_tape_is_refused(program: LinkedProgram, folder: Path, tmp_path: Path, tenth: int) -> None:
    content = bytearray((folder / "program.tape").read_bytes())
    cut = tmp_path / "cut.tape"
    cut.write_bytes(content[: len(content) * tenth // 10 - (tenth == 10)])
    with pytest.raises(FormatError, match="calls were changed"):
        read_tape(cut, program)
    content[min(len(content) * tenth // 10, len(content) - 1)] ^= 1
    cut.write_bytes(content)
    with pytest.raises(FormatError, match="calls were changed"):
        read_tape(cut, program)
    cut.unlink()
    with pytest.raises(FormatError, match="cannot read the program's calls"):
        read_tape(cut, program)


@pytest.mark.parametrize("words", [0, 1, 6, 8])
def test_a_forged_head_is_refused(program: LinkedProgram, folder: Path, tmp_path: Path, words: int) -> None:
    content = bytearray((folder / "program.tape").read_bytes())
    content[8 * words : 8 * words + 8] = (1 << 40).to_bytes(8, "little")
    forged = tmp_path / "forged.tape"
    forged.write_bytes(content)
    digest = hashlib.sha256(content).hexdigest()
    with pytest.raises(FormatError, match="calls do not fit"):
        read_tape(forged, msgspec.structs.replace(program, tape_sha256=digest))


def _refused(tape: TapeArrays) -> bool:
    try:
        check(tape)
    except ValueError:
        return True
    return False


_FAR, _OVERFLOWING = 1 << 30, (1 << 63) - 1
_OUTSIDE = (-1, _FAR, _OVERFLOWING)
_REFERENCES = (words.HANDLE, words.RESULT, words.CONSTANT, words.SCRATCH, words.MEMORY)
_ROLES = (words.NUMBER, *_REFERENCES, words.ENGINE, 99)
Places = list[tuple[int, ...]]


@pytest.fixture
def tape(program: LinkedProgram) -> TapeArrays:
    found = _copy(tape_of(program))
    check(found)
    return found


def _accepted(tape: TapeArrays, array: np.ndarray, places: Places, values: Callable[[int], Iterable[int]]) -> list[Any]:
    """What is taken though a word is another: place and value. Each word is changed alone."""
    found = []
    for place in places:
        before = array[place]
        for value in values(int(before)):
            array[place] = value
            if value != before and not _refused(tape):
                found.append((place, value))
        array[place] = before
    return found


def _arguments(tape: TapeArrays, *roles: int) -> Places:
    return [tuple(place) for place in np.argwhere(np.isin(tape.tape.roles, roles))]


def test_no_argument_leads_outside_or_is_of_another_kind(tape: TapeArrays) -> None:
    """A number would be a pointer of one's own."""
    references = _arguments(tape, *_REFERENCES)
    assert len(references) > 100
    assert _accepted(tape, tape.tape.values, references, lambda _: _OUTSIDE) == []
    assert _accepted(tape, tape.tape.roles, references, lambda _: _ROLES) == []


def test_no_handle_is_of_another_class(tape: TapeArrays) -> None:
    """Functions take any pointer, and read another object as if it were theirs."""
    layout = tape.layout
    attribute, primitive, memory = layout.attribute(0)[1], layout.primitive(0)[1], layout.memory(0)[1]

    def others(handle: int) -> list[int]:
        """A handle of each other class: descriptors, attributes, post-operations, primitives, their descriptors, memories."""
        firsts = (0, attribute, attribute + 1, primitive, primitive + 1, memory)
        begin = max(first for first in (0, attribute, primitive, memory) if first <= handle)
        own = begin + (handle - begin) % 2 if begin in (attribute, primitive) else begin
        return [first for first in firsts if first != own]

    assert _accepted(tape, tape.tape.values, _arguments(tape, words.HANDLE, words.RESULT), others) == []


@pytest.mark.parametrize("name", ["kinds", "starts", "record_starts"])
def test_no_operation_group_or_step_is_where_there_is_none(tape: TapeArrays, name: str) -> None:
    array = getattr(tape.tape, name)
    assert _accepted(tape, array, [(k,) for k in range(len(array))], lambda _: _OUTSIDE) == []


def _record(tape: TapeArrays, step: int) -> tuple[list[int], list[int], list[int]]:
    """Where in the records a step's references stand: of its head as far as its source has them, of its calls, primitives."""
    records, at = tape.tape.records, int(tape.tape.record_starts[step])
    own = {words.NO_WEIGHTS: (), words.MAPPED: (words.HEAD_SEGMENT, words.HEAD_BYTES)}
    weights = own.get(int(records[at]), (words.HEAD_SEGMENT, words.HEAD_BYTES, words.HEAD_PLACE))
    head = [at + k for k in (words.HEAD_SOURCE, *weights, *range(words.HEAD_GROUPS, words.HEAD))]
    groups, slots, calls = records[at + words.HEAD_GROUPS : at + words.HEAD_BLOCK].tolist()
    call = at + words.HEAD + groups + 2 * slots
    followed, primitives = list(range(at + words.HEAD, call)), []
    for _ in range(calls):
        end = call + 2 + 2 * int(records[call + 1])
        followed += [call, call + 1, *range(call + 3, end, 2)]
        primitives.append(call)
        call = end
    return head, followed, primitives


def test_no_record_leads_outside(tape: TapeArrays) -> None:
    """Nor to a primitive's descriptor where a primitive is wanted."""
    steps = [_record(tape, step) for step in range(tape.program.step_count)]
    records = tape.tape.records
    for head, followed, primitives in steps:
        assert _accepted(tape, records, [(k,) for k in head], lambda _: _OUTSIDE) == []
        assert _accepted(tape, records, [(k,) for k in followed], lambda _: (_FAR, _OVERFLOWING)) == []
        assert _accepted(tape, records, [(k,) for k in primitives], lambda handle: [handle + 1]) == []
    assert sum(len(primitives) for _, _, primitives in steps) >= tape.program.step_count


def _rows(tape: TapeArrays, function: str) -> np.ndarray:
    kinds, functions = tape.tape.kinds, tape.tape.functions
    return np.flatnonzero((functions == NUMBER_OF[function]) & ((kinds == words.CALL) | (kinds == words.ASK)))


def _more_than_its_array(tape: TapeArrays) -> None:
    tape.tape.values[_rows(tape, "dnnl_concat_primitive_desc_create")[-1], 3] += 1


def _none_of_its_array(tape: TapeArrays) -> None:
    tape.tape.values[_rows(tape, "dnnl_concat_primitive_desc_create")[-1], 3] = 0


def _behind_its_array(tape: TapeArrays) -> None:
    tape.tape.values[_rows(tape, "dnnl_concat_primitive_desc_create")[-1], 5] += 1


def _calling(function: str) -> Callable[[TapeArrays], None]:
    """Call another function with what a memory is made from."""

    def change(tape: TapeArrays) -> None:
        tape.tape.functions[_rows(tape, "dnnl_memory_create")[-1]] = NUMBER_OF[function]

    return change


def _twice(tape: TapeArrays) -> None:
    """Make an object that is there already: what was found to fit would be another one."""
    first, *_, last = _rows(tape, "dnnl_memory_create")
    tape.tape.values[last, 0] = tape.tape.values[first, 0]


def _unwritten(tape: TapeArrays) -> None:
    """An array of which a word is what happens to be there."""
    first, second = np.flatnonzero(tape.tape.kinds == words.COPY)
    tape.tape.values[second, 0] = tape.tape.values[first, 0]


def _narrow(tape: TapeArrays) -> None:
    """Leave the last arguments to what happened to be there before."""
    fields = tape.tape._asdict()
    fields |= {"roles": fields["roles"][:, :12].copy(), "values": fields["values"][:, :12].copy()}
    object.__setattr__(tape, "tape", Tape(**fields))


def _constants(tape: TapeArrays) -> None:
    tape.constants[-1] = 1


@pytest.mark.parametrize(
    "change",
    [
        *map(_calling, ("dnnl_memory_desc_destroy", "dnnl_primitive_execute", "dnnl_memory_set_data_handle", THREADS)),
        *(_more_than_its_array, _none_of_its_array, _behind_its_array),
        *(_twice, _unwritten, _narrow, _constants),
    ],
)
def test_calls_that_do_not_fit_together_are_refused(tape: TapeArrays, change: Callable[[TapeArrays], None]) -> None:
    change(tape)
    assert _refused(tape)


def test_a_forged_tape_is_named(program: LinkedProgram, tmp_path: Path) -> None:
    tape = _copy(tape_of(program))
    tape.tape.values[_arguments(tape, words.HANDLE)[0]] = _FAR
    digest = write_tape(tape, tmp_path / "forged.tape")
    with pytest.raises(FormatError, match="calls do not fit: operation"):
        read_tape(tmp_path / "forged.tape", msgspec.structs.replace(program, tape_sha256=digest))


def test_every_step_is_taken_once(dnnl: Dnnl, program: LinkedProgram) -> None:
    """By threads that all steal, of lanes of unequal length."""
    count = program.step_count
    objects = Objects(dnnl, tape_of(program), 0)
    lanes = [objects.store.bounds[2 * i : 2 * i + 2].tolist() for i in range(2)]
    assert min(lanes[0] + lanes[1]) == 0
    taken: list[list[int]] = [[] for _ in range(4)]

    def go(number: int) -> None:
        while (k := native.take(objects.store, number % 2, stealing=True)) >= 0:
            taken[number].append(k)

    threads = [threading.Thread(target=go, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(k for some in taken for k in some) == list(range(count))
    objects.close()


def test_a_lane_that_does_not_steal_takes_its_own(dnnl: Dnnl, program: LinkedProgram) -> None:
    objects = Objects(dnnl, tape_of(program), 0)
    own: list[int] = []
    while (k := native.take(objects.store, 1, stealing=False)) >= 0:
        own.append(k)
    assert own == list(program.queues[0])
    objects.close()
