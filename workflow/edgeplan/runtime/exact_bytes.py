"""Which of the library's kernels sum up products of bytes exactly: each is run on the largest bytes, once a process that plans.

Where a processor has VNNI the library offers kernels of older instruction sets, too. They add two products in 16 bits, which
saturate, or halve the weights before (uxlfoundation/oneDNN#1354).
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Iterator, Mapping
from functools import cache

from edgeplan.graph.shapes import FLOAT32, Shape
from edgeplan.runtime import constants
from edgeplan.runtime.dnnl import ZERO_POINTS, Dnnl, Handle, Mask, dims
from edgeplan.runtime.layouts import NCHW, NHWC, tag

_LARGEST = {"uint8": 255, "int8": 127}
_ZERO = 1  # point
_SIDE = 8
_SHIFT, _SHIFTED = constants.ARG_ZERO_POINTS | constants.ARG_SRC, Mask(ZERO_POINTS, constants.ARG_SRC, 0)
#: Shapes of weights of convolutions (a window, one place, groups, channels alone) and of a product of matrices.
_FORMS = ((64, 64, 3, 3), (64, 64, 1, 1), (4, 16, 16, 3, 3), (64, 1, 1, 3, 3), (64, 64))
#: Where the library is wrong in another way: what corrects the sums of `gemm` is lost where 8 rows of 8 weights are turned.
_EIGHTS = (8, 8, 1, 1)


def is_exact(kernel: str, weights: Shape) -> bool:
    """Tell whether a kernel is exact.

    Args:
        kernel: the library's name.
        weights: shape of what it multiplies by.
    """
    return kernel in exact_kernels((_EIGHTS,) if weights == _EIGHTS else _FORMS)


@cache
def exact_kernels(forms: tuple[Shape, ...] = _FORMS) -> frozenset[str]:
    """Return the names of the kernels that are exact in all forms that they are offered for.

    Args:
        forms: shapes of weights.
    """
    dnnl = Dnnl()
    with dnnl.without_primitive_cache():
        tried = {one for form in forms for dtype in _LARGEST for one in _tried(dnnl, form, dtype)}
    return frozenset({kernel for kernel, _ in tried} - {kernel for kernel, exact in tried if not exact})


def _tried(dnnl: Dnnl, weights: Shape, dtype: str) -> Iterator[tuple[str, bool]]:
    """Yield the implementations of a layer, and whether all that each writes is the sum that it should be."""
    image, zeros, attributes = len(weights) > len(("rows", "columns")), dims((0, 0)), dnnl.attributes(masks=(_SHIFTED,))
    places = _SIDE - weights[-1] + 1
    shape: Shape = (_SIDE, weights[0])
    written: Shape = (_SIDE, weights[1])
    products = weights[0]
    if image:
        shape = (1, math.prod(weights[:-4]) * weights[-3], _SIDE, _SIDE)
        written, products = (1, math.prod(weights[:-3]), places, places), math.prod(weights[-3:])
    layout = NHWC if image else NCHW
    read, out = (dnnl.descriptor(s, tag(s, layout, 0), t) for s, t in ((shape, dtype), (written, FLOAT32)))
    plain, wanted = (dnnl.descriptor(weights, t, "int8") for t in (constants.PLAIN_TAGS[len(weights)], constants.ANY))
    function = f"dnnl_{'convolution_forward' if image else 'matmul'}_primitive_desc_create"
    kind = (constants.FORWARD_INFERENCE, constants.CONVOLUTION["direct"]) if image else ()
    window = (dims((1, 1)), zeros, zeros, zeros) if image else ()
    given = (*kind, read.value, wanted.value, None, out.value, *window, attributes.value)
    described, stream, more = dnnl.make("primitive_desc", function, dnnl.engine.value, *given), dnnl.stream(), True
    (source, _), (stored, _) = _filled(dnnl, read.value, _LARGEST[dtype]), _filled(dnnl, plain.value, _LARGEST["int8"])
    one = ctypes.c_int32(_ZERO)
    points = dnnl.descriptor((1,), constants.PLAIN_TAGS[1], "int32")
    zero = dnnl.memory(points.value, ctypes.addressof(one))
    while more:
        laid = dnnl.queried(described, constants.QUERY_WEIGHTS_MD)
        (ready, _), (target, result) = _filled(dnnl, laid), _filled(dnnl, out.value)
        _execute(dnnl, stream, dnnl.reorder(plain.value, laid), {constants.ARG_SRC: stored, constants.ARG_DST: ready})
        arguments = {constants.ARG_SRC: source, constants.ARG_WEIGHTS: ready, constants.ARG_DST: target, _SHIFT: zero}
        _execute(dnnl, stream, described, arguments)
        sums = {*memoryview(result).cast("B").cast("f")}
        yield dnnl.implementation(described), sums == {float(products * (_LARGEST[dtype] - _ZERO) * _LARGEST["int8"])}
        more = dnnl.next_implementation(described)


def _execute(dnnl: Dnnl, stream: Handle, described: Handle, arguments: Mapping[int, Handle]) -> None:
    scratch, _ = _filled(dnnl, dnnl.queried(described, constants.QUERY_SCRATCHPAD_MD))
    dnnl.run(dnnl.primitive(described), stream, [*arguments.items(), (constants.ARG_SCRATCHPAD, scratch)])


def _filled(dnnl: Dnnl, descriptor: int, value: int = 0) -> tuple[Handle, ctypes.Array[ctypes.c_char]]:
    """Return a memory of equal bytes, and these."""
    size = dnnl.size(descriptor)
    found = ctypes.create_string_buffer(bytes([value]) * size, max(1, size))
    engine, place = dnnl.engine.value, ctypes.addressof(found)
    return dnnl.make("memory", "dnnl_memory_create", descriptor, engine, place, keep=found), found
