"""Programs as they are packed: what their rows refer to is there, in the order of need."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace as changed
from plan_folders import RecordHead, records_in
from streamed_models import MODELS, streamed

from edgeplan.graph.builder import GraphBuilder
from edgeplan.graph.onnx.write import save_onnx
from edgeplan.graph.steps import Step
from edgeplan.planning.document import Plan
from edgeplan.runtime import loops
from edgeplan.runtime.dnnl import Dnnl
from edgeplan.runtime.linking import Instruction, LinkedStep, RawWeight, can_be_raw, recipes_of
from edgeplan.runtime.packed_programs import ColdProgram, cold_program
from edgeplan.runtime.plan_folder import write_linked
from edgeplan.runtime.program_file import DIMS, NOTHING, PROGRAM_BIN, STORED, Operation, Section, read_head, rows_of, text_of
from edgeplan.runtime.transform import SCALE, folded, values_of, widened


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


_BY = {
    Operation.ADD: np.add, Operation.SUBTRACT: np.subtract, Operation.MULTIPLY: np.multiply, Operation.DIVIDE: np.divide,
    Operation.ADD_NUMBER: np.add, Operation.MULTIPLY_NUMBER: np.multiply,
}  # fmt: skip
Values = np.ndarray[Any, Any]


def _cooked(recipe: Sequence[Instruction], file: bytes) -> Values:
    """What native code does with a recipe."""
    stack: list[Values] = []
    for row in recipe:
        if row.operation == Operation.LOAD:
            stored = np.ndarray(row.values, STORED[row.dtype], file, row.offset, (row.stride,))
            stack.append(stored.astype(np.float32))
        elif row.operation == Operation.BYTES:
            stack.append(np.frombuffer(file, np.uint8, row.values, row.offset))
        elif row.operation == Operation.FILL:
            assert stack[-1].size == 1
            stack[-1] = np.repeat(stack[-1], row.values)
        elif row.operation in (Operation.ADD_NUMBER, Operation.MULTIPLY_NUMBER):
            stack[-1] = _BY[row.operation](stack[-1], np.float32(row.number))
        elif row.operation == Operation.ROOT:
            stack[-1] = np.sqrt(stack[-1])
        elif row.operation == Operation.NEGATE:
            stack[-1] = -stack[-1]
        else:
            by = stack.pop()
            stack[-1] = _BY[row.operation](stack[-1], by[np.arange(stack[-1].size) // row.values % by.size])
    (found,) = stack
    return found


class _Model:
    """A file of drawn weights."""

    def __init__(self, draw: st.DrawFn) -> None:
        self._draw, self.file = draw, bytearray()
        self._numbers = np.random.default_rng(draw(st.integers(0, 99)))
        self.raw: list[RawWeight] = []

    def one_of(self, *values: Any) -> Any:
        """Draw one of some values."""
        return self._draw(st.sampled_from(values))

    def some(self, *values: int) -> int:
        """Draw a small number, or one of those given."""
        return int(self._draw(st.sampled_from(values) if values else st.integers(1, 5)))

    def given(self) -> bool:
        """Draw whether there is something."""
        return bool(self._draw(st.booleans()))

    def weight(self, role: str, *shape: int, axis: int = 0) -> None:
        """A weight more, stored in one of the ways that there are."""
        dtype = self.one_of("float32", "float16", "int8", "uint8")
        self._put(role, dtype, shape, axis)
        if dtype in ("int8", "uint8"):
            count = self.some(1, shape[axis]) if shape else 1
            self._put(role + SCALE, "float32", (count,), 0)

    def _put(self, role: str, dtype: str, shape: tuple[int, ...], axis: int) -> None:
        stride = np.dtype(dtype).itemsize + (self.some(0, 1) if dtype == "float32" else 0)  # a tag may stand between
        self.file += bytes(self.some(0, 3))
        raw = np.ascontiguousarray(self._numbers.uniform(0.1, 9, int(np.prod(shape, dtype=int))).astype(dtype))
        content = b"".join(value.tobytes().ljust(stride, b"\n") for value in raw)[: (raw.size - 1) * stride + raw.itemsize]
        self.raw.append(RawWeight(role, 0, len(self.file), len(content), shape, stride, dtype, axis))
        self.file += content

    def values(self) -> Mapping[str, Values]:
        """The weights as planning reads them."""
        found = {}
        for one in self.raw:
            data = np.frombuffer(bytes(self.file), np.uint8, one.size, one.offset)
            found[one.role] = np.array(values_of(data, one.stride, one.dtype)).reshape(one.shape)
        return widened(found, {one.role: one.axis for one in self.raw})


def _normalised(model: _Model, channels: int, settings: dict[str, Any]) -> None:
    for role in ("bn_scale", "bn_bias", "bn_mean", "bn_variance"):
        model.weight(role, channels)
    settings["epsilon"] = model.one_of(1e-5, 1e-3, 0)


def _convolution(model: _Model, kind: str) -> tuple[str, dict[str, Any]]:
    settings: dict[str, Any] = {}
    shape = (model.some(), model.some(), *[model.some(1, 3)] * model.some(1, 2))
    channels = shape[0]
    if kind == "deconv":
        settings["groups"] = model.some(1, 2)
        channels = shape[1] * settings["groups"]
    model.weight("weight", *shape, axis=model.some(0, 1))
    if model.given():
        model.weight("bias", channels)
    if kind == "conv" and model.given():
        _normalised(model, channels, settings)
    if kind == "conv" and model.given():
        model.weight("factor", *model.one_of((1,), (channels, 1, 1)))
    if model.given():
        model.weight("summand", *model.one_of((), (1,), (channels, 1, 1)))
    return kind, settings


def _connected(model: _Model, kind: str) -> tuple[str, dict[str, Any]]:
    shape = (model.some(), model.some())
    settings = {"alpha": model.one_of(1.0, 0.3), "beta": model.one_of(1.0, 1.7), "transposed": model.some(0, 1)}
    model.weight("weight", *shape, axis=model.some(0, 1))
    if model.given():
        model.weight("bias", *model.one_of((), (1,), (1, shape[0 if settings["transposed"] else 1])))
    return kind, settings


def _simple(model: _Model, kind: str) -> tuple[str, dict[str, Any]]:
    settings: dict[str, Any] = {}
    if kind == "scale":
        _normalised(model, model.some(), settings)
    elif kind == "binary":
        model.weight("operand", model.some(), model.some(), axis=1)
        settings |= {"beta": model.one_of(0.7, -1)} if model.given() else {}
    elif kind == "concat":
        for place in sorted(range(model.some(1, 12)), key=str):
            model.weight(f"part_{place}", model.some())
    elif kind == "layer_norm":
        roles = ["scale", "shift"][model.some(0, 1) :]
        for role in reversed(roles):
            model.weight(role, 4)
    else:
        model.weight("value", model.some(), model.some())
    return kind, settings


_KINDS = {"conv": _convolution, "deconv": _convolution, "fc": _connected}
_RAW = (*_KINDS, "scale", "binary", "concat", "layer_norm", "constant")


@st.composite
def _steps(draw: st.DrawFn) -> tuple[_Model, LinkedStep, tuple[Values, ...]]:
    model = _Model(draw)
    kind = draw(st.sampled_from(_RAW))
    kind, settings = _KINDS.get(kind, _simple)(model, kind)
    wanted = folded(Step("one", kind, (), (), (), settings=settings), model.values())
    places = [0, *accumulate(values.nbytes for values in wanted)]
    slots = tuple((0, 0, at, values.nbytes, -1) for at, values in zip(places, wanted, strict=False))
    return model, LinkedStep("one", "raw", (), slots, places[-1], tuple(model.raw), kind, settings), wanted


@given(_steps())
def test_recipes_make_the_same_bits(drawn: tuple[_Model, LinkedStep, tuple[Values, ...]]) -> None:
    model, step, wanted = drawn
    assert can_be_raw(Step("one", step.kind, (), (), ()), {})
    for recipe, values in zip(recipes_of(step), wanted, strict=True):
        assert _cooked(recipe, bytes(model.file)).tobytes() == values.astype(np.float32).tobytes()


def _constant(count: int, dtype: str = "int64") -> LinkedStep:
    slots = ((0, 0, 0, 8, -1),) * count
    return LinkedStep("one", "raw", (), slots, 8, (RawWeight("value", 0, 3, 8, (8,), 1, dtype),), "constant", {})


@pytest.mark.parametrize("dtype", ["int64", "bool", "uint8"])
def test_other_numbers_are_handed_on_as_they_are(dtype: str) -> None:
    assert recipes_of(_constant(1, dtype)) == ((Instruction(Operation.BYTES, 0, 3, 8),),)
    weights = MappingProxyType({"value": "w"})
    assert can_be_raw(Step("one", "constant", (), (), (), weights), {"w": dtype})
    assert not can_be_raw(Step("one", "binary", (), (), (), weights), {"w": dtype})


@pytest.mark.parametrize("kind", ["lstm", "gru", "mix", "compiled", "int8_conv"])
def test_weights_of_other_kinds_are_cached(kind: str) -> None:
    assert not can_be_raw(Step("one", kind, (), (), ()), {})


def test_what_does_not_fit_the_slots_is_a_mistake() -> None:
    with pytest.raises(ValueError, match="has 2 weights, 1 are made"):
        recipes_of(_constant(2))
