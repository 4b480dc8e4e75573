"""Builds families of depthwise separable convolutions: MobileNet 1 to 3, MnasNet, ProxylessNAS, ShuffleNetV2."""

from __future__ import annotations

from collections.abc import Iterable

from edgeplan.graph.builder import GraphBuilder
from edgeplan.graph.ir import Graph
from edgeplan.zoo.family import CLASSES, IMAGE, Choices, add_classifier, add_perceptron, make_divisible

#: Table 1 of its paper: output channels and stride of each separable convolution.
MOBILENETV1_LAYERS = ((64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2), *[(512, 1)] * 5, (1024, 2), (1024, 1))


def mobilenetv1(choices: Choices, name: str, *, width: float = 1.0) -> Graph:
    """Build MobileNetV1 (Howard et al., 2017) with a width multiplier; channels of stem and pointwise convolutions are free."""
    b = GraphBuilder(name, IMAGE)
    x = b.conv_bn(b.input, choices.channels(int(32 * width)), choices.kernel(3), 2)
    for channels, stride in MOBILENETV1_LAYERS:
        x = b.relu(b.bn(b.dwconv(x, choices.kernel(3), stride)))
        x = b.conv_bn(x, choices.channels(int(channels * width)), 1)
    return b.build(add_classifier(b, x))


#: Table 2 of its paper: expansion, output channels, repeats, stride of the first.
MOBILENETV2_STAGES = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1))


def mobilenetv2(choices: Choices, name: str, *, width: float = 1.0) -> Graph:
    """Build MobileNetV2 (Sandler et al., 2018) with a width multiplier; the last convolution keeps 1280 channels or more.

    Free: the stem, each stage's output (tied over its residual sums), each block's expanded channels, the last convolution.
    """
    b = GraphBuilder(name, IMAGE)
    stem = make_divisible(32 * width)
    x = b.conv_bn(b.input, choices.channels(stem), choices.kernel(3), 2, act="relu6")
    stages = [
        (make_divisible(out * width), stride, ((3, factor),) * count) for factor, out, count, stride in MOBILENETV2_STAGES
    ]
    x = _inverted(b, choices, x, stem, stages)
    x = b.conv_bn(x, choices.channels(make_divisible(1280 * max(1.0, width))), 1, act="relu6")
    return b.build(add_classifier(b, x))


#: Blocks of one output width: these channels, stride of the first, kernel and expansion of each.
_Stage = tuple[int, int, tuple[tuple[int, int], ...]]


def _inverted(b: GraphBuilder, choices: Choices, x: str, channels: int, stages: Iterable[_Stage], act: str = "relu6") -> str:
    """Add stages of inverted residuals behind so many channels of the base model."""
    for base_out, first_stride, blocks in stages:
        out = choices.channels(base_out)
        for block, (kernel, expansion) in enumerate(blocks):
            expanded = 0 if expansion == 1 else choices.channels(channels * expansion)
            y = inverted_residual(b, x, expanded, choices.kernel(kernel), out, 1 if block else first_stride, act=act)
            x = b.add(x, y) if block > 0 else y
            channels = base_out
    return x


def inverted_residual(b: GraphBuilder, x: str, expanded: int, kernel: int, out: int, stride: int, *, act: str = "relu6") -> str:
    """Expand (unless `expanded` is 0), filter depthwise, project without activation; the caller adds the shortcut."""
    y = b.conv_bn(x, expanded, 1, act=act) if expanded else x
    y = b.activation(b.bn(b.dwconv(y, kernel, stride)), act)
    return b.conv_bn(y, out, 1, act="")


