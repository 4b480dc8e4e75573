"""Builds small networks: digits, keywords, steering a car."""

from __future__ import annotations

from edgeplan.graph.builder import GraphBuilder
from edgeplan.graph.ir import Graph


def lenet5(name: str) -> Graph:
    """Build LeNet-5 (LeCun et al., 1998) as in Caffe and in Han et al., 2015: maximum pooling, full connections, one ReLU."""
    b = GraphBuilder(name, (1, 1, 28, 28))
    x = b.maxpool(b.conv(b.input, 20, 5, pad=0, bias=True), 2, 2)
    x = b.maxpool(b.conv(x, 50, 5, pad=0, bias=True), 2, 2)
    return b.build(b.softmax(b.fc(b.relu(b.fc(b.flatten(x), 500)), 10)))


def ciresan_mlp(name: str) -> Graph:
    """Build the largest perceptron of "Deep, Big, Simple Neural Nets" (Ciresan et al., 2010): 29 x 29 pixels, tanh."""
    b = GraphBuilder(name, (1, 1, 29, 29))
    x = b.flatten(b.input)
    for features in (2500, 2000, 1500, 1000, 500):
        x = b.activation(b.fc(x, features), "tanh")
    return b.build(b.softmax(b.fc(x, 10)))


def keyword_cnn(name: str) -> Graph:
    """Build cnn-trad-fpool3 (Sainath and Parada, 2015): windows of 20 x 8 over 32 frames of 40 log-mel features."""
    b = GraphBuilder(name, (1, 1, 32, 40))
    x = b.maxpool(b.relu(b.conv(b.input, 64, (20, 8), pad=0, bias=True)), (1, 3), (1, 3))
    x = b.relu(b.conv(x, 64, (10, 4), pad=0, bias=True))
    x = b.relu(b.fc(b.fc(b.flatten(x), 32), 128))
    return b.build(b.softmax(b.fc(x, 4)))


def pilotnet(name: str) -> Graph:
    """Build PilotNet (Bojarski et al., 2016): 5 x 5 convolutions of few channels on a wide image, one steering angle."""
    b = GraphBuilder(name, (1, 3, 66, 200))
    x = b.input
    for channels, kernel, stride in ((24, 5, 2), (36, 5, 2), (48, 5, 2), (64, 3, 1), (64, 3, 1)):
        x = b.relu(b.conv(x, channels, kernel, stride, pad=0, bias=True))
    x = b.flatten(x)
    for features in (100, 50, 10):
        x = b.relu(b.fc(x, features))
    return b.build(b.fc(x, 1))
