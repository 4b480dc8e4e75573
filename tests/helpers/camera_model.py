"""A file that no builder of this package wrote, and predictors of what ONNX Runtime executes of files like it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import onnx
from executed_nodes import CACHE, law, samples
from onnx import TensorProto, helper, numpy_helper

from edgeplan.devices.config import DeviceFile
from edgeplan.engines.registry import engine_class
from edgeplan.graph.fusion_rules import FusionRules
from edgeplan.graph.nodes import NodeConfig
from edgeplan.graph.onnx.prepare import Preparation
from edgeplan.predictors.nodes.learner import learn
from edgeplan.predictors.nodes.predictor import NodePredictor, Relation, Trust
from edgeplan.predictors.nodes.storing import save_predictor
from edgeplan.predictors.settings import TrainingSettings
from edgeplan.predictors.teller import Teller

RULES = FusionRules(pairs={"conv_bn": True, "bn_relu": True, "conv_relu": True})
FIRST, CALL_US = "backbone/block_a/Conv2D", 7.0
__all__ = ["CALL_US", "FIRST", "RULES", "executed", "law", "save_predictors", "trained", "write_model"]


def write_model(path: Path, *, acts: Sequence[str] = ("Relu",), middle: int = 64, last: int = 48, size: int = 28) -> Path:
    """Activations, then two convolutions, fused with what follows; dropout left in by the exporter."""
    rng = np.random.default_rng(5)

    def weights(name: str, *shape: int) -> TensorProto:
        return numpy_helper.from_array(rng.standard_normal(shape).astype(np.float32), name)

    same = {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1], "strides": [1, 1]}
    stem = zip(acts, ["camera:0", *(f"stem {n}" for n in range(len(acts)))], strict=False)
    nodes = [
        *(helper.make_node(act, [read], [f"stem {n}"], name=f"stem act {n}") for n, (act, read) in enumerate(stem)),
        helper.make_node("Conv", [f"stem {len(acts) - 1}", "W.a"], ["t/2"], name=FIRST, **same),
        helper.make_node("BatchNormalization", ["t/2", "gamma", "beta", "mu", "var"], ["t/3"], name="backbone/block_a/norm"),
        helper.make_node("Relu", ["t/3"], ["t/4"]),
        helper.make_node("Conv", ["t/4", "W.b", "b.b"], ["t/5"], **same),
        helper.make_node("Dropout", ["t/5"], ["t/6"]),
        helper.make_node("Relu", ["t/6"], ["scores:0"], name="block_b/act"),
    ]
    initializers = [weights("W.a", middle, 16, 3, 3), weights("W.b", last, middle, 3, 3), weights("b.b", last)]
    initializers += [numpy_helper.from_array(np.ones(middle, np.float32), name) for name in ("gamma", "beta", "mu", "var")]
    body = helper.make_graph(
        nodes,
        "exported elsewhere",
        [helper.make_tensor_value_info("camera:0", TensorProto.FLOAT, [1, 16, size, size])],
        [helper.make_tensor_value_info("scores:0", TensorProto.FLOAT, [1, last, size, size])],
        initializers,
    )
    model = helper.make_model(body, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    onnx.checker.check_model(model, full_check=True)
    onnx.save(model, path)
    return path


def executed(path: Path) -> list[NodeConfig]:
    """What ONNX Runtime executes of a file."""
    device = DeviceFile(format_version=1, name="bench", engine="onnxruntime")
    return [node.config for node in Teller(device, RULES).of_file(path, Preparation()).nodes]


@cache
def trained() -> NodePredictor:
    """Predictors of files like the camera's, whose nodes follow the law of `executed_nodes`; not to be changed."""
    rng = np.random.default_rng(3)
    configs: list[NodeConfig] = []
    with TemporaryDirectory() as folder:
        for _ in range(24):
            middle, last, size = (int(n) for n in rng.integers((16, 16, 7), (129, 129, 57)))
            configs += executed(write_model(Path(folder) / "m.onnx", middle=middle, last=last, size=size))
    kernels = learn(samples(configs, rng=rng), CACHE, TrainingSettings(trials=0))
    version = engine_class("onnxruntime").version()
    return NodePredictor(kernels, Relation(call_us=CALL_US), Trust(), "bench", "onnxruntime", version, "2026-01-01")


def save_predictors(results: Path) -> None:
    """Write them as those of a device, in the folder of its results."""
    save_predictor(trained(), results / "predictors")
    RULES.write(results / "fusion" / "rules.json")
