"""Lists the models that chapters on planning run, by name, and how they are counted and written.

Networks behind the prior, and those held out, are the very graphs of these lists (`zoo`); all have
published sizes. `workloads.models` is the one list of all models that have names.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from types import MappingProxyType

import numpy as np

from edgeplan.graph.batches import batched
from edgeplan.graph.ir import Graph
from edgeplan.graph.onnx.write import Array, Draw, SeededModel, seeded
from edgeplan.workloads.exported import Exported
from edgeplan.workloads.recurrent import recurrent_language_model
from edgeplan.workloads.transformers import bert, gpt2, vit
from edgeplan.workloads.unrolled import unrolled_language_model
from edgeplan.workloads.yolov3 import yolov3
from edgeplan.zoo import prior_models
from edgeplan.zoo.family import published
from edgeplan.zoo.mnasnet import mnasnet
from edgeplan.zoo.mobilenetv1 import mobilenetv1
from edgeplan.zoo.mobilenetv2 import mobilenetv2
from edgeplan.zoo.resnet import resnet
from edgeplan.zoo.squeezenet import squeezenet
from edgeplan.zoo.unseen.registry import UNSEEN

#: A network of the zoo, or a model as an exporter writes it.
Workload = Graph | Exported


_PRIOR = prior_models()


#: Builders by name. A suffix says what differs from one example of the published size.
WORKLOADS: Mapping[str, Callable[[], Workload]] = MappingProxyType(
    {
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
)


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
