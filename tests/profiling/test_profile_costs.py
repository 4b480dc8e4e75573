"""What profiled costs are made of: rounds, starts in fresh processes, contention, and what a step pays besides."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
from cold_start_instances import layouts
from msgspec.structs import replace as changed
from tiny_profiled import cores, tiny

from edgeplan.engines.base import random_inputs
from edgeplan.errors import InputError
from edgeplan.graph.builder import GraphBuilder
from edgeplan.graph.ir import Graph
from edgeplan.graph.onnx.write import save_onnx
from edgeplan.graph.steps import Step
from edgeplan.measurement.process.record_bench import Bench
from edgeplan.planning.profile import SOURCES, Candidate, Contention, Fresh, Layer, Profile
from edgeplan.profiling import fresh_process_factors, subjects
from edgeplan.profiling.fresh_process_factors import STAGES, Check, Pairs, Start, charged, start_of, start_row
from edgeplan.profiling.profiler import pooled
from edgeplan.profiling.profiles import candidates_of, kernel_of, once_ms, work_of
from edgeplan.profiling.rounds import Harness, ModelToProfile, Round
from edgeplan.profiling.settings import Cores
from edgeplan.profiling.store import Row
from edgeplan.profiling.subjects import subject
from edgeplan.runtime.dnnl import Dnnl
from edgeplan.runtime.layouts import HOMES
from edgeplan.runtime.linking import can_be_raw
from edgeplan.runtime.lowering import lower
from edgeplan.runtime.weights import locate_weights

START = Start(1.5, Fresh(2, 3, 0.5, 1.25, 0.75, 0.875, hand_over_ms=0.25), Contention(1.5, 1.25, 1.125, 2, 3, 4, 5))


def _check(predicted: dict[str, float], measured: dict[str, float]) -> Check:
    blank = dict.fromkeys(("total", *STAGES), 0.0)
    return Check(blank | predicted, blank | measured)


def test_a_row_says_what_was_put_into_it_and_of_several_the_medians_count() -> None:
    assert start_row(["a", "b"], START).position == 2
    others = [replace(START, start_ms=time_ms) for time_ms in (0.5, 9.0)]
    assert start_of([start_row(["a"], start) for start in (START, *others)]) == start_of([start_row(["a"], START)]) == START
    assert start_of([]) == Start(0.0, Fresh(), Contention())


def test_factors_are_measured_over_profiled_where_nothing_overlaps() -> None:
    stages = {"read": 2.0, "create": 4.0, "transform": 1.0, "execute": 10.0}
    checks = {
        ("alone", "cached_mmap"): _check(stages | {"transform": 0.0}, {"read": 3.0, "create": 2.0, "execute": 8.0}),
        ("alone", "raw"): _check(stages, {"read": 5.0, "create": 9.0, "transform": 1.25, "execute": 99.0}),
        ("wide", "cached_mmap"): _check({"execute": 6.0}, {"execute": 9.0}),
    }
    assert fresh_process_factors._fresh(checks) == Fresh(read=2.5, map=1.5, create=0.5, transform=1.25, execute=0.8, wide=1.5)
    del checks["wide", "cached_mmap"]
    assert fresh_process_factors._fresh(checks).wide == 0.8, "one core executes as wide as it can"


def test_contention_is_beside_over_alone_whatever_was_profiled() -> None:
    alone = {"read": 2.0, "create": 4.0, "execute": 10.0}
    beside, moved = {"read": 3.0, "create": 6.0, "execute": 9.0}, ("read", "create", "transform")
    checks = {
        ("alone", "cached_mmap"): _check(dict.fromkeys(alone, 1.0), alone),
        ("beside", "cached_mmap"): _check(dict.fromkeys(alone, 1.0), beside),
        ("alone", "raw"): _check(dict.fromkeys(moved, 1.0), {"read": 1.0, "create": 2.0, "transform": 2.0}),
        # a little core prepares, which was profiled at twice the time
        ("beside", "raw"): _check(dict.fromkeys(moved, 2.0), {"read": 3.0, "create": 4.0, "transform": 8.0}),
    }
    slowed = {"prepare": 1.5, "execute": 1.0, "read": 1.5, "main": charged(1.6, 1.5)}  # none is less than 1
    slowed |= {"raw_prepare": 1.5, "raw_read": 1.5, "raw_main": charged(1.5, 1.5)}
    assert asdict(fresh_process_factors._contention(checks, Pairs(1.6, 1.5))) == pytest.approx(slowed)


def test_a_start_with_raw_weights_reads_those_that_are_always_cached(dnnl: Dnnl, tmp_path: Path) -> None:
    times, nothing = {"big": 1.0}, {"big": 0.0}
    raw, copied, mapped = (
        Candidate("k", source, times, times, nothing, {1: 1.0, 2: 1.0}) for source in ("raw", "cached_read", "cached_mmap")
    )
    layers = (Layer("one", (), (raw, copied, mapped)), Layer("always", (), (copied, mapped)))
    profile, model = Profile("m", "nhwc", 2, 0, 1.0, layers), save_onnx(tiny(), tmp_path / "tiny.onnx")
    for source, wanted in (("raw", ["raw", "cached_read"]), ("cached_mmap", ["cached_mmap"] * 2)):
        plan = fresh_process_factors.plan_of_least(dnnl, model, profile, source, beside=True)
        assert [SOURCES[number] for number in plan.source] == wanted


def test_two_preparations_get_done_what_was_measured() -> None:
    main = charged(both=1.6, beside_execution=1.25)
    assert 1 / main + 1 / 1.25 == pytest.approx(2 / 1.6)  # of a lone core's work, both together
    assert charged(both=1.0, beside_execution=1.0) == 1.0
    assert charged(both=2.0, beside_execution=1.0) == 20.0  # finite where two get no more done than one


def test_a_model_has_the_medians_over_its_layouts_but_for_creation() -> None:
    profiles = layouts(4, 1)
    factors = (Contention(1, 1, 1, 20), Contention(1.5, 1, 1.2, 2), Contention(1.1, 1.3, 1.1, 3))
    fresh = (Fresh(2, 3, 0.6), Fresh(1, 9, 0.8, hand_over_ms=0.5), Fresh(4, 1, 1.1))
    given = [replace(p, contention=c, fresh=f) for p, c, f in zip(profiles, factors, fresh, strict=True)]
    found = pooled(given)
    assert {p.contention for p in found} == {Contention(1.1, 1, 1.1, 3)}
    assert [p.fresh for p in found] == [Fresh(2, 3, 0.6), Fresh(2, 3, 0.8), Fresh(2, 3, 1.1)]
    assert {p.start_ms for p in found} == {0.25}
    assert [p.layers for p in found] == [p.layers for p in given]


def test_what_one_preparation_failed_at_is_told_rather_than_that_the_other_missed_it() -> None:
    class Failing:
        def __init__(self, *, fails: bool) -> None:
            self.fails = fails

        def prepare(self, together: threading.Barrier) -> float:
            if self.fails:
                raise ValueError("the model file changed")
            together.wait()
            return 1.0

    pair = [(Failing(fails=fails), 0) for fails in (False, True)]
    with pytest.raises(ValueError, match="the model file changed"):
        fresh_process_factors._at_once(*pair)  # type: ignore[arg-type]


def test_nothing_is_offered_from_the_library_s_cache(dnnl: Dnnl, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another model of the process may have filled it, and what it offers for that one is not there in a fresh process."""

    seen: list[int] = []
    plain = subjects.candidates

    def watched(*arguments: Any) -> Any:
        seen.append(dnnl.primitive_cache)
        return plain(*arguments)

    monkeypatch.setattr(subjects, "candidates", watched)
    # whatever was run in this process before
    dnnl.set_primitive_cache(64)
    before, lowered = dnnl.primitive_cache, lower(tiny())
    subject(dnnl, lowered, "nhwc", locate_weights(save_onnx(tiny(), tmp_path / "tiny.onnx"), lowered), 1)
    assert set(seen) == {0}
    assert dnnl.primitive_cache == before == 64, "for whoever runs models in this process"


