"""What holds for every plan that is open, of whichever kind: one suite, through `open_plan` and through the C interface."""

from __future__ import annotations

import ctypes
import math
import multiprocessing
import os
import shutil
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from partition_frames import PAIR, save_predictors, write_workspace
from plan_folders import assert_close, small_net, wait_while
from streamed_models import MODELS, middle, streamed, write_streamed_plan

import edgeplan
from edgeplan import native, opening
from edgeplan.chapters.cold_start.gpu.planned import GpuPlanning, planning_on
from edgeplan.chapters.cold_start.planners.gpu import OPTIMAL
from edgeplan.devices.config import load_device
from edgeplan.engines.base import random_inputs
from edgeplan.errors import DeviceError, EdgeplanError, FormatError, InfeasibleError, InputError, ModelError
from edgeplan.graph.ir import Graph
from edgeplan.graph.onnx.write import save_onnx
from edgeplan.planning.document import Plan
from edgeplan.runtime.dnnl import Dnnl
from edgeplan.runtime.folder import CACHE_NAME, COLD_START, GPU_START, MEMORY, PARTITION, PLAN_NAME, WEIGHTS_NAME, read_folder
from edgeplan.runtime.gpu_program import CODE_NAME
from edgeplan.runtime.native_session import STAGES, NativeSession, open_session
from edgeplan.runtime.plan_folder import build_plan_folder
from edgeplan.runtime.program_file import HEADER, PROGRAM_BIN, Section, checksum, rows_of, text_of
from edgeplan.testing.engines import reference_outputs

Outputs = Mapping[str, np.ndarray[Any, Any]]
NATIVE = (COLD_START, MEMORY)
_INPUT = 11  # EP_INPUT


@dataclass(frozen=True)
class Made:
    """A plan that was made once, which is not to be changed.

    Attributes:
        kind, folder: of the plan.
        inputs: of its model.
        wanted: outputs of ONNX Runtime.
    """

    kind: str
    folder: Path
    inputs: Outputs
    wanted: Outputs


def _cold(dnnl: Dnnl, planned: Callable[..., Plan], graph: Graph, place: Path) -> Path:
    model = save_onnx(graph, place / "small.onnx")
    plan = planned(model, graph, sources=["cached_mmap", "cached_read"], widen_from=3)
    return build_plan_folder(dnnl, model, plan, place / "plan")


def _memory(dnnl: Dnnl, _planned: Callable[..., Plan], _graph: Graph, place: Path) -> Path:
    return write_streamed_plan(dnnl, streamed(dnnl, "plain", place, 8192), place / "plan").path


def _pair(_dnnl: Dnnl, _planned: Callable[..., Plan], graph: Graph, place: Path) -> Path:
    if find_spec("pyopencl") is None or len(os.sched_getaffinity(0)) < 2:
        pytest.skip("a pair takes pyopencl and two cores")
    workspace = write_workspace(place / "workspace")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("EDGEPLAN_WORKSPACE", str(workspace))
        save_predictors(workspace)
        edgeplan.plan_partition(save_onnx(graph, place / "small.onnx"), place / "plan", PAIR, costs="predicted")
    return place / "plan"


def _gpu(_dnnl: Dnnl, _planned: Callable[..., Plan], graph: Graph, place: Path) -> Path:
    if find_spec("pyopencl") is None:
        pytest.skip("pyopencl is an extra")
    options = {"platform": "Portable Computing Language", "cores": str(max(os.sched_getaffinity(0)))}
    told = {"format_version": 1, "name": "opencl-here", "engine": "opencl", "options": options}
    (place / "opencl-here.yaml").write_text(yaml.safe_dump(told))
    device = load_device(place / "opencl-here.yaml")
    model = save_onnx(graph, place / "small.onnx")
    with planning_on(device) as (processor, block):
        return GpuPlanning(device, model, processor, block).write(OPTIMAL, place / "plan").folder


_MAKERS = {COLD_START: _cold, MEMORY: _memory, PARTITION: _pair, GPU_START: _gpu}


@pytest.fixture(scope="session")
def _plans(dnnl: Dnnl, planned: Callable[..., Plan], tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Made]:
    @cache
    def make(kind: str) -> Made:
        graph = MODELS["plain"]() if kind == MEMORY else small_net()
        assert isinstance(graph, Graph)
        folder = _MAKERS[kind](dnnl, planned, graph, tmp_path_factory.mktemp(kind))
        return Made(kind, folder, random_inputs(graph), reference_outputs(graph))

    return make


