"""Tapes: what compiled code works off. A damaged one is refused, and steps are taken once."""

from __future__ import annotations

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
from edgeplan.runtime.objects import Objects
from edgeplan.runtime.plan_folder import build_plan_folder
from edgeplan.runtime.tape import Compiler
from edgeplan.runtime.tape_file import read_tape, tape_of

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


@pytest.mark.parametrize("words", [0, 1, 6])
def test_a_tape_of_another_format_is_refused(program: LinkedProgram, folder: Path, tmp_path: Path, words: int) -> None:
    content = bytearray((folder / "program.tape").read_bytes())
    content[8 * words : 8 * words + 8] = (1 << 40).to_bytes(8, "little")
    other = tmp_path / "other.tape"
    other.write_bytes(content)
    digest = hashlib.sha256(content).hexdigest()
    with pytest.raises(FormatError, match="calls do not fit"):
        read_tape(other, msgspec.structs.replace(program, tape_sha256=digest))


def test_every_step_is_taken_once(dnnl: Dnnl, program: LinkedProgram) -> None:
    """By threads that all steal, of lanes of unequal length."""
    count = program.step_count
    objects = Objects(dnnl, tape_of(program), 0)
    lanes = [objects.store.bounds[2 * i : 2 * i + 2].tolist() for i in range(2)]
    assert min(lanes[0] + lanes[1]) == 0
    taken: list[list[int]] = [[] for _ in range(4)]

    def go(number: int) -> None:
        while (k := native.take(objects.context, number % 2, stealing=True)) >= 0:
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
    while (k := native.take(objects.context, 1, stealing=False)) >= 0:
        own.append(k)
    assert own == list(program.queues[0])
    objects.close()
