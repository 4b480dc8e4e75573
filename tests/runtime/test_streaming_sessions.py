"""Programs that stream their weights: outputs are the same whatever the cut, the budget and the mode."""

from __future__ import annotations

import itertools
import os
import shutil
import signal
import threading
import time
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from onnx import TensorProto, helper
from streamed_models import MODELS, Streamed, outputs_of, streamed

from depth import MANY, by_day, examples
from edgeplan.engines.onnxruntime.reference import reference_outputs
from edgeplan.errors import FormatError, InfeasibleError, InputError, ModelError
from edgeplan.planning.memory import bounds
from edgeplan.planning.memory.planner import lowest
from edgeplan.planning.memory.quick import Mode
from edgeplan.profiling.streaming import on_demand
from edgeplan.runtime.bands import Region, banded, live_bytes, possible, recomputed, regions_by_peak
from edgeplan.runtime.creation import KernelCall
from edgeplan.runtime.dnnl import Dnnl
from edgeplan.runtime.folder import decoded, encoded
from edgeplan.runtime.program import activation_layouts
from edgeplan.runtime.streaming.again import Again, schedule_of
from edgeplan.runtime.streaming.program import WEIGHTS, StreamProgram, packed_steps
from edgeplan.runtime.streaming.reader import Load, Loader, WeightsFile
from edgeplan.runtime.streaming.rows import Rows
from edgeplan.runtime.streaming.session import Schedule, StreamSession

_ARE_CLOSE = 1e-5


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where models and weights of this module lie."""
    return tmp_path_factory.mktemp("streamed")


def ran(session: StreamSession, inputs: Mapping[str, np.ndarray], times: int) -> list[dict[str, bytes]]:
    """Inferences that follow each other."""
    session.expect(times)
    return [session.run(inputs) for _ in range(times)]


def require_right(found: Streamed, outputs: Mapping[str, bytes]) -> None:
    """Outputs are ONNX Runtime's but for rounding."""
    for name, expected in reference_outputs(found.model, found.inputs).items():
        difference = np.abs(outputs_of(outputs, found)[name] - expected).max()
        assert difference <= _ARE_CLOSE * np.abs(expected).max(), name


@pytest.mark.parametrize("limit", by_day([8192, 1 << 40, 1]))
@pytest.mark.parametrize("name", MODELS)
def test_every_budget_gives_the_same_bits(dnnl: Dnnl, folder: Path, name: str, limit: int) -> None:
    found = streamed(dnnl, name, folder, limit)
    with found.session(dnnl, found.resident()) as session:
        expected = ran(session, found.inputs, 2)[-1]
    require_right(found, expected)
    lowest = bounds.least_bytes(found.workload)
    for share in (1.0, 1.3, 4.0):
        for mode in Mode:
            try:
                schedule = found.planned(int(share * lowest) + 8192, mode)
            except InfeasibleError:
                continue
            assert schedule.arena_bytes <= int(share * lowest) + 8192
            with found.session(dnnl, schedule) as session:
                assert ran(session, found.inputs, 3) == [expected] * 3, (share, mode)


def test_rows_of_a_table_are_read_from_the_file_as_their_indices_say(dnnl: Dnnl, folder: Path) -> None:
    found = streamed(dnnl, "tokens", folder, 8192)
    table = found.built.tables[0]
    assert table.size == 4 * 523 * 64
    assert bounds.least_bytes(found.workload) < table.size / 2
    with found.session(dnnl, found.planned(table.size, Mode.back_to_back)) as session:
        for tokens in ([522, 0, 77, 522, 1], [-1, -523, 77, -446, 5]):
            inputs = {"input_ids": np.array([tokens], dtype=np.int64)}
            expected = reference_outputs(found.model, inputs)["logits"]
            given = outputs_of(session.run(inputs), found)["logits"]
            assert np.abs(given - expected).max() <= _ARE_CLOSE * np.abs(expected).max()
        for outside in (523, -524):
            with pytest.raises(ModelError, match="lies outside the axis"):
                session.run({"input_ids": np.array([[0, 1, outside, 2, 3]], dtype=np.int64)})
        assert outputs_of(session.run(inputs), found)["logits"].tobytes() == given.tobytes()


