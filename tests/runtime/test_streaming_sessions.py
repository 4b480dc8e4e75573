"""Programs that stream their weights: outputs are the same whatever the cut, the budget and the mode."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from model_file_runs import made, node, values, write
from streamed_models import MODELS, Streamed, outputs_of, ran, streamed

from depth import MANY, by_day, examples
from edgeplan.engines.onnxruntime.reference import onnxruntime_reference
from edgeplan.errors import InfeasibleError, ModelError
from edgeplan.planning.memory.quick import Mode
from edgeplan.planning.memory.workload import least_bytes
from edgeplan.profiling.streaming import on_demand
from edgeplan.runtime.bands import Region, banded, live_bytes, possible, recomputed, regions_by_peak
from edgeplan.runtime.dnnl import Dnnl
from edgeplan.runtime.program import activation_layouts

_ARE_CLOSE = 1e-5


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where models and weights of this module lie."""
    return tmp_path_factory.mktemp("streamed")


def require_right(found: Streamed, outputs: Mapping[str, bytes]) -> None:
    """Outputs are ONNX Runtime's but for rounding."""
    for name, expected in onnxruntime_reference(found.model, found.inputs).items():
        difference = np.abs(outputs_of(outputs, found)[name] - expected).max()
        assert difference <= _ARE_CLOSE * np.abs(expected).max(), name


@pytest.mark.parametrize("limit", by_day([8192, 1 << 40, 1]))
@pytest.mark.parametrize("name", MODELS)
def test_every_budget_gives_the_same_bits(dnnl: Dnnl, folder: Path, name: str, limit: int) -> None:
    found = streamed(dnnl, name, folder, limit)
    with found.session(dnnl, found.resident()) as session:
        expected = ran(session, found.inputs, 2)[-1]
    require_right(found, expected)
    lowest = least_bytes(found.workload)
    for share in (1.0, 1.3, 4.0):
        for mode in Mode:
            try:
                schedule = found.planned(int(share * lowest) + 8192, mode)
            except InfeasibleError:
                continue
            assert schedule["arena_bytes"] <= int(share * lowest) + 8192
            with found.session(dnnl, schedule) as session:
                assert ran(session, found.inputs, 3) == [expected] * 3, (share, mode)


def test_rows_of_a_table_are_read_from_the_file_as_their_indices_say(dnnl: Dnnl, folder: Path) -> None:
    found = streamed(dnnl, "tokens", folder, 8192)
    table = found.built.tables[0]
    assert table.size == 4 * 523 * 64
    assert least_bytes(found.workload) < table.size / 2
    with found.session(dnnl, found.planned(table.size, Mode.back_to_back)) as session:
        for tokens in ([522, 0, 77, 522, 1], [-1, -523, 77, -446, 5]):
            inputs = {"input_ids": np.array([tokens], dtype=np.int64)}
            expected = onnxruntime_reference(found.model, inputs)["logits"]
            given = session.run(inputs)["logits"]
            assert np.abs(given - expected).max() <= _ARE_CLOSE * np.abs(expected).max()
        for outside in (523, -524):
            with pytest.raises(ModelError, match="lies outside the axis"):
                session.run({"input_ids": np.array([[0, 1, outside, 2, 3]], dtype=np.int64)})
        assert session.run(inputs)["logits"].tobytes() == given.tobytes()


def test_smaller_parts_need_less_memory(dnnl: Dnnl, folder: Path) -> None:
    whole, finest = streamed(dnnl, "plain", folder, 1 << 40), streamed(dnnl, "plain", folder, 1)
    assert len(finest.built.program.steps) > len(whole.built.program.steps)
    assert least_bytes(finest.workload) < 0.8 * least_bytes(whole.workload)


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
                with found.session(dnnl, found.planned(least_bytes(found.workload) + (1 << 16), Mode.isolated)) as session:
                    require_right(found, ran(session, found.inputs)[0])
                tried += 1
    assert tried > 6


