"""Kernels: the operators a device runs as one unit, with the configuration that decides what they cost.

A kernel's type joins the kinds of its operators as nn-Meter does (`conv++bn++relu`); its `kind` is that of its anchor, the
operator that does the work. Predictors are trained per kind (section 6 of the paper: the cost of a Conv hardly depends on
what is fused behind it; here the fused activation and residual sum are features).
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

from edgeplan.graph.ir import BYTES_PER_ELEMENT, Graph, Operator, Shape
from edgeplan.graph.kinds import kind
from edgeplan.graph.operators.activations import ACTIVATIONS
from edgeplan.graph.operators.registry import BANDWIDTH_BOUND, RANKS


@dataclass(frozen=True, slots=True)
class KernelConfig:
    """A kernel configuration describes a kernel independent of the model it sits in.

    Sizes are in elements, shapes in NCHW order.

    Attributes:
        kind: kind of the anchor operator.
        type: kinds of all operators, joined by `++`.
        dtype: element type.
        batch, in_channels, in_height, in_width: first input of the anchor (missing axes are 1); where an operator of the
            bandwidth-bound family changes the first axis, that is folded into the channels.
        out_channels, out_height, out_width: output of the anchor. A product that is no fully connected layer (`matmul`) has as
            many products in `batch`, each of (in_height, in_width) by (in_width, out_width).
        kernel_h .. groups: window of a convolution or pooling, else 1 (pads: 0).
        inputs: number of activations the anchor reads (outputs, for a split).
        other_elements: elements of the anchor's further inputs; of a cast, what the wider type adds to what it writes.
        min_part, max_part: smallest and largest channel count concatenated or split.
        bias: whether the anchor has a bias (a folded batch normalisation gives one).
        activation: fused activation, or "".
        residual: whether an addition of another activation is fused.
        permutation: axes of a transpose, e.g. "02134".
    """

    kind: str
    type: str
    dtype: str = "float32"
    batch: int = 1
    in_channels: int = 1
    in_height: int = 1
    in_width: int = 1
    out_channels: int = 1
    out_height: int = 1
    out_width: int = 1
    kernel_h: int = 1
    kernel_w: int = 1
    stride_h: int = 1
    stride_w: int = 1
    dilation_h: int = 1
    dilation_w: int = 1
    pad_top: int = 0
    pad_left: int = 0
    pad_bottom: int = 0
    pad_right: int = 0
    groups: int = 1
    inputs: int = 1
    other_elements: int = 0
    min_part: int = 0
    max_part: int = 0
    bias: bool = False
    activation: str = ""
    residual: bool = False
    permutation: str = ""

    def to_json(self) -> str:
        """Canonical, compact JSON: fields that differ from their defaults, in order of declaration."""
        default = _DEFAULTS
        return json.dumps({k: v for k, v in asdict(self).items() if default.get(k) != v}, separators=(",", ":"))

    @staticmethod
    def from_json(text: str) -> KernelConfig:
        """Read a configuration that `to_json` wrote."""
        return KernelConfig(**json.loads(text))


_DEFAULTS: Mapping[str, Any] = {f.name: f.default for f in fields(KernelConfig)}


@dataclass(frozen=True, slots=True)
class Kernel:
    """A kernel consists of operators that an engine runs as one.

    Attributes:
        name: name of the anchor operator.
        config: its configuration.
        members: names of its operators, in topological order.
        inputs: activations it reads from outside, the anchor's first.
        outputs: activations it writes that something outside reads, or that are graph outputs.
    """

    name: str
    config: KernelConfig
    members: tuple[str, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


def make_kernel(graph: Graph, members: Iterable[str]) -> Kernel:
    """Return the kernel made of the named operators (in topological order) of a graph."""
    ops = [graph.by_name[name] for name in members]
    kinds = [kind(graph, op) for op in ops]
    anchor = min(range(len(ops)), key=lambda i: (RANKS[kinds[i]], i))
    written = {o for op in ops for o in op.outputs}
    reads = [i for op in (ops[anchor], *ops) for i in op.inputs if i not in written]
    names = tuple(op.name for op in ops)
    config = _config(graph, ops, kinds, anchor)
    return Kernel(ops[anchor].name, config, names, tuple(dict.fromkeys(reads)), outputs_of(graph, names))


def outputs_of(graph: Graph, members: Sequence[str]) -> tuple[str, ...]:
    """Return the activations of members that something outside reads, that are graph outputs, or that nothing reads."""
    written = [output for name in members for output in graph.by_name[name].outputs]
    readers = {o: [c.name for c in graph.consumers.get(o, ())] for o in written}
    return tuple(o for o in written if o in graph.outputs or not readers[o] or not set(members).issuperset(readers[o]))


def _axes(shape: tuple[int, ...]) -> tuple[int, int, int, int]:
    """Any rank as (batch, channels, height, width); further axes fold into the width."""
    n, c, h, *w = (*shape, 1, 1, 1, 1)[: max(4, len(shape))]
    return n, c, h, math.prod(w)


def _config(graph: Graph, ops: list[Operator], kinds: list[str], anchor: int) -> KernelConfig:
    op, what = ops[anchor], kinds[anchor]
    first = graph.tensors[op.inputs[0]]
    n, cin, h, w = _axes(first.shape)
    written, cout, oh, ow = _axes(graph.shape(op.outputs[0]))
    if written != n and what in BANDWIDTH_BOUND and what != "transpose":  # repeated, cut, joined or reduced along it
        n, cin, cout = 1, n * cin, written * cout
    values: dict[str, Any] = {}
    if what.removesuffix("3d") in ("conv", "dwconv", "deconv", "maxpool", "avgpool"):
        values |= _window(graph, op)
    parts = op.outputs if what == "split" else op.operands if what == "concat" else op.inputs
    if what in ("concat", "split"):
        channels = [_axes(graph.shape(p))[1] for p in parts]
        values |= {"min_part": min(channels), "max_part": max(channels)}
        if what == "concat":
            cin = cout
        else:
            cout = cin
    if what == "matmul":
        n, h, w, ow = _product(graph, op)
        cin, cout, oh = 1, 1, h
    after = kinds[anchor + 1 :]
    return KernelConfig(
        kind=what,
        type="++".join(kinds),
        dtype=first.dtype,
        batch=n,
        in_channels=cin,
        in_height=h,
        in_width=w,
        out_channels=cout,
        out_height=oh,
        out_width=ow,
        inputs=len(parts),
        other_elements=sum(graph.tensors[i].elements for i in op.inputs[1:]) + _wider(graph, op, what),
        bias=len(op.weights) > 1 or "bn" in after[:1],
        activation=next((k for k in reversed(after) if k in ACTIVATIONS), ""),
        residual="add" in after,
        permutation="".join(map(str, op.integers("perm", ()))) if what == "transpose" else "",
        **values,
    )


def _wider(graph: Graph, op: Operator, what: str) -> int:
    """Return the further elements of the type that a cast reads which would take the room of its output."""
    if what != "cast":
        return 0
    read, written = graph.tensors[op.inputs[0]], graph.tensors[op.outputs[0]]
    return max(0, written.size_bytes - read.size_bytes) // BYTES_PER_ELEMENT[read.dtype]


def _product(graph: Graph, op: Operator) -> tuple[int, int, int, int]:
    """Return the sizes of a product of matrices: their number, rows, the axis summed over, columns."""
    left, right = (graph.shape(name) for name in op.operands[:2])
    inner = left[0 if op.integer("transA", 0) else -1]
    columns = 1 if len(right) == 1 else right[-2 if op.integer("transB", 0) else -1]
    rows = 1 if len(left) == 1 else left[-1 if op.integer("transA", 0) else -2]
    return graph.tensors[op.outputs[0]].elements // (rows * columns), rows, inner, columns


def _window(graph: Graph, op: Operator) -> dict[str, int]:
    """Return the window of a convolution or pooling; axes behind the second fold into it, as they do in the sizes."""
    values: dict[str, int] = {}
    kernel = op.integers("kernel_shape", (1,) * (len(graph.shape(op.inputs[0])) - 2))
    sizes = graph.shape(op.inputs[0])[2:], graph.shape(op.outputs[0])[2:]
    if op.op_type == "ConvTranspose":  # padded as the convolution that it turns round
        sizes = sizes[1], sizes[0]
    if op.op_type in ("Conv", "ConvTranspose"):
        kernel = graph.shape(op.weights[0])[2:] if op.weights else kernel
        values["groups"] = op.integer("group", 1)
    ones = (1,) * len(kernel)
    strides, dilations = op.integers("strides", ones), op.integers("dilations", ones)
    before, after = _pads(op, *sizes, kernel, strides, dilations)
    values |= {"kernel_h": kernel[0], "kernel_w": math.prod(kernel[1:])}
    values |= {"stride_h": strides[0], "stride_w": math.prod(strides[1:])}
    values |= {"dilation_h": dilations[0], "dilation_w": max(dilations[1:], default=1)}
    values |= {"pad_top": before[0], "pad_left": sum(before[1:]), "pad_bottom": after[0], "pad_right": sum(after[1:])}
    return values


def _pads(
    op: Operator, size: Shape, out: Shape, kernel: tuple[int, ...], stride: tuple[int, ...], dilation: tuple[int, ...]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Explicit padding before and after each axis; ONNX's `auto_pad` is resolved from the shapes."""
    if op.attributes.get("auto_pad", "NOTSET") in ("NOTSET", "VALID"):
        pads = op.integers("pads", (0,) * 2 * len(kernel))
        return pads[: len(kernel)], pads[len(kernel) :]
    total = [
        max(0, (o - 1) * s + d * (k - 1) + 1 - i) for i, o, k, s, d in zip(size, out, kernel, stride, dilation, strict=True)
    ]
    small, large = tuple(t // 2 for t in total), tuple(t - t // 2 for t in total)
    return (large, small) if op.attributes["auto_pad"] == "SAME_LOWER" else (small, large)