def test_first_executions_are_charged_to_their_kernels() -> None:
    """A product of one row is other work than one of several."""
    fc = Step("fc", "fc", ("fc",), ("x",), ("y",))
    shapes = {(1, 10): "fc-row", (1, 1, 10): "fc-row", (26, 10): "fc", (26, 1, 10): "fc"}
    assert {shape: work_of(fc, {"y": shape}) for shape in shapes} == shapes
    assert work_of(changed(fc, kind="conv"), {"y": (1, 8, 1, 1)}) == "conv"
    told = {"conv gemm:jit": 20.0, "conv jit": 0.0, "fc gemm:jit": 30.0}
    kernels = [Row(f"once-{name}", name, 0, 0, 0, 0, {"once": (ms,)}, 1.0) for name, ms in told.items()]
    samples = {"create:big": (1.0,), "first:1": (2.0,), "first:2": (1.5,), "warm:1": (1.75,), "warm:2": (1.25,)}
    cases = (("conv", "gemm:jit@nchw+plain", 20.0), ("conv", "jit", 0.0), ("fc", "gemm:jit", 30.0), ("fc-row", "gemm:jit", 0.0))
    for work, name, extra in cases:
        once = once_ms(kernels).get(kernel_of(work, name), 0.0)
        (found,) = candidates_of(Row("s", name, 0, 0, 0, 0, samples, 1.0), Cores((0, 1)), execution_ms=0.25 + once)
        assert found.execute_ms == {1: 2.25 + extra, 2: 1.75 + extra}
        assert found.warm_ms == {1: 1.75, 2: 1.25}  # nothing of what is paid once


