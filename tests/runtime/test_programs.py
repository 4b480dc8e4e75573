"""Programs as they are packed: what their rows refer to is there, in the order of need."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace as changed
from plan_folders import RecordHead, records_in
from streamed_models import MODELS, streamed

from edgeplan.graph.builder import GraphBuilder
from edgeplan.graph.onnx.write import save_onnx
from edgeplan.planning.document import Plan
from edgeplan.runtime import loops
from edgeplan.runtime.dnnl import Dnnl
from edgeplan.runtime.packed_programs import ColdProgram, cold_program
from edgeplan.runtime.plan_folder import write_linked
from edgeplan.runtime.program_file import DIMS, NOTHING, PROGRAM_BIN, Section, read_head, rows_of, text_of


@pytest.fixture(scope="module")
def built(dnnl: Dnnl, planned: Callable[..., Plan], tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, ColdProgram]:
    """The plan of a net whose tape has operations of every kind."""
    b = GraphBuilder("net", (1, 3, 16, 16))
    x = b.conv_bn(b.input, 16, 3, 2)
    x = b.concat([b.conv_bn(x, 16, 1), b.add(b.conv_bn(x, 16, 3), x)])
    graph = b.build(b.softmax(b.fc(b.flatten(b.gap(x)), 10)))
    model = save_onnx(graph, tmp_path_factory.mktemp("programs") / "net.onnx")
    plan = planned(model, graph, widen_from=3, sources=["raw", "cached_read", "cached_mmap"])
    folder = model.parent / "plan"
    return folder, write_linked(dnnl, model, plan, folder)


def _assert_needs(path: Path, head: RecordHead, row: np.ndarray) -> None:
    """Groups of a record come behind what they are made from, and make all handles that its calls name."""
    names = (Section.STARTS, Section.ROLES, Section.VALUES, Section.MADE)
    starts, roles, values, made = rows_of(path, *names)
    roles, values = roles.reshape(-1, loops.INTEGERS), values.reshape(-1, loops.INTEGERS)
    known: set[int] = set()
    for group in row[loops.HEAD : loops.HEAD + head.groups].tolist():
        for operation in range(starts[group], starts[group + 1]):
            given = set(values[operation][roles[operation] == loops.HANDLE].tolist())
            assert given <= known
            known |= {*values[operation][roles[operation] == loops.RESULT].tolist(), int(made[operation])}
    slots = row[loops.HEAD + head.groups :][: 2 * head.slots]
    assert {*slots[::2].tolist()} <= known
    rest = row[loops.HEAD + head.groups + 2 * head.slots :].tolist()
    for _ in range(head.calls):
        primitive, count, *rest = rest
        assert primitive in known
        assert {handle for handle in rest[1 : 2 * count : 2] if handle >= 0} <= known
        rest = rest[2 * count :]
    assert not rest


def test_a_cold_start_is_packed_whole(built: tuple[Path, ColdProgram]) -> None:
    folder, linked = built
    path = folder / PROGRAM_BIN
    steps, later = records_in(folder)
    assert [step.cached for step in steps] == [step.cached for step in linked.steps]
    assert [step.source == loops.RAW for step in steps] == [step.source == "raw" for step in linked.steps]
    assert [one is None for one in later] == [one is None for one in linked.later]
    assert any(one is not None for one in later)
    names = (Section.RECORDS, Section.RECORD_STARTS, Section.RAW, Section.RECIPES, Section.KINDS, Section.CONSTANTS)
    records, starts, raw, recipes, kinds, constants = rows_of(path, *names)
    assert {*kinds.tolist()} == {loops.CALL, loops.ASK, loops.TELL, loops.COPY, loops.WALK}
    assert not constants[-8 * DIMS :].any()
    ends = [*starts[1:], len(records)]
    for number, (start, end) in enumerate(zip(starts, ends, strict=True)):
        head = RecordHead(*records[start : start + loops.HEAD].tolist())
        _assert_needs(path, head, records[start:end])
        made = raw[raw["record"] == number]
        assert made["slot"].tolist() == (list(range(head.slots)) if head.source == loops.RAW else [])
        needed = records[start + loops.HEAD :][: head.groups].tolist()
        assert {*made["target"].tolist()} <= {*needed}
    assert sorted(raw["record"]) == raw["record"].tolist()
    assert [*raw["end"][:-1]] == [*raw["first"][1:]]
    assert raw["end"][-1] == len(recipes)


def test_lanes_names_and_checksums_are_those_of_the_plan(built: tuple[Path, ColdProgram]) -> None:
    folder, linked = built
    path = folder / PROGRAM_BIN
    names = (
        Section.TODO,
        Section.BOUNDS,
        Section.CHECKSUMS,
        Section.STEP_NAMES,
        Section.TEXT,
        Section.FILES,
        Section.FUNCTIONS,
    )
    todo, bounds, checksums, step_names, texts, files, functions = rows_of(path, *names)
    lanes = [tuple(todo[first:end].tolist()) for first, end in bounds.reshape(-1, 2)]
    assert lanes == list(linked.lanes)
    assert checksums.tolist() == [step.checksum for step in linked.steps]
    assert [text_of(texts, at) for at in step_names] == [step.name for step in linked.steps]
    (file,) = linked.files
    assert (text_of(texts, files[0]["path"]), tuple(files[0]["stamp"])) == (file.path, file.stamp)
    asked = {text_of(texts, at) for at in functions}
    assert "dnnl_engine_create" not in asked
    assert {"dnnl_primitive_create", "dnnl_memory_create"} <= asked
    head = read_head(path)
    assert (head.threads, head.step_count, head.queues, head.widen_from) == (2, len(linked.steps), len(linked.lanes) - 1, 3)
    assert head.stamp == linked.facts["stamp"]
    assert head.cache_bytes == (folder / "weights.cache").stat().st_size


def test_more_steps_are_records_behind_the_others(dnnl: Dnnl, built: tuple[Path, ColdProgram], tmp_path: Path) -> None:
    _, linked = built
    steps = linked.steps
    extra = (changed(steps[0], place=64), changed(steps[1], source="raw", place=128))
    path = tmp_path / PROGRAM_BIN
    path.write_bytes(cold_program(linked, dnnl.info, extra=extra))
    records, starts, raw = rows_of(path, Section.RECORDS, Section.RECORD_STARTS, Section.RAW)
    heads = [RecordHead(*records[start : start + loops.HEAD].tolist()) for start in starts[-2:]]
    assert [(head.place, head.source == loops.RAW, head.calls) for head in heads] == [
        (step.place, step.source == "raw", len(step.calls)) for step in extra
    ]
    for head, row in zip(heads, (records[starts[-2] : starts[-1]], records[starts[-1] :]), strict=True):
        _assert_needs(path, head, row)
    assert {*raw["record"].tolist()} > {len(starts) - 1, len(starts) - 2}


def test_raw_weights_that_cannot_be_made_are_a_mistake(dnnl: Dnnl, built: tuple[Path, ColdProgram]) -> None:
    first, *rest = built[1].steps
    with pytest.raises(KeyError):
        cold_program(replace(built[1], steps=(changed(first, kind="lstm"), *rest)), dnnl.info)


@pytest.mark.parametrize("name", MODELS)
def test_kernels_of_a_plan_of_memory_name_descriptors(dnnl: Dnnl, tmp_path: Path, name: str) -> None:
    model = streamed(dnnl, name, tmp_path, 8192)
    path, program = model.folder / PROGRAM_BIN, model.built.program
    names = (Section.RECORDS, Section.RECORD_STARTS, Section.STEPS, Section.OPERANDS)
    records, starts, steps, operands = rows_of(path, *names)
    assert len(starts) == len(program.kernels)
    counts = []
    for start, end in zip(starts, [*starts[1:], len(records)], strict=True):
        head = RecordHead(*records[start : start + loops.HEAD].tolist())
        assert (head.source, head.slots, head.weight_bytes) == (loops.NO_WEIGHTS, 0, 0)
        rest, count = records[start + loops.HEAD + head.groups : end].tolist(), 0
        for _ in range(head.calls):
            primitive, operand_count, *rest = rest
            rest, count = rest[1 if primitive < 0 else 2 * operand_count :], count + operand_count
        assert not rest
        counts.append(count)
    given = np.diff([*steps["first_operand"], len(operands)])
    assert [counts[kernel] if kernel != NOTHING else 0 for kernel in steps["kernel"]] == given.tolist()
    assert read_head(path).weights_bytes == model.weights.stat().st_size
