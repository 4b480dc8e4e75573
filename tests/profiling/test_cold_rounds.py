"""Rounds of profiling execute what a cold start executes."""

from pathlib import Path

import numpy as np
import onnxruntime as ort
import pytest
from tiny_profiled import cores, tiny

from edgeplan.engines.base import random_inputs
from edgeplan.graph.onnx.write import save_onnx
from edgeplan.profiling.rounds import Harness, Round
from edgeplan.profiling.subjects import subject
from edgeplan.runtime.dnnl import Dnnl
from edgeplan.runtime.layouts import HOMES
from edgeplan.runtime.lowering import lower
from edgeplan.runtime.weights import locate_weights


@pytest.mark.parametrize("home", HOMES)
def test_steps_execute_with_their_own_weights(dnnl: Dnnl, home: str, tmp_path: Path) -> None:
    """Not with what is fetched from the stand-in of a cache, over whose denormal numbers some processors take much longer."""
    model = save_onnx(tiny(), tmp_path / "tiny.onnx")
    lowered, inputs = lower(tiny()), random_inputs(tiny())
    found = subject(dnnl, lowered, home, locate_weights(model, lowered), len(cores().big))
    big = cores().big
    with Harness(dnnl, found, model, inputs, classes={"big": big[0]}, big=big, scratch=tmp_path) as rig:
        (border,) = rig.trials.linked.program.outputs
        rig.memory.data[border.offset :] = 0
        rig.run(Round(dict.fromkeys(range(len(lowered.steps)), 0), 1, frozenset()), warm_runs=1)
        size = 4 * int(np.prod(border.shape))
        output = rig.memory.data[border.offset : border.offset + size].view(np.float32).copy().reshape(border.shape)
    (expected,) = ort.InferenceSession(str(model), providers=["CPUExecutionProvider"]).run(None, inputs)
    np.testing.assert_allclose(output, expected, atol=1e-4 * np.abs(expected).max())
