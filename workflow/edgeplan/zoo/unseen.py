"""Builds published architectures outside the zoo's families: the held-out test of a device's predictors.

They are held out: no family, prior, carrier or calibrating model is drawn from them, no predictor is trained on them, and
nothing may be tuned on how well they are predicted. The list was fixed before the first prediction of any of them; one that is
added later has to be told apart from these.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from edgeplan.graph.builder import GraphBuilder, Size
from edgeplan.graph.ir import Graph
from edgeplan.zoo.family import CLASSES, IMAGE, add_classifier, add_perceptron, make_divisible
from edgeplan.zoo.separable import squeeze_excite


def zfnet(name: str) -> Graph:
    """Build ZFNet (Zeiler and Fergus, 2014), figure 3: 7 x 7 and 5 x 5 convolutions of stride 2, contrast normalisation."""
    b = GraphBuilder(name, (1, 3, 225, 225))
    x = b.conv_act(b.input, 96, 7, 2, pad=1)
    x = b.lrn(b.maxpool(x, 3, 2, 1))
    x = b.conv_act(x, 256, 5, 2, pad=0)
    x = b.lrn(b.maxpool(x, 3, 2, 1))
    for channels in (384, 384, 256):
        x = b.conv_act(x, channels, 3, 1, pad=1)
    return b.build(b.softmax(add_perceptron(b, b.maxpool(x, 3, 2), (4096, 4096, CLASSES))))


def overfeat_fast(name: str) -> Graph:
    """Build OverFeat's fast model (Sermanet et al., 2014), table 1: 3072 features of a flattened map of 6 x 6 x 1024."""
    b = GraphBuilder(name, (1, 3, 231, 231))
    x = b.maxpool(b.conv_act(b.input, 96, 11, 4, pad=0), 2, 2)
    x = b.maxpool(b.conv_act(x, 256, 5, 1, pad=0), 2, 2)
    for channels in (512, 1024, 1024):
        x = b.conv_act(x, channels, 3, 1, pad=1)
    return b.build(b.softmax(add_perceptron(b, b.maxpool(x, 2, 2), (3072, 4096, CLASSES))))


def eigen_depth(name: str) -> Graph:
    """Build the depth estimator of Eigen et al. (2014), figure 1: a coarse map by full connections, refined by convolutions."""
    b = GraphBuilder(name, (1, 3, 228, 304))
    x = b.maxpool(b.conv_act(b.input, 96, 11, 4, pad=0), 2, 2)
    x = b.maxpool(b.conv_act(x, 256, 5, 1, pad=2), 2, 2)
    for channels in (384, 384):
        x = b.conv_act(x, channels, 3, 1, pad=1)
    x = b.maxpool(b.conv_act(x, 256, 3, 1, pad=0), 2, 2, ceil=True)
    coarse = add_perceptron(b, x, (4096, 55 * 74))
    fine = b.maxpool(b.conv_act(b.input, 63, 9, 2, pad=0), 2, 2)
    x = b.conv_act(b.concat([fine, b.reshape(coarse, (1, 1, 55, 74))]), 64, 5, 1, pad=2)
    return b.build(b.conv(x, 1, 5, bias=True))


_GROWTH_FACTOR = 1.6
#: HarDNet-39DS: growth, layers, channels behind the block, whether the map is halved.
_HARD_STAGES = ((16, 4, 96, True), (20, 16, 320, True), (64, 8, 640, True), (160, 4, 1024, False))


def hardnet39ds(name: str) -> Graph:
    """Build HarDNet-39DS (Chao et al., 2019) in its authors' form: separable convolutions, harmonically joined."""
    b = GraphBuilder(name, IMAGE)
    x = b.conv_bn(b.conv_bn(b.input, 24, 3, 2, act="relu6"), 48, 1, act="relu6")
    x = b.bn(b.dwconv(x, 3, 2))
    for growth, layers, channels, halved in _HARD_STAGES:
        x = b.conv_bn(_hard_block(b, x, growth, layers), channels, 1, act="relu6")
        x = b.bn(b.dwconv(x, 3, 2)) if halved else x
    return b.build(add_classifier(b, x))


