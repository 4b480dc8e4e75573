"""This module builds YOLOv3 on Darknet-53."""

from __future__ import annotations

from edgeplan.graph.builder import GraphBuilder
from edgeplan.graph.ir import Graph

#: Residual blocks of Darknet-53's stages (table 1 of the paper).
DARKNET_53 = (1, 2, 8, 8, 4)
_ANCHORS, _BOX = 3, 5


def yolov3(
    name: str = "yolov3", *, image: int = 416, width: int = 32, blocks: tuple[int, ...] = DARKNET_53, classes: int = 80
) -> Graph:
    """Build YOLOv3 (Redmon and Farhadi, 2018; the authors' yolov3.cfg): three maps of boxes, at strides 32, 16 and 8.

    Published, at 416 x 416: 65.86 G operations, two a multiply-add (the authors' page on YOLO); 61,949,149
    parameters (the 248,007,048 bytes of the authors' weights less a head of 20 and the running statistics).

    Args:
        name: name of the graph.
        image: height and width of the image, a multiple of 32.
        width: channels of the first convolution.
        blocks: residual blocks of each of the five stages.
        classes: classes of objects.
    """
    b = GraphBuilder(name, (1, 3, image, image))
    x = _conv(b, b.input, width)
    maps: list[str] = []
    for stage, count in enumerate(blocks):
        channels = width * 2 ** (stage + 1)
        x = b.conv_bn(x, channels, 3, 2, act="leakyrelu")
        for _ in range(count):
            x = b.add(x, _conv(b, _conv(b, x, channels // 2, 1), channels))
        maps.append(x)
    found, channels = list[str](), width * 16
    for beside in (maps[-2], maps[-3], ""):
        for _ in range(2):
            x = _conv(b, _conv(b, x, channels, 1), 2 * channels)
        x = _conv(b, x, channels, 1)
        found.append(b.conv(_conv(b, x, 2 * channels), _ANCHORS * (_BOX + classes), 1, bias=True))
        if beside:
            channels //= 2
            x = b.concat([b.upsample(_conv(b, x, channels, 1)), beside])
    return b.build(*found)


def _conv(b: GraphBuilder, x: str, channels: int, kernel: int = 3) -> str:
    return b.conv_bn(x, channels, kernel, act="leakyrelu")