def test_first_touches_are_charged_by_size() -> None:
    stages = ("create:big", "read:big", "transform:big", "cached_read:big", "cached_mmap:big", "first:1", "warm:1")
    row = Row("s", "jit", 0, 900, 1000, 0, dict.fromkeys(stages, (1.0,)), 1.0)
    raw, copied, mapped = candidates_of(row, Cores((0, 1)), weights_ms_per_byte=0.001)
    assert (raw.read_ms["big"], raw.transform_ms["big"]) == (1.0, 2.0)
    assert (copied.read_ms["big"], mapped.read_ms["big"]) == (2.0, 1.0)
    assert candidates_of(row, Cores((0, 1)), raw=False, weights_ms_per_byte=0.001) == (copied, mapped)


WITHOUT_WEIGHTS, RAW = {"create"}, {"read", "create", "transform", "cached_read", "cached_mmap"}


def recurrent() -> Graph:
    """A layer whose weights are always cached, one whose are not, and one without any."""
    b = GraphBuilder("recurrent", (6, 1, 24))
    return b.build(b.relu(b.fc(b.flatten(b.lstm(b.input, 16, bidirectional=True)), 10)))


def profiled(dnnl: Dnnl, graph: Graph, home: str, folder: Path) -> Harness:
    """What profiles a model on the first processor, or on it and the next."""
    model = save_onnx(graph, folder / f"{graph.name}.onnx")
    return Harness(ModelToProfile.of(dnnl, model, graph), home, Cores(cores().big), folder)


@pytest.mark.parametrize("home", HOMES)
@pytest.mark.parametrize("built", [tiny, recurrent])
def test_steps_execute_with_their_own_weights(dnnl: Dnnl, built: Callable[[], Graph], home: str, tmp_path: Path) -> None:
    """A stand-in of a cache holds denormal numbers, over which some processors take much longer."""
    graph = built()
    inputs = random_inputs(graph)
    with profiled(dnnl, graph, home, tmp_path) as rig:
        steps = rig.subject.program.steps
        types, pairs = rig.subject.program.types, zip(rig.trials.linked.steps, steps, strict=True)
        assert all((linked.source == "raw") == (can_be_raw(step, types) and bool(linked.slots)) for linked, step in pairs)
        for width in rig.widths:
            (border,) = rig.trials.linked.outputs
            rig.memory[border.offset :] = 0
            times = rig.run(Round(dict.fromkeys(range(len(steps)), 0), width, frozenset(range(len(steps)))), warm_runs=1)
            output = rig.memory[border.offset : border.offset + border.size].view(np.float32).copy().reshape(border.shape)
            model = tmp_path / f"{graph.name}.onnx"
            (expected,) = ort.InferenceSession(str(model), providers=["CPUExecutionProvider"]).run(None, inputs)
            np.testing.assert_allclose(output, expected, atol=1e-4 * np.abs(expected).max())
            for k, step in enumerate(steps):
                stages = {stage.partition(":")[0] for stage, found in times.stages.items() if k in found}
                wanted = {"lstm": RAW - {"read", "transform"}}.get(step.kind, RAW if step.weights else WITHOUT_WEIGHTS)
                assert stages - {"create_again", "transform_again"} == wanted | {"first", "warm"}


def test_a_bench_tells_what_does_not_fit(dnnl: Dnnl, tmp_path: Path) -> None:
    with profiled(dnnl, tiny(), "nhwc", tmp_path) as rig:
        with pytest.raises(InputError, match="no such record"):
            rig.bench.prepare(10_000)
        program = rig.trials.raw
        with (
            Bench(program.content, dnnl.info.path, program.cache) as small,
            pytest.raises(InputError, match="memory of the other bench is too small"),
        ):
            Bench(rig.trials.trying.content, dnnl.info.path, None, small)
