"""Tapes: what compiled code works off. A damaged or forged one is refused, and steps are taken once."""

from __future__ import annotations

import dataclasses
import hashlib
import threading
from collections.abc import Callable
from pathlib import Path

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


@pytest.mark.parametrize("tenth", range(11))
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


@pytest.mark.parametrize("words", [0, 1, 2, 6, 8, 20])
def test_a_forged_head_is_refused(program: LinkedProgram, folder: Path, tmp_path: Path, words: int) -> None:
    content = bytearray((folder / "program.tape").read_bytes())
    content[8 * words : 8 * words + 8] = (1 << 40).to_bytes(8, "little")
    forged = tmp_path / "forged.tape"
    forged.write_bytes(content)
    digest = hashlib.sha256(content).hexdigest()
    with pytest.raises(FormatError, match="calls do not fit"):
        read_tape(forged, msgspec.structs.replace(program, tape_sha256=digest))


def _first(tape: TapeArrays, role: int) -> tuple[int, int]:
    rows, columns = np.nonzero(tape.tape.roles == role)
    return int(rows[0]), int(columns[0])


def _set(name: str, role: int, value: int) -> Callable[[TapeArrays], None]:
    """Change the kind or the value of the first argument of a kind."""

    def change(tape: TapeArrays) -> None:
        getattr(tape.tape, name)[_first(tape, role)] = value

    return change


def _word(name: str, row: int, value: int) -> Callable[[TapeArrays], None]:
    def change(tape: TapeArrays) -> None:
        getattr(tape if name == "constants" else tape.tape, name)[row] = value

    return change


def _record(offset: int, value: int) -> Callable[[TapeArrays], None]:
    """Change a word of the record of a step with weights."""

    def change(tape: TapeArrays) -> None:
        step = next(k for k, step in enumerate(tape.program.steps) if step.slots)
        records, at = tape.tape.records, int(tape.tape.record_starts[step])
        if offset >= words.HEAD:
            at += int(records[at + words.HEAD_GROUPS])
        records[at + offset] = value

    return change


def _all_of(*changes: Callable[[TapeArrays], None]) -> Callable[[TapeArrays], None]:
    return lambda tape: [change(tape) for change in changes] and None


def _record_end(offset: int) -> Callable[[TapeArrays], None]:
    """Move the primitive of a step's last call, which has two arguments and a scratchpad or none, on by one."""

    def change(tape: TapeArrays) -> None:
        records, first, last = tape.tape.records, tape.layout.primitive(0)[1], tape.layout.memory(0)[1]
        counts = range(len(records) + offset, 0, -1)
        at = next(k - 1 for k in counts if first <= records[k - 1] < last and k + 1 + 2 * records[k] == len(records))
        records[at] += 1

    return change


Number = int | Callable[[TapeArrays], int]


def _class(number: int) -> Callable[[TapeArrays], int]:
    """The last handle of a class: of descriptors, attributes, post-operations, primitives, their descriptors, memories."""

    def last(tape: TapeArrays) -> int:
        layout = tape.layout
        attribute, primitive = layout.attribute(layout.attributes - 1)[1], layout.primitive(layout.primitives - 1)[1]
        return (layout.descriptors - 1, attribute, attribute + 1, primitive, primitive + 1, layout.handles - 1)[number]

    return last


def _rows(tape: TapeArrays, function: str) -> np.ndarray:
    kinds, functions = tape.tape.kinds, tape.tape.functions
    return np.flatnonzero((functions == NUMBER_OF[function]) & ((kinds == words.CALL) | (kinds == words.ASK)))


def _argument(function: str, position: int, given: tuple[int, Number]) -> Callable[[TapeArrays], None]:
    """Give the last call of a function something else."""

    def change(tape: TapeArrays) -> None:
        row, (role, value) = _rows(tape, function)[-1], given
        tape.tape.roles[row, position] = role
        tape.tape.values[row, position] = value(tape) if callable(value) else value

    return change


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


_FAR, _OVERFLOWING = 1 << 30, (1 << 63) - 1


