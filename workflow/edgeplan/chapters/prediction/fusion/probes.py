"""Builds black-box test networks: a stem, the operators under test, and a sink (nn-Meter, section 4.1).

Timing single operators would charge each with the call and with conversions of layout at its ends, and then everything looks
fused. So every network of a test case has the same ends: a 1 x 1 convolution gives the tensor `x`, a pooling that skips nearly
all of it takes the result, and differences between networks leave only what the operators cost in between. `x` is also read by
a side branch that costs next to nothing, so that an operator under test is not fused with the stem.

Pairs are tried on large tensors once, and, where the next operator is element-wise and no fusion was seen, on small ones in
many blocks, each closed by a separator (a pooling, which no such operator fuses with). What is large costs its memory traffic,
what is small its launch, and fusion may save either: an activation that the engine applies in a second pass, inside one kernel,
saves only the launch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from edgeplan.graph.builder import GraphBuilder
from edgeplan.graph.ir import Graph

_SIDE_FEATURES = 4

#: Kinds of operators on feature maps and on rows of features, in the order of the paper's permutation.
MAP_KINDS = (
    "conv", "dwconv", "bn", "relu", "relu6", "hswish", "hsigmoid", "add", "mul", "concat", "split", "maxpool", "avgpool", "gap",
    "reshape", "transpose", "lrn",
)  # fmt: skip
ROW_KINDS = ("fc", "relu", "relu6", "hswish", "hsigmoid", "add", "mul")
BINARY = frozenset({"add", "mul", "concat"})


@dataclass(frozen=True)
class Probe:
    """A probe is one test network.

    Attributes:
        reads: channels of the network's input, which a 1 x 1 convolution reads; 0: `x` is the input itself.
        channels, size: channels, height and width of the tensor `x` that operators start from (or `size` rows of features).
        other: whether there is a second operand; `x` is then made from it, as in a residual block.
        other_stays: whether all blocks read the same second operand; else each reads what the block before started from.
        operators: the operators under test, one behind the other; of those with two operands the second one reads what the
            block starts from.
        right: operators on the second operand before the first of `operators` that takes two.
        shared: the second operand of every block is also read by a side branch.
        tapped: the operator under test at this place is also read by a side branch, or, where there is a second operand, as
            that of the next block (-1: none).
        twice: the last operator is computed twice on the same input.
        blocks: how often the operators under test are repeated, a separator behind each time; 0: once, without separator.
        rows: whether activations are rows of features rather than feature maps.
    """

    reads: int
    channels: int
    size: int
    other: bool = False
    other_stays: bool = False
    operators: tuple[str, ...] = ()
    right: tuple[str, ...] = ()
    shared: bool = False
    tapped: int = -1
    twice: bool = False
    blocks: int = 0
    rows: bool = False

    def graph(self) -> Graph:
        """Build the probe's network; networks that agree in their beginnings name them alike."""
        width = self.reads or self.channels
        b = GraphBuilder("probe", (self.size, width) if self.rows else (1, width, self.size, self.size))
        x = self._stem(b, b.input) if self.reads else b.input
        other = ""
        if self.other:  # as in residual blocks, `x` is made from the second operand
            other, x = x, self._stem(b, x)
        outputs = [_side(b, x)]
        for what in self.right:
            other = _apply(b, what, other, "")
        for _ in range(max(1, self.blocks)):
            x, start = self._block(b, x, other, outputs)
            if self.blocks:  # a residual is what the block before started from, read for the last time
                x = _apply(b, "softmax" if self.rows else "maxpool", x, "")
                other = other if self.other_stays else start
        x = b.fc(x, _SIDE_FEATURES, bias=False) if self.rows else b.maxpool(x, 1, -(-self.size // 2))
        return b.build(*outputs, *([] if x in outputs else [x]))

    def _block(self, b: GraphBuilder, x: str, other: str, outputs: list[str]) -> tuple[str, str]:
        """Append the operators under test; return their result, and the second operand that they leave for a next block."""
        first, operand = x, other
        start = x
        if self.shared:
            outputs.append(_side(b, other))
        for place, what in enumerate(self.operators):
            before = x
            x = _apply(b, what, x, operand)
            operand = first if what in BINARY else operand
            if place == self.tapped and self.other and self.blocks:
                start = x
            elif place == self.tapped:
                outputs.append(_side(b, x))
            if self.twice and place == len(self.operators) - 1:
                outputs.append(_side(b, _apply(b, what, before, other)))
        return x, start

    def _stem(self, b: GraphBuilder, source: str) -> str:
        return b.fc(source, self.channels) if self.rows else b.conv(source, self.channels, 1)


def _side(b: GraphBuilder, x: str) -> str:
    shape = b.shape(x)
    return b.fc(x, _SIDE_FEATURES, bias=False) if len(shape) == 2 else b.maxpool(x, 1, max(shape[2:]))


def _apply(b: GraphBuilder, what: str, x: str, other: str) -> str:
    """Append one operator; `open`, `swap`, `join` are the steps of a channel shuffle, `conv3` a 3 x 3 convolution."""
    return _BUILDERS[what](b, x, other) if what in _BUILDERS else b.activation(x, what)


def _halves(b: GraphBuilder, x: str) -> str:
    half = b.channels(x) // 2
    return b.split(x, (half, b.channels(x) - half))[0]


def _reshape(b: GraphBuilder, x: str) -> str:
    rows, columns, *rest = b.shape(x)
    return b.reshape(x, (rows, columns, rest[0] * 2, rest[1] // 2) if rest else (rows // 2, columns * 2))


def _open(b: GraphBuilder, x: str) -> str:
    n, c, h, w = b.shape(x)
    return b.reshape(x, (n, 2, c // 2, h, w))


def _join(b: GraphBuilder, x: str) -> str:
    n, inner, outer, h, w = b.shape(x)
    return b.reshape(x, (n, inner * outer, h, w))


def _misjoin(b: GraphBuilder, x: str) -> str:
    n, inner, outer, h, w = b.shape(x)
    return b.reshape(x, (n, inner * outer, h * 2, w // 2))


_BUILDERS: Mapping[str, Callable[[GraphBuilder, str, str], str]] = MappingProxyType(
    {
        "conv": lambda b, x, _: b.conv(x, b.channels(x), 1),
        "conv3": lambda b, x, _: b.conv(x, b.channels(x), 3),
        "dwconv": lambda b, x, _: b.dwconv(x, 3),
        "fc": lambda b, x, _: b.fc(x, b.channels(x)),
        "bn": lambda b, x, _: b.bn(x),
        "add": lambda b, x, other: b.add(x, other),
        "mul": lambda b, x, other: b.mul(x, other),
        "concat": lambda b, x, other: b.concat([x, other]),
        "split": lambda b, x, _: _halves(b, x),
        "maxpool": lambda b, x, _: b.maxpool(x, 3, 1, 1),
        "avgpool": lambda b, x, _: b.avgpool(x, 3, 1, 1),
        "softmax": lambda b, x, _: b.softmax(x),
        "gap": lambda b, x, _: b.gap(x),
        "reshape": lambda b, x, _: _reshape(b, x),
        "transpose": lambda b, x, _: b.transpose(x, (0, 1, 3, 2)),
        "lrn": lambda b, x, _: b.lrn(x),
        "open": lambda b, x, _: _open(b, x),
        "swap": lambda b, x, _: b.transpose(x, (0, 2, 1, 3, 4)),
        "join": lambda b, x, _: _join(b, x),
        "misjoin": lambda b, x, _: _misjoin(b, x),
    }
)