@pytest.fixture(params=tuple(_MAKERS))
def made(request: pytest.FixtureRequest, _plans: Callable[[str], Made], monkeypatch: pytest.MonkeyPatch) -> Made:
    """A plan of each kind."""
    found = _plans(request.param)
    if found.kind == PARTITION:
        monkeypatch.setenv("EDGEPLAN_WORKSPACE", str(found.folder.parent / "workspace"))
    return found


@pytest.fixture
def copy(made: Made, tmp_path: Path) -> Path:
    """A copy of it, which may be changed."""
    return Path(shutil.copytree(made.folder, tmp_path / "plan"))


native_alone = pytest.mark.parametrize("made", NATIVE, indirect=True)


def _equal(one: Outputs, other: Outputs) -> bool:
    return one.keys() == other.keys() and all(np.array_equal(one[name], other[name]) for name in one)


# Inferences


def test_outputs_are_those_of_the_model_whatever_is_open_beside(made: Made) -> None:
    outputs: list[Outputs] = []

    def inside() -> None:
        with edgeplan.open_plan(made.folder) as session:
            outputs.append(session.run(made.inputs))

    with edgeplan.open_plan(made.folder) as one, edgeplan.open_plan(made.folder) as other:
        outputs += [one.run(made.inputs), other.run(made.inputs), one.run(made.inputs)]
        for work in (inside, lambda: outputs.append(other.run(made.inputs))):
            thread = threading.Thread(target=work)
            thread.start()
            thread.join()
    assert len(outputs) == 5
    for found in outputs:
        assert_close(found, made.wanted)