@pytest.mark.parametrize("block", [(0, 524, 256, 5), (1 << 40, 1, 256, 5), (-4096, 523, 256, 5), (0, 523, 256)])
def test_rows_of_no_table_are_refused(dnnl: Dnnl, folder: Path, block: tuple[int, ...]) -> None:
    found = streamed(dnnl, "tokens", folder, 8192)
    file = WeightsFile(found.weights, found.built.program.weights_bytes)
    size = 4 * 523 * 64
    with pytest.raises(FormatError, match="rows of no table"):
        Rows(file, KernelCall("rows_by_int64", block, ()), size, "here")
    with pytest.raises(FormatError, match="rows of no table"):
        Rows(file, KernelCall("rows_by_float32", (0, 523, 256, 5), ()), size, "here")
    file.close()


def test_columns_of_many_rows_are_written_where_they_belong(dnnl: Dnnl, folder: Path) -> None:
    program = streamed(dnnl, "tokens", folder, 8192).built.program
    parts = [step for step in program.steps if step.name.startswith("/lm_head/Gemm[")]
    offsets = [step.operands[1].offset for step in parts]  # of what is written
    widths = [int(stop) - int(start) for start, stop in (step.name.split("[")[1][:-1].split(":") for step in parts)]
    assert sum(widths) == 523
    assert len(parts) > 10
    assert set(widths[:-1]) <= {16, 32, 48}
    assert offsets == [4 * sum(widths[:k]) for k in range(len(widths))]


def test_smaller_parts_need_less_memory(dnnl: Dnnl, folder: Path) -> None:
    whole, finest = streamed(dnnl, "plain", folder, 1 << 40), streamed(dnnl, "plain", folder, 1)
    assert len(finest.built.program.steps) > len(whole.built.program.steps)
    assert bounds.least_bytes(finest.workload) < 0.8 * bounds.least_bytes(whole.workload)


def test_equal_steps_share_a_kernel(dnnl: Dnnl, folder: Path) -> None:
    program = streamed(dnnl, "plain", folder, 1).built.program
    assert len(program.kernels) < 0.7 * len(program.steps)