# Tables 1 and 2 of its paper: kernel, expanded channels, output channels, squeeze-and-excitation, activation, stride.
_V3Block = tuple[int, int, int, bool, str, int]
_V3_LARGE: tuple[_V3Block, ...] = (
    (3, 16, 16, False, "relu", 1), (3, 64, 24, False, "relu", 2), (3, 72, 24, False, "relu", 1), (5, 72, 40, True, "relu", 2),
    (5, 120, 40, True, "relu", 1), (5, 120, 40, True, "relu", 1), (3, 240, 80, False, "hswish", 2),
    (3, 200, 80, False, "hswish", 1), (3, 184, 80, False, "hswish", 1), (3, 184, 80, False, "hswish", 1),
    (3, 480, 112, True, "hswish", 1), (3, 672, 112, True, "hswish", 1), (5, 672, 160, True, "hswish", 2),
    (5, 960, 160, True, "hswish", 1), (5, 960, 160, True, "hswish", 1),
)  # fmt: skip
_V3_SMALL: tuple[_V3Block, ...] = (
    (3, 16, 16, True, "relu", 2), (3, 72, 24, False, "relu", 2), (3, 88, 24, False, "relu", 1), (5, 96, 40, True, "hswish", 2),
    (5, 240, 40, True, "hswish", 1), (5, 240, 40, True, "hswish", 1), (5, 120, 48, True, "hswish", 1),
    (5, 144, 48, True, "hswish", 1), (5, 288, 96, True, "hswish", 2), (5, 576, 96, True, "hswish", 1),
    (5, 576, 96, True, "hswish", 1),
)  # fmt: skip
_V3_SIZES: dict[str, tuple[tuple[_V3Block, ...], int, int]] = {"large": (_V3_LARGE, 960, 1280), "small": (_V3_SMALL, 576, 1024)}
_SQUEEZE = 4


