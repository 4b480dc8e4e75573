"""Which implementations oneDNN offers for a step, whatever layouts they take."""

from __future__ import annotations

import logging
from collections.abc import Iterator

from edgeplan.errors import ModelError
from edgeplan.graph.steps import COMPILED, INT8_KINDS, SIDE_BY_SIDE, Step
from edgeplan.runtime.creation import MOVING_KINDS, Created, Creator, Implementation
from edgeplan.runtime.descriptors import Variant
from edgeplan.runtime.dnnl import Unsupported
from edgeplan.runtime.exact_bytes import is_exact
from edgeplan.runtime.layouts import BLOCKED, HOMES, NCHW, NHWC
from edgeplan.runtime.primitive_kinds import AS_CONVOLUTION

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
            for implementation, created in _walk(creator, step, variant):
                if step.kind in INT8_KINDS and not is_exact(implementation.kernel, creator.shapes[step.weights["weight"]]):
                    continue
                if created is not None and implementation.name not in found:
                    found[implementation.name] = implementation
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


def _walk(creator: Creator, step: Step, variant: Variant) -> Iterator[tuple[Implementation, Created | None]]:
    """Yield all implementations of one variant."""
    suffix = "" if step.kind in COMPILED else _suffix(creator, step, variant)
    if step.kind in MOVING_KINDS:
        try:
            created = creator.create(step, Implementation("", "", variant), generate=False)
        except Unsupported:
            return
        kernel = "compiled" if step.kind in COMPILED else "reorder" if created.calls else "view"
        yield Implementation(f"{kernel}{suffix}", kernel, variant), created
        return
    dnnl = creator.dnnl
    try:
        described = creator.describer.describe(step, variant)
    except Unsupported:
        return
    seen, more = set(), True
    while more:
        kernel = dnnl.implementation(described.descriptor)
        if kernel not in seen:
            seen.add(kernel)
            plain = "+plain" if variant.weights == "plain" else ""
            candidate = Implementation(f"{kernel}{suffix}{plain}", kernel, variant)
            try:
                yield candidate, creator.create(step, candidate, generate=False)
            except Unsupported:
                yield candidate, None
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