def test_weights_that_two_steps_read_are_stored_once(dnnl: Dnnl, tmp_path: Path) -> None:
    nodes = [node("MatMul", f"{before} w", after) for before, after in pairwise(("x", "a", "y"))]
    write(made(nodes, {"x": (4, 64)}, {"w": values(64, 64)}), tmp_path / "tied.onnx")
    for limit in (1 << 40, 8192):
        found = streamed(dnnl, "tied", tmp_path, limit)
        program = found.built.program
        weights = [(step.weights_at, step.weight_bytes) for step in program.steps]
        assert len(weights) == 2 * len({*weights})
        assert weights[: len(weights) // 2] == weights[len(weights) // 2 :]
        assert program.weights_bytes == sum(size for _, size in {*weights}) < sum(size for _, size in weights)
        for schedule in (found.resident(), found.planned(least_bytes(found.workload), Mode.back_to_back)):
            with found.session(dnnl, schedule) as session:
                for outputs in ran(session, found.inputs, 2):
                    require_right(found, outputs)


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


@settings(max_examples=examples(30), deadline=None)
@given(
    name=st.sampled_from(["plain", "tokens"]),
    share=st.floats(1.0, 4.0),
    mode=st.sampled_from(Mode),
    slow_us=st.lists(st.sampled_from([0, 0, 50, 500]), min_size=1, max_size=5),
    ahead=st.integers(1, 4),
)
def test_loads_wait_for_their_step_and_steps_for_their_load(
    dnnl: Dnnl, folder: Path, name: str, share: float, mode: Mode, slow_us: list[int], ahead: int
) -> None:
    """Freed memory holds NaN: what is loaded too early, or used too late, shows."""
    found = streamed(dnnl, name, folder, 8192)
    with found.session(dnnl, found.resident()) as session:
        expected = ran(session, found.inputs)[0]
        session.apply(found.planned(int(share * least_bytes(found.workload)) + 8192, mode))
        steps = len(found.built.program.step_names)
        session.slow([1000 * slow_us[k % len(slow_us)] for k in range(steps)])
        session.expect(ahead)
        assert ran(session, found.inputs, 3) == [expected] * 3
        assert [end >= begin for begin, end in session.ran_ns()] == [True] * steps


@pytest.mark.parametrize("name", MODELS)
def test_neither_loading_ahead_nor_static_memory_changes_outputs(dnnl: Dnnl, folder: Path, name: str) -> None:
    found = streamed(dnnl, name, folder, 8192)
    with found.session(dnnl, found.resident()) as session:
        expected = ran(session, found.inputs, 2)[-1]
    document = found.document(least_bytes(found.workload) + 65536, Mode.back_to_back)
    late = on_demand(document)
    with found.session(dnnl, late, debug=False, gives_back=True) as session:
        assert ran(session, found.inputs, 3) == [expected] * 3
    loads = [k for k, offset in enumerate(document.weight_offset) if offset >= 0 and document.again[k] != k]
    assert loads
    assert [late["after"][k] for k in loads] == [k - 1 for k in loads]


@pytest.mark.parametrize("name", MODELS)
def test_mapped_weights_give_the_same_outputs(dnnl: Dnnl, folder: Path, name: str) -> None:
    found = streamed(dnnl, name, folder, 1 << 40)
    with found.session(dnnl, found.resident()) as read, found.session(dnnl, found.resident(), mapped=True) as mapped:
        assert ran(mapped, found.inputs, 2) == ran(read, found.inputs, 2)


def test_weights_that_are_stored_once_more_are_not_read_again(dnnl: Dnnl, folder: Path) -> None:
    found = streamed(dnnl, "plain", folder, 8192)
    weights = int(found.workload.weight_bytes.sum())
    everything, tight = found.resident(), found.planned(least_bytes(found.workload) + 65536, Mode.back_to_back)
    with found.session(dnnl, everything) as session:
        expected = ran(session, found.inputs)
        assert session.fact("bytes_read") == weights
        session.apply(everything)  # they lie where they stay
        assert ran(session, found.inputs) == expected
        assert session.fact("bytes_read") == 0
        assert session.stream_ms() > 0
        assert 0 < session.read_ms() < 1000
        session.apply(everything)  # what was read for that lies where it should, but nobody promised it
        assert ran(session, found.inputs) == expected
        assert session.fact("bytes_read") == weights
        for schedule in (tight, everything):
            session.apply(schedule)
            assert ran(session, found.inputs) == expected
