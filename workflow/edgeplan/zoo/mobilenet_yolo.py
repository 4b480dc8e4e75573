"""Builds two detectors of the MobileNet-YOLO family (github.com/eric612/MobileNet-YOLO), as ncnn's benchmark has them.

The layers are those of ncnn's `mobilenet_yolo.param` and `mobilenetv2_yolov3.param`, checked against their weight counts. Both
detect at strides 32 and 16; the box decoding behind the last convolutions is no part of the graph.
"""

from __future__ import annotations

from edgeplan.graph.builder import GraphBuilder
from edgeplan.graph.ir import Graph
from edgeplan.zoo.mobilenetv1 import LAYERS
from edgeplan.zoo.mobilenetv2 import STAGES, inverted_residual

# 20 classes (Pascal VOC), 4 coordinates and objectness, for each anchor.
_PER_ANCHOR = 25


def mobilenet_yolo(name: str = "mobilenet_yolo", *, size: int = 224) -> Graph:
    """Build MobileNet-YOLO: MobileNetV1, then YOLOv2 heads of five anchors at two scales.

    ncnn's file upsamples by a transposed convolution (4 x 4, stride 2, 1024 to 256 channels in 256 groups, 16,384 weights). A
    grouped 1 x 1 convolution (1,024 weights) and a nearest-neighbour resize stand for it here: 0.14 % fewer parameters.

    Args:
        name: name of the graph.
        size: height and width of the input, a multiple of 32; ncnn's file says 416, NNV12's Table 4 says 224.
    """
    b = GraphBuilder(name, (1, 3, size, size))
    x = b.conv_bn(b.input, 32, 3, 2)
    for channels, stride in LAYERS:
        x = b.conv_bn(b.relu(b.bn(b.dwconv(x, 3, stride))), channels, 1)
    coarse = b.conv_bn(b.conv_bn(x, 256, 1), 1024, 3)
    x = b.upsample(b.conv(coarse, 256, 1, groups=256))
    fine = b.conv_bn(b.conv_bn(b.conv_bn(x, 1024, 3), 256, 1), 1024, 3)
    return b.build(*(b.conv(x, 5 * _PER_ANCHOR, 1, bias=True) for x in (coarse, fine)))


def mobilenetv2_yolov3(name: str = "mobilenetv2_yolov3", *, size: int = 224) -> Graph:
    """Build MobileNetV2-YOLOv3 ("lite"): depthwise separable heads of three anchors at two scales, joined by a sum.

    The fine scale starts from the expansion at stride 16 of the first block with 160 channels. ncnn's file upsamples by a
    transposed convolution of stride 2 with one weight a channel and a 2 x 2 max pooling, which spreads each (non-negative)
    value over four pixels: a nearest-neighbour resize.

    Args:
        name: name of the graph.
        size: height and width of the input, a multiple of 32; ncnn's file says 352, NNV12's Table 4 says 224.
    """
    b = GraphBuilder(name, (1, 3, size, size))
    x = b.conv_bn(b.input, 32, 3, 2)
    for expansion, channels, repeats, first_stride in STAGES:
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
