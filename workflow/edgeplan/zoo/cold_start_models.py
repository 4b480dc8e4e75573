"""Lists the models of NNV12's Table 4, on which cold starts are planned and measured, beside the paper's figures.

The paper takes them "mainly from the official model zoo of those libraries", ncnn's above all, so where several published
versions of a model differ the one nearest to Table 4 is built: Caffe's AlexNet and GoogLeNet, ResNet-50 with strides in its
first 1 x 1 convolutions, SqueezeNet 1.0, ShuffleNet 1.5x with three groups, ShuffleNetV2 1.5x. They are apart from `FAMILIES`,
the models that nn-Meter's chapter evaluates, and no part of its prior.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType

from edgeplan.graph.ir import Graph
from edgeplan.zoo.caffe import caffe_alexnet, caffe_googlenet
from edgeplan.zoo.crnn import crnn_lite
from edgeplan.zoo.efficientnet import efficientnet_b0
from edgeplan.zoo.family import published
from edgeplan.zoo.mobilenet_yolo import mobilenet_yolo, mobilenetv2_yolov3
from edgeplan.zoo.mobilenetv1 import mobilenetv1
from edgeplan.zoo.mobilenetv2 import mobilenetv2
from edgeplan.zoo.resnet import resnet
from edgeplan.zoo.shufflenet import shufflenet
from edgeplan.zoo.shufflenetv2 import shufflenetv2
from edgeplan.zoo.squeezenet import squeezenet


@dataclass(frozen=True, slots=True)
class Table4Row:
    """Holds a row of NNV12's Table 4, as printed.

    Attributes:
        paper_name: the model's name there.
        task: classification, object detection or character recognition.
        parameters_m: parameters in millions.
        model_mb: size of the model file in MB.
        flops_g: FLOPs in 10^9; two for each multiply-add, to judge by the models whose cost is well known.
        storage_mb: storage overhead (the cached weights) in MB.
    """

    paper_name: str
    task: str
    parameters_m: float
    model_mb: float
    flops_g: float
    storage_mb: float


#: Graph builders by name, in the order of Table 4.
COLD_START_MODELS: Mapping[str, Callable[[], Graph]] = MappingProxyType(
    {
        "alexnet": partial(caffe_alexnet, "alexnet"),
        "googlenet": partial(caffe_googlenet, "googlenet"),
        "mobilenet": published(mobilenetv1, "mobilenet"),
        "mobilenetv2": published(mobilenetv2, "mobilenetv2"),
        "resnet18": published(partial(resnet, depth=18), "resnet18"),
        "shufflenet": partial(shufflenet, "shufflenet", width=1.5),
        "efficientnet_b0": partial(efficientnet_b0, "efficientnet_b0"),
        "resnet50": published(partial(resnet, depth=50, reduction_strides=True), "resnet50"),
        "squeezenet": published(partial(squeezenet, version="1.0"), "squeezenet"),
        "shufflenetv2": published(partial(shufflenetv2, width=1.5), "shufflenetv2"),
        "mobilenetv2_yolov3": partial(mobilenetv2_yolov3, "mobilenetv2_yolov3"),
        "mobilenet_yolo": partial(mobilenet_yolo, "mobilenet_yolo"),
        "crnn_lite": partial(crnn_lite, "crnn_lite"),
    }
)

_C, _OD, _OCR = "classification", "object detection", "character recognition"

#: Table 4 of NNV12 by the same names. It is rounded, and not consistent with itself or with the literature everywhere:
#: ResNet18 has 11.7 M published parameters, ShuffleNet's FLOPs are three times those of any width with its parameters, and
#: CRNN-lite's file of 2.6 MB cannot hold its 2.4 M parameters in single precision (nor its 3.1 GFLOPs be those of one line).
TABLE4: Mapping[str, Table4Row] = MappingProxyType(
    {
        "alexnet": Table4Row("AlexNet", _C, 61.3, 237.5, 1.4, 172.3),
        "googlenet": Table4Row("GoogLeNet", _C, 7.1, 26.9, 3.2, 22.6),
        "mobilenet": Table4Row("MobileNet", _C, 4.4, 16.2, 1.1, 12.6),
        "mobilenetv2": Table4Row("MobileNetV2", _C, 3.7, 13.3, 0.6, 10.3),
        "resnet18": Table4Row("ResNet18", _C, 12.7, 45.5, 3.9, 34.3),
        "shufflenet": Table4Row("ShuffleNet", _C, 3.6, 12.9, 1.9, 10.0),
        "efficientnet_b0": Table4Row("EfficientNetB0", _C, 5.4, 19.6, 0.8, 15.2),
        "resnet50": Table4Row("ResNet50", _C, 25.7, 97.4, 7.8, 89.7),
        "squeezenet": Table4Row("SqueezeNet", _C, 1.4, 4.7, 1.7, 3.8),
        "shufflenetv2": Table4Row("ShuffleNetV2", _C, 3.4, 12.0, 0.5, 10.9),
        "mobilenetv2_yolov3": Table4Row("MobileNetv2-YOLOv3", _OD, 3.6, 13.1, 1.0, 12.5),
        "mobilenet_yolo": Table4Row("MobileNet-YOLO", _OD, 11.9, 49.1, 2.9, 38.3),
        "crnn_lite": Table4Row("CRNN-lite", _OCR, 2.4, 2.6, 3.1, 45.4),
    }
)
