"""Builds families of whole convolutions: AlexNet, VGG, SqueezeNet, GoogLeNet, ResNet, DenseNet."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from edgeplan.graph.builder import GraphBuilder
from edgeplan.graph.ir import Graph
from edgeplan.zoo.family import CLASSES, IMAGE, Choices, add_classifier, add_perceptron, kept_padding


def alexnet(choices: Choices, name: str) -> Graph:
    """Build AlexNet (Krizhevsky, 2014) in torchvision's one-tower form: no local response normalisation, biases everywhere.

    Every convolution and both hidden fully connected layers are free.
    """
    b = GraphBuilder(name, IMAGE)
    kernel = choices.kernel(11)
    x = b.conv_act(b.input, choices.channels(64), kernel, 4, pad=kept_padding(kernel, 11, 2))
    x = b.maxpool(x, 3, 2)
    x = b.conv_act(x, choices.channels(192), choices.kernel(5))
    x = b.maxpool(x, 3, 2)
    for channels in (384, 256, 256):
        x = b.conv_act(x, choices.channels(channels), choices.kernel(3))
    return b.build(add_perceptron(b, b.maxpool(x, 3, 2), [*map(choices.channels, (4096, 4096)), CLASSES]))


_CONVS_PER_STAGE = {11: (1, 1, 2, 2, 2), 13: (2, 2, 2, 2, 2), 16: (2, 2, 3, 3, 3), 19: (2, 2, 4, 4, 4)}
_VGG_WIDTHS = (64, 128, 256, 512, 512)


def vgg(choices: Choices, name: str, *, depth: int = 11) -> Graph:
    """Build VGG of 11, 13, 16 or 19 layers (Simonyan and Zisserman, 2015): no batch normalisation, biases in every layer.

    Every convolution and both hidden fully connected layers are free.
    """
    b = GraphBuilder(name, IMAGE)
    x = b.input
    for width, convs in zip(_VGG_WIDTHS, _CONVS_PER_STAGE[depth], strict=True):
        for _ in range(convs):
            x = b.conv_act(x, choices.channels(width), choices.kernel(3))
        x = b.maxpool(x, 2, 2)
    return b.build(add_perceptron(b, x, [*map(choices.channels, (4096, 4096)), CLASSES]))


# Fire modules as (squeeze, expand) and "pool", after the stem and its pooling.
_FIRES: dict[str, tuple[tuple[int, int] | str, ...]] = {
    "1.0": ((16, 64), (16, 64), (32, 128), "pool", (32, 128), (48, 192), (48, 192), (64, 256), "pool", (64, 256)),
    "1.1": ((16, 64), (16, 64), "pool", (32, 128), (32, 128), "pool", (48, 192), (48, 192), (64, 256), (64, 256)),
}
_STEMS = {"1.0": (96, 7), "1.1": (64, 3)}


def squeezenet(choices: Choices, name: str, *, version: str = "1.0") -> Graph:
    """Build SqueezeNet 1.0 or 1.1 (Iandola et al., 2016): fire modules; no batch normalisation, biases instead.

    Every convolution's channels are free but the classifier's.
    """
    b = GraphBuilder(name, IMAGE)
    stem, base_kernel = _STEMS[version]
    kernel = choices.kernel(base_kernel)
    # The published stem has no padding.
    x = b.conv_act(b.input, choices.channels(stem), kernel, 2, pad=kept_padding(kernel, base_kernel, 0))
    x = b.maxpool(x, 3, 2, ceil=True)
    for fire in _FIRES[version]:
        x = b.maxpool(x, 3, 2, ceil=True) if isinstance(fire, str) else _fire(b, choices, x, *fire)
    x = b.conv_act(x, CLASSES, 1)
    return b.build(b.flatten(b.gap(x)))


def _fire(b: GraphBuilder, choices: Choices, x: str, squeeze: int, expand: int) -> str:
    x = b.conv_act(x, choices.channels(squeeze), 1)
    pointwise = b.conv_act(x, choices.channels(expand), 1)
    spatial = b.conv_act(x, choices.channels(expand), choices.kernel(3))
    return b.concat([pointwise, spatial])


#: Inception modules by stage: 1x1; 3x3 reduction and output; "5x5" reduction and output; pooling projection.
INCEPTION_STAGES = (
    ((64, 96, 128, 16, 32, 32), (128, 128, 192, 32, 96, 64)),
    (
        (192, 96, 208, 16, 48, 64),
        (160, 112, 224, 24, 64, 64),
        (128, 128, 256, 24, 64, 64),
        (112, 144, 288, 32, 64, 64),
        (256, 160, 320, 32, 128, 128),
    ),
    ((256, 160, 320, 32, 128, 128), (384, 192, 384, 48, 128, 128)),
)


def googlenet(choices: Choices, name: str) -> Graph:
    """Build GoogLeNet (Szegedy et al., 2015) in torchvision's form: batch normalisation, 3 x 3 in place of 5 x 5 convolutions.

    It has no auxiliary classifiers; every convolution is free.
    """
    b = GraphBuilder(name, IMAGE)
    x = _normed(b, choices, b.input, 64, 7, 2)
    x = b.maxpool(x, 3, 2, ceil=True)
    x = _normed(b, choices, x, 64, 1)
    x = _normed(b, choices, x, 192, 3)
    x = b.maxpool(x, 3, 2, ceil=True)
    for stage, modules in enumerate(INCEPTION_STAGES):
        if stage > 0:
            x = b.maxpool(x, 3 if stage == 1 else 2, 2, ceil=True)
        for module in modules:
            x = inception(b, x, module, partial(_normed, b, choices), 3)
    return b.build(add_classifier(b, x))


def inception(
    b: GraphBuilder, x: str, module: tuple[int, int, int, int, int, int], layer: Callable[[str, int, int], str], largest: int
) -> str:
    """Add a module of layers (input, channels, kernel), the largest kernels 3 or 5."""
    c1, c3_in, c3, c5_in, c5, pool = module
    pointwise = layer(x, c1, 1)
    three = layer(layer(x, c3_in, 1), c3, 3)
    five = layer(layer(x, c5_in, 1), c5, largest)
    return b.concat([pointwise, three, five, layer(b.maxpool(x, 3, 1, 1), pool, 1)])


def _normed(b: GraphBuilder, choices: Choices, x: str, channels: int, kernel: int, stride: int = 1) -> str:
    return b.conv_bn(x, choices.channels(channels), choices.kernel(kernel), stride)


_RESNET_BLOCKS = {18: (2, 2, 2, 2), 34: (3, 4, 6, 3), 50: (3, 4, 6, 3), 101: (3, 4, 23, 3), 152: (3, 8, 36, 3)}
_RESNET_WIDTHS = (64, 128, 256, 512)
_BOTTLENECK_FROM = 50
_EXPANSION = 4


def resnet(choices: Choices, name: str, *, depth: int = 18, reduction_strides: bool = False) -> Graph:
    """Build ResNet of 18, 34, 50, 101 or 152 layers (He et al., 2016) in torchvision's form.

    The channels of a stage's output are free once, and tied over its residual sums; where the first shortcut of a stage is the
    identity (ResNet-18 and 34, stage 1), they are tied to the stem's too. The inner convolutions of each block are free.
    With `reduction_strides` a bottleneck strides in its first 1 x 1 convolution, as first published, not in its 3 x 3 one.
    """
    bottleneck = depth >= _BOTTLENECK_FROM
    b = GraphBuilder(name, IMAGE)
    stem = choices.channels(_RESNET_WIDTHS[0])
    x = b.conv_bn(b.input, stem, choices.kernel(7), 2)
    x = b.maxpool(x, 3, 2, 1)
    for stage, (width, blocks) in enumerate(zip(_RESNET_WIDTHS, _RESNET_BLOCKS[depth], strict=True)):
        identity_first = stage == 0 and not bottleneck
        out = stem if identity_first else choices.channels(width * _EXPANSION if bottleneck else width)
        for block in range(blocks):
            first = block == 0
            stride = 2 if first and stage > 0 else 1
            if bottleneck:
                y = _reduced(b, choices, x, width, out, (stride, 1) if reduction_strides else (1, stride))
            else:
                y = _basic(b, choices, x, width, out, stride)
            shortcut = b.bn(b.conv(x, out, 1, stride)) if first and not identity_first else x
            x = b.relu(b.add(y, shortcut))
    return b.build(add_classifier(b, x))


def _basic(b: GraphBuilder, choices: Choices, x: str, width: int, out: int, stride: int) -> str:
    y = b.conv_bn(x, choices.channels(width), choices.kernel(3), stride)
    return b.conv_bn(y, out, choices.kernel(3), act="")


def _reduced(b: GraphBuilder, choices: Choices, x: str, width: int, out: int, strides: tuple[int, int]) -> str:
    y = b.conv_bn(x, choices.channels(width), 1, strides[0])
    y = b.conv_bn(y, choices.channels(width), choices.kernel(3), strides[1])
    return b.conv_bn(y, out, 1, act="")


_LAYERS_PER_BLOCK = {121: (6, 12, 24, 16), 169: (6, 12, 32, 32), 201: (6, 12, 48, 32)}
_GROWTH = 32
_DENSE_BOTTLENECK = 4 * _GROWTH


def densenet(choices: Choices, name: str, *, depth: int = 121) -> Graph:
    """Build DenseNet-BC of 121, 169 or 201 layers (Huang et al., 2017).

    A dense layer joins its output to everything before it by a concatenation of two tensors, as Keras exports it. Free: the
    stem, each layer's bottleneck and growth, each transition.
    """
    b = GraphBuilder(name, IMAGE)
    x = b.conv_bn(b.input, choices.channels(2 * _GROWTH), choices.kernel(7), 2)
    x = b.maxpool(x, 3, 2, 1)
    base_channels = 2 * _GROWTH
    blocks = _LAYERS_PER_BLOCK[depth]
    for block, layers in enumerate(blocks):
        for _ in range(layers):
            x = b.concat([x, _dense_layer(b, choices, x)])
        base_channels += layers * _GROWTH
        if block < len(blocks) - 1:
            base_channels //= 2
            x = b.avgpool(b.conv(b.relu(b.bn(x)), choices.channels(base_channels), 1), 2, 2)
    return b.build(add_classifier(b, b.relu(b.bn(x))))


def _dense_layer(b: GraphBuilder, choices: Choices, x: str) -> str:
    y = b.conv_bn(b.relu(b.bn(x)), choices.channels(_DENSE_BOTTLENECK), 1)
    return b.conv(y, choices.channels(_GROWTH), choices.kernel(3))
