"""Which implementations oneDNN offers for a step, whatever layouts they take."""

from __future__ import annotations

import ctypes
import logging
import math
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import cache

from edgeplan.errors import ModelError
from edgeplan.graph.shapes import FLOAT32, Shape
from edgeplan.graph.steps import COMPILED, INT8_KINDS, SIDE_BY_SIDE, Step
from edgeplan.runtime import constants
from edgeplan.runtime.creation import MOVING_KINDS, Creator, Implementation
from edgeplan.runtime.dnnl import ZERO_POINTS, Dnnl, Handle, Mask, Unsupported, dims
from edgeplan.runtime.layouts import BLOCKED, HOMES, NCHW, NHWC, tag
from edgeplan.runtime.primitives import AS_CONVOLUTION, Variant

_LOG = logging.getLogger(__name__)
_FEW_CHANNELS = 4  # images: some convolutions read them row-major and write blocks
_RANK = 4
_ALGORITHMS = {"conv": ("direct", "winograd"), "fc": ("direct", AS_CONVOLUTION)}


def candidates(creator: Creator, step: Step) -> tuple[Implementation, ...]:
    """The implementations of a step, the layouts that its activations have first, in oneDNN's order within one layout.

    The reference implementation is left out where there is any other: it is slower by orders of magnitude. In eight bits those
    whose sums saturate are.
    """
    found: dict[str, Implementation] = {}
    for every in (False, True):  # some primitives take no two layouts, even of the same bytes
        for variant in () if found else _variants(creator, step, every=every):
            for one in _walk(creator, step, variant):
                if step.kind not in INT8_KINDS or is_exact(one.kernel, creator.shapes[step.weights["weight"]]):
                    found.setdefault(one.name, one)
    if not found:
        raise ModelError(
            f"oneDNN {creator.dnnl.info.version} has no implementation of {step.kind} {step.name!r}",
            where=f"operators {', '.join(step.members)}",
            next_step="run the model on another engine",
        )
    fast = tuple(i for i in found.values() if not i.kernel.startswith("ref"))
    if not fast and step.kind in (*INT8_KINDS, *SIDE_BY_SIDE):
        _LOG.warning("step %s: oneDNN has no generated kernel for it in eight bits, its reference is slow", step.name)
    return fast or tuple(found.values())


def default(offered: tuple[Implementation, ...]) -> Implementation:
    """The likely fastest: the first that is generated for the layouts at hand, else the first generated at all.

    A fully connected step as a convolution starts faster, it does not run faster.
    """
    offered = tuple(i for i in offered if i.variant.algorithm != AS_CONVOLUTION) or offered
    for wanted in (("brg", "jit"), ("jit", "brg", "simple", "gemm", "reorder", "view")):
        for implementation in offered:
            if implementation.kernel.startswith(wanted) and ("@" not in implementation.name or "jit" in wanted[0]):
                return implementation
    return offered[0]


def _variants(creator: Creator, step: Step, *, every: bool) -> Iterator[Variant]:
    """The layouts, algorithms and weights to ask for; those without conversions first; `every` one, or one of equal bytes."""
    shapes, layouts = creator.shapes, creator.layouts
    if step.kind in SIDE_BY_SIDE:  # the library generates kernels for bytes of this layout alone
        yield Variant(NHWC, NHWC)
        return
    if step.kind in COMPILED or any(t in creator.types for t in (*step.reads, *step.outputs)):
        yield Variant(NCHW, NCHW)
        return
    source = next((layouts[t] for t in step.inputs if len(shapes[t]) == _RANK), NCHW)
    output = next((layouts[t] for t in step.outputs if len(shapes[t]) == _RANK), NCHW)
    pairs = [(source, output), *((layout, layout) for layout in HOMES)]
    if step.kind == "conv" and shapes[step.inputs[0]][1] <= _FEW_CHANNELS:
        pairs += [(NCHW, BLOCKED), (NCHW, NHWC)]
    seen = set()
    for given, written in pairs:
        key = (
            tuple(creator.same(t, given) or given for t in step.reads if len(shapes[t]) == _RANK),
            tuple(creator.same(t, written) or written for t in step.outputs if len(shapes[t]) == _RANK),
        )
        if not every and key in seen and all(v is True for side in key for v in side):
            continue
        seen.add(key)
        for algorithm in _ALGORITHMS.get(step.kind, ("direct",)):
            for weights in ("any", "plain") if step.kind in ("conv", "fc") else ("any",):
                yield Variant(given, written, algorithm, weights)


def _walk(creator: Creator, step: Step, variant: Variant) -> Iterator[Implementation]:
    """Yield all implementations of one variant that can be created."""
    suffix = "" if step.kind in COMPILED else _suffix(creator, step, variant)
    if step.kind in MOVING_KINDS:
        try:
            created = creator.create(step, Implementation("", "", variant), generate=False)
        except Unsupported:
            return
        kernel = "compiled" if step.kind in COMPILED else "reorder" if created.calls else "view"
        yield Implementation(f"{kernel}{suffix}", kernel, variant)
        return
    dnnl = creator.dnnl
    try:
        described = creator.describer.describe(step, variant)
    except Unsupported:
        return
    seen, more = set(), True
    while more:
        kernel = dnnl.implementation(described.descriptor.value)
        if kernel not in seen:
            seen.add(kernel)
            plain = "+plain" if variant.weights == "plain" else ""
            candidate = Implementation(f"{kernel}{suffix}{plain}", kernel, variant)
            with suppress(Unsupported):
                creator.create(step, candidate, generate=False)
                yield candidate
        more = dnnl.next_implementation(described.descriptor)


def _suffix(creator: Creator, step: Step, variant: Variant) -> str:
    """Name the differences of a variant's layouts from those of the activations."""
    four = [t for t in step.reads if len(creator.shapes[t]) == _RANK]
    source = "" if all(creator.same(t, variant.source) for t in four) else variant.source
    written = [t for t in step.outputs if len(creator.shapes[t]) == _RANK]
    output = "" if all(creator.same(t, variant.output) for t in written) else variant.output
    if not source and not output:
        return ""
    return f"@{source}>{output}" if source != output else f"@{source}"


_LARGEST = {"uint8": 255, "int8": 127}
_ZERO = 1  # point
_SIDE = 8
_SHIFT, _SHIFTED = constants.ARG_ZERO_POINTS | constants.ARG_SRC, Mask(ZERO_POINTS, constants.ARG_SRC, 0)
#: Shapes of weights of convolutions (a window, one place, groups, channels alone) and of a product of matrices.
_FORMS = ((64, 64, 3, 3), (64, 64, 1, 1), (4, 16, 16, 3, 3), (64, 1, 1, 3, 3), (64, 64))
#: Where the library is wrong in another way: what corrects the sums of `gemm` is lost where 8 rows of 8 weights are turned.
_EIGHTS = (8, 8, 1, 1)


def is_exact(kernel: str, weights: Shape) -> bool:
    """Tell whether a kernel, by the library's name, is exact for weights of a shape."""
    return kernel in exact_kernels((_EIGHTS,) if weights == _EIGHTS else _FORMS)


@cache
def exact_kernels(forms: tuple[Shape, ...] = _FORMS) -> frozenset[str]:
    """Return the names of the kernels that are exact in all forms, shapes of weights, that they are offered for."""
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
        yield dnnl.implementation(described.value), sums == {float(products * (_LARGEST[dtype] - _ZERO) * _LARGEST["int8"])}
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
