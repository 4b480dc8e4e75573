"""Rounds of profiling execute what a cold start executes."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnxruntime as ort
import pytest
from tiny_profiled import cores, tiny

from edgeplan.engines.base import random_inputs
from edgeplan.errors import InputError
from edgeplan.graph.builder import GraphBuilder
from edgeplan.graph.ir import Graph
from edgeplan.graph.onnx.write import save_onnx
from edgeplan.measurement.process.record_bench import Bench
from edgeplan.profiling.rounds import Harness, ModelToProfile, Round
from edgeplan.profiling.settings import Cores
from edgeplan.runtime.dnnl import Dnnl
from edgeplan.runtime.layouts import HOMES
from edgeplan.runtime.linking import can_be_raw

WITHOUT_WEIGHTS, RAW = {"create"}, {"read", "create", "transform", "cached_read", "cached_mmap"}


def recurrent() -> Graph:
    """A layer whose weights are always cached, one whose are not, and one without any."""
    b = GraphBuilder("recurrent", (6, 1, 24))
    return b.build(b.relu(b.fc(b.flatten(b.lstm(b.input, 16, bidirectional=True)), 10)))


def profiled(dnnl: Dnnl, graph: Graph, home: str, folder: Path) -> Harness:
    """What profiles a model on the first processor, or on it and the next."""
    model = save_onnx(graph, folder / f"{graph.name}.onnx")
    return ModelToProfile.of(dnnl, model, graph).harness(home, Cores(cores().big), folder)


@pytest.mark.parametrize("home", HOMES)
@pytest.mark.parametrize("built", [tiny, recurrent])
def test_steps_execute_with_their_own_weights(dnnl: Dnnl, built: Callable[[], Graph], home: str, tmp_path: Path) -> None:
    """Not with what is fetched from the stand-in of a cache, over whose denormal numbers some processors take much longer."""
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
