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

from edgeplan.graph.builder import GraphBuilder
from edgeplan.graph.ir import Graph
from edgeplan.zoo.convolutional import INCEPTION_STAGES, inception, resnet, squeezenet
from edgeplan.zoo.family import CLASSES, IMAGE, add_classifier, add_perceptron, published
from edgeplan.zoo.separable import (
    MOBILENETV1_LAYERS,
    MOBILENETV2_STAGES,
    inverted_residual,
    mobilenetv1,
    mobilenetv2,
    shufflenetv2,
)

# 20 classes (Pascal VOC), 4 coordinates and objectness, for each anchor.
_PER_ANCHOR = 25


def mobilenet_yolo(name: str = "mobilenet_yolo", *, size: int = 224) -> Graph:
    """Build MobileNet-YOLO: MobileNetV1, then YOLOv2 heads of five anchors at two scales.

    ncnn's file upsamples by a transposed convolution (4 x 4, stride 2, 1024 to 256 channels in 256 groups, 16,384 weights). A
    grouped 1 x 1 convolution (1,024 weights) and a nearest-neighbour resize stand for it here: 0.14 % fewer parameters.
    Its input is of `size` x `size`, a multiple of 32; ncnn's file says 416, NNV12's Table 4 says 224.
    """
    b = GraphBuilder(name, (1, 3, size, size))
    x = b.conv_bn(b.input, 32, 3, 2)
    for channels, stride in MOBILENETV1_LAYERS:
        x = b.conv_bn(b.relu(b.bn(b.dwconv(x, 3, stride))), channels, 1)
    coarse = b.conv_bn(b.conv_bn(x, 256, 1), 1024, 3)
    x = b.upsample(b.conv(coarse, 256, 1, groups=256))
    fine = b.conv_bn(b.conv_bn(b.conv_bn(x, 1024, 3), 256, 1), 1024, 3)
    return b.build(*(b.conv(x, 5 * _PER_ANCHOR, 1, bias=True) for x in (coarse, fine)))


def mobilenetv2_yolov3(name: str = "mobilenetv2_yolov3", *, size: int = 224) -> Graph:
    """Build MobileNetV2-YOLOv3 ("lite"): depthwise separable heads of three anchors at two scales, joined by a sum.

    The fine scale starts from the expansion at stride 16 of the first block with 160 channels. ncnn's file upsamples by a
    transposed convolution of stride 2 with one weight a channel and a 2 x 2 max pooling, which spreads each (non-negative)
    value over four pixels: a nearest-neighbour resize. Its input is of `size` x `size`, a multiple of 32; ncnn's file says 352,
    NNV12's Table 4 says 224.
    """
    b = GraphBuilder(name, (1, 3, size, size))
    x = b.conv_bn(b.input, 32, 3, 2)
    for expansion, channels, repeats, first_stride in MOBILENETV2_STAGES:
        for block in range(repeats):
            stride = first_stride if block == 0 else 1
            if block == 0 and channels == _FINE_FROM:
                fine = b.conv_bn(x, b.channels(x) * expansion, 1)
                x = inverted_residual(b, fine, 0, 3, channels, stride, act="relu")
                continue
            expanded = 0 if expansion == 1 else b.channels(x) * expansion
            y = inverted_residual(b, x, expanded, 3, channels, stride, act="relu")
            x = b.add(x, y) if block > 0 else y
    coarse = _separable(b, b.conv_bn(x, 1280, 1), 576)
    fine = _separable(b, b.add(b.upsample(coarse), _separable(b, fine, 576)), 576)
    return b.build(*(b.conv(x, 3 * _PER_ANCHOR, 1, bias=True) for x in (coarse, fine)))


# The stage whose first expansion feeds the fine scale.
_FINE_FROM = 160


def _separable(b: GraphBuilder, x: str, channels: int) -> str:
    return b.conv_bn(b.relu(b.bn(b.dwconv(x, 3))), channels, 1)


# Output channels, kernel, padding, whether both convolutions are normalised, pooling behind (kernel, stride, padding).
_POOL_BOTH, _POOL_HEIGHT = ((2, 2), (2, 2), (0, 0)), ((2, 2), (2, 1), (0, 1))
_LAYERS = (
    (128, 3, 1, False, _POOL_BOTH),
    (256, 3, 1, True, None),
    (256, 3, 1, False, _POOL_HEIGHT),
    (512, 3, 1, True, None),
    (512, 3, 1, False, _POOL_HEIGHT),
    (512, 2, 0, True, None),
)
_STEM = 24
_HIDDEN = 256
_HEIGHT = 32
_CHARACTERS = 5530  # with CTC's blank