@pytest.mark.parametrize("name", by_day(["residual", "plain"]))
def test_bands_compute_the_same(dnnl: Dnnl, folder: Path, name: str) -> None:
    lowered = streamed(dnnl, name, folder, 1 << 40).lowered
    tried = 0
    for first in range(len(lowered.steps)):
        for last in {first + 1, first + 3, first + 5}:
            if last >= len(lowered.steps) or not possible(lowered, first, last):
                continue
            height = lowered.shapes[lowered.steps[last].outputs[0]][2]
            for rows in {3, max(1, height // 2)} if MANY else {3}:
                found = streamed(dnnl, name, folder, 1 << 40, (Region(first, last, rows),))
                with found.session(
                    dnnl, found.planned(bounds.least_bytes(found.workload) + (1 << 16), Mode.isolated)
                ) as session:
                    require_right(found, session.run(found.inputs))
                tried += 1
    assert tried > 6


def test_weights_that_two_steps_read_are_stored_once(dnnl: Dnnl, tmp_path: Path) -> None:
    weight = helper.make_tensor("w", TensorProto.FLOAT, (64, 64), np.linspace(-1, 1, 4096, dtype=np.float32) / 64)
    nodes = [helper.make_node("MatMul", [before, "w"], [after]) for before, after in pairwise(("x", "y", "z"))]
    border = [helper.make_tensor_value_info(name, TensorProto.FLOAT, (4, 64)) for name in "xz"]
    graph = helper.make_graph(nodes, "tied", border[:1], border[1:], [weight])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), tmp_path / "tied.onnx")
    for limit in (1 << 40, 8192):
        found = streamed(dnnl, "tied", tmp_path, limit)
        program = found.built.program
        weights = [(step.weights_at, step.weight_bytes) for step in program.steps]
        assert len(weights) == 2 * len({*weights})
        assert weights[: len(weights) // 2] == weights[len(weights) // 2 :]
        assert program.weights_bytes == sum(size for _, size in {*weights}) < sum(size for _, size in weights)
        for schedule in (found.resident(), found.planned(bounds.least_bytes(found.workload), Mode.back_to_back)):
            with found.session(dnnl, schedule) as session:
                for outputs in ran(session, found.inputs, 2):
                    require_right(found, outputs)


def test_what_is_packed_comes_out_as_it_was(dnnl: Dnnl, folder: Path) -> None:
    program = streamed(dnnl, "residual", folder, 4096).built.program
    assert packed_steps(program.steps) == (program.step_rows, program.operand_rows)
    assert [step.name for step in program.steps] == [*program.step_names]
    assert {operand.buffer for step in program.steps for operand in step.operands} == {WEIGHTS, *range(len(program.buffers))}
    assert all(buffer.lower < buffer.upper <= len(program.steps) for buffer in program.buffers)


def test_operands_of_another_kernel_are_refused(dnnl: Dnnl, folder: Path) -> None:
    found = streamed(dnnl, "plain", folder, 1 << 40)
    steps = [replace(step, operands=step.operands[1:]) for step in found.built.program.steps]
    rows, operands = packed_steps(steps)
    wrong = replace(found.built.program, step_rows=rows, operand_rows=operands)
    file = WeightsFile(found.weights, wrong.weights_bytes)
    with pytest.raises(FormatError, match="the program does not fit: step"):
        StreamSession(dnnl, wrong, found.resident(), file)
    file.close()


def test_bands_lower_the_peak_and_say_what_they_compute_twice(dnnl: Dnnl, folder: Path) -> None:
    lowered = streamed(dnnl, "plain", folder, 1 << 40).lowered
    layouts = activation_layouts(lowered, "blocked16")
    ladder = regions_by_peak(lowered, layouts, "blocked16", 16)
    peaks = []
    for regions in ladder:
        plan = banded(lowered, regions)
        peaks.append(max(live_bytes(plan.lowered, activation_layouts(plan.lowered, "blocked16"), 16)))
        assert all(1 <= recomputed(lowered, region) < 1.5 for region in regions)
    assert len(ladder) > 1
    assert all(lower < higher for higher, lower in pairwise(peaks))


def test_programs_outlive_their_document(dnnl: Dnnl, folder: Path) -> None:
    found = streamed(dnnl, "residual", folder, 4096, (Region(1, 3, 2),))
    written = encoded(found.built.program)
    again = decoded(written, StreamProgram, folder, "memory")
    assert encoded(again) == written
    file = WeightsFile(found.weights, again.weights_bytes)
    with StreamSession(dnnl, again, found.resident(), file) as session:
        require_right(found, session.run(found.inputs))


def test_budgets_change_between_inferences(dnnl: Dnnl, folder: Path) -> None:
    found = streamed(dnnl, "plain", folder, 8192)
    lowest = bounds.least_bytes(found.workload)
    schedules = [found.planned(int(lowest * share) + 8192, Mode.back_to_back) for share in (3.0, 1.05, 2.0, 1.3)]
    with found.session(dnnl, schedules[0]) as session:
        expected = session.run(found.inputs)
        for schedule in [*schedules[1:], *reversed(schedules)]:
            session.apply(schedule)
            assert ran(session, found.inputs, 2) == [expected] * 2


def test_the_library_s_pages_are_dropped_behind_the_first_execution_of_a_kernel_alone(
    dnnl: Dnnl, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = streamed(dnnl, "plain", folder, 8192)
    with found.session(dnnl, found.resident()) as session:
        drops: list[int] = []
        monkeypatch.setattr(session._library, "drop", lambda: drops.append(1))
        expected = session.run(found.inputs)
        assert len(drops) == len(found.built.program.steps)
        session.apply(found.planned(2 * bounds.least_bytes(found.workload), Mode.back_to_back))
        session.stream_ms()
        assert ran(session, found.inputs, 2) == [expected] * 2
        assert len(drops) == len(found.built.program.steps)


def test_a_budget_that_changes_in_an_inference_waits_for_its_end(dnnl: Dnnl, folder: Path) -> None:
    found = streamed(dnnl, "plain", folder, 8192)
    lowest = bounds.least_bytes(found.workload)
    large, small = (found.planned(int(lowest * share) + 8192, Mode.back_to_back) for share in (3.0, 1.05))
    with found.session(dnnl, large) as session:
        expected = session.run(found.inputs)
        session.slowed = [2_000_000] * len(session.program.steps)
        before = session.times[0]
        outputs: list[dict[str, bytes]] = []
        running = threading.Thread(target=lambda: outputs.append(session.run(found.inputs)))
        running.start()
        while session.times[0] == before and running.is_alive():
            time.sleep(0)
        session.apply(small)
        assert session.times[-1] > session.times[0] > before  # all steps of the inference have ended
        running.join()
        assert outputs == [expected]
        session.slowed = ()
        assert ran(session, found.inputs, 2) == [expected] * 2


def test_reading_threads_share_all_processors_where_theirs_may_not_be_used(dnnl: Dnnl, folder: Path) -> None:
    found = streamed(dnnl, "plain", folder, 8192)
    schedule = found.planned(bounds.least_bytes(found.workload) + 8192, Mode.back_to_back)
    file = WeightsFile(found.weights, found.built.program.weights_bytes)
    with StreamSession(dnnl, found.built.program, schedule, file, processors=(1 << 20,)) as session:
        session.fill()
        require_right(found, session.run(found.inputs))


@pytest.mark.parametrize("name", MODELS)
def test_neither_loading_ahead_nor_static_memory_changes_outputs(dnnl: Dnnl, folder: Path, name: str) -> None:
    found = streamed(dnnl, name, folder, 8192)
    with found.session(dnnl, found.resident()) as session:
        expected = ran(session, found.inputs, 2)[-1]
    document = found.document(bounds.least_bytes(found.workload) + 65536, Mode.back_to_back)
    file = WeightsFile(found.weights, found.built.program.weights_bytes)
    late = Schedule.of(on_demand(document))
    with StreamSession(dnnl, found.built.program, late, file, gives_back=True) as session:
        assert ran(session, found.inputs, 3) == [expected] * 3
    loads = [k for k, offset in enumerate(document.weight_offset) if offset >= 0 and document.again[k] != k]
    assert loads
    assert [late.after[k] for k in loads] == [k - 1 for k in loads]


@pytest.mark.parametrize("mode", Mode)
def test_a_session_plans_again_from_the_profile(dnnl: Dnnl, folder: Path, mode: Mode) -> None:
    found = streamed(dnnl, "residual", folder, 8192)
    program, objects = found.built.program, 1 << 20
    profile = {
        "compute_ms": [0.1] * len(program.steps), "bytes_per_ms": 1e6, "lanes": 2, "objects_bytes": objects,
        "lowest": lowest(found.workload).tolist(),
    }  # fmt: skip
    large = bounds.least_bytes(found.workload) * 8
    again = Again.of(program, profile, profile["lowest"])
    with found.session(dnnl, found.resident()) as session:
        expected = ran(session, found.inputs, 1)[0]
        for budget in (large, large // 4, large):
            schedule = schedule_of(again.planned(budget + objects, mode))
            assert schedule.arena_bytes <= budget
            session.apply(schedule)
            assert ran(session, found.inputs, 2) == [expected] * 2
    with pytest.raises(InfeasibleError, match="the least is"):
        again.planned(objects + 4096, mode)
    with pytest.raises(FormatError, match="of another program"):
        Again.of(program, profile | {"compute_ms": [0.1]}, profile["lowest"])


def test_inputs_that_do_not_fit_are_refused(dnnl: Dnnl, folder: Path) -> None:
    found = streamed(dnnl, "plain", folder, 1 << 40)
    name = found.graph.inputs[0]
    with found.session(dnnl, found.resident()) as session:
        with pytest.raises(InputError, match="missing"):
            session.run({})
        with pytest.raises(InputError, match="12 bytes"):
            session.run({name: np.zeros(3, np.float32)})
        with pytest.raises(InputError, match="row-major"):
            session.run({name: np.asfortranarray(found.inputs[name])})
        require_right(found, session.run(found.inputs))


class _FailingFile(WeightsFile):
    """A disk that fails once, at the n-th read."""

    def __init__(self, path: Path, size: int, fails_at: int, delay_s: float = 0.0) -> None:
        super().__init__(path, size)
        self._left, self._delay, self._lock = fails_at, delay_s, threading.Lock()

    def read(self, offset: int, pieces: Sequence[memoryview]) -> None:
        time.sleep(self._delay)
        with self._lock:
            self._left -= 1
            if self._left == 0:
                raise ModelError("cannot read the weights at byte 0: Input/output error", where=str(self.path))
        super().read(offset, pieces)


@pytest.mark.parametrize("fails_at", [1, 2, 3, 5])
def test_after_a_failed_read_the_next_run_works(dnnl: Dnnl, folder: Path, fails_at: int) -> None:
    found = streamed(dnnl, "plain", folder, 8192)
    schedule = found.planned(bounds.least_bytes(found.workload) + 8192, Mode.back_to_back)
    file = _FailingFile(found.weights, found.built.program.weights_bytes, fails_at)
    with StreamSession(dnnl, found.built.program, schedule, file, debug=True) as session:
        failures = 0
        for _ in range(4):
            try:
                outputs = session.run(found.inputs)
            except ModelError as error:
                failures += "Input/output error" in error.what
            else:
                require_right(found, outputs)
    assert failures == 1


class _InterruptedFile(WeightsFile):
    """A disk during whose reads the user interrupts: in these of them, by the thread that waits."""

    def __init__(self, path: Path, size: int, at: Sequence[int]) -> None:
        super().__init__(path, size)
        self._at, self._count = at, itertools.count(1)

    def read(self, offset: int, pieces: Sequence[memoryview]) -> None:
        if next(self._count) in self._at:
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
        super().read(offset, pieces)


def test_an_interrupted_run_leaves_a_session_that_works(dnnl: Dnnl, folder: Path) -> None:
    found = streamed(dnnl, "plain", folder, 8192)
    schedule = found.planned(bounds.least_bytes(found.workload) + 8192, Mode.back_to_back)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # LLVM has taken it where an OpenCL driver compiled here before
    file, interrupts = _InterruptedFile(found.weights, found.built.program.weights_bytes, (7, 30, 61)), 0
    with StreamSession(dnnl, found.built.program, schedule, file, debug=True) as session:
        for _ in range(12):
            try:
                require_right(found, session.run(found.inputs))
            except KeyboardInterrupt:
                interrupts += 1
    assert interrupts == 3


def test_a_failed_read_is_what_leaves_the_session_and_memory_is_freed(dnnl: Dnnl, folder: Path, tmp_path: Path) -> None:
    found = streamed(dnnl, "plain", folder, 8192)
    schedule = found.planned(bounds.least_bytes(found.workload) + 8192, Mode.isolated)
    copy = Path(shutil.copyfile(found.weights, tmp_path / "weights.bin"))
    file = WeightsFile(copy, found.built.program.weights_bytes)
    os.truncate(copy, 4096)
    with (
        pytest.raises(ModelError, match="the weights end before byte"),
        StreamSession(dnnl, found.built.program, schedule, file) as session,
    ):
        session.run(found.inputs)


def test_after_a_failed_read_the_budget_can_change_and_memory_be_filled(dnnl: Dnnl, folder: Path) -> None:
    found = streamed(dnnl, "plain", folder, 8192)
    lowest = bounds.least_bytes(found.workload)
    small, large = (found.planned(int(lowest * share) + 8192, Mode.isolated) for share in (1.05, 3.0))
    file = _FailingFile(found.weights, found.built.program.weights_bytes, 1)
    with StreamSession(dnnl, found.built.program, small, file) as session:
        with pytest.raises(ModelError, match="Input/output error"):
            session.fill()
        session.apply(large)
        session.fill()
        require_right(found, session.run(found.inputs))
    file = _FailingFile(found.weights, found.built.program.weights_bytes, 1)
    with StreamSession(dnnl, found.built.program, small, file) as session:
        with pytest.raises(ModelError, match="Input/output error"):
            session.fill()
        session.fill()
        require_right(found, session.run(found.inputs))


def test_a_slow_disk_makes_runs_slower_and_never_wrong(dnnl: Dnnl, folder: Path) -> None:
    found = streamed(dnnl, "residual", folder, 4096)
    schedule = found.planned(bounds.least_bytes(found.workload) + 8192, Mode.back_to_back)
    file = _FailingFile(found.weights, found.built.program.weights_bytes, -1, delay_s=0.01)
    with StreamSession(dnnl, found.built.program, schedule, file, debug=True) as session:
        for outputs in ran(session, found.inputs, 2):
            require_right(found, outputs)


def test_weights_that_are_cut_changed_or_gone_are_refused(dnnl: Dnnl, folder: Path, tmp_path: Path) -> None:
    found = streamed(dnnl, "plain", folder, 1 << 40)
    copy = tmp_path / "weights.bin"
    size = found.built.program.weights_bytes
    with pytest.raises(ModelError, match="cannot open"):
        WeightsFile(copy, size)
    copy.write_bytes(found.weights.read_bytes()[:-4096])
    with pytest.raises(ModelError, match=f"{size - 4096} bytes, not {size}"):
        WeightsFile(copy, size)
    copy.write_bytes(found.weights.read_bytes())
    with StreamSession(dnnl, found.built.program, found.resident(), WeightsFile(copy, size)) as session:
        session.run(found.inputs)
        time.sleep(0.02)
        copy.write_bytes(bytes(size))
        with pytest.raises(ModelError, match="changed while"):
            session.run(found.inputs)


class _Disk(WeightsFile):
    """A disk that notes what is read, and takes as long as it is told."""

    def __init__(self, delays: Sequence[float]) -> None:
        self.reads: list[tuple[int, int]] = []
        self._delays, self._lock = delays, threading.Lock()

    def read(self, offset: int, pieces: Sequence[memoryview]) -> None:
        with self._lock:
            number = len(self.reads)
            self.reads.append((offset, sum(piece.nbytes for piece in pieces)))
        time.sleep(self._delays[number % len(self._delays)])
        for piece in pieces:
            piece[:] = bytes([offset // 4096 % 251 + 1]) * piece.nbytes if len(pieces) == 1 else b"\x01" * piece.nbytes


@settings(max_examples=examples(30), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    pages=st.lists(st.integers(1, 3), min_size=2, max_size=8),
    ahead=st.integers(1, 4),
    delays=st.lists(st.sampled_from([0.0, 0.0005, 0.002]), min_size=1, max_size=5),
    lanes=st.integers(1, 3),
    inferences=st.integers(1, 3),
)
def test_loads_wait_for_their_step_and_steps_for_their_load(
    pages: list[int], ahead: int, delays: list[float], lanes: int, inferences: int
) -> None:
    """A ring of `ahead` places: a load begins when the step `ahead` before it has ended, whatever the order of completion."""
    sizes = [4096 * count for count in pages]
    starts = [sum(sizes[:k]) for k in range(len(sizes))]
    place, count = max(sizes), len(sizes)
    users = {k % ahead: k for k in range(count)}  # the last step that uses a place
    loads = [
        Load(
            k, starts[k], sizes[k], place * (k % ahead), k - ahead if k >= ahead else -1, users[k % ahead] if k < ahead else -1
        )
        for k in range(count)
    ]
    disk, memory = _Disk(delays), memoryview(bytearray(place * ahead))
    loader = Loader(disk, lanes)
    try:
        loader.start(loads, count, memory, inferences)
        for m in range(inferences):
            for k in range(count):
                loader.wait_loaded(m * count + k + 1)
                assert bytes(memory[loads[k].address : loads[k].address + sizes[k]]).count(0) == 0, (m, k)
                if loads[k].again != k:  # what stays is not loaded again
                    memory[loads[k].address : loads[k].address + sizes[k]] = bytes(sizes[k])  # used, and left empty
                loader.ended(m * count + k + 1)
        stay = sum(load.after < 0 and load.again == load.step for load in loads)
        read = sum(size for _, size in disk.reads)
        assert loader.bytes_read == read
        assert read <= inferences * sum(sizes)
        assert stay == 0 or inferences == 1 or read < inferences * sum(sizes)
    finally:
        loader.pause()
        loader.close()
