"""Lists the models that chapters on planning run, and all models that have names, and writes them with weights.

Networks behind the prior, and those held out, are the very graphs of these lists (`zoo`); all have published sizes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path

import numpy as np

from edgeplan.graph.builder import GraphBuilder
from edgeplan.graph.ir import Graph
from edgeplan.graph.onnx.write import Array, Draw, SeededModel, seeded
from edgeplan.graph.simplify import batched
from edgeplan.workloads.exported import Exported
from edgeplan.workloads.sequences import bert, gpt2, recurrent_language_model, unrolled_language_model, vit
from edgeplan.zoo import prior_models
from edgeplan.zoo.cold_start_models import COLD_START_MODELS
from edgeplan.zoo.convolutional import resnet, squeezenet
from edgeplan.zoo.family import published
from edgeplan.zoo.separable import mnasnet, mobilenetv1, mobilenetv2
from edgeplan.zoo.unseen import UNSEEN, leaky

#: Residual blocks of Darknet-53's stages (table 1 of the paper).
_DARKNET_53 = (1, 2, 8, 8, 4)
#: Anchors of each scale; coordinates, objectness and 80 classes of each of them.
_ANCHORS, _BOX = 3, 85


def yolov3(name: str = "yolov3", *, image: int = 416, width: int = 32) -> Graph:
    """Build YOLOv3 (Redmon and Farhadi, 2018; the authors' yolov3.cfg): three maps of boxes, at strides 32, 16 and 8.

    Published, at 416 x 416: 65.86 G operations, two a multiply-add (the authors' page on YOLO); 61,949,149
    parameters (the 248,007,048 bytes of the authors' weights less a head of 20 and the running statistics).
    Its image is of `image` x `image`, a multiple of 32; `width` are the channels of the first convolution.
    """
    b = GraphBuilder(name, (1, 3, image, image))
    x = leaky(b, b.input, width)
    maps: list[str] = []
    for stage, count in enumerate(_DARKNET_53):
        channels = width * 2 ** (stage + 1)
        x = b.conv_bn(x, channels, 3, 2, act="leakyrelu")
        for _ in range(count):
            x = b.add(x, leaky(b, leaky(b, x, channels // 2, 1), channels))
        maps.append(x)
    found, channels = list[str](), width * 16
    for beside in (maps[-2], maps[-3], ""):
        for _ in range(2):
            x = leaky(b, leaky(b, x, channels, 1), 2 * channels)
        x = leaky(b, x, channels, 1)
        found.append(b.conv(leaky(b, x, 2 * channels), _ANCHORS * _BOX, 1, bias=True))
        if beside:
            channels //= 2
            x = b.concat([b.upsample(leaky(b, x, channels, 1)), beside])
    return b.build(*found)


#: A network of the zoo, or a model as an exporter writes it.
Workload = Graph | Exported

_PRIOR = prior_models()
#: Of the cold-start chapter's models where a published one of the same name differs.
COLD_START_SUFFIX = "-cold-start"

#: Builders by name. A suffix says what differs from one example of the published size.
WORKLOADS: Mapping[str, Callable[[], Workload]] = {
    **{name: _PRIOR[name] for name in ("resnet18", "resnet34", "resnet50")},
    "resnet152": published(partial(resnet, depth=152), "resnet152"),
    **{name: _PRIOR[name] for name in ("vgg11", "vgg16", "vgg19", "alexnet", "googlenet", "densenet121")},
    "mnasnet": published(mnasnet, "mnasnet"),
    "mobilenetv1": published(mobilenetv1, "mobilenetv1"),
    "mobilenetv2": published(mobilenetv2, "mobilenetv2"),
    "squeezenet": published(partial(squeezenet, version="1.0"), "squeezenet"),
    **{name: partial(UNSEEN[name], name) for name in ("inception_v3", "darknet19", "repvgg_a0")},
    "yolov3": partial(yolov3, "yolov3"),
    "vit_b_16": partial(vit, "vit_b_16"),
    "gpt2": partial(gpt2, "gpt2"),
    "gpt2_tokens64": partial(gpt2, "gpt2_tokens64", tokens=64),
    "bert_base": partial(bert, "bert_base"),
    "bert_base_tokens1": partial(bert, "bert_base_tokens1", tokens=1, vocabulary=32000),
    "bert_base_tokens1_batch16": partial(bert, "bert_base_tokens1_batch16", tokens=1, batch=16, vocabulary=32000),
    "lstm": partial(recurrent_language_model, "lstm", "LSTM"),
    "lstm_batch16": partial(recurrent_language_model, "lstm_batch16", "LSTM", batch=16),
    "gru": partial(recurrent_language_model, "gru", "GRU"),
    "gru_batch16": partial(recurrent_language_model, "gru_batch16", "GRU", batch=16),
    "lstm_unrolled": partial(unrolled_language_model, "lstm_unrolled", "LSTM"),
    "lstm_unrolled_batch16": partial(unrolled_language_model, "lstm_unrolled_batch16", "LSTM", batch=16),
    "gru_unrolled": partial(unrolled_language_model, "gru_unrolled", "GRU"),
    "gru_unrolled_batch16": partial(unrolled_language_model, "gru_unrolled_batch16", "GRU", batch=16),
    "inception_v3_batch16": lambda: batched(UNSEEN["inception_v3"]("inception_v3"), "inception_v3_batch16", 16),
    "mobilenetv1_batch16": lambda: batched(published(mobilenetv1, "mobilenetv1")(), "mobilenetv1_batch16", 16),
}


def save_workload(workload: Workload, path: Path, seed: int = 0) -> Path:
    """Write a model as ONNX with the weights of a seed; very large weights go to `<path>.data` beside it."""
    return seeded_workload(workload, seed).save(path)


def seeded_workload(workload: Workload, seed: int = 0) -> SeededModel:
    """Return the model of a workload with the weights of a seed, which are drawn when it is written."""
    return _damped(workload, seeded(workload, seed)) if isinstance(workload, Graph) else workload.seeded(seed)


def _damped(graph: Graph, model: SeededModel) -> SeededModel:
    """Return a network whose residual branches are scaled down, each by the root of how many there are.

    Each sum doubles the variance otherwise: ResNet-152 would hand out 1e10. The scale is that of the
    batch normalisation behind a branch, which training starts from 0 for the same reason (Goyal et al.,
    2017, section 5.1).
    """
    sums = [op for op in graph.operators if op.op_type == "Add"]
    place = {op.name: index for index, op in enumerate(graph.operators)}
    draws = dict(model.draws)
    for op in sums:
        branch = max(graph.predecessors(op), key=lambda before: place[before.name])
        while branch.op_type != "BatchNormalization":
            (branch,) = graph.predecessors(branch)
        draws[branch.weights[0]] = partial(_shrunk, draws[branch.weights[0]], np.float32(math.sqrt(len(sums))))
    return SeededModel(model.model, draws)


def _shrunk(draw: Draw, root: np.float32) -> Iterator[Array]:
    yield from (chunk / root for chunk in draw())


def named_models() -> Mapping[str, Callable[[], SeededModel]]:
    """Return all models by name, each ready to be written with the weights of seed 0.

    The lists agree where they share a name, but for the cold-start chapter's, which follow another paper's table: those get a
    suffix where they meet a model behind the prior.
    """
    cold = {f"{name}{COLD_START_SUFFIX}" if name in _PRIOR else name: build for name, build in COLD_START_MODELS.items()}
    unseen = {name: partial(build, name) for name, build in UNSEEN.items()}
    graphs: dict[str, Callable[[], Graph]] = {**_PRIOR, **unseen, **cold}
    # the last ones win: a residual network's values stay small in these
    return {
        **{name: lambda build=build: seeded(build()) for name, build in graphs.items()},
        **{name: lambda build=build: seeded_workload(build()) for name, build in WORKLOADS.items()},
    }