def crnn_lite(name: str = "crnn_lite", *, width: int = 320) -> Graph:
    """Build CRNN-lite for a line of grey-scale text of 32 x `width` pixels; its output is (width / 4 + 1, 1, 5530) scores.

    The published model takes any multiple of 4; 320 is a line of about ten characters.
    """
    b = GraphBuilder(name, (1, 1, _HEIGHT, width))
    x = b.conv_act(b.input, _STEM, 5, 2)
    for channels, kernel, pad, normalised, pool in _LAYERS:
        x = b.conv(x, b.channels(x), kernel, groups=b.channels(x), pad=pad, bias=True)
        x = b.relu(b.bn(x) if normalised else x)
        x = b.conv(x, channels, 1, bias=True)
        x = b.relu(b.bn(x) if normalised else x)
        x = b.maxpool(x, *pool) if pool else x
    x = b.transpose(b.squeeze(x, (2,)), (2, 0, 1))  # (batch, channels, 1, steps) to (steps, batch, channels)
    x = _bidirectional(b, x, _HIDDEN // 2, _HIDDEN)
    return b.build(_bidirectional(b, x, _HIDDEN // 4, _CHARACTERS))


def _bidirectional(b: GraphBuilder, x: str, hidden: int, out: int) -> str:
    """Add a bidirectional LSTM and a fully connected layer on every step: (steps, batch, features) to (steps, batch, out)."""
    steps, batch, _ = b.shape(x)
    y = b.transpose(b.lstm(x, hidden, bidirectional=True), (0, 2, 1, 3))
    y = b.fc(b.reshape(y, (steps * batch, 2 * hidden)), out)
    return b.reshape(y, (steps, batch, out))


def caffe_alexnet(name: str = "caffe_alexnet") -> Graph:
    """Build AlexNet with its two groups (Krizhevsky et al., 2012) for 227 x 227 as in Caffe; its first layer does not pad."""
    b = GraphBuilder(name, (1, 3, 227, 227))
    x = b.conv_act(b.input, 96, 11, 4, pad=0)
    x = b.maxpool(b.lrn(x), 3, 2)
    x = b.conv_act(x, 256, 5, groups=2)
    x = b.maxpool(b.lrn(x), 3, 2)
    for channels, groups in ((384, 1), (384, 2), (256, 2)):
        x = b.conv_act(x, channels, 3, groups=groups)
    return b.build(b.softmax(add_perceptron(b, b.maxpool(x, 3, 2), (4096, 4096, CLASSES))))


def caffe_googlenet(name: str = "caffe_googlenet") -> Graph:
    """Build GoogLeNet (Szegedy et al., 2015) with its 5 x 5 convolutions, without auxiliary classifiers."""
    b = GraphBuilder(name, IMAGE)
    x = b.conv_act(b.input, 64, 7, 2)
    x = b.lrn(b.maxpool(x, 3, 2, ceil=True))
    x = b.conv_act(b.conv_act(x, 64, 1), 192, 3)
    x = b.maxpool(b.lrn(x), 3, 2, ceil=True)
    for stage, modules in enumerate(INCEPTION_STAGES):
        if stage > 0:
            x = b.maxpool(x, 3, 2, ceil=True)
        for module in modules:
            x = inception(b, x, module, b.conv_act, 5)
    return b.build(b.softmax(add_classifier(b, x)))


# Table 1 of its paper, three groups: channels of the stem and of each stage's output, by width.
_WIDTHS = {0.5: (12, (120, 240, 480)), 1.0: (24, (240, 480, 960)), 1.5: (24, (360, 720, 1440)), 2.0: (48, (480, 960, 1920))}
_REPEATS = (4, 8, 4)
_GROUPS = 3
_BOTTLENECK = 4


def shufflenet(name: str = "shufflenet", *, width: float = 1.0) -> Graph:
    """Build ShuffleNet 0.5x, 1x, 1.5x or 2x with three groups; stem channels are those of its authors' published code."""
    stem, stages = _WIDTHS[width]
    b = GraphBuilder(name, IMAGE)
    x = b.maxpool(b.conv_bn(b.input, stem, 3, 2), 3, 2, 1)
    for stage, (out, repeats) in enumerate(zip(stages, _REPEATS, strict=True)):
        for unit in range(repeats):
            # "We do not apply group convolution on the first pointwise layer" (section 3.2): it has few channels.
            x = _unit(b, x, out, 1 if stage == unit == 0 else _GROUPS, downsamples=unit == 0)
    return b.build(add_classifier(b, x))


def _unit(b: GraphBuilder, x: str, out: int, first_groups: int, *, downsamples: bool) -> str:
    """Add a unit of Figure 2: b where the size stays (residual sum), c where it halves (pooled input concatenated)."""
    produced = out - b.channels(x) if downsamples else out
    y = b.conv_bn(x, out // _BOTTLENECK, 1, groups=first_groups)
    y = b.channel_shuffle(y, _GROUPS)
    y = b.bn(b.dwconv(y, 3, 2 if downsamples else 1))
    y = b.conv_bn(y, produced, 1, groups=_GROUPS, act="")
    return b.relu(b.concat([b.avgpool(x, 3, 2, 1), y]) if downsamples else b.add(x, y))


# Table 1 of its paper: expansion, kernel, output channels, repeats, stride of the first.
_STAGES = (
    (1, 3, 16, 1, 1), (6, 3, 24, 2, 2), (6, 5, 40, 2, 2), (6, 3, 80, 3, 2), (6, 5, 112, 3, 1), (6, 5, 192, 4, 2),
    (6, 3, 320, 1, 1),
)  # fmt: skip
_SQUEEZE = 4


def efficientnet_b0(name: str = "efficientnet_b0") -> Graph:
    """Build EfficientNet-B0; swish is a sigmoid and a product, as exporters write it."""
    b = GraphBuilder(name, IMAGE)
    x = _swish(b, b.conv_bn(b.input, 32, 3, 2, act=""))
    for expansion, kernel, out, repeats, first_stride in _STAGES:
        for block in range(repeats):
            y = _block(b, x, expansion, kernel, out, first_stride if block == 0 else 1)
            x = b.add(x, y) if block > 0 else y
    x = _swish(b, b.conv_bn(x, 1280, 1, act=""))
    return b.build(add_classifier(b, x))


def _block(b: GraphBuilder, x: str, expansion: int, kernel: int, out: int, stride: int) -> str:
    channels = b.channels(x)
    y = _swish(b, b.conv_bn(x, channels * expansion, 1, act="")) if expansion > 1 else x
    y = _swish(b, b.bn(b.dwconv(y, kernel, stride)))
    squeezed = _swish(b, b.conv(b.gap(y), channels // _SQUEEZE, 1, bias=True))  # a quarter of the block's input
    y = b.mul(y, b.conv_act(squeezed, b.channels(y), 1, act="sigmoid"))
    return b.conv_bn(y, out, 1, act="")


def _swish(b: GraphBuilder, x: str) -> str:
    return b.mul(x, b.activation(x, "sigmoid"))


@dataclass(frozen=True, slots=True)
class Table4Row:
    """Holds a row of NNV12's Table 4, as printed: millions of parameters, MB of the file and of cached weights, GFLOPs.

    FLOPs are two for each multiply-add, to judge by the models whose cost is well known.
    """

    paper_name: str
    parameters_m: float
    model_mb: float
    flops_g: float
    storage_mb: float


#: Graph builders by name, in the order of Table 4.
COLD_START_MODELS: Mapping[str, Callable[[], Graph]] = {
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

#: Table 4 of NNV12 by the same names. It is rounded, and not consistent with itself or with the literature everywhere:
#: ResNet18 has 11.7 M published parameters, ShuffleNet's FLOPs are three times those of any width with its parameters, and
#: CRNN-lite's file of 2.6 MB cannot hold its 2.4 M parameters in single precision (nor its 3.1 GFLOPs be those of one line).
TABLE4: Mapping[str, Table4Row] = {
    "alexnet": Table4Row("AlexNet", 61.3, 237.5, 1.4, 172.3),
    "googlenet": Table4Row("GoogLeNet", 7.1, 26.9, 3.2, 22.6),
    "mobilenet": Table4Row("MobileNet", 4.4, 16.2, 1.1, 12.6),
    "mobilenetv2": Table4Row("MobileNetV2", 3.7, 13.3, 0.6, 10.3),
    "resnet18": Table4Row("ResNet18", 12.7, 45.5, 3.9, 34.3),
    "shufflenet": Table4Row("ShuffleNet", 3.6, 12.9, 1.9, 10.0),
    "efficientnet_b0": Table4Row("EfficientNetB0", 5.4, 19.6, 0.8, 15.2),
    "resnet50": Table4Row("ResNet50", 25.7, 97.4, 7.8, 89.7),
    "squeezenet": Table4Row("SqueezeNet", 1.4, 4.7, 1.7, 3.8),
    "shufflenetv2": Table4Row("ShuffleNetV2", 3.4, 12.0, 0.5, 10.9),
    "mobilenetv2_yolov3": Table4Row("MobileNetv2-YOLOv3", 3.6, 13.1, 1.0, 12.5),
    "mobilenet_yolo": Table4Row("MobileNet-YOLO", 11.9, 49.1, 2.9, 38.3),
    "crnn_lite": Table4Row("CRNN-lite", 2.4, 2.6, 3.1, 45.4),
}
