"""Random models of every operator that exporters write, in random forms: drawn one operator after another from a seed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import onnx
from drawing import Drawing
from onnx import TensorProto

from edgeplan.errors import ModelError
from edgeplan.graph.ir import Graph
from edgeplan.graph.onnx.read import from_onnx

_OPERATORS = 7  # of a model


def _unary(**options: Sequence[Any]) -> Callable[[Drawing], None]:
    def draw(d: Drawing) -> None:
        d.node(d.op, [d.value()], **{key: d.pick(key, *values) for key, values in options.items()})

    return draw


def _clip(d: Drawing) -> None:
    low, high = d.pick("bounds", (-0.3, 0.4), (-0.3, None), (None, 0.4), (0.0, 6.0), (0.2, -0.2))
    given = ["" if bound is None else d.constant(bound) for bound in (low, high)]
    d.node("Clip", [d.value(), *(given if given[1] else given[:1])])


def _pair(d: Drawing) -> None:
    x = d.value()
    shape = d.shapes[x]
    kind = d.pick("operands", "constant", "number", "by axis", "lower rank", "alike", "broadcast", "itself", "constant first")
    smaller = tuple(size if d.one(0, 1) else 1 for size in shape)
    other = {
        "constant": lambda: d.constant(shape), "number": lambda: d.constant(d.one((), (1,))),
        "by axis": lambda: d.constant(smaller), "lower rank": lambda: d.constant(shape[-d.one(1, len(shape)) :]),
        "alike": lambda: d.given(shape), "broadcast": lambda: d.given(smaller), "itself": lambda: x,
        "constant first": lambda: d.constant(smaller),
    }[kind]()  # fmt: skip
    if d.op == "Div":
        x, other = (d.positive(x), other) if kind == "constant first" else (x, other)
        if other in d.constants:
            values = d.constants[other]
            d.constants[other] = values + np.where(values < 0, -0.5, 0.5).astype(np.float32)
        else:
            other = d.positive(other)
    d.node(d.op, [other, x] if kind == "constant first" else [x, other])


def _prelu(d: Drawing) -> None:
    x = d.value()
    each = (*d.shapes[x][1:2], *[1] * (len(d.shapes[x]) - 2))
    d.node("PRelu", [x, d.constant(each if d.pick("slope", "each", "one") == "each" else (1,))])


def _window(d: Drawing, size: Sequence[int]) -> dict[str, Any]:
    kernel = [int(d.rng.integers(1, min(3, one) + 1)) for one in size]
    found: dict[str, Any] = {"kernel_shape": kernel, "strides": list(d.sizes(len(size), 1, 2))}
    padding = d.pick("padding", "none", "pads", "SAME_UPPER", "SAME_LOWER", "VALID")
    if padding == "pads":
        found["pads"] = [int(d.rng.integers(0, k)) for k in (*kernel, *kernel)]
    elif padding != "none":
        found["auto_pad"] = padding
        found["strides"] = [min(k, stride) for k, stride in zip(kernel, found["strides"], strict=True)]
    if padding in ("none", "pads") and d.pick("dilated", 0, 1):
        found["dilations"] = [d.one(1, 2) if (k - 1) * 2 < one else 1 for k, one in zip(kernel, size, strict=True)]
    return found


def _conv(d: Drawing) -> None:
    x = d.value(3, 4, 4, 5, least=3)
    channels = d.shapes[x][1]
    d.pick("axes", len(d.shapes[x]) - 2)
    window = _window(d, d.shapes[x][2:])
    groups = _groups(d, channels)
    out = groups * int(d.one(1, 2, 4, 8 if groups == 1 else 1))
    bias = [d.constant((out,))] if d.pick("bias", 0, 1) else []
    d.node("Conv", [x, d.constant((out, channels // groups, *window["kernel_shape"])), *bias], group=groups, **window)


def _deconv(d: Drawing) -> None:
    x = d.value(3, 4, 4, 5)
    _, channels, *size = d.shapes[x]
    d.pick("axes", len(size))
    kernel, strides = list(d.sizes(len(size), 1, 3)), list(d.sizes(len(size), 1, 2))
    attributes: dict[str, Any] = {"strides": strides, "kernel_shape": kernel}
    padding = d.pick("padding", "none", "pads", "output_padding", "SAME_UPPER", "SAME_LOWER", "output_shape")
    if padding == "pads":
        attributes["pads"] = [0] * len(size) + [min(1, k - 1) for k in kernel]
    elif padding == "output_padding":
        attributes["output_padding"] = [s - 1 for s in strides]
    elif padding == "output_shape":
        natural = [(i - 1) * stride + k for i, stride, k in zip(size, strides, kernel, strict=True)]
        attributes["output_shape"] = [max(i, n - d.one(0, 1)) for i, n in zip(size, natural, strict=True)]
    elif padding != "none":
        attributes["auto_pad"] = padding
    if padding == "none" and d.pick("dilated", 0, 1):
        attributes["dilations"] = [2] * len(size)
    groups = 2 if d.pick("groups", 1, 2) == 2 and channels % 2 == 0 else 1
    each = int(d.one(1, 3))
    bias = [d.constant((each * groups,))] if d.pick("bias", 0, 1) else []
    d.node("ConvTranspose", [x, d.constant((channels, each, *kernel)), *bias], group=groups, **attributes)


def _pool(d: Drawing) -> None:
    x = d.value(3, 4, 4, 5, least=3)
    d.pick("axes", len(d.shapes[x]) - 2)
    window = _window(d, d.shapes[x][2:])
    padded = "auto_pad" in window or any(window.get("pads", ()))  # ONNX and ONNX Runtime then count windows differently
    if not padded and d.pick("ceil_mode", 0, 1):
        window["ceil_mode"] = 1
    if d.op == "AveragePool" and d.pick("count_include_pad", 0, 1):
        window["count_include_pad"] = 1
    d.node(d.op, [x], **window)


def _batch_norm(d: Drawing) -> None:
    x = d.value(2, 3, 4, 5)
    weights = [d.constant(d.shapes[x][1:2]) for _ in range(4)]
    d.constants[weights[3]] = np.abs(d.constants[weights[3]]) + np.float32(0.5)
    d.node("BatchNormalization", [x, *weights], epsilon=d.pick("epsilon", 1e-5, 1e-2))


def _groups(d: Drawing, channels: int) -> int:
    return {"one": 1, "two": 2 if channels % 2 == 0 else 1, "each": channels}[d.pick("groups", "one", "two", "each")]


def _channel_norm(d: Drawing) -> None:
    x = d.value(3, 4, 5)
    channels = d.shapes[x][1]
    own = {"epsilon": d.pick("epsilon", 1e-3, 1e-1)}
    if d.op == "GroupNormalization":
        own["num_groups"] = _groups(d, channels)
    d.node(d.op, [x, d.constant((channels,)), d.constant((channels,))], **own)


def _layer_norm(d: Drawing) -> None:
    x = d.value(2, 3, 4)
    shape = d.shapes[x]
    axis = int(d.rng.integers(0, len(shape)))
    weights = [d.constant(shape[axis:]) for _ in range(d.pick("weights", 1, 2))]
    outputs = d.pick("outputs", 1, 2, 3)
    d.node(d.op, [x, *weights], outputs, axis=axis - len(shape) * d.one(0, 1), epsilon=d.pick("epsilon", 1e-3, 1e-1))


def _softmax(d: Drawing) -> None:
    x = d.value()
    rank = len(d.shapes[x])
    d.node(d.op, [x], axis=int(d.rng.integers(-rank, rank)))


def _gemm(d: Drawing) -> None:
    x = d.value(2)
    rows, columns = d.pick("transA", 0, 1), d.pick("transB", 0, 1)
    m, k = d.shapes[x][:: -1 if rows else 1]
    n = int(d.one(1, 3, 8))
    shape = (n, k) if columns else (k, n)
    other = d.given(shape) if d.pick("B", "weight", "activation") == "activation" else d.constant(shape)
    third = {"none": (), "column": ((n,),), "row": ((m, 1),), "all": ((m, n),), "number": ((1,),)}[
        d.pick("C", "none", "column", "row", "all", "number")
    ]
    reads = [x, other, *(d.constant(c) for c in third)]
    d.node("Gemm", reads, transA=rows, transB=columns, alpha=d.pick("alpha", 1.0, 0.5), beta=d.pick("beta", 1.0, 2.0))


def _matmul(d: Drawing) -> None:
    x = d.value(1, 2, 3, 4)
    shape = d.shapes[x]
    n = int(d.one(1, 3, 8))
    kind = d.pick("operands", "weight", "weights first", "activation", "batch of weights")
    if kind == "weights first" and len(shape) > 1:
        d.node("MatMul", [d.constant((n, shape[-2])), x])
    elif kind == "activation":
        d.node("MatMul", [x, d.given((*shape[:-2], shape[-1], n))])
    else:
        d.node("MatMul", [x, d.constant((*(shape[:-2] if kind == "batch of weights" else ()), shape[-1], n))])


def _reduce(d: Drawing) -> None:
    x = d.value(2, 3, 4, 5)
    rank = len(d.shapes[x])
    count = int(d.rng.integers(1, rank + 1))
    axes = sorted(int(axis) for axis in d.rng.choice(rank, count, replace=False))
    keep = 1 if count == rank else d.pick("keepdims", 0, 1)
    x = d.positive(x) if "Log" in d.op and "Exp" not in d.op else x
    x = d.node("Tanh", [x]) if "Prod" in d.op else x  # of hundreds of larger ones the product is infinite
    named = (
        [] if count == rank and d.pick("axes", "all", "named") == "all" else [d.constant(np.array(axes) - rank * d.one(0, 1))]
    )
    d.node(d.op, [x, *named], keepdims=keep)


def _concat(d: Drawing) -> None:
    x = d.value()
    shape = d.shapes[x]
    axis = int(d.rng.integers(len(shape)))
    wide = (*shape[:axis], int(d.one(1, 2, 5)), *shape[axis + 1 :])
    kind = d.pick("operands", "constant", "activation", "itself", "constant first")
    other = d.given(wide) if kind == "activation" else x if kind == "itself" else d.constant(wide)
    d.node("Concat", [other, x] if kind == "constant first" else [x, other], axis=axis - len(shape) * d.one(0, 1))


def _split(d: Drawing) -> None:
    x = d.value()
    shape = d.shapes[x]
    axis = max(range(len(shape)), key=lambda i: shape[i])
    if shape[axis] == 1:
        return
    first = int(d.rng.integers(1, shape[axis]))
    if d.pick("sizes", "given", "even") == "given":
        d.node("Split", [x, d.constant([first, shape[axis] - first])], 2, axis=axis)
    else:
        d.node("Split", [x], 2, axis=axis, num_outputs=2)


def _long(d: Drawing, *ranks: int) -> str:
    """An activation, or one with an axis so long that no matrix mixes its places."""
    return d.value(*ranks) if d.pick("length", "short", "long") == "short" else d.given((1, *d.one((2, 300), (300, 3))))


def _slice(d: Drawing) -> None:
    x = _long(d)
    shape = d.shapes[x]
    axis = int(d.rng.integers(len(shape)))
    start, step = int(d.rng.integers(0, shape[axis])), d.pick("steps", 1, 2, -1)
    end = int(d.rng.integers(start + 1, shape[axis] + 1)) if step > 0 else -(1 << 40)
    d.node("Slice", [x, *(d.constant([v]) for v in (start, end, axis - len(shape) * d.one(0, 1), step))])


def _pad(d: Drawing) -> None:
    x = _long(d, 2, 3, 4)
    shape, mode = d.shapes[x], d.pick("mode", "constant", "edge", "reflect", "wrap")
    pads = [int(d.rng.integers(0, 1 + min(2, size - 1))) for size in (*shape, *shape)]
    value = [d.constant(d.pick("value", 0.0, 1.5))] if mode == "constant" else []
    d.node("Pad", [x, d.constant(pads), *value], mode=mode)


def _gather(d: Drawing) -> None:
    x = _long(d, 2, 3, 4)
    shape = d.shapes[x]
    axis = int(d.rng.integers(len(shape)))
    count = {"one": (), "some": (3,), "matrix": (2, 2), "many": (300,)}[d.pick("indices", "one", "some", "matrix", "many")]
    if len(shape) + len(count) > 6:
        return
    d.node("Gather", [x, d.constant(d.rng.integers(-shape[axis], shape[axis], count))], axis=axis)


def _expand(d: Drawing) -> None:
    x = d.value(1, 2, 3)
    shape = (int(d.one(1, 2)), *(d.one(2, 3) if size == 1 else d.one(1, size) for size in d.shapes[x]))
    d.node("Expand", [x, d.constant(np.array(shape))])


def _blocks(d: Drawing) -> None:
    mode = {"mode": d.pick("mode", "DCR", "CRD")} if d.op == "DepthToSpace" else {}
    size = d.pick("blocksize", 2, 3)
    d.node(d.op, [d.given((1, 4 * 9, 2, 3) if d.op == "DepthToSpace" else (2, 3, 2 * 6, 6))], blocksize=size, **mode)


def _reshape(d: Drawing) -> None:
    x = d.value()
    shape = list(d.shapes[x])
    if d.op == "Flatten":
        d.node("Flatten", [x], axis=int(d.rng.integers(0, len(shape) + 1)))
    elif d.op == "Unsqueeze":
        if len(shape) < 5:
            d.node("Unsqueeze", [x, d.constant([int(d.rng.integers(-1, len(shape)))])])
    elif d.op == "Squeeze":
        ones = [axis for axis, size in enumerate(shape) if size == 1]
        if ones and len(shape) > 1:
            d.node("Squeeze", [x, d.constant([d.one(*ones)])])
    else:
        place = int(d.rng.integers(len(shape)))
        kind = d.pick("shape", "joined", "parted", "kept")
        wanted = {"joined": [*shape[:place], -1], "parted": [*shape[:place], -1, 1], "kept": [0] * place + shape[place:]}[kind]
        d.node("Reshape", [x, d.constant(wanted)])


def _transpose(d: Drawing) -> None:
    x = d.value(2, 3, 4, 5)
    permutation = [int(axis) for axis in d.rng.permutation(len(d.shapes[x]))]
    own: dict[str, Any] = {"perm": permutation} if d.pick("perm", "given", "default") == "given" else {}
    d.node("Transpose", [x], **own)


def _resize(d: Drawing) -> None:
    mode = d.pick("mode", "nearest", "linear", "cubic")
    x = d.value(4) if mode == "cubic" else d.value(4, 4, 5)
    if d.pick("length", "short", "short", "short", "long") == "long":
        x = d.given((1, 2, *d.one((300, 2), (2, 300))))
    shape = d.shapes[x]
    coordinates = ["half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric"]
    # ONNX Runtime's cubic ones are others, and its nearest pixels of the symmetric one break ties by another rounding
    further = {"linear": ["half_pixel_symmetric", "tf_crop_and_resize"], "nearest": ["tf_crop_and_resize"], "cubic": []}[mode]
    attributes: dict[str, Any] = {"mode": mode}
    how = d.pick("coordinates", *coordinates, *further)
    attributes["coordinate_transformation_mode"] = how
    sizes = [int(d.one(size, 2 * size, max(1, size // 2), size + 1, 3)) for size in shape[2:]]
    if mode == "nearest":
        attributes["nearest_mode"] = d.pick("nearest_mode", "round_prefer_floor", "round_prefer_ceil", "floor", "ceil")
    if mode != "nearest" and len(shape) == 4 and how in coordinates:
        attributes["antialias"] = d.pick("antialias", 0, 1)
        if mode == "cubic" or attributes["antialias"]:  # elsewhere ONNX Runtime refuses it
            attributes["exclude_outside"] = d.pick("exclude_outside", 0, 1)
    region = [d.constant(np.array([0, 0, *[0.1] * len(sizes), 1, 1, *[0.9] * len(sizes)], np.float32))]
    if how == "tf_crop_and_resize":  # ONNX Runtime does not cut axes that keep their size
        sizes = [size + (size == before) for size, before in zip(sizes, shape[2:], strict=True)]
        attributes["extrapolation_value"] = d.pick("extrapolation_value", 0.0, 1.5)
        d.node("Resize", [x, *region, "", d.constant([*shape[:2], *sizes])], **attributes)
    elif d.pick("to", "sizes", "scales") == "scales":
        # of 300 pixels by 0.7 ONNX's shape inference makes 209, ONNX Runtime 210
        scales = np.array([1, 1, *(d.one(0.5, 0.7 if max(shape) < 100 else 0.25, 1.0, 1.5, 2.0) for _ in sizes)], np.float32)
        if all(int(size * scale) for size, scale in zip(shape, scales, strict=True)):
            d.node("Resize", [x, "", d.constant(scales)], **attributes)
    else:
        d.node("Resize", [x, "", "", d.constant([*shape[:2], *sizes])], **attributes)


def _recurrent(d: Drawing) -> None:
    x = d.value(3)
    _, batch, features = d.shapes[x]
    gates, hidden = {"RNN": 1, "GRU": 3, "LSTM": 4}[d.op], int(d.one(1, 3, 8))
    direction = d.pick("direction", "forward", "reverse", "bidirectional")
    both = 2 if direction == "bidirectional" else 1
    reads = [x, d.constant((both, gates * hidden, features)), d.constant((both, gates * hidden, hidden))]
    reads.append(d.constant((both, 2 * gates * hidden)) if d.pick("bias", 0, 1) else "")
    state = d.pick("states", "none", "given", "constant")
    make = d.given if state == "given" else d.constant
    reads += ["", *(make((both, batch, hidden)) for _ in range(2 if d.op == "LSTM" else 1))] if state != "none" else []
    own: dict[str, Any] = {}
    if d.op == "GRU":
        own["linear_before_reset"] = d.pick("linear_before_reset", 0, 1)
    if d.op == "RNN":
        own["activations"] = [d.pick("activations", "Tanh", "Relu", "Sigmoid")] * both
    if d.op == "LSTM" and d.pick("peepholes", 0, 1):
        reads += [""] * (7 - len(reads)) + [d.constant((both, 3 * hidden))]
    while not reads[-1]:
        del reads[-1]
    outputs = d.pick("outputs", 1, 2) if d.op != "LSTM" else d.pick("outputs", 1, 2, 3)
    d.node(d.op, reads, outputs, hidden_size=hidden, direction=direction, **own)


def _exact(d: Drawing) -> tuple[str, str]:
    """An activation, and an input of its shape: no rounding decides on which side of a step it lies."""
    x = d.value()
    return x, d.given(d.shapes[x])


def _masked(d: Drawing) -> None:
    """One of two values by a truth value."""
    x, given = _exact(d)
    bound = d.constant(d.one((), d.shapes[x], (1,)))
    if d.op in ("And", "Or", "Xor"):
        truth = d.node(d.op, [d.node("Less", [given, bound]), d.node("Greater", [given, d.constant(-0.5)])])
    elif d.op == "Not":
        truth = d.node("Not", [d.node("Less", [given, bound])])
    else:
        truth = d.node(d.op if d.op != "Where" else "Greater", [given, bound])
    other = d.constant(d.shapes[x]) if d.pick("other", "constant", "number") == "constant" else d.constant(2.5)
    d.node("Where", [truth, other, x] if d.pick("order", "first", "second") == "second" else [truth, x, other])


def _stepped(d: Drawing) -> None:
    x, given = _exact(d)
    d.node("Mul", [d.node(d.op, [given]), x])


def _cast(d: Drawing) -> None:
    x, given = _exact(d)
    to = d.pick("to", TensorProto.INT32, TensorProto.INT64, TensorProto.BOOL)
    d.node("Add", [d.node("Cast", [d.node("Cast", [given], to=to)], to=TensorProto.FLOAT), x])


def _best(d: Drawing) -> None:
    _, given = _exact(d)
    rank = len(d.shapes[given])
    own = {"keepdims": d.pick("keepdims", 0, 1) if rank > 1 else 1, "select_last_index": d.pick("select_last_index", 0, 1)}
    d.node("Cast", [d.node(d.op, [given], axis=int(d.rng.integers(-rank, rank)), **own)], to=TensorProto.FLOAT)


def _sums_so_far(d: Drawing) -> None:
    x = d.value()
    axis = d.constant(np.array(int(d.rng.integers(-len(d.shapes[x]), len(d.shapes[x])))))
    d.node("CumSum", [x, axis], exclusive=d.pick("exclusive", 0, 1), reverse=d.pick("reverse", 0, 1))


def _top(d: Drawing) -> None:
    x = d.value()
    axis = int(d.rng.integers(len(d.shapes[x])))
    count = d.constant([int(d.rng.integers(1, d.shapes[x][axis] + 1))])
    d.node("TopK", [x, count], 2, axis=axis - len(d.shapes[x]) * d.one(0, 1), largest=d.pick("largest", 0, 1))
    places = d.nodes[-1].output[1]  # rounding decides which of nearly equal ones comes first: they are not looked at
    del d.shapes[places], d.types[places]


def _triangle(d: Drawing) -> None:
    x = d.value(2, 3, 4)
    k = [d.constant(np.array(d.pick("k", -2, -1, 0, 1, 2)))] if d.pick("diagonal", "main", "given") == "given" else []
    d.node("Trilu", [x, *k], upper=d.pick("upper", 0, 1))


_CONTRASTS: Mapping[str, Sequence[float]] = {"size": (1, 3, 5), "alpha": (1e-4, 0.5), "beta": (0.75, 0.5)}
#: How each operator is drawn.
DRAWN: Mapping[str, Callable[[Drawing], object]] = {
    **dict.fromkeys(("Relu", "HardSwish", "Sigmoid", "Tanh", "Softplus", "Mish"), _unary()),
    **dict.fromkeys(("Abs", "Neg", "Erf", "Selu", "Softsign"), _unary()),
    "LeakyRelu": _unary(alpha=(0.01, 0.3)), "Elu": _unary(alpha=(1.0, 0.3)), "Gelu": _unary(approximate=("none", "tanh")),
    "HardSigmoid": _unary(alpha=(0.2, 0.3), beta=(0.5, 0.4)),
    "Exp": lambda d: d.node("Exp", [d.node("Clip", [d.value(), d.constant(-3.0), d.constant(3.0)])]), "Clip": _clip,
    "Pow": lambda d: d.node("Pow", [d.positive(d.value()), d.constant(d.pick("exponent", 2.0, 3.0, 0.5, -1.0, 1.7, 1.0))]),
    **dict.fromkeys(("Sqrt", "Log", "Reciprocal"), lambda d: d.node(d.op, [d.positive(d.value())])),
    **dict.fromkeys(("Add", "Mul", "Sub", "Div", "Min", "Max"), _pair), "PRelu": _prelu,
    "Conv": _conv, "ConvTranspose": _deconv, "MaxPool": _pool, "AveragePool": _pool,
    **dict.fromkeys(("GlobalAveragePool", "GlobalMaxPool"), lambda d: d.node(d.op, [d.value(3, 4, 5)])),
    "LRN": lambda d: d.node("LRN", [d.value(4)], **{key: d.pick(key, *values) for key, values in _CONTRASTS.items()}),
    "BatchNormalization": _batch_norm, "InstanceNormalization": _channel_norm, "GroupNormalization": _channel_norm,
    "LayerNormalization": _layer_norm, "Softmax": _softmax, "LogSoftmax": _softmax, "Gemm": _gemm, "MatMul": _matmul,
    **{f"Reduce{op}": _reduce for op in ("Max", "Min", "Mean", "Sum", "L1", "L2", "SumSquare", "LogSum", "LogSumExp", "Prod")},
    "Concat": _concat, "Split": _split, "Slice": _slice, "Pad": _pad, "Gather": _gather, "Expand": _expand,
    "Tile": lambda d: d.node("Tile", [x := d.value(), d.constant(np.array(d.sizes(len(d.shapes[x]), 1, 2)))]),
    "DepthToSpace": _blocks, "SpaceToDepth": _blocks, "Transpose": _transpose, "Resize": _resize,
    **dict.fromkeys(("Flatten", "Unsqueeze", "Squeeze", "Reshape"), _reshape),
    **dict.fromkeys(("LSTM", "GRU", "RNN"), _recurrent),
    **dict.fromkeys(("Equal", "Greater", "Less", "GreaterOrEqual", "LessOrEqual", "And", "Or", "Xor", "Not", "Where"), _masked),
    **dict.fromkeys(("Floor", "Ceil", "Round", "Sign"), _stepped), **dict.fromkeys(("ArgMax", "ArgMin"), _best),
    "Cast": _cast, "CumSum": _sums_so_far, "TopK": _top, "Trilu": _triangle,
}  # fmt: skip


def drawn(seed: int, counts: Counter[str]) -> onnx.ModelProto:
    """A random model; what it is made of is counted."""
    rng = np.random.default_rng(seed)
    d = Drawing(rng, counts)
    while len(d.nodes) < _OPERATORS:
        d.op = str(rng.choice(list(DRAWN)))
        before = len(d.nodes)
        DRAWN[d.op](d)
        counts[d.op] += len(d.nodes) > before
    return d.model()


def graphs(count: int) -> Iterator[Graph]:
    """Random models of so many seeds as graphs, without those that are refused."""
    for seed in range(count):
        with suppress(ModelError):  # other tests say which
            yield from_onnx(drawn(seed, Counter()))
