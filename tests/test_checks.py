"""One judge of outputs: right plans of models that magnify rounding pass, wrong ones do not, whatever is checked."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from model_file_runs import made, node, values, write
from quantised_models import deep, images, quantised

from edgeplan import plan_memory
from edgeplan.chapters.cold_start.api import read_model
from edgeplan.engines.onnxruntime.reference import judged
from edgeplan.errors import CheckError, ModelError
from edgeplan.graph.model_file import model_sha256
from edgeplan.graph.onnx.compare import largest_difference
from edgeplan.graph.onnx.prepare import Preparation, prepare_file
from edgeplan.planning.document import Plan
from edgeplan.runs import run
from edgeplan.runtime import candidates
from edgeplan.runtime.candidates import exact_kernels
from edgeplan.runtime.dnnl import Dnnl
from edgeplan.runtime.plan_folder import build_plan_folder
from edgeplan.support.tensors import OUTPUT_TOLERANCE, QUANTISED_TOLERANCE, allowed_error, relative_error

LANE = "numerics"
Plans = Callable[[Path], list[Path]]


@pytest.fixture
def plans(dnnl: Dnnl, planned: Callable[..., Plan], tmp_path: Path) -> Plans:
    """Plans of each kind that checks a model on one processor."""

    def build(path: Path) -> list[Path]:
        graph, _ = read_model(path)
        plan = planned(path, graph, sources=("raw",), threads=1, model_sha256=model_sha256(path))
        return [
            build_plan_folder(dnnl, path, plan, tmp_path / "start"),
            plan_memory(path, tmp_path / "memory", "64MiB", threads=1).folder,
        ]

    return build


def test_a_right_plan_of_a_deep_network_passes_and_one_of_kernels_that_saturate_does_not(
    dnnl: Dnnl, plans: Plans, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = quantised(tmp_path, "qdq", network=deep, per_channel=True)
    given = prepare_file(path, Preparation(), tmp_path / "ready.onnx")
    image = {"x": images(seed=9)[0]}
    for folder in plans(given):
        found = run(folder, image, check=True, model=given)
        assert found.difference is not None
        if dnnl.info.exact_bytes:  # else what is computed is what the reference computes
            assert found.difference > QUANTISED_TOLERANCE, "the network is not deep enough to tell"
            assert "itself without by up to" in found.compared
        found.require_checked()
    if not dnnl.info.exact_bytes:
        return
    monkeypatch.setattr(candidates, "is_exact", lambda kernel, _: kernel not in exact_kernels())
    try:
        wrong = plans(given)
    except ModelError:  # all kernels of this processor are exact
        return
    for folder in wrong:
        with pytest.raises(CheckError, match="more than the 2e-02 of rounding"):
            run(folder, image, check=True, model=given).require_checked()


def test_a_prepared_deep_network_is_the_original(tmp_path: Path) -> None:
    given = quantised(tmp_path, "operators", network=deep)
    made = prepare_file(given, Preparation(), tmp_path / "ready.onnx")
    assert largest_difference(given, made, Preparation()) > QUANTISED_TOLERANCE
    model = onnx.load(made)
    weight = next(
        tensor for tensor in model.graph.initializer if tensor.data_type == onnx.TensorProto.INT8 and len(tensor.dims) == 4
    )
    weight.CopyFrom(onnx.numpy_helper.from_array(-onnx.numpy_helper.to_array(weight), weight.name))
    onnx.save(model, made)
    with pytest.raises(CheckError, match="differs from the original"):
        largest_difference(given, made, Preparation())


def test_outputs_that_cancel_may_be_as_far_as_onnx_runtime_is_from_itself(plans: Plans, tmp_path: Path) -> None:
    """What is left of a sum and its parts is rounding."""
    whole = values(16, 16, 3, 3)
    nodes = [node("Conv", "x w", "c", pads=[1] * 4), node("Split", "x", "a b", axis=1)]
    nodes += [node("Conv", f"{part} w{part}", f"c{part}", pads=[1] * 4) for part in "ab"]
    nodes += [node("Add", "ca cb", "s"), node("Sub", "c s")]
    weights = {"w": whole, "wa": whole[:, :8], "wb": whole[:, 8:]}
    path = write(made(nodes, {"x": (1, 16, 9, 9)}, weights), tmp_path / "net.onnx")
    inputs = {"x": values(1, 16, 9, 9, seed=4)}
    for folder in plans(path):
        found = run(folder, inputs, check=True, model=path)
        assert found.difference is not None
        assert found.difference > OUTPUT_TOLERANCE
        found.require_checked()
        (verdict,) = judged(path, inputs, [{"y": found.outputs["y"] + np.float32(1e-4)}])
        assert verdict.difference > verdict.tolerance


@pytest.mark.parametrize(
    ("change", "right"),
    [
        (lambda v, rng: v + 0.04 * rng.standard_normal(v.size), True),
        (lambda v, rng: v + 0.09 * rng.standard_normal(v.size), False),
        (lambda v, _: v + 0.11, False),  # no value is too far, but all are
        (lambda v, _: np.where(np.arange(v.size) == 5, v + 1, v), False),
        (lambda v, _: np.where(np.arange(v.size) == 5, np.nan, v), False),
        (lambda v, _: v[:-1], False),
    ],
)
def test_outputs_may_be_twice_as_far_as_right_ones_are_from_each_other(change: Callable[..., Any], right: bool) -> None:
    rng = np.random.default_rng(0)
    expected = [rng.standard_normal(1000)]
    own = [(expected, [expected[0] + 0.04 * rng.standard_normal(1000)])]
    found = [change(expected[0], np.random.default_rng(1))]
    allowed = allowed_error(found, expected, own, OUTPUT_TOLERANCE)
    assert (relative_error(found, expected) <= allowed) is right
    assert (allowed > OUTPUT_TOLERANCE) is right
    assert allowed_error([*found, *expected], [*expected, *expected], [([*a, *a], [*b, *a]) for a, b in own], 1e-4) == allowed


@pytest.mark.parametrize("dtype", ["uint8", "int8", "uint16", "bool"])
def test_differences_of_whole_numbers_do_not_wrap_around(dtype: str) -> None:
    one, other = np.array([1, 0], dtype), np.array([0, 1], dtype)
    assert relative_error([one], [other]) == relative_error([other], [one]) == 1
