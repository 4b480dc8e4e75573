"""Memory layouts of activations: a plan keeps all 4-D activations inside the model in one home layout."""

from __future__ import annotations

import math
from typing import Final

from edgeplan.graph.shapes import BYTES_PER_ELEMENT, Shape
from edgeplan.runtime import constants

NHWC: Final = "nhwc"
BLOCKED: Final = "blocked16"
NCHW: Final = "nchw"
#: The home layouts a plan chooses from. `blocked16` has blocks of 8 channels where the CPU has no AVX-512.
HOMES: Final = (NHWC, BLOCKED, NCHW)
#: Those that are best for some model: under the other one, which is ONNX's own, nearly every kernel converts.
LIKELY: Final = (NHWC, BLOCKED)
_SPATIAL_RANK: Final = 4


def tag(shape: Shape, layout: str, block: int) -> int:
    """The format tag of oneDNN; activations that are not 4-D are row-major whatever the layout."""
    if len(shape) != _SPATIAL_RANK or layout == NCHW:
        return constants.PLAIN_TAGS[len(shape)]
    return constants.NHWC_TAG if layout == NHWC else constants.BLOCKED_TAGS[block]


def same_bytes(shape: Shape, one: str, other: str, block: int) -> bool:
    """Tell whether an activation has the same bytes in two layouts, so that none of them need to move."""
    if one == other or len(shape) != _SPATIAL_RANK:
        return True
    _, channels, height, width = shape
    if BLOCKED in (one, other):
        return height * width == 1 and channels % block == 0
    return height * width == 1 or channels == 1


def size_bytes(shape: Shape, layout: str, block: int, dtype: str = "float32") -> int:
    """Bytes of an activation; blocked layouts, which are of f32, pad the channels with zeros."""
    if len(shape) == _SPATIAL_RANK and layout == BLOCKED:
        n, channels, height, width = shape
        return BYTES_PER_ELEMENT[dtype] * n * -(-channels // block) * block * height * width
    return BYTES_PER_ELEMENT[dtype] * math.prod(shape)
