"""Random models of every operator agree with ONNX Runtime under every home layout, or are refused by name; never wrong."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from random_graphs import DRAWN, Array, drawn

from depth import MANY
from edgeplan.chapters.cold_start.api import read_model
from edgeplan.errors import ModelError
from edgeplan.graph.operators.registry import SPECS
from edgeplan.runtime.dnnl import Dnnl
from edgeplan.runtime.layouts import HOMES
from edgeplan.runtime.program import build_program, step_candidates
from edgeplan.runtime.session import SequentialSession
from edgeplan.runtime.weights import locate_weights

_TOLERANCE = 1e-4
_NUDGE = 1e-6
_TINY = 1e-12  # below it functions that vanish are rounded to zero by one and not by the other
_MOST_REFUSED = 0.1
_LEAST_OPERATORS, _LEAST_VALUES = 50, 5
_GROUP, _OF_GROUP = 5, 5 if MANY else 1


def _outputs(path: Path, given: dict[str, Array]) -> list[Array]:
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    return [
        np.asarray(v) for v in ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"]).run(None, given)
    ]


def wrong(dnnl: Dnnl, path: Path, seed: int) -> str:
    """Where a model's numbers are not ONNX Runtime's, or ""; raises ModelError where it is refused.

    An output may be off by rounding, and by what a nudge of the inputs moves it: some models magnify it.
    """
    rng = np.random.default_rng(seed)
    inputs = onnx.load(path).graph.input
    given = {
        i.name: rng.standard_normal([d.dim_value for d in i.type.tensor_type.shape.dim]).astype(np.float32) for i in inputs
    }
    wanted = _outputs(path, given)
    nudged = _outputs(path, {name: v * np.float32(1 + _NUDGE) + np.float32(_NUDGE) for name, v in given.items()})
    graph, lowered = read_model(path)
    weights = locate_weights(path, lowered)
    dnnl.set_threads(1)
    for home in HOMES:
        choices = [offered[rng.integers(len(offered))] for offered in step_candidates(dnnl, lowered, home)]
        program = build_program(dnnl, lowered, home, choices, weights)
        found = SequentialSession(dnnl, program, path.parent).run({name: given[name] for name in graph.inputs})
        for name, expected, moved in zip(graph.outputs, wanted, nudged, strict=True):
            if found[name].shape != expected.shape:
                return f"{name} is of shape {found[name].shape}, not {expected.shape}, under {home}"
            allowed = _TOLERANCE * np.abs(expected).max(initial=_TINY) + 10 * np.abs(moved - expected).max(initial=0)
            error = np.abs(found[name] - expected).max(initial=0)
            if not error <= allowed:
                return f"{name} is off by {error:.1e} of {np.abs(expected).max():.1e} under {home}: {[c.name for c in choices]}"
    return ""


def _run(dnnl: Dnnl, folder: Path, seeds: range) -> Counter[str]:
    """Run the models of some seeds; what they were made of."""
    counts, refused = Counter[str](), Counter[str]()
    for seed in seeds:
        path = folder / "drawn.onnx"
        onnx.save(drawn(seed, counts), path)
        try:
            assert not (told := wrong(dnnl, path, seed)), f"seed {seed}: {told}"
        except ModelError as error:
            refused[error.what[-90:]] += 1
    assert refused.total() <= _MOST_REFUSED * len(seeds), refused.most_common(9)
    return counts


def test_the_operators_that_are_drawn_are_known() -> None:
    assert set(SPECS) >= set(DRAWN)


@pytest.mark.parametrize("first", range(0, 60, _GROUP))
def test_random_models_agree(dnnl: Dnnl, tmp_path: Path, first: int) -> None:
    _run(dnnl, tmp_path, range(first, first + _OF_GROUP))


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_thousands_of_random_models_agree(dnnl: Dnnl, tmp_path: Path) -> None:
    counts = _run(dnnl, tmp_path, range(100, 5100))
    least = {name: count for name, count in counts.items() if count < (_LEAST_OPERATORS if name in DRAWN else _LEAST_VALUES)}
    assert set(counts) >= set(DRAWN)
    assert not least
