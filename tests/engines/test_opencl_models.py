"""CNNs of the zoo run wholly on an OpenCL device, with the outputs of ONNX Runtime."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path

import onnxruntime as ort
import pytest

from edgeplan.engines.base import EngineSettings, random_inputs
from edgeplan.engines.gpu import opencl
from edgeplan.engines.gpu.session import Opencl
from edgeplan.errors import DeviceError
from edgeplan.graph.ir import Graph
from edgeplan.graph.onnx.read import load_onnx
from edgeplan.graph.onnx.write import save_onnx
from edgeplan.opencl.launch import GpuNumbers
from edgeplan.testing.engines import reference_outputs, require_close
from edgeplan.workloads.registry import save_workload
from edgeplan.workloads.sequences import vit
from edgeplan.zoo.family import Choices
from edgeplan.zoo.registry import FAMILIES

_TOLERANCE = 1e-4


def _narrow(name: str) -> Graph:
    """With a third of its channels: most are then no whole blocks."""
    builder, asked = FAMILIES[name].builder, Choices()
    builder(asked, name)
    return builder(Choices([max(1, c // 3) for c in asked.channel_defaults], asked.kernel_defaults), name)


@pytest.fixture
def engine(request: pytest.FixtureRequest) -> Opencl:
    """An engine whose vectors hold so many values; or as many as its device prefers."""
    try:
        return Opencl(EngineSettings(options={"vector": request.param} if request.param else {}))
    except DeviceError as error:
        pytest.skip(error.what)


@pytest.mark.parametrize(
    ("name", "engine", "kinds"),
    [("squeezenet", "8", {"conv", "pool", "concat"}), ("resnet", "", {"conv", "pool", "fc"})],
    indirect=["engine"],
)
def test_narrow_models(name: str, engine: Opencl, kinds: set[str], tmp_path: Path) -> None:
    graph = _narrow(name)
    with engine.load_profiled(save_onnx(graph, tmp_path / "model.onnx"), graph) as session:
        session.run()
        require_close(session.outputs(), reference_outputs(graph), _TOLERANCE)
        nodes, times = session.profile([(0, 1)])
    assert (times > 0).all()
    assert engine.told(graph) == tuple(replace(node, implementation="") for node in nodes), "told without a run"
    # What is made flat is copied where its channels fill no whole number of blocks (of 8 or 16), else it is a view.
    assert {node.op_type for node in nodes} - {"reshape"} == kinds
    assert not [node for node in nodes if node.implementation.startswith("host.")]


@pytest.mark.parametrize("groups", [True, False], ids=["groups", "items"])
@pytest.mark.parametrize("engine", ["4"], indirect=True)
def test_a_transformer(groups: bool, engine: Opencl, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Heads whose tokens and channels fill no tiles, normalised rows, and a token that the model holds."""
    if groups:  # as GPUs compute
        numbers = opencl.device_numbers
        monkeypatch.setattr(opencl, "device_numbers", lambda *given: GpuNumbers(**asdict(numbers(*given))))
    built = vit("patches", image=72, patch=8, layers=1, width=140, heads=2, hidden=96, classes=10)
    graph = load_onnx(save_workload(built, tmp_path / "model.onnx", 0))
    (wanted,) = ort.InferenceSession(tmp_path / "model.onnx").run(None, random_inputs(graph))
    with engine.load_profiled(tmp_path / "model.onnx", graph) as session:
        session.run()
        require_close(session.outputs(), {"logits": wanted}, _TOLERANCE)
        found = {node.implementation for node in session.profile([(0, 1)])[0]}
    assert not [name for name in found if name.startswith("host.")]
    assert {"concat.move", "layer_norm.rows", "softmax.rows"} <= found
    assert {name for name in found if name.startswith("matmul")} == (
        {"matmul.tiled"} if groups else {"matmul.columns", "matmul.dots"}
    )