@pytest.mark.parametrize(
    "change",
    [
        _set("roles", words.HANDLE, words.NUMBER),  # a pointer of one's own
        _set("roles", words.CONSTANT, words.NUMBER),
        _set("roles", words.RESULT, words.HANDLE),
        _set("roles", words.MEMORY, words.CONSTANT),
        _set("values", words.HANDLE, _FAR),
        _set("values", words.RESULT, -1),
        _set("values", words.CONSTANT, _FAR),
        _set("values", words.SCRATCH, _FAR),
        _set("values", words.MEMORY, _FAR),
        _set("roles", words.NUMBER, 99),
        _word("kinds", 0, 77),
        _word("kinds", 0, words.TELL),
        _word("functions", 0, len(NUMBER_OF)),
        _word("functions", 0, NUMBER_OF[THREADS]),
        _word("starts", 0, 1),
        _word("starts", -1, 0),
        _word("constants", -1, 1),
        _word("record_starts", 0, 1),
        _record(words.HEAD_SOURCE, 9),
        _record(words.HEAD_SEGMENT, -1),
        _record(words.HEAD_SEGMENT, _FAR),
        _record(words.HEAD_BYTES, _FAR),
        _record(words.HEAD_PLACE, -1),
        _record(words.HEAD_GROUPS, _FAR),
        _record(words.HEAD_SLOTS, _FAR),
        _record(words.HEAD_CALLS, _FAR),
        _record(words.HEAD_BLOCK, _FAR),
        _record(words.HEAD, _FAR),  # the first slot's descriptor
        _record(words.HEAD + 1, -1),  # its offset
        _record(words.HEAD_SEGMENT, _OVERFLOWING),
        _all_of(_record(words.HEAD_SOURCE, words.COPIED), _record(words.HEAD_PLACE, _OVERFLOWING)),
        _record(words.HEAD_SLOTS, _OVERFLOWING // 2 + 1),
        _record(words.HEAD_SOURCE, words.NO_WEIGHTS),  # whose address would be 0
        _record_end(-2),  # a primitive's descriptor where a primitive is wanted
        _argument("dnnl_memory_create", 1, (words.HANDLE, _class(5))),  # handles of other classes
        _argument("dnnl_memory_create", 1, (words.MEMORY, 0)),
        _argument("dnnl_memory_create", 2, (words.HANDLE, _class(0))),
        _argument("dnnl_memory_create", 0, (words.RESULT, _class(0))),
        _argument("dnnl_primitive_create", 1, (words.HANDLE, _class(3))),
        _argument("dnnl_primitive_create", 1, (words.HANDLE, lambda tape: tape.layout.primitive(1)[1] + 1)),  # another one's
        _argument("dnnl_convolution_forward_primitive_desc_create", 3, (words.HANDLE, _class(1))),
        _argument("dnnl_convolution_forward_primitive_desc_create", 1, (words.HANDLE, _class(0))),
        _argument("dnnl_primitive_attr_set_post_ops", 1, (words.HANDLE, _class(1))),
        _argument("dnnl_primitive_attr_set_scratchpad_mode", 0, (words.HANDLE, lambda tape: tape.layout.attribute(0)[1])),
        _argument("dnnl_primitive_desc_query_md", 0, (words.HANDLE, _class(0))),
        _argument("dnnl_concat_primitive_desc_create", 3, (words.NUMBER, 3)),  # more than there are in its array
        _argument("dnnl_concat_primitive_desc_create", 3, (words.NUMBER, 1 << 62)),
        _argument("dnnl_concat_primitive_desc_create", 3, (words.NUMBER, 0)),
        _unwritten,
        _argument("dnnl_concat_primitive_desc_create", 5, (words.SCRATCH, 1)),
        _calling("dnnl_memory_desc_destroy"),
        _calling("dnnl_primitive_execute"),
        _calling("dnnl_memory_set_data_handle"),
        _twice,
        _narrow,
    ],
)
def test_references_that_lead_nowhere_are_refused(program: LinkedProgram, change: Callable[[TapeArrays], None]) -> None:
    tape = _copy(tape_of(program))
    check(tape)
    change(tape)
    with pytest.raises(ValueError, match=r"."):
        check(tape)


def test_a_forged_tape_is_named(program: LinkedProgram, tmp_path: Path) -> None:
    tape = _copy(tape_of(program))
    tape.tape.values[_first(tape, words.HANDLE)] = _FAR
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