def _hard_block(b: GraphBuilder, x: str, growth: int, layers: int) -> str:
    made = [x]
    for layer in range(1, layers + 1):
        reached = [layer - 2**power for power in range(layers.bit_length()) if layer % 2**power == 0]
        width = growth * _GROWTH_FACTOR ** (len(reached) - 1)
        joined = [made[number] for number in reached]
        y = b.concat(joined) if len(joined) > 1 else joined[0]
        y = b.conv_bn(y, int(int(width + 1) / 2) * 2, 1, act="relu6")
        made.append(b.bn(b.dwconv(y, 3)))
    return b.concat([y for number, y in enumerate(made) if number % 2 or number == layers])


def peleenet(name: str) -> Graph:
    """Build PeleeNet (Wang et al., 2018), table 1: dense layers of two ways, a stem of two branches."""
    b = GraphBuilder(name, IMAGE)
    x = b.conv_bn(b.input, 32, 3, 2)
    x = b.concat([b.conv_bn(b.conv_bn(x, 16, 1), 32, 3, 2), b.maxpool(x, 2, 2)])
    x = b.conv_bn(x, 32, 1)
    for stage, (layers, width) in enumerate(((3, 1), (4, 2), (8, 4), (6, 4))):
        if stage:
            x = b.avgpool(x, 2, 2)
        for _ in range(layers):
            inner = 16 * width
            if inner > b.channels(x) // 2:
                inner = b.channels(x) // 8 * 4
            short = b.conv_bn(b.conv_bn(x, inner, 1), 16, 3)
            long = b.conv_bn(b.conv_bn(b.conv_bn(x, inner, 1), 16, 3), 16, 3)
            x = b.concat([x, short, long])
        x = b.conv_bn(x, b.channels(x), 1)
    return b.build(add_classifier(b, x))


_CIFAR = (1, 3, 32, 32)
_CIFAR_CLASSES = 10


def nin_cifar10(name: str) -> Graph:
    """Build Network in Network (Lin et al., 2014), as its authors' model for CIFAR-10: 5 x 5 convolutions and perceptrons."""
    b = GraphBuilder(name, _CIFAR)
    x = _stack(b, b.input, 5, (192, 160, 96))
    x = _stack(b, b.maxpool(x, 3, 2, ceil=True), 5, (192, 192, 192))
    x = _stack(b, b.avgpool(x, 3, 2, ceil=True), 3, (192, 192, _CIFAR_CLASSES))
    return b.build(b.softmax(b.flatten(b.gap(x))))


def _stack(b: GraphBuilder, x: str, kernel: int, channels: tuple[int, ...]) -> str:
    for place, out in enumerate(channels):
        x = b.conv_act(x, out, kernel if place == 0 else 1)
    return x


def all_cnn_c(name: str) -> Graph:
    """Build All-CNN-C (Springenberg et al., 2015), table 2: strided convolutions in place of pooling."""
    b = GraphBuilder(name, _CIFAR)
    x = b.input
    for channels, stride in ((96, 1), (96, 1), (96, 2), (192, 1), (192, 1), (192, 2)):
        x = b.conv_act(x, channels, 3, stride)
    x = b.conv_act(x, 192, 3, pad=0)
    for channels in (192, _CIFAR_CLASSES):
        x = b.conv_act(x, channels, 1)
    return b.build(b.softmax(b.flatten(b.gap(x))))


def wrn_40_4(name: str) -> Graph:
    """Build WRN-40-4 (Zagoruyko and Komodakis, 2016): six blocks a stage, four times as wide, activated before convolutions."""
    b = GraphBuilder(name, _CIFAR)
    x = b.conv(b.input, 16, 3)
    for channels, first_stride in ((64, 1), (128, 2), (256, 2)):
        for stride in (first_stride, 1, 1, 1, 1, 1):
            active = b.relu(b.bn(x))
            y = b.conv(b.relu(b.bn(b.conv(active, channels, 3, stride))), channels, 3)
            x = b.add(y, x if b.channels(x) == channels else b.conv(active, channels, 1, stride))
    return b.build(b.fc(b.flatten(b.gap(b.relu(b.bn(x)))), _CIFAR_CLASSES))


