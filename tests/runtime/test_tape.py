"""Tapes: what compiled code works off. A damaged one is refused, and steps are taken once."""

from __future__ import annotations

import re
import shutil
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace as changed
from plan_folders import program_in, tape_in, with_digests

from edgeplan.errors import DeviceError, FormatError
from edgeplan.graph.builder import GraphBuilder
from edgeplan.graph.onnx.write import save_onnx
from edgeplan.planning.document import Plan
from edgeplan.runtime import plan_folder
from edgeplan.runtime.dnnl import Dnnl
from edgeplan.runtime.folder import read_folder
from edgeplan.runtime.linked import Linked
from edgeplan.runtime.native import entries, words
from edgeplan.runtime.objects import Objects
from edgeplan.runtime.plan_folder import build_plan_folder
from edgeplan.runtime.tape import Compiler
from edgeplan.runtime.tape_file import read_tape, tape_of

Planned = Callable[..., Plan]


@pytest.fixture(scope="module")
def built(dnnl: Dnnl, planned: Planned, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Linked]:
    """The plan of a net whose tape has operations of every kind, and what its tape was made from."""
    b = GraphBuilder("net", (1, 3, 16, 16))
    x = b.conv_bn(b.input, 16, 3, 2)
    x = b.concat([b.conv_bn(x, 16, 1), b.add(b.conv_bn(x, 16, 3), x)])
    graph = b.build(b.softmax(b.fc(b.flatten(b.gap(x)), 10)))
    model = tmp_path_factory.mktemp("tape") / "net.onnx"
    save_onnx(graph, model)
    made: list[Linked] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plan_folder, "tape_of", lambda linked: (made.append(linked), tape_of(linked))[1])
        folder = build_plan_folder(dnnl, model, planned(model, graph, widen_from=3), model.parent / "plan")
    (linked,) = made
    return folder, linked


@pytest.fixture
def folder(built: tuple[Path, Linked], tmp_path: Path) -> Path:
    """A copy of it."""
    return shutil.copytree(built[0], tmp_path / "plan")


@pytest.fixture(scope="module")
def linked(built: tuple[Path, Linked]) -> Linked:
    return built[1]


def test_a_tape_comes_back_from_its_file(linked: Linked, folder: Path) -> None:
    made, read = tape_of(linked), tape_in(folder)
    assert (made.scratch, made.blocks) == (read.scratch, read.blocks)
    assert np.array_equal(made.later, read.later)
    later = [k for k, step in enumerate(linked.reserve.later) if step is not None]
    assert later
    for k in later:
        assert np.array_equal(made.record(k, linked.reserve.later[k]), read.record(k, linked.reserve.later[k]))
    for one, other in zip((*made.tape, made.constants), (*read.tape, read.constants), strict=True):
        assert np.array_equal(one, other)
    assert set(read.tape.kinds.tolist()) == {words.CALL, words.ASK, words.TELL, words.COPY, words.WALK}


def test_a_tape_tells_what_its_objects_are_made_from(linked: Linked, folder: Path) -> None:
    read, compiled = tape_in(folder), Compiler(linked).compiled()
    assert any(compiled.needs.values())
    for group in range(read.layout.groups):
        needs = read.needs(group)
        assert sorted(needs) == sorted(compiled.needs[group])
        assert all(set(read.needs(other)) <= set(needs[:place]) for place, other in enumerate(needs)), "in the order of need"


@pytest.mark.parametrize("tenth", [0, 3, 7, 10])
def test_a_damaged_tape_is_refused(folder: Path, tenth: int) -> None:
    plan, program, tape = read_folder(folder), program_in(folder), folder / "program.tape"
    content = bytearray(tape.read_bytes())
    tape.write_bytes(content[: len(content) * tenth // 10 - (tenth == 10)])
    with pytest.raises(FormatError, match=r"program\.tape was changed"):
        read_tape(plan, program)
    content[min(len(content) * tenth // 10, len(content) - 1)] ^= 1
    tape.write_bytes(content)
    with pytest.raises(FormatError, match=r"program\.tape was changed"):
        read_tape(plan, program)
    tape.unlink()
    with pytest.raises(FormatError, match="cannot read the plan"):
        read_tape(plan, program)


@pytest.mark.parametrize("words", [0, 1, 6])
def test_a_tape_of_another_format_is_refused(folder: Path, words: int) -> None:
    content = bytearray((folder / "program.tape").read_bytes())
    content[8 * words : 8 * words + 8] = (1 << 40).to_bytes(8, "little")
    (folder / "program.tape").write_bytes(content)
    with_digests(folder)
    with pytest.raises(FormatError, match="calls do not fit"):
        read_tape(read_folder(folder), program_in(folder))


def test_every_step_is_taken_once(dnnl: Dnnl, linked: Linked) -> None:
    """By threads that all steal, of lanes of unequal length."""
    count = linked.program.step_count
    objects = Objects(dnnl, tape_of(linked), 0)
    lanes = [objects.store.bounds[2 * i : 2 * i + 2].tolist() for i in range(2)]
    assert min(lanes[0] + lanes[1]) == 0
    taken: list[list[int]] = [[] for _ in range(4)]

    def go(number: int) -> None:
        while (k := entries.take(objects.context, number % 2, stealing=True)) >= 0:
            taken[number].append(k)

    threads = [threading.Thread(target=go, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(k for some in taken for k in some) == list(range(count))
    objects.close()


def test_a_lane_that_does_not_steal_takes_its_own(dnnl: Dnnl, linked: Linked) -> None:
    objects = Objects(dnnl, tape_of(linked), 0)
    own: list[int] = []
    while (k := entries.take(objects.context, 1, stealing=False)) >= 0:
        own.append(k)
    assert own == list(linked.program.queues[0])
    objects.close()


def test_a_tape_names_the_implementation_that_a_library_does_not_offer(dnnl: Dnnl, folder: Path, linked: Linked) -> None:
    tape = tape_in(folder)
    group, _ = tape.layout.primitive(0)
    known = tape.implementation(group)
    assert known == linked.tables.primitives[0][1]
    at = tape.constants.tobytes().index(known.encode() + b"\0")
    constants = tape.constants.copy()
    constants[at] = ord("?")
    objects = Objects(dnnl, replace(tape, constants=constants), 0)
    with pytest.raises(DeviceError, match=re.escape("'?" + known[1:])):
        objects.primitive(0)
    objects.close()


def test_an_output_outside_the_arena_is_refused(folder: Path) -> None:
    program = program_in(folder)
    output = changed(program.outputs[0], offset=program.arena_bytes - 4)
    with pytest.raises(ValueError, match="outside the arena"):
        changed(program, outputs=(output,))
