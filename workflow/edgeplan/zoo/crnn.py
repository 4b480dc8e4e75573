"""Builds CRNN-lite, the text recogniser of chineseocr_lite (github.com/ouyanghuiyu/chineseocr_lite, `crnn_lite`, with LSTM).

It is a CRNN (Shi et al., 2017) with depthwise separable convolutions. With the published hidden size of 256 and 5,530 classes
it has 2.38 M parameters, the 2.4 M of NNV12's Table 4 and the 9.5 MB that the project states for its `crnn_lite_lstm`.
"""

from __future__ import annotations

from edgeplan.graph.builder import GraphBuilder
from edgeplan.graph.ir import Graph

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


def crnn_lite(name: str = "crnn_lite", *, width: int = 320, classes: int = 5530) -> Graph:
    """Build CRNN-lite for a line of grey-scale text of 32 x `width` pixels; its output is (width / 4 + 1, 1, classes) scores.

    Args:
        name: name of the graph.
        width: width of the line, a multiple of 4. The published model takes any; 320 is a line of about ten characters.
        classes: characters and CTC's blank.
    """
    b = GraphBuilder(name, (1, 1, _HEIGHT, width))
    x = b.relu(b.conv(b.input, _STEM, 5, 2, bias=True))
    for channels, kernel, pad, normalised, pool in _LAYERS:
        x = b.conv(x, b.channels(x), kernel, groups=b.channels(x), pad=pad, bias=True)
        x = b.relu(b.bn(x) if normalised else x)
        x = b.conv(x, channels, 1, bias=True)
        x = b.relu(b.bn(x) if normalised else x)
        x = b.maxpool(x, *pool) if pool else x
    x = b.transpose(b.squeeze(x, (2,)), (2, 0, 1))  # (batch, channels, 1, steps) to (steps, batch, channels)
    x = _bidirectional(b, x, _HIDDEN // 2, _HIDDEN)
    return b.build(_bidirectional(b, x, _HIDDEN // 4, classes))


def _bidirectional(b: GraphBuilder, x: str, hidden: int, out: int) -> str:
    """Add a bidirectional LSTM and a fully connected layer on every step: (steps, batch, features) to (steps, batch, out)."""
    steps, batch, _ = b.shape(x)
    y = b.transpose(b.lstm(x, hidden, bidirectional=True), (0, 2, 1, 3))
    y = b.fc(b.reshape(y, (steps * batch, 2 * hidden)), out)
    return b.reshape(y, (steps, batch, out))