_RESNET_STAGES = ((64, 3), (128, 4), (256, 6), (512, 3))


def resnext50(name: str) -> Graph:
    """Build ResNeXt-50 32x4d (Xie et al., 2017), table 1: bottlenecks twice as wide, in 32 groups."""

    def block(b: GraphBuilder, x: str, width: int, stride: int) -> str:
        y = b.conv_bn(b.conv_bn(x, 2 * width, 1), 2 * width, 3, stride, groups=32)
        return b.conv_bn(y, 4 * width, 1, act="")

    return _resnet50(name, block)


def se_resnet50(name: str) -> Graph:
    """Build SE-ResNet-50 (Hu et al., 2018), table 1, with ResNet-50's strides in the first 1 x 1 convolution of a stage."""

    def block(b: GraphBuilder, x: str, width: int, stride: int) -> str:
        y = b.conv_bn(b.conv_bn(b.conv_bn(x, width, 1, stride), width, 3), 4 * width, 1, act="")
        return squeeze_excite(b, y, width // 4, "sigmoid")

    return _resnet50(name, block)


def _resnet50(name: str, block: Callable[[GraphBuilder, str, int, int], str]) -> Graph:
    b = GraphBuilder(name, IMAGE)
    x = b.maxpool(b.conv_bn(b.input, 64, 7, 2), 3, 2, 1)
    for stage, (width, blocks) in enumerate(_RESNET_STAGES):
        for number in range(blocks):
            stride = 2 if number == 0 and stage > 0 else 1
            y = block(b, x, width, stride)
            if b.channels(x) != b.channels(y):
                x = b.conv_bn(x, b.channels(y), 1, stride, act="")
            x = b.relu(b.add(y, x))
    return b.build(add_classifier(b, x))


def lenet5(name: str) -> Graph:
    """Build LeNet-5 (LeCun et al., 1998) as in Caffe and in Han et al., 2015: maximum pooling, full connections, one ReLU."""
    b = GraphBuilder(name, (1, 1, 28, 28))
    x = b.maxpool(b.conv(b.input, 20, 5, pad=0, bias=True), 2, 2)
    x = b.maxpool(b.conv(x, 50, 5, pad=0, bias=True), 2, 2)
    return b.build(b.softmax(add_perceptron(b, x, (500, 10))))


def ciresan_mlp(name: str) -> Graph:
    """Build the largest perceptron of "Deep, Big, Simple Neural Nets" (Ciresan et al., 2010): 29 x 29 pixels, tanh."""
    b = GraphBuilder(name, (1, 1, 29, 29))
    return b.build(b.softmax(add_perceptron(b, b.input, (2500, 2000, 1500, 1000, 500, 10), "tanh")))


def keyword_cnn(name: str) -> Graph:
    """Build cnn-trad-fpool3 (Sainath and Parada, 2015): windows of 20 x 8 over 32 frames of 40 log-mel features."""
    b = GraphBuilder(name, (1, 1, 32, 40))
    x = b.maxpool(b.conv_act(b.input, 64, (20, 8), pad=0), (1, 3), (1, 3))
    x = b.conv_act(x, 64, (10, 4), pad=0)
    x = b.relu(b.fc(b.fc(b.flatten(x), 32), 128))
    return b.build(b.softmax(b.fc(x, 4)))


def pilotnet(name: str) -> Graph:
    """Build PilotNet (Bojarski et al., 2016): 5 x 5 convolutions of few channels on a wide image, one steering angle."""
    b = GraphBuilder(name, (1, 3, 66, 200))
    x = b.input
    for channels, kernel, stride in ((24, 5, 2), (36, 5, 2), (48, 5, 2), (64, 3, 1), (64, 3, 1)):
        x = b.conv_act(x, channels, kernel, stride, pad=0)
    return b.build(add_perceptron(b, x, (100, 50, 10, 1)))


def srcnn(name: str) -> Graph:
    """Build SRCNN 9-5-5 (Dong et al., 2016), on the luminance of an image already enlarged to 256 x 256."""
    b = GraphBuilder(name, (1, 1, 256, 256))
    x = b.conv_act(b.input, 64, 9)
    x = b.conv_act(x, 32, 5)
    return b.build(b.conv(x, 1, 5, bias=True))


def espcn(name: str) -> Graph:
    """Build ESPCN (Shi et al., 2016), 360 x 640 to 1080 x 1920: tanh, and the last map's channels shuffled into pixels."""
    factor, height, width = 3, 360, 640
    b = GraphBuilder(name, (1, 1, height, width))
    x = b.conv_act(b.input, 64, 5, act="tanh")
    x = b.conv_act(x, 32, 3, act="tanh")
    x = b.conv(x, factor**2, 3, bias=True)
    x = b.transpose(b.reshape(x, (1, 1, factor, factor, height, width)), (0, 1, 4, 2, 5, 3))
    return b.build(b.reshape(x, (1, 1, factor * height, factor * width)))


_DETECTION = (1, 3, 416, 416)
#: Of a maximum over 2 x 2 pixels at stride 1: below and to the right, so that the size stays.
_KEEPS_SIZE = (0, 0, 1, 1)


def darknet19(name: str) -> Graph:
    """Build Darknet-19 (Redmon and Farhadi, 2017), table 6."""
    b = GraphBuilder(name, IMAGE)
    x = b.input
    for channels in (32, 64):
        x = b.maxpool(leaky(b, x, channels), 2, 2)
    for channels, pairs in ((128, 1), (256, 1), (512, 2), (1024, 2)):
        x = leaky(b, x, channels)
        for _ in range(pairs):
            x = leaky(b, leaky(b, x, channels // 2, 1), channels)
        if channels != 1024:  # the last stage
            x = b.maxpool(x, 2, 2)
    return b.build(b.softmax(b.flatten(b.gap(b.conv(x, CLASSES, 1, bias=True)))))


def tiny_yolov2(name: str) -> Graph:
    """Build Tiny YOLOv2 for Pascal VOC (Redmon and Farhadi, 2017; yolov2-tiny-voc.cfg): five anchors, 20 classes."""
    b = GraphBuilder(name, _DETECTION)
    x, _ = _tiny(b)
    return b.build(b.conv(leaky(b, x, 1024), 5 * 25, 1, bias=True))


def yolov3_tiny(name: str) -> Graph:
    """Build YOLOv3-tiny for COCO (Redmon and Farhadi, 2018; yolov3-tiny.cfg): two scales, three anchors, 80 classes."""
    b = GraphBuilder(name, _DETECTION)
    x, middle = _tiny(b)
    x = leaky(b, x, 256, 1)
    coarse = b.conv(leaky(b, x, 512), 3 * 85, 1, bias=True)
    x = b.concat([b.upsample(leaky(b, x, 128, 1)), middle])
    return b.build(coarse, b.conv(leaky(b, x, 256), 3 * 85, 1, bias=True))


def _tiny(b: GraphBuilder) -> tuple[str, str]:
    x = middle = b.input
    for channels in (16, 32, 64, 128, 256):
        middle = leaky(b, x, channels)
        x = b.maxpool(middle, 2, 2)
    x = b.maxpool(leaky(b, x, 512), 2, 1, _KEEPS_SIZE)
    return leaky(b, x, 1024), middle


def leaky(b: GraphBuilder, x: str, channels: int, kernel: int = 3) -> str:
    """Add a layer of Darknet."""
    return b.conv_bn(x, channels, kernel, act="leakyrelu")


_LARGE = (1, 3, 299, 299)


def inception_v3(name: str) -> Graph:
    """Build Inception-v3 (Szegedy et al., 2016) in torchvision's form, without the auxiliary classifier."""
    b = GraphBuilder(name, _LARGE)
    x = b.conv_bn(b.input, 32, 3, 2, pad=0)
    x = b.conv_bn(b.conv_bn(x, 32, 3, pad=0), 64, 3)
    x = b.conv_bn(b.maxpool(x, 3, 2), 80, 1)
    x = b.maxpool(b.conv_bn(x, 192, 3, pad=0), 3, 2)
    for pooled in (32, 64, 64):
        five = b.conv_bn(b.conv_bn(x, 48, 1), 64, 5)
        three = b.conv_bn(b.conv_bn(b.conv_bn(x, 64, 1), 96, 3), 96, 3)
        x = b.concat([b.conv_bn(x, 64, 1), five, three, b.conv_bn(b.avgpool(x, 3, 1, 1), pooled, 1)])
    three = b.conv_bn(b.conv_bn(b.conv_bn(x, 64, 1), 96, 3), 96, 3, 2, pad=0)
    x = b.concat([b.conv_bn(x, 384, 3, 2, pad=0), three, b.maxpool(x, 3, 2)])
    for inner in (128, 160, 160, 192):
        once = b.conv_bn(_seven(b, b.conv_bn(x, inner, 1), inner, (1, 7)), 192, (7, 1))
        twice = _seven(b, b.conv_bn(x, inner, 1), inner, (7, 1), (1, 7), (7, 1))
        pooled_ = b.conv_bn(b.avgpool(x, 3, 1, 1), 192, 1)
        x = b.concat([b.conv_bn(x, 192, 1), once, b.conv_bn(twice, 192, (1, 7)), pooled_])
    three = b.conv_bn(b.conv_bn(x, 192, 1), 320, 3, 2, pad=0)
    seven = b.conv_bn(_seven(b, b.conv_bn(x, 192, 1), 192, (1, 7), (7, 1)), 192, 3, 2, pad=0)
    x = b.concat([three, seven, b.maxpool(x, 3, 2)])
    for _ in range(2):
        wide = b.conv_bn(x, 384, 1)
        deep = b.conv_bn(b.conv_bn(x, 448, 1), 384, 3)
        parts = [b.conv_bn(y, 384, kernel) for y in (wide, deep) for kernel in ((1, 3), (3, 1))]
        x = b.concat([b.conv_bn(x, 320, 1), *parts, b.conv_bn(b.avgpool(x, 3, 1, 1), 192, 1)])
    return b.build(add_classifier(b, x))


def _seven(b: GraphBuilder, x: str, channels: int, *kernels: Size) -> str:
    for kernel in kernels:
        x = b.conv_bn(x, channels, kernel)
    return x


def xception(name: str) -> Graph:
    """Build Xception (Chollet, 2017), figure 5."""
    b = GraphBuilder(name, _LARGE)
    x = b.conv_bn(b.conv_bn(b.input, 32, 3, 2, pad=0), 64, 3, pad=0)
    for channels in (128, 256, 728):
        y = _separable(b, x if channels == 128 else b.relu(x), channels)  # the first follows a ReLU
        x = _halved(b, x, _separable(b, b.relu(y), channels))
    for _ in range(8):
        y = x
        for _ in range(3):
            y = _separable(b, b.relu(y), 728)
        x = b.add(y, x)
    x = _halved(b, x, _separable(b, b.relu(_separable(b, b.relu(x), 728)), 1024))
    for channels in (1536, 2048):
        x = b.relu(_separable(b, x, channels))
    return b.build(add_classifier(b, x))


def _separable(b: GraphBuilder, x: str, channels: int) -> str:
    return b.bn(b.conv(b.dwconv(x, 3), channels, 1))


def _halved(b: GraphBuilder, x: str, y: str) -> str:
    return b.add(b.maxpool(y, 3, 2, 1), b.bn(b.conv(x, b.channels(y), 1, 2)))


#: GhostNet's bottlenecks: kernel, expanded and output channels, squeeze and excitation, stride.
_GHOSTS = (
    (3, 16, 16, False, 1), (3, 48, 24, False, 2), (3, 72, 24, False, 1), (5, 72, 40, True, 2), (5, 120, 40, True, 1),
    (3, 240, 80, False, 2), (3, 200, 80, False, 1), (3, 184, 80, False, 1), (3, 184, 80, False, 1), (3, 480, 112, True, 1),
    (3, 672, 112, True, 1), (5, 672, 160, True, 2), (5, 960, 160, False, 1), (5, 960, 160, True, 1), (5, 960, 160, False, 1),
    (5, 960, 160, True, 1),
)  # fmt: skip


def ghostnet(name: str) -> Graph:
    """Build GhostNet 1.0 (Han et al., 2020), table 2: cheap convolutions make half of each map from the other half."""
    b = GraphBuilder(name, IMAGE)
    x = b.conv_bn(b.input, 16, 3, 2)
    for kernel, expanded, channels, excited, stride in _GHOSTS:
        y = _ghost(b, x, expanded, "relu")
        if stride > 1:
            y = b.bn(b.dwconv(y, kernel, stride))
        if excited:
            y = squeeze_excite(b, y, make_divisible(expanded / 4, 4))
        y = _ghost(b, y, channels, "")
        if b.channels(x) != channels or stride > 1:
            x = b.conv_bn(b.bn(b.dwconv(x, kernel, stride)), channels, 1, act="")
        x = b.add(y, x)
    x = b.gap(b.conv_bn(x, 960, 1))
    return b.build(b.fc(b.flatten(b.conv_act(x, 1280, 1)), CLASSES))


def _ghost(b: GraphBuilder, x: str, channels: int, act: str) -> str:
    half = b.conv_bn(x, channels // 2, 1, act=act)
    return b.concat([half, b.activation(b.bn(b.dwconv(half, 3)), act)])


def mobileone_s1(name: str) -> Graph:
    """Build MobileOne-S1 (Vasu et al., 2023), table 2, with its branches merged: a bias and a ReLU behind every convolution."""
    b = GraphBuilder(name, IMAGE)
    x = b.conv_act(b.input, 64, 3, 2)
    for channels, blocks in ((96, 2), (192, 8), (512, 10), (1280, 1)):
        for block in range(blocks):
            into = b.channels(x)
            x = b.conv_act(x, into, 3, 2 if block == 0 else 1, groups=into)
            x = b.conv_act(x, channels, 1)
    return b.build(add_classifier(b, x))


def repvgg_a0(name: str) -> Graph:
    """Build RepVGG-A0 (Ding et al., 2021), table 3, with its branches merged: 3 x 3 convolutions, biases and ReLUs alone."""
    b = GraphBuilder(name, IMAGE)
    x = b.conv_act(b.input, 48, 3, 2)
    for channels, blocks in ((48, 2), (96, 4), (192, 14), (1280, 1)):
        for block in range(blocks):
            x = b.conv_act(x, channels, 3, 2 if block == 0 else 1)
    return b.build(add_classifier(b, x))


def squeezenext23(name: str) -> Graph:
    """Build 1.0-SqNxt-23 (Gholami et al., 2018), figure 3: bottlenecks of two steps, 3 x 1 and 1 x 3 convolutions."""
    b = GraphBuilder(name, (1, 3, 227, 227))
    x = b.maxpool(b.conv_bn(b.input, 64, 7, 2, pad=1), 3, 2, ceil=True)
    for stage, (channels, blocks) in enumerate(((32, 6), (64, 6), (128, 8), (256, 1))):
        for block in range(blocks):
            x = _squeezed(b, x, channels, 2 if block == 0 and stage > 0 else 1)
    return b.build(add_classifier(b, b.conv_bn(x, 128, 1)))


def _squeezed(b: GraphBuilder, x: str, channels: int, stride: int) -> str:
    into = b.channels(x)
    reduced = into if stride > 1 else into // 4 if into > channels else into // 2
    y = b.conv_bn(b.conv_bn(x, reduced, 1, stride), reduced // 2, 1)
    y = b.conv_bn(b.conv_bn(y, reduced, (1, 3)), reduced, (3, 1))
    y = b.conv_bn(y, channels, 1)
    if into != channels or stride > 1:
        x = b.conv_bn(x, channels, 1, stride)
    return b.relu(b.add(y, x))


_BUILDERS: tuple[Callable[[str], Graph], ...] = (
    lenet5, ciresan_mlp, keyword_cnn, pilotnet, zfnet, overfeat_fast, eigen_depth, nin_cifar10, all_cnn_c, wrn_40_4, darknet19,
    tiny_yolov2, yolov3_tiny, inception_v3, xception, resnext50, se_resnet50, hardnet39ds, peleenet, ghostnet, mobileone_s1,
    repvgg_a0, squeezenext23, srcnn, espcn,
)  # fmt: skip

#: Builders by name; each takes the name of the graph.
UNSEEN: Mapping[str, Callable[[str], Graph]] = {build.__name__: build for build in _BUILDERS}
