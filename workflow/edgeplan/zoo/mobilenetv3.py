"""Builds MobileNetV3 (Howard et al., 2019): squeeze-and-excitation with hard sigmoid, hard swish."""

from __future__ import annotations

from edgeplan.graph.builder import GraphBuilder
from edgeplan.graph.ir import Graph
from edgeplan.zoo.choices import Choices
from edgeplan.zoo.layers import CLASSES, IMAGE, make_divisible

# Tables 1 and 2 of its paper: kernel, expanded channels, output channels, squeeze-and-excitation, activation, stride.
_Block = tuple[int, int, int, bool, str, int]
_LARGE: tuple[_Block, ...] = (
    (3, 16, 16, False, "relu", 1),
    (3, 64, 24, False, "relu", 2),
    (3, 72, 24, False, "relu", 1),
    (5, 72, 40, True, "relu", 2),
    (5, 120, 40, True, "relu", 1),
    (5, 120, 40, True, "relu", 1),
    (3, 240, 80, False, "hswish", 2),
    (3, 200, 80, False, "hswish", 1),
    (3, 184, 80, False, "hswish", 1),
    (3, 184, 80, False, "hswish", 1),
    (3, 480, 112, True, "hswish", 1),
    (3, 672, 112, True, "hswish", 1),
    (5, 672, 160, True, "hswish", 2),
    (5, 960, 160, True, "hswish", 1),
    (5, 960, 160, True, "hswish", 1),
)
_SMALL: tuple[_Block, ...] = (
    (3, 16, 16, True, "relu", 2),
    (3, 72, 24, False, "relu", 2),
    (3, 88, 24, False, "relu", 1),
    (5, 96, 40, True, "hswish", 2),
    (5, 240, 40, True, "hswish", 1),
    (5, 240, 40, True, "hswish", 1),
    (5, 120, 48, True, "hswish", 1),
    (5, 144, 48, True, "hswish", 1),
    (5, 288, 96, True, "hswish", 2),
    (5, 576, 96, True, "hswish", 1),
    (5, 576, 96, True, "hswish", 1),
)
_SIZES: dict[str, tuple[tuple[_Block, ...], int, int]] = {"large": (_LARGE, 960, 1280), "small": (_SMALL, 576, 1024)}
_SQUEEZE = 4


def mobilenetv3(choices: Choices, name: str, *, size: str = "large") -> Graph:
    """Build MobileNetV3, large or small.

    Free: the stem, block outputs (tied over residual sums), expanded channels, the last convolution and the hidden fully
    connected layer. A squeeze-and-excitation has a quarter of its block's expanded channels, whatever those are.
    """
    blocks, last, hidden = _SIZES[size]
    b = GraphBuilder(name, IMAGE)
    base_in = 16
    x = b.conv_bn(b.input, choices.channels(base_in), choices.kernel(3), 2, act="hswish")
    for kernel, base_expanded, base_out, excite, act, stride in blocks:
        residual = stride == 1 and base_in == base_out
        y = b.conv_bn(x, choices.channels(base_expanded), 1, act=act) if base_expanded != base_in else x
        y = b.activation(b.bn(b.dwconv(y, choices.kernel(kernel), stride)), act)
        if excite:
            y = squeeze_excite(b, y)
        y = b.conv_bn(y, b.channels(x) if residual else choices.channels(base_out), 1, act="")
        x = b.add(x, y) if residual else y
        base_in = base_out
    x = b.conv_bn(x, choices.channels(last), 1, act="hswish")
    x = b.activation(b.fc(b.flatten(b.gap(x)), choices.channels(hidden)), "hswish")
    return b.build(b.fc(x, CLASSES))


def squeeze_excite(b: GraphBuilder, x: str) -> str:
    """Multiply `x` by channel weights that two pointwise convolutions compute from its global average."""
    channels = b.channels(x)
    y = b.relu(b.conv(b.gap(x), make_divisible(channels // _SQUEEZE), 1, bias=True))
    return b.mul(x, b.activation(b.conv(y, channels, 1, bias=True), "hsigmoid"))