def test_threads_take_turns(made: Made) -> None:
    outputs: list[Outputs] = []
    with edgeplan.open_plan(made.folder) as session:
        first = session.run(made.inputs)
        second = session.run(made.inputs)
        threads = [threading.Thread(target=lambda: outputs.append(session.run(made.inputs))) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(outputs) == 3
    assert_close(first, made.wanted)
    assert all(_equal(second, found) for found in outputs)


def test_inputs_that_do_not_fit_are_named(made: Made) -> None:
    with edgeplan.open_plan(made.folder) as session:
        (border,) = session.inputs
        right = dict(made.inputs)
        wrong = {
            "there is no array": {},
            "the model has no input 'more'": {**right, "more": np.ones(3, np.float32)},
            "float64": {border.name: np.ones(border.shape)},
            r"float32\[1,2\]": {border.name: np.ones((1, 2), np.float32)},
        }
        for told, given in wrong.items():
            with pytest.raises(InputError, match=f"{told}(?s:.*)expected float32") as caught:
                session.run(given)
            assert border.name in caught.value.next_step
        assert _equal(session.run(right), session.run(right[border.name]))


@native_alone
def test_outputs_lie_in_place_until_the_next_inference(made: Made) -> None:
    given = {name: np.ascontiguousarray(value) for name, value in made.inputs.items()}
    with open_session(made.folder) as session:
        wanted = session.run(given)
        for _ in range(3):
            found = session.run_taking(given, lambda _name, view: bytes(view))
            assert found == {name: value.tobytes() for name, value in wanted.items()}
        for form in (bytes, bytearray, memoryview):
            taken = session.run_taking(
                {name: form(value) for name, value in given.items()}, lambda name, view: (name, len(view))
            )
            assert taken == {tensor.name: (tensor.name, tensor.size) for tensor in session.outputs}
        assert _equal(session.run(given), wanted)


@native_alone
def test_what_a_session_knows_is_told_until_it_is_closed(made: Made) -> None:
    with open_session(made.folder) as session:
        session.run(made.inputs)
        assert {stage for _, _, stage, begin, end in session.trace() if 0 < begin <= end} <= set(STAGES)
        assert session.fact("threads") >= 1
        assert math.isnan(session.fact("nothing of the kind"))
        session.prepare_later()
    assert session.handle == 0
    for ask in (lambda: session.fact("threads"), session.trace, session.prepare_later):
        with pytest.raises(DeviceError, match="was closed"):
            ask()


def _asked(session: NativeSession, inputs: list[tuple[int, int]], outputs: list[tuple[int, int]]) -> tuple[int, str]:
    """`ep_run` with addresses and sizes of buffers as they are: its status, and the first line of its error."""

    def buffers(given: list[tuple[int, int]]) -> ctypes.Array[ctypes.c_size_t]:
        return (ctypes.c_size_t * max(1, 2 * len(given)))(*(number for one in given for number in one))

    run = native.function("run", ctypes.c_int, ctypes.c_void_p, *(ctypes.c_void_p, ctypes.c_int) * 2)
    status = int(run(session.handle, buffers(inputs), len(inputs), buffers(outputs), len(outputs)))
    told = native.function("last_error", ctypes.c_char_p, ctypes.c_void_p)(session.handle)
    return status, os.fsdecode(told).split("\n")[0]


@native_alone
def test_buffers_that_do_not_fit_are_refused_by_the_c_interface(made: Made) -> None:
    (value,) = (np.ascontiguousarray(one) for one in made.inputs.values())
    with open_session(made.folder) as session:
        (output,) = session.outputs
        result = np.empty(output.shape, output.dtype)
        x, y = (value.ctypes.data, value.nbytes), (result.ctypes.data, result.nbytes)
        wrong = [([], [y]), ([x, x], [y]), ([x], []), ([(x[0], x[1] - 4)], [y]), ([(0, x[1])], [y]), ([x], [(y[0], y[1] + 4)])]
        for inputs, outputs in wrong:
            status, told = _asked(session, inputs, outputs)
            assert status == _INPUT
            assert "put" in told
        assert _asked(session, [x], [y])[0] == 0
        assert_close({output.name: result}, made.wanted)


# Opening and closing


def test_a_closed_session_says_so(made: Made) -> None:
    edgeplan.open_plan(made.folder).close()  # before anything was run
    session = edgeplan.open_plan(made.folder)
    session.run(made.inputs)
    session.close()
    session.close()
    with pytest.raises(DeviceError, match=r"was closed(?s:.*)open the plan again"):
        session.run(made.inputs)


@native_alone
def test_nothing_is_left_of_a_session(made: Made) -> None:
    def held() -> tuple[set[int], int]:
        return os.sched_getaffinity(0), len(list(Path("/proc/self/fd").iterdir()))

    def threads() -> int:
        return len(list(Path("/proc/self/task").iterdir()))

    with edgeplan.open_plan(made.folder) as session:  # the library and its threads stay
        session.run(made.inputs)
    before, most = held(), threads()
    for runs in (0, 1, 3):
        with edgeplan.open_plan(made.folder) as session:
            for _ in range(runs):
                session.run(made.inputs)
        assert held() == before
    wait_while(lambda: threads() > most)
    assert threads() <= most


def _in_child(plan: Path, session: Any, inputs: Outputs, told: Any) -> None:
    found = []
    for attempt in (lambda: session.run(inputs), lambda: edgeplan.open_plan(plan)):
        try:
            attempt()
            found.append("ran")
        except EdgeplanError as error:
            found.append(str(error))
    session.close()
    told.put(found)


def test_a_fork_is_refused(made: Made) -> None:
    context = multiprocessing.get_context("fork")
    told = context.SimpleQueue()
    with edgeplan.open_plan(made.folder) as session:
        session.run(made.inputs)
        child = context.Process(target=_in_child, args=(made.folder, session, made.inputs, told))
        child.start()
        child.join(60)
        assert child.exitcode == 0
        assert all("was forked" in text and "start a fresh process" in text for text in told.get())
        assert_close(session.run(made.inputs), made.wanted)
    assert opening._forked is False


def test_a_plan_may_move(made: Made, copy: Path) -> None:
    moved = copy.rename(copy.with_name("moved"))
    with edgeplan.open_plan(moved) as session:
        assert_close(session.run(made.inputs), made.wanted)


# Damage


def _damages(path: Path, place: int) -> Iterator[None]:
    """A file gone, empty, cut, and with a byte changed; whole again behind each."""
    whole = path.read_bytes()
    changed = whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :]
    for damage in (None, b"", whole[: len(whole) // 2], changed):
        path.unlink() if damage is None else path.write_bytes(damage)
        yield
        path.write_bytes(whole)


def test_what_is_half_there_or_damaged_is_refused(made: Made, copy: Path) -> None:
    """Each file, but for code that can be compiled again; weights that the library reads are for the next test."""
    files = [PLAN_NAME, PROGRAM_BIN] if made.kind in NATIVE else [p.name for p in copy.iterdir() if p.name != CODE_NAME]
    for name in files:
        for _ in _damages(copy / name, 200):
            with pytest.raises((FormatError, ModelError)) as caught:
                read_folder(copy) if name == PLAN_NAME else edgeplan.open_plan(copy).run(made.inputs)
            assert str(copy) in caught.value.where
            assert "edgeplan plan" in caught.value.next_step
    with edgeplan.open_plan(copy) as session:
        assert_close(session.run(made.inputs), made.wanted)


def _weights(made: Made, copy: Path) -> Path:
    return copy / (CACHE_NAME if made.kind == COLD_START else WEIGHTS_NAME)


@native_alone
def test_weights_that_are_damaged_are_refused(made: Made, copy: Path) -> None:
    for _ in _damages(_weights(made, copy), 0):
        with pytest.raises(ModelError, match="weights") as caught, edgeplan.open_plan(copy) as session:
            session.run(made.inputs)
        assert f"edgeplan plan {made.kind}" in caught.value.next_step
    with edgeplan.open_plan(copy) as session:
        assert_close(session.run(made.inputs), made.wanted)


@native_alone
def test_weights_that_change_in_use_are_told(made: Made, copy: Path) -> None:
    path = _weights(made, copy)
    whole = path.read_bytes()
    changes = (lambda: os.truncate(path, 0), lambda: os.truncate(path, len(whole) // 2), lambda: os.utime(path))
    for change in changes:
        with edgeplan.open_plan(copy) as session:
            session.run(made.inputs)
            change()
            with suppress(ModelError):  # the next run at the latest
                session.run(made.inputs)
            with pytest.raises(ModelError, match="weights"):
                session.run(made.inputs)
        path.write_bytes(whole)


def _changed(plan: Path, old: str, new: str) -> None:
    """Put another text of the same length into the program, as if it had been planned so."""
    path = plan / PROGRAM_BIN
    content = path.read_bytes()
    assert len(old) == len(new)
    assert old.encode() in content
    body = content.replace(old.encode(), new.encode())[HEADER.struct.size :]
    before, (kind, *rest) = HEADER.struct.unpack_from(content)[:4], HEADER.struct.unpack_from(content)[5:]
    path.write_bytes(HEADER.struct.pack(*before, checksum(body), kind, *rest) + body)


@native_alone
def test_another_machine_or_library_is_named(copy: Path) -> None:
    whole, (texts, (facts,)) = (copy / PROGRAM_BIN).read_bytes(), rows_of(copy / PROGRAM_BIN, Section.TEXT, Section.FACTS)
    wrong = {"made on another machine": "machine", "library is": "version", "commit is": "commit", "isa is": "isa"}
    for told, fact in wrong.items():
        text = text_of(texts, facts[fact])
        (copy / PROGRAM_BIN).write_bytes(whole)
        _changed(copy, f"{text}\0", f"{text[:-1]}?\0")
        with pytest.raises(FormatError, match=told) as caught:
            edgeplan.open_plan(copy)
        assert f"edgeplan plan {read_folder(copy).kind}" in caught.value.next_step


# Budgets; `test_memory_schedules.py` has what changes between inferences


@pytest.mark.parametrize("made", NATIVE, indirect=True)
def test_a_plan_of_memory_alone_has_a_budget(made: Made, dnnl: Dnnl, tmp_path: Path) -> None:
    if made.kind == COLD_START:
        with open_session(made.folder) as session, pytest.raises(InputError, match="has no budget"):
            session.set_budget(1 << 30)
        return
    model = streamed(dnnl, "plain", tmp_path, 8192)
    with open_session(made.folder, budget=middle(model)) as session:
        assert_close(session.run(made.inputs), made.wanted)
        assert session.fact("budget_bytes") <= middle(model)
    with pytest.raises(InfeasibleError):
        edgeplan.open_plan(made.folder, budgets=[1])
    edgeplan.open_plan(made.folder, budgets=[1, middle(model)]).close()