def mobilenetv3(choices: Choices, name: str, *, size: str = "large") -> Graph:
    """Build MobileNetV3, large or small (Howard et al., 2019): squeeze-and-excitation, hard sigmoid and hard swish.

    Free: the stem, block outputs (tied over residual sums), expanded channels, the last convolution and the hidden fully
    connected layer. A squeeze-and-excitation has a quarter of its block's expanded channels, whatever those are.
    """
    blocks, last, hidden = _V3_SIZES[size]
    b = GraphBuilder(name, IMAGE)
    base_in = 16
    x = b.conv_bn(b.input, choices.channels(base_in), choices.kernel(3), 2, act="hswish")
    for kernel, base_expanded, base_out, excite, act, stride in blocks:
        residual = stride == 1 and base_in == base_out
        y = b.conv_bn(x, choices.channels(base_expanded), 1, act=act) if base_expanded != base_in else x
        y = b.activation(b.bn(b.dwconv(y, choices.kernel(kernel), stride)), act)
        if excite:
            y = squeeze_excite(b, y, make_divisible(b.channels(y) // _SQUEEZE))
        y = b.conv_bn(y, b.channels(x) if residual else choices.channels(base_out), 1, act="")
        x = b.add(x, y) if residual else y
        base_in = base_out
    x = b.conv_bn(x, choices.channels(last), 1, act="hswish")
    return b.build(add_perceptron(b, b.gap(x), (choices.channels(hidden), CLASSES), "hswish"))


def squeeze_excite(b: GraphBuilder, x: str, squeezed: int, act: str = "hsigmoid") -> str:
    """Multiply `x` by channel weights that two pointwise convolutions compute from its global average."""
    return b.mul(x, b.conv_act(b.conv_act(b.gap(x), squeezed, 1), b.channels(x), 1, act=act))


# Kernel, stride of the first, expansion, repeats, output channels.
_MNASNET_STAGES = ((3, 2, 3, 3, 24), (5, 2, 3, 3, 40), (5, 2, 6, 3, 80), (3, 1, 6, 2, 96), (5, 2, 6, 4, 192), (3, 1, 6, 1, 320))
_MNASNET_LAST = 1280


def mnasnet(choices: Choices, name: str, *, width: float = 1.0) -> Graph:
    """Build MnasNet-B1 (Tan et al., 2019) in torchvision's form, with a width multiplier; free as in MobileNetV2.

    The last convolution always has 1280 channels.
    """
    b = GraphBuilder(name, IMAGE)
    x = b.conv_bn(b.input, choices.channels(make_divisible(32 * width)), choices.kernel(3), 2)
    base_in = make_divisible(16 * width)
    x = inverted_residual(b, x, 0, choices.kernel(3), choices.channels(base_in), 1, act="relu")
    stages = [
        (make_divisible(out * width), stride, ((kernel, factor),) * count)
        for kernel, stride, factor, count, out in _MNASNET_STAGES
    ]
    x = _inverted(b, choices, x, base_in, stages, "relu")
    x = b.conv_bn(x, choices.channels(_MNASNET_LAST), 1)
    return b.build(add_classifier(b, x))


#: Stem, stages without the blocks that the search left out, and the last convolution.
_PROXYLESS: dict[str, tuple[int, tuple[_Stage, ...], int]] = {
    "mobile": (
        32,
        (
            (16, 1, ((3, 1),)),
            (32, 2, ((5, 3), (3, 3))),
            (40, 2, ((7, 3), (3, 3), (5, 3), (5, 3))),
            (80, 2, ((7, 6), (5, 3), (5, 3), (5, 3))),
            (96, 1, ((5, 6), (5, 3), (5, 3), (5, 3))),
            (192, 2, ((7, 6), (7, 6), (7, 3), (7, 3))),
            (320, 1, ((7, 6),)),
        ),
        1280,
    ),
    "gpu": (
        40,
        (
            (24, 1, ((3, 1),)),
            (32, 2, ((5, 3),)),
            (56, 2, ((7, 3), (3, 3))),
            (112, 2, ((7, 6), (5, 3))),
            (128, 1, ((5, 6), (3, 3), (5, 3))),
            (256, 2, ((7, 6), (7, 6), (7, 6), (5, 6))),
            (432, 1, ((7, 6),)),
        ),
        1728,
    ),
    "cpu": (
        40,
        (
            (24, 1, ((3, 1),)),
            (32, 2, ((3, 6), (3, 3), (3, 3), (3, 3))),
            (48, 2, ((3, 6), (3, 3), (3, 3), (5, 3))),
            (88, 2, ((3, 6), (3, 3))),
            (104, 1, ((5, 6), (3, 3), (3, 3), (3, 3))),
            (216, 2, ((5, 6), (5, 3), (5, 3), (3, 3))),
            (360, 1, ((5, 6),)),
        ),
        1432,
    ),
}


def proxylessnas(choices: Choices, name: str, *, target: str = "mobile") -> Graph:
    """Build the ProxylessNAS network (Cai et al., 2019) found for `mobile`, `gpu` or `cpu`; free as in MobileNetV2."""
    stem, stages, last = _PROXYLESS[target]
    b = GraphBuilder(name, IMAGE)
    x = b.conv_bn(b.input, choices.channels(stem), choices.kernel(3), 2, act="relu6")
    x = _inverted(b, choices, x, stem, stages)
    x = b.conv_bn(x, choices.channels(last), 1, act="relu6")
    return b.build(add_classifier(b, x))


# Table 5 of its paper: channels of one branch (half a stage's output) by stage, and of the last convolution.
_SHUFFLE_WIDTHS: dict[float, tuple[tuple[int, int, int], int]] = {
    0.5: ((24, 48, 96), 1024),
    1.0: ((58, 116, 232), 1024),
    1.5: ((88, 176, 352), 1024),
    2.0: ((122, 244, 488), 2048),
}
_SHUFFLE_REPEATS = (4, 8, 4)
_SHUFFLE_STEM = 24


def shufflenetv2(choices: Choices, name: str, *, width: float = 1.0) -> Graph:
    """Build ShuffleNetV2 0.5x, 1.0x, 1.5x or 2.0x (Ma et al., 2018): channel split and channel shuffle.

    Free: the stem, a stage's branch (both branches of all its units are tied by the shuffle), each unit's inner channels, the
    last convolution.
    """
    branches, last = _SHUFFLE_WIDTHS[width]
    b = GraphBuilder(name, IMAGE)
    x = b.conv_bn(b.input, choices.channels(_SHUFFLE_STEM), choices.kernel(3), 2)
    x = b.maxpool(x, 3, 2, 1)
    for base_branch, repeats in zip(branches, _SHUFFLE_REPEATS, strict=True):
        branch = choices.channels(base_branch)
        for unit in range(repeats):
            if unit == 0:
                shortcut = b.bn(b.dwconv(x, choices.kernel(3), 2))
                shortcut, kept = b.conv_bn(shortcut, branch, 1), x
            else:
                shortcut, kept = b.split(x, (branch, branch))
            y = b.conv_bn(kept, choices.channels(base_branch), 1)
            y = b.bn(b.dwconv(y, choices.kernel(3), 2 if unit == 0 else 1))
            y = b.conv_bn(y, branch, 1)
            x = b.channel_shuffle(b.concat([shortcut, y]), 2)
    x = b.conv_bn(x, choices.channels(last), 1)
    return b.build(add_classifier(b, x))
