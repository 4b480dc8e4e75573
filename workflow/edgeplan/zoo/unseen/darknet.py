"""Builds Darknet's networks: leaky rectifiers behind every convolution."""

from __future__ import annotations

from edgeplan.graph.builder import GraphBuilder
from edgeplan.graph.ir import Graph
from edgeplan.zoo.layers import CLASSES, IMAGE

_DETECTION = (1, 3, 416, 416)
#: Of a maximum over 2 x 2 pixels at stride 1: below and to the right, so that the size stays.
_KEEPS_SIZE = (0, 0, 1, 1)


def darknet19(name: str) -> Graph:
    """Build Darknet-19 (Redmon and Farhadi, 2017), table 6."""
    b = GraphBuilder(name, IMAGE)
    x = b.input
    for channels in (32, 64):
        x = b.maxpool(_conv(b, x, channels), 2, 2)
    for channels, pairs in ((128, 1), (256, 1), (512, 2), (1024, 2)):
        x = _conv(b, x, channels)
        for _ in range(pairs):
            x = _conv(b, _conv(b, x, channels // 2, 1), channels)
        if channels != 1024:  # the last stage
            x = b.maxpool(x, 2, 2)
    return b.build(b.softmax(b.flatten(b.gap(b.conv(x, CLASSES, 1, bias=True)))))


def tiny_yolov2(name: str) -> Graph:
    """Build Tiny YOLOv2 for Pascal VOC (Redmon and Farhadi, 2017; yolov2-tiny-voc.cfg): five anchors, 20 classes."""
    b = GraphBuilder(name, _DETECTION)
    x, _ = _tiny(b)
    return b.build(b.conv(_conv(b, x, 1024), 5 * 25, 1, bias=True))


def yolov3_tiny(name: str) -> Graph:
    """Build YOLOv3-tiny for COCO (Redmon and Farhadi, 2018; yolov3-tiny.cfg): two scales, three anchors, 80 classes."""
    b = GraphBuilder(name, _DETECTION)
    x, middle = _tiny(b)
    x = _conv(b, x, 256, 1)
    coarse = b.conv(_conv(b, x, 512), 3 * 85, 1, bias=True)
    x = b.concat([b.upsample(_conv(b, x, 128, 1)), middle])
    return b.build(coarse, b.conv(_conv(b, x, 256), 3 * 85, 1, bias=True))


def _tiny(b: GraphBuilder) -> tuple[str, str]:
    """Add the trunk that both tiny detectors share; return its output and its map at stride 16."""
    x = middle = b.input
    for channels in (16, 32, 64, 128, 256):
        middle = _conv(b, x, channels)
        x = b.maxpool(middle, 2, 2)
    x = b.maxpool(_conv(b, x, 512), 2, 1, _KEEPS_SIZE)
    return _conv(b, x, 1024), middle


def _conv(b: GraphBuilder, x: str, channels: int, kernel: int = 3) -> str:
    return b.conv_bn(x, channels, kernel, act="leakyrelu")
