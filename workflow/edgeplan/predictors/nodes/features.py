"""Describes executed nodes by numbers: what they compute, what they read and write, and how.

A kind is a family of nodes that one set of trees learns; a key within it has an algorithm of its own. Sizes are what the time
of a node follows from. The terms are those of them that time is proportional to, somewhere.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from edgeplan.graph.nodes import LOOKUP, AttributeValue, NodeConfig, Operand

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]

#: Terms that a time is a sum of, us per unit; `spilled` is what of the weights comes from memory (see `spill`).
TERMS = (
    *("constant", "flops", "padded_flops", "read", "written", "weights", "spilled"),
    *("windows", "scalar_steps", "outer_runs", "operands", "reread", "cold"),
)
#: Sizes that describe how a node computes, beside the terms.
_HOW = (
    *("m", "k", "n", "batch", "rank", "inner", "last_axis", "window", "stride", "dilation", "padding", "groups"),
    *("channels_in", "channels_out", "group_in", "pixels", "width", "steps", "hidden", "directions", "activation", "sum"),
    *("transposed", "broadcast", "rest_m", "rest_n", "rest_k", "element"),
)
#: Columns of a table of sizes: the terms without `spilled`, which is of a model, and how.
SIZES = (*(name for name in TERMS if name != "spilled"), *_HOW)
_AT = MappingProxyType({name: place for place, name in enumerate(SIZES)})
_NONE = MappingProxyType(dict.fromkeys(SIZES, 0.0))
_TERM_AT = [_AT["weights" if name == "spilled" else name] for name in TERMS]
SPILLED = TERMS.index("spilled")

#: Rows and columns of a product that a register tile holds, and channels of a block.
_TILE_ROWS, _TILE_COLUMNS, _BLOCK = 12, 16, 16
#: Activations beyond so many bytes come from further away than a core's own caches.
_WARM_BYTES = 1 << 20
#: Text and graphs of attributes are bytes of weights that a node reads, by so many a character of base64.
_BODY_BYTES = 0.75
_ATTRIBUTE_BYTES = 4  # of an attribute's element: floats

Attributes = Mapping[str, AttributeValue]
Shape = tuple[int, ...]


@dataclass(frozen=True)
class Table:
    """A table describes distinct nodes.

    Attributes:
        kinds, keys: of each node (n,); a key begins with its kind.
        sizes: (n, SIZES).
        place: row of each node that was asked for (nodes,).
    """

    kinds: tuple[str, ...]
    keys: tuple[str, ...]
    sizes: Floats
    place: Integers

    @staticmethod
    def of(configs: Sequence[NodeConfig]) -> Table:
        """Describe nodes; each distinct configuration once. Equal ones that are one object cost the least."""
        numbers = np.fromiter(map(id, configs), np.int64, len(configs))
        _, first, inverse = np.unique(numbers, return_index=True, return_inverse=True)
        row: dict[NodeConfig, int] = {}
        rows = np.zeros(len(first), np.int64)
        for i in np.argsort(first):  # as they come, wherever the objects lie
            rows[i] = row.setdefault(configs[first[i]], len(row))
        described = [describe(config) for config in row]
        sizes = np.array([one.sizes for one in described], np.float64).reshape(len(row), len(SIZES))
        return Table(tuple(one.kind for one in described), tuple(one.key for one in described), sizes, rows[inverse])


def terms(sizes: Floats, spilled: Floats | float = 0.0) -> Floats:
    """Return the terms of nodes (n, TERMS), of whose weights a share is spilled (n,)."""
    result = sizes[:, _TERM_AT]
    result[:, SPILLED] *= spilled
    return np.asarray(result)


def spill(context: Floats, cache_bytes: float) -> Floats:
    """Return the share of weights that come from memory, by contexts and bytes of the last cache (n,).

    A hinge: none where a context fills 4/5 of the cache, all where it fills 6/5. Weights are read in turn, and the cache holds
    those that were read last: nearly all of them, or nearly none that is read next.
    """
    return np.asarray(np.clip((context / cache_bytes - 0.8) / 0.4, 0.0, 1.0))


def logs(sizes: Floats) -> Floats:
    """Return what trees and Gaussian processes see of sizes: logarithms, and work by byte (n, SIZES + 1)."""
    moved = sizes[:, _AT["read"]] + sizes[:, _AT["written"]] + sizes[:, _AT["weights"]]
    intensity = np.log1p(sizes[:, _AT["flops"]]) - np.log1p(moved)
    return np.column_stack([np.log1p(np.maximum(sizes, 0.0)), intensity])


class Description(NamedTuple):
    """Kind, key and sizes of a node."""

    kind: str
    key: str
    sizes: list[float]


def describe(config: NodeConfig) -> Description:
    """Describe one node by its numbers."""
    kind = _KINDS.get(config.op, "other")
    attributes = dict(config.attributes)
    inputs = [one for one in config.inputs if one]
    outputs = [one for one in config.outputs if one]
    read = written = weights = 0
    signed = False
    for one in inputs:
        size = math.prod(one.shape) * _item_bytes(one.dtype)
        if one.constant:
            weights += size
            signed |= one.dtype == "int8" and size > 1
        else:
            read += size
    for one in outputs:
        written += math.prod(one.shape) * _item_bytes(one.dtype)
    listed = sum([len(value) for value in attributes.values() if isinstance(value, tuple) and len(value) > _BLOCK])
    shape = inputs[0].shape if inputs else ()
    dtype = inputs[0].dtype if inputs else "float32"
    # the body of a graph's kernel is its operators, that of others their tensors
    held = 0.0 if config.body.startswith("{") else _BODY_BYTES * len(config.body)
    sizes = _NONE | {
        "constant": 1.0,
        "read": read,
        "written": written,
        "weights": weights + _ATTRIBUTE_BYTES * listed + held,
        "operands": len(inputs) + len(outputs),
        "element": _item_bytes(dtype),
        "rank": len(shape),
        "last_axis": shape[-1] if shape else 1,
        "inner": shape[-1] if shape else 1,
        "activation": _ACTIVATIONS.get(str(attributes.get("activation", "")), 3.0),
    }
    if dtype in _EIGHT_BITS and kind == "elementwise":
        kind = "quantised-elementwise"
    node = _Node(config.op, config.inputs, attributes, inputs, outputs, shape, outputs[0].shape if outputs else ())
    way = _SIZED[kind.removeprefix("quantised-")](node, sizes)
    sizes["cold"] = max(0.0, sizes["read"] + sizes["written"] - _WARM_BYTES)
    if kind.startswith("quantised"):
        way += "-signed" if signed else ""  # weights with a sign have instructions of their own, twice as fast
    elif dtype != "float32" and kind in _TYPED:
        way += f"-{dtype}"
    of = f"{config.domain.rsplit('.', 1)[-1]}:" if config.domain not in _COMMON else ""
    by = f"@{by}" if (by := attributes.get("implementation", "")) else ""
    key = f"{kind}/{of}{_ALIKE.get(config.op, config.op)}{way}{by}"
    return Description(kind, key, [sizes[name] for name in SIZES])


@cache
def _item_bytes(dtype: str) -> int:
    return Operand(dtype, ()).bytes


@dataclass(slots=True)
class _Node:
    op: str
    operands: tuple[Operand | None, ...]
    attributes: Attributes
    inputs: list[Operand]
    outputs: list[Operand]
    first: Shape
    result: Shape

    def number(self, name: str, default: int) -> int:
        value = self.attributes.get(name, default)
        return int(value) if isinstance(value, int | float) else default

    def numbers(self, name: str) -> tuple[int, ...]:
        value = self.attributes.get(name, ())
        return tuple(int(one) for one in value if not isinstance(one, str)) if isinstance(value, tuple) else ()

    def operand(self, place: int) -> Operand | None:
        return self.operands[place] if place < len(self.operands) else None

    def axis(self, default: int) -> int:
        return self.number("axis", default) % max(1, len(self.first))


Size = dict[str, float]


def _padded(m: int, k: int, n: int) -> float:
    return 2.0 * math.ceil(m / _TILE_ROWS) * _TILE_ROWS * k * math.ceil(n / _TILE_COLUMNS) * _TILE_COLUMNS


def _product(node: _Node, size: Size) -> str:
    right = node.operand(3 if node.op in _SCALED_OPERANDS else 1)
    left, constant = node.first, bool(right and right.constant)
    m, k = (left[-2] if len(left) > 1 else 1), (left[-1] if left else 1)
    if node.number("transA", 0):
        m, k = k, m
    n = node.number("N", node.result[-1] if node.result else 1)
    batch = max(1, math.prod(node.result) // max(1, m * n))
    if constant and right and len(right.shape) <= 2:  # one product of all rows
        m, batch = m * batch, 1
    flops = 2.0 * batch * m * k * n
    size |= {"flops": flops, "padded_flops": batch * _padded(m, k, n), "m": m, "k": k, "n": n, "batch": batch}
    size |= {"outer_runs": batch, "transposed": 2 * node.number("transA", 0) + node.number("transB", 0)}
    size |= {"rest_m": -m % _TILE_ROWS, "rest_n": -n % _TILE_COLUMNS, "rest_k": -k % _BLOCK}
    return ("-weights" if constant else "") + ("-row" if m == 1 else "")


def _convolution(node: _Node, size: Size) -> str:
    kernel = node.operand(3 if node.op == "QLinearConv" else 1)
    shape = kernel.shape if kernel and len(kernel.shape) > 1 else (1, 1)
    batch, channels = (*node.first, 1, 1)[:2]
    spatial, result = node.first[2:], node.result[2:]
    channels_last = node.op == "NhwcFusedConv" or bool(node.number("channels_last", 0))
    if channels_last:
        channels, spatial, result = node.first[-1], node.first[1:-1], node.result[1:-1]
    out = (node.result[-1] if channels_last else node.result[1]) if len(node.result) > 1 else shape[0]
    groups, window, pixels = node.number("group", 1), math.prod(shape[2:]), math.prod(result)
    transposed = node.op == "ConvTranspose"
    reduced = (shape[0] // max(1, groups) if transposed else shape[1]) * window
    flops = 2.0 * (math.prod(node.first) * shape[1] * window if transposed else batch * out * pixels * reduced)
    depthwise = groups > 1 and shape[1] == 1 and not transposed
    whole = 1 if depthwise else groups
    size |= {"flops": flops, "padded_flops": batch * whole * _padded(out // whole, reduced, pixels)}
    if depthwise:
        size["padded_flops"] = 2.0 * batch * math.ceil(out / _BLOCK) * _BLOCK * window * pixels
    size |= {"windows": float(batch * pixels * window * channels), "outer_runs": batch * max(1, groups)}
    size |= {"m": out, "k": reduced, "n": pixels, "batch": batch, "window": window, "groups": groups, "pixels": pixels}
    size |= {"channels_in": channels, "channels_out": out, "group_in": shape[1], "width": result[-1] if result else 1}
    size |= {"stride": math.prod(node.numbers("strides")), "dilation": max(node.numbers("dilations"), default=1)}
    size |= {"padding": sum(node.numbers("pads")), "inner": result[-1] if result else 1}
    size |= {"sum": float(node.op not in ("QLinearConv", "ConvInteger") and node.operand(3) is not None)}
    size |= {"rest_m": -out % _BLOCK, "rest_n": -pixels % _TILE_COLUMNS, "rest_k": -channels % _BLOCK}
    way = "-depthwise" if depthwise else "-grouped" if groups > 1 else ""
    return way + ("-1d" if len(spatial) == 1 else "") + ("-pixel" if pixels == 1 else "")


def _recurrent(node: _Node, size: Size) -> str:
    gates = 4 if node.op.endswith("LSTM") else 3 if node.op.endswith("GRU") else 1
    weights, again = node.operand(1), node.operand(2)
    directions = weights.shape[0] if weights else 1
    hidden = node.number("hidden_size", again.shape[-1] if again else 1)
    steps, batch, width = (*node.first, 1, 1, 1)[:3]
    element = again.bytes / max(1, again.elements) if again else 4.0
    flops = 2.0 * steps * batch * directions * gates * hidden * (width + hidden)
    columns = gates * hidden
    padded = directions * (steps * _padded(batch, hidden, columns) + _padded(steps * batch, width, columns))
    size |= {"flops": flops, "padded_flops": padded, "reread": element * steps * directions * gates * hidden * hidden}
    size |= {"outer_runs": steps * directions, "steps": steps, "batch": batch, "hidden": hidden, "directions": directions}
    size |= {"m": steps * batch, "k": width, "n": gates * hidden, "scalar_steps": steps * batch * directions * gates * hidden}
    return ""


def _attention(node: _Node, size: Size) -> str:
    batch, queries, width = (*node.first, 1, 1, 1)[:3]
    keys = node.operand(1)
    projects = bool(keys and keys.constant and len(keys.shape) == 2)
    wide = keys.shape[-1] // 3 if projects and keys else width
    seen = keys.shape[-2] if keys and not projects and len(keys.shape) > 2 else queries
    past = max((one.shape[-2] for one in node.inputs[2:] if len(one.shape) >= 4), default=0)
    seen = max(seen, past)
    heads = node.number("num_heads", 1)
    flops = 4.0 * batch * queries * seen * wide + (6.0 * batch * queries * width * wide if projects else 0.0)
    size |= {"flops": flops, "padded_flops": flops, "scalar_steps": float(batch * heads * queries * seen)}
    size |= {"m": queries, "n": seen, "k": wide // max(1, heads), "batch": batch, "groups": heads, "outer_runs": batch * heads}
    return ""


def _pool(node: _Node, size: Size) -> str:
    window = math.prod(node.numbers("kernel_shape") or node.first[2:])
    channels, pixels = node.first[1] if len(node.first) > 1 else 1, math.prod(node.result[2:])
    size |= {"flops": float(math.prod(node.result) * window), "windows": float(math.prod(node.result) * window)}
    size |= {"window": window, "stride": math.prod(node.numbers("strides")), "pixels": pixels, "channels_in": channels}
    size |= {"batch": node.first[0] if node.first else 1, "outer_runs": math.prod(node.first[:2])}
    size |= {"width": node.result[-1] if node.result else 1, "padding": sum(node.numbers("pads"))}
    return "-1d" if len(node.first) == 3 else ""


def _elementwise(node: _Node, size: Size) -> str:
    elements = math.prod(node.result)
    run = min((_run(one.shape, node.result) for one in node.inputs[:3] if one.elements > 1), default=elements)
    small = sum(one.elements == 1 for one in node.inputs) if elements > 1 else 0
    size |= {"flops": float(elements), "inner": run, "outer_runs": elements / max(1, run), "m": small}
    size |= {"broadcast": float(run < elements), "scalar_steps": elements if run < _BLOCK < elements else 0.0}
    return ""


def _run(shape: Shape, result: Shape) -> int:
    """Return the elements in a row that an operand goes along with, or stays at one element for."""
    run, stays = 1, None
    padded = (1,) * (len(result) - len(shape)) + shape
    for own, out in zip(reversed(padded), reversed(result), strict=False):
        if out != 1:
            if stays not in (None, own == 1):
                break
            stays = own == 1
        run *= out
    return run


def _reduction(node: _Node, size: Size) -> str:
    shape, rank = node.first, max(1, len(node.first))
    given = node.operand(1)
    axes = node.numbers("axes") or (given.values if given and given.values and node.op.startswith("Reduce") else None) or ()
    if node.op in _OVER_LAST:
        start = rank - 1
    elif axes:
        start = min(axis % rank for axis in axes)
    else:
        start = node.axis(-1 if node.op in _FROM_LAST else 0)
    inner = rank - 1 in {axis % rank for axis in axes} if axes else True
    size |= {"flops": float(math.prod(shape)), "inner": math.prod(shape[start:]), "outer_runs": math.prod(shape[:start])}
    size |= {"k": shape[start] if shape else 1, "scalar_steps": 0.0 if inner else float(math.prod(shape))}
    return "" if inner else "-outer"


def _transpose(node: _Node, size: Size) -> str:
    shape, elements = node.first, math.prod(node.first)
    order = node.numbers("perm") or tuple(range(len(shape)))[::-1]
    run = 1
    for place in range(len(order) - 1, -1, -1):
        if order[place] != place:
            break
        run *= shape[place]
    moved = [axis for axis in order if shape[axis] != 1]
    stays, whole = moved == sorted(moved), run > 1
    run = elements if stays else run
    size |= {"inner": run, "outer_runs": elements / max(1, run), "k": shape[order[-1]] if order else 1}
    size |= {"scalar_steps": 0.0 if stays or whole else float(elements), "transposed": float(not stays) + float(not whole)}
    size |= {"n": shape[moved[-1]] if moved else 1, "m": shape[moved[0]] if moved else 1}
    return "-none" if stays else "" if whole else "-last"


def _move(node: _Node, size: Size) -> str:
    if node.op == "Transpose":
        return _transpose(node, size)
    shape, elements = node.first, math.prod(node.result)
    inner: float = elements
    if node.op in ("Concat", "Split"):
        parts = node.inputs if node.op == "Concat" else node.outputs
        axis = node.axis(0)
        elements, runs = sum(one.elements for one in parts), math.prod(shape[:axis]) * len(parts)
        inner = elements / max(1, runs)
    elif node.op.startswith(LOOKUP):  # of what it is given it reads what it takes
        inner = math.prod(shape[node.axis(0) + 1 :]) if node.op == "Gather" else 1
        size |= {"read": size["written"], "weights": 0.0}
    elif node.op == "Slice":
        inner = 1
        for own, out in zip(reversed(shape), reversed(node.result), strict=False):
            inner *= out
            if own != out:
                break
        size["read"] = size["written"]
    elif node.op in _RELABELLED:
        size["read"] = size["written"]
    elif node.op.startswith("Reorder"):
        channels = shape[1] if len(shape) > 1 else 1
        size |= {"channels_in": channels, "pixels": math.prod(shape[2:]), "rest_m": -channels % _BLOCK}
        inner = math.prod(shape[2:])
    elif node.op in ("Resize", "Upsample", "Pad", "Expand", "Tile"):
        inner = node.result[-1] if node.result else 1
        size["scalar_steps"] = float(elements) if node.op in ("Resize", "Upsample") else 0.0
    size |= {"inner": inner, "outer_runs": elements / max(1.0, inner)}
    # Only resizing has a mode, and only an engine's own change of layout is from one to another.
    return "".join(f"-{node.attributes[name]}" for name in ("mode", "from", "to") if node.attributes.get(name))


def _coefficients(node: _Node, size: Size) -> str:
    """Ensembles, support vectors and linear models of ai.onnx.ml: rows by trees by depth, or by coefficients."""
    rows = node.first[0] if len(node.first) > 1 else 1
    numbers = node.attributes.get("nodes_treeids", ())
    nodes = len(numbers) if isinstance(numbers, tuple) else 0
    if nodes:
        count = len(set(numbers)) if isinstance(numbers, tuple) else 1
        work = rows * count * math.log2(nodes / count + 1)
    else:
        work = 2.0 * rows * size["weights"] / _ATTRIBUTE_BYTES
    size |= {"flops": work, "scalar_steps": work if nodes else 0.0, "batch": rows, "n": size["weights"]}
    return ""


def _other(node: _Node, size: Size) -> str:
    size |= {"flops": float(math.prod(node.result)), "inner": node.result[-1] if node.result else 1}
    size["outer_runs"] = math.prod(node.result) / max(1.0, size["inner"])
    return ""


_COMMON = ("", "com.microsoft", "ai.onnx")
_TYPED = ("elementwise", "reduction", "product", "convolution", "recurrent")  # whose loops are another's for another type
_EIGHT_BITS = ("uint8", "int8")
_SCALED_OPERANDS = ("QGemm", "QLinearMatMul")  # each operand with a scale and a zero point
_RELABELLED = ("Reshape", "Squeeze", "Unsqueeze", "Flatten", "Shape", "Identity")
#: Operators of one implementation; what a fusion adds is a size.
_ALIKE = MappingProxyType(
    {
        "FusedConv": "Conv",
        "FusedGemm": "Gemm",
        **dict.fromkeys(("FusedMatMul", "TransposeMatMul"), "MatMul"),
        **dict.fromkeys(("Squeeze", "Unsqueeze", "Flatten", "Identity"), "Reshape"),
    }
)
_OVER_LAST = ("SkipLayerNormalization", "SkipSimplifiedLayerNormalization", "EmbedLayerNormalization")
_FROM_LAST = ("LayerNormalization", "SimplifiedLayerNormalization", "RMSNormalization", "Softmax", "LogSoftmax", "TopK")
_ACTIVATIONS = MappingProxyType({"": 0.0, "Relu": 1.0, "Clip": 1.0, "LeakyRelu": 2.0, "HardSigmoid": 2.0})
_SIZED: Mapping[str, Callable[[_Node, Size], str]] = MappingProxyType(
    {
        "product": _product,
        "convolution": _convolution,
        "recurrent": _recurrent,
        "attention": _attention,
        "pool": _pool,
        "elementwise": _elementwise,
        "reduction": _reduction,
        "move": _move,
        "ensemble": _coefficients,
        "linear": _coefficients,
        "other": _other,
    }
)
_FAMILIES = """
product: MatMul FusedMatMul Gemm FusedGemm TransposeMatMul GemmFastGelu FusedMatMulActivation
quantised-product: MatMulInteger MatMulIntegerToFloat DynamicQuantizeMatMul QGemm QLinearMatMul MatMulNBits MatMulBnb4
convolution: Conv FusedConv NhwcFusedConv ConvTranspose
quantised-convolution: QLinearConv ConvInteger
recurrent: LSTM GRU RNN
quantised-recurrent: DynamicQuantizeLSTM
attention: Attention MultiHeadAttention GroupQueryAttention DecoderMaskedMultiHeadAttention
quantised-attention: QAttention
pool: MaxPool AveragePool GlobalAveragePool GlobalMaxPool LpPool
quantised-pool: QLinearAveragePool QLinearGlobalAveragePool
elementwise: Relu Sigmoid Tanh Erf Sqrt Exp Log Neg Abs Clip LeakyRelu HardSigmoid HardSwish Elu Celu Gelu FastGelu QuickGelu
elementwise: BiasGelu Cast Not Floor Ceil Round Reciprocal Softplus Softsign Sign Cos Sin PRelu Selu IsNaN IsInf Mish Swish
elementwise: ThresholdedRelu Add Sub Mul Div Pow Max Min Equal Greater Less GreaterOrEqual LessOrEqual And Or Xor Where Mod
elementwise: Sum Mean BiasAdd BiasSplitGelu RotaryEmbedding BatchNormalization Scaler Binarizer Imputer Dropout
quantised-elementwise: QuantizeLinear DequantizeLinear QLinearAdd QLinearMul QLinearSigmoid QLinearLeakyRelu QLinearSoftmax
reduction: ReduceMean ReduceSum ReduceMax ReduceMin ReduceProd ReduceL1 ReduceL2 ReduceSumSquare ReduceLogSumExp ArgMax ArgMin
reduction: Softmax LogSoftmax LayerNormalization SimplifiedLayerNormalization SkipLayerNormalization RMSNormalization
reduction: SkipSimplifiedLayerNormalization EmbedLayerNormalization InstanceNormalization GroupNormalization GroupNorm
reduction: LpNormalization MeanVarianceNormalization Normalizer DynamicQuantizeLinear TopK CumSum LRN Hardmax
move: Transpose Concat Split Slice Gather Reshape Squeeze Unsqueeze Flatten Expand Tile Pad Resize Upsample ReorderInput
move: ReorderOutput GatherND GatherElements ScatterND ScatterElements Shape ConstantOfShape DepthToSpace SpaceToDepth Trilu
move: Range OneHot Identity QLinearConcat Reorder
ensemble: TreeEnsembleClassifier TreeEnsembleRegressor TreeEnsemble
linear: LinearClassifier LinearRegressor SVMClassifier SVMRegressor
"""
_KINDS = MappingProxyType(
    {op: kind for kind, ops in (line.split(": ") for line in _FAMILIES.strip().splitlines()) for op in ops.split()}
)
