"""Operators that are made up of others, as preparation writes them.

They are those that ONNX itself defines by a function, and those that ONNX Runtime fuses when it saves an optimised model.
Functions of ONNX's schemas are inlined by `onnx.inliner`. What is written here keeps to operators of every opset, layers in the
arithmetic that `patterns` knows again.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import pairwise
from types import MappingProxyType
from typing import Any, NoReturn

import numpy as np
import onnx
from onnx import TensorProto, defs, helper, inliner, numpy_helper

from edgeplan.errors import ModelError
from edgeplan.graph.kinds import KNOWN_ONNX_TYPES
from edgeplan.graph.onnx import rewriting
from edgeplan.graph.onnx.contents import BEFORE_FUSION
from edgeplan.graph.onnx.rewriting import MICROSOFT, Rewriting, Way
from edgeplan.graph.shapes import Shape, free

_OF_ONE_AXIS = 13  # Hardmax
_LAYER_NORMALIZATION = 17
_AXIS_AS_INPUT = 20  # of a DFT
_IMAGE_RANK = 4
_FUSED_EPSILON = 1e-12  # of ONNX Runtime's layer normalisations of sums, where they name none
#: Folded, or of sequences or chance.
_NOT_WRITTEN = frozenset({"Range", "Bernoulli", "SequenceMap"})
_SEQUENCE = ("batch", "tokens", "features")
#: Activations that fused operators have, and the names of their parameters.
_FUSED: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {**dict.fromkeys(("Relu", "Tanh", "Sigmoid"), ()), "LeakyRelu": ("alpha",), "HardSigmoid": ("alpha", "beta")}
)


def _refuse(of: Rewriting, what: str) -> NoReturn:
    of.refuse(what, BEFORE_FUSION if of.node.domain == MICROSOFT else "export it in another form")


def _require_none(of: Rewriting, *names: str) -> None:
    """Refuse attributes that say more than is written here."""
    for name in names:
        if of.get(name, 0):
            _refuse(of, f"with the attribute {name}")


# What ONNX Runtime fuses


def _activated(of: Rewriting, tensor: str) -> str:
    name = of.get("activation", b"").decode()
    beside = [of.attributes[key] for key in ("activation_alpha", "activation_beta") if key in of.attributes]
    given = of.get("activation_params", beside)
    if name == "Clip":  # its bounds are attributes or inputs, by opset
        return of.do("Min", of.do("Max", tensor, of.number(given[0])), of.number(given[1]))
    if name and name not in _FUSED:
        _refuse(of, f"with the activation {name}")
    return of.do(name, tensor, **dict(zip(_FUSED[name], given, strict=False))) if name else tensor


def _kept(of: Rewriting) -> dict[str, Any]:
    return {key: value for key, value in of.attributes.items() if not key.startswith("activation")}


def _convolution(of: Rewriting) -> None:
    found = of.do("Conv", *(of.read(place) for place in range(3)), **_kept(of))
    if addend := of.read(3):
        found = of.do("Add", found, addend)
    of.hand_out(_activated(of, found))


def _product(of: Rewriting) -> None:
    _require_none(of, "transBatchA", "transBatchB")
    a, b = ("...ji" if of.get("transA", 0) else "...ij"), ("...kj" if of.get("transB", 0) else "...jk")
    plain = (a, b) == ("...ij", "...jk")
    found = of.do("MatMul", *of.node.input) if plain else of.do("Einsum", *of.node.input, equation=f"{a},{b}->...ik")
    alpha = of.get("alpha", 1.0)
    of.hand_out(found if alpha == 1 else of.do("Mul", found, of.number(alpha)))


def _gelu(of: Rewriting, tensor: str, *, by_tanh: bool = False) -> str:
    inner = of.do("Div", tensor, of.number(math.sqrt(2)))
    if by_tanh:
        cube = of.do("Mul", of.do("Mul", of.do("Mul", tensor, tensor), tensor), of.number(0.044715))
        inner = of.do("Mul", of.do("Add", tensor, cube), of.number(math.sqrt(2 / math.pi)))
    curve = of.do("Add", of.do("Tanh" if by_tanh else "Erf", inner), of.number(1))
    return of.do("Mul", of.do("Mul", tensor, curve), of.number(0.5))


def _biased(of: Rewriting) -> str:
    return of.do("Add", of.read(0), of.read(1)) if of.read(1) else of.read(0)


def _normalised(
    of: Rewriting, tensor: str, axes: Sequence[int], scale: str, shift: str, *, centred: bool, least: float = 1e-5
) -> tuple[str, ...]:
    """The layer normalisation of a tensor, the mean, and the inverse of the deviation, or of the root mean square."""
    mean = of.reduced("ReduceMean", tensor, axes) if centred else ""
    apart = of.do("Sub", tensor, mean) if centred else tensor
    variance = of.reduced("ReduceMean", of.do("Mul", apart, apart), axes)
    root = of.do("Sqrt", of.do("Add", variance, of.number(of.get("epsilon", least))))
    found = of.do("Mul", of.do("Div", apart, root), scale)
    inverse = of.do("Reciprocal", root) if len(of.node.output) > 1 else ""
    return of.do("Add", found, shift) if shift else found, mean, inverse


def _axes(of: Rewriting) -> tuple[int, ...]:
    rank, axis = len(of.shape(0)), of.get("axis", -1)
    return tuple(range(axis, 0) if axis < 0 else range(axis - rank, 0))


def _root_normalised(of: Rewriting) -> None:
    found, _, inverse = _normalised(of, of.read(0), _axes(of), of.read(1), "", centred=False)
    of.hand_out(found, inverse)


def _skip_normalised(of: Rewriting, *, centred: bool) -> None:
    bias = of.read(4 if centred else 3)
    total = of.do("Add", of.read(0), of.read(1))
    total = of.do("Add", total, bias) if bias else total
    found = _normalised(of, total, (-1,), of.read(2), of.read(3) if centred else "", centred=centred, least=_FUSED_EPSILON)
    of.hand_out(*(name or total for name in found), total)


def _attended(of: Rewriting, reads: Sequence[str], sizes: tuple[int, int], mask: int) -> None:
    """Write the output from queries, keys and values by heads; a mask says which tokens are there, or how many.

    Sizes are the features of a head, and tokens that it sees.
    """
    head, keys = sizes
    batch, tokens, _ = of.shape(0)
    lacking, given = of.get("mask_filter_value", -10000.0), of.read(mask)
    scores = of.do("MatMul", reads[0], of.do("Transpose", reads[1], perm=[0, 1, 3, 2]))
    scores = of.do("Mul", scores, of.number(of.get("scale", 0.0) or 1 / math.sqrt(head)))
    if given:
        shape = of.shape(mask)
        if shape == (batch,):
            places = of.integers(range(keys))
            given = of.do("Less", places, of.reshaped(of.do("Cast", given, to=TensorProto.INT64), (batch, 1)))
        elif shape != (batch, keys):
            _refuse(of, f"with a mask {shape}")
        absent = of.do("Sub", of.number(1), of.do("Cast", given, to=TensorProto.FLOAT))
        absent = of.reshaped(of.do("Mul", absent, of.number(lacking)), (batch, 1, 1, keys))
        scores = of.do("Add", scores, absent)
    if of.get("unidirectional", 0):
        later = np.triu(np.full((tokens, keys), lacking, np.float32), 1 + keys - tokens)
        scores = of.do("Add", scores, of.constant(later))
    scores = of.do("Add", scores, of.read(5)) if of.read(5) else scores
    found = of.do("MatMul", of.do("Softmax", scores, axis=3), reads[2])
    of.hand_out(of.reshaped(of.do("Transpose", found, perm=[0, 2, 1, 3]), (batch, tokens, -1)))


def _apart(of: Rewriting, tensor: str, sizes: Sequence[int], axis: int) -> list[str]:
    return [of.do("Gather", tensor, of.integers(range(*part)), axis=axis) for part in pairwise(np.cumsum([0, *sizes]).tolist())]


def _heads(of: Rewriting, tensor: str, shape: Shape) -> str:
    batch, tokens, features = shape
    heads = of.get("num_heads", 1)
    return of.do("Transpose", of.reshaped(tensor, (batch, tokens, heads, features // heads)), perm=[0, 2, 1, 3])


def _attention_apart(of: Rewriting) -> None:
    if not all(of.read(place) for place in (1, 2)) or any(map(of.read, range(6, 10))) or len(of.node.output) > 1:
        _refuse(of, "of packed, past or present keys and values")
    shapes, reads = [of.shape(place) for place in range(3)], [of.read(place) for place in range(3)]
    if any(len(shape) != len(_SEQUENCE) for shape in shapes):
        _refuse(of, "of keys and values by heads")
    if of.read(3):
        sides = _apart(of, of.read(3), [shape[2] for shape in shapes], 0)
        reads = [of.do("Add", *both) for both in zip(reads, sides, strict=True)]
    sizes = (shapes[0][2] // of.get("num_heads", 1), shapes[1][1])
    _attended(of, [_heads(of, name, shape) for name, shape in zip(reads, shapes, strict=True)], sizes, 4)


def _attention_whole(of: Rewriting) -> None:
    _require_none(of, "do_rotary")
    if of.read(4) or len(of.node.output) > 1:
        _refuse(of, "of past or present keys and values")
    batch, tokens, _ = of.shape(0)
    sizes = of.get("qkv_hidden_sizes", ()) or [of.shape(1)[1] // 3] * 3
    product = of.do("MatMul", of.read(0), of.read(1))
    parts = _apart(of, of.do("Add", product, of.read(2)) if of.read(2) else product, sizes, 2)
    heads = [_heads(of, part, (batch, tokens, size)) for part, size in zip(parts, sizes, strict=True)]
    _attended(of, heads, (sizes[0] // of.get("num_heads", 1), tokens), 3)


def _embedded(of: Rewriting) -> None:
    """Words, their places and segments, normalised; and how many of them there are."""
    batch, tokens = of.shape(0)
    places = of.read(8) or of.integers(range(tokens))
    total = of.do("Add", of.do("Gather", of.read(2), of.read(0)), of.do("Gather", of.read(3), places))
    total = of.do("Add", total, of.do("Gather", of.read(4), of.read(1))) if of.read(1) else total
    found, *_ = _normalised(of, total, (-1,), of.read(5), of.read(6), centred=True, least=_FUSED_EPSILON)
    count = of.constant(np.zeros(batch, np.int32))
    if of.read(7):
        there = of.do("Equal", of.read(7), of.constant(np.array(1, np.int32)))
        count = of.reduced("ReduceSum", of.do("Cast", there, to=TensorProto.INT32), [1], keepdims=0)
    of.hand_out(found, count, total)


def _rotated(of: Rewriting, at: int, angles: int) -> None:
    """Turn pairs of features by the angles of their token's position; `at` and `angles` are places of inputs."""
    _require_none(of, "is_packed_batching")
    whole = of.shape(0)
    size = of.get("rotary_embedding_dim", 0) or 2 * of.shape(angles)[-1]
    x, tokens = of.read(0), whole[-2]
    if len(whole) == len(_SEQUENCE):
        heads = of.get("num_heads", 0) or whole[2] // size
        x = of.do("Transpose", of.reshaped(x, (whole[0], tokens, heads, whole[2] // heads)), perm=[0, 2, 1, 3])
    else:
        heads = whole[1]
    head, tables = math.prod(whole) // (whole[0] * heads * tokens), [of.read(angles), of.read(angles + 1)]
    if places := of.read(at):
        if math.prod(of.shape(at)) == 1:  # of the first token
            places = of.do("Add", of.reshaped(places, (1, 1)), of.integers(range(tokens)))
        tables = [of.do("Gather", table, places, axis=0) for table in tables]
    cosines, sines = (of.reshaped(table, (-1, 1, tokens, size // 2)) for table in tables)
    beside = bool(of.get("interleaved", 0))  # the features of a pair
    starts, step = (0, 1 if beside else size // 2), 1 + beside
    picks = [of.integers(range(start, start + step * (size // 2), step)) for start in starts]
    a, b = (of.do("Gather", x, pick, axis=3) for pick in picks)
    turned = [
        of.do("Sub", of.do("Mul", a, cosines), of.do("Mul", b, sines)),
        of.do("Add", of.do("Mul", a, sines), of.do("Mul", b, cosines)),
    ]
    shape = (whole[0], heads, tokens, size)
    turned = [of.reshaped(one, (*shape[:3], size // 2, 1)) for one in turned] if beside else turned
    found = of.reshaped(of.do("Concat", *turned, axis=-1), shape)
    if head > size:
        found = of.do("Concat", found, _apart(of, x, [size, head - size], 3)[1], axis=-1)
    if len(whole) == len(_SEQUENCE):
        found = of.reshaped(of.do("Transpose", found, perm=[0, 2, 1, 3]), whole)
    of.hand_out(found)


# What has no function in ONNX, or only in some opsets


def _threshold(of: Rewriting) -> None:
    passed = of.do("Greater", of.read(0), of.number(of.get("alpha", 1.0)))
    of.hand_out(of.do("Where", passed, of.read(0), of.number(0)))


def _shrink(of: Rewriting) -> None:
    x, bound, bias = of.read(0), of.get("lambd", 0.5), of.get("bias", 0.0)
    above = of.do("Where", of.do("Greater", x, of.number(bound)), of.do("Sub", x, of.number(bias)), of.number(0))
    of.hand_out(of.do("Where", of.do("Less", x, of.number(-bound)), of.do("Add", x, of.number(bias)), above))


def _length_one(of: Rewriting) -> None:
    """A vector of length 0 stays one."""
    length = of.reduced(f"ReduceL{of.get('p', 2)}", of.read(0), [of.get("axis", -1)])
    length = of.do("Where", of.do("Equal", length, of.number(0)), of.number(1), length)
    of.hand_out(of.do("Div", of.read(0), length))


def _hardmax(of: Rewriting) -> None:
    """1 at the first of the largest; before opset 13 of an axis and all behind it together."""
    shape, old = of.shape(0), of.opset < _OF_ONE_AXIS
    axis = of.get("axis", 1 if old else -1) % len(shape)
    x, size = of.read(0), shape[axis]
    if old:
        size = math.prod(shape[axis:])
        x, axis = of.reshaped(x, (math.prod(shape[:axis]), size)), 1
    places = of.integers(range(size))
    places = places if old else of.reshaped(places, (size, *[1] * (len(shape) - 1 - axis)))
    found = of.do("Cast", of.do("Equal", of.do("ArgMax", x, axis=axis), places), to=TensorProto.FLOAT)
    of.hand_out(of.reshaped(found, shape) if old else found)


def _one_hot(of: Rewriting) -> None:
    depth, shape = of.value(of.read(1)), of.shape(0)
    if depth is None:
        _refuse(of, "whose depth is no constant")
    count, rank = int(depth.ravel()[0]), len(shape) + 1
    axis = of.get("axis", -1) % rank
    places = of.do("Cast", of.read(0), to=TensorProto.INT64)
    below = of.do("Less", places, of.integers(0))
    places = of.do("Where", below, of.do("Add", places, of.integers(count)), places)
    places = of.reshaped(places, (*shape[:axis], 1, *shape[axis:]))
    there = of.do("Equal", places, of.reshaped(of.integers(range(count)), (count, *[1] * (rank - 1 - axis))))
    off, on = (of.do("Gather", of.read(2), of.integers(place), axis=0) for place in (0, 1))
    of.hand_out(of.do("Where", there, on, off))


def _compress(of: Rewriting) -> None:
    wanted, shape = of.value(of.read(1)), of.shape(0)
    if wanted is None:
        of.refuse("whose condition is no constant", "it depends on data: export it with a fixed condition")
    axis = of.attributes.get("axis")
    x = of.reshaped(of.read(0), (-1,)) if axis is None else of.read(0)
    places = np.flatnonzero(wanted[: math.prod(shape) if axis is None else shape[axis]])
    of.hand_out(of.do("Gather", x, of.integers(places.tolist()), axis=axis or 0))


def _reverse(of: Rewriting) -> None:
    """The first places of each example in the opposite order."""
    shape, batch, time = of.shape(0), of.get("batch_axis", 1), of.get("time_axis", 0)
    ends = [1] * len(shape)
    ends[time] = shape[time]
    places = of.reshaped(of.integers(range(shape[time])), ends)
    ends[time], ends[batch] = 1, shape[batch]
    lengths = of.reshaped(of.read(1), ends)
    turned = of.do("Sub", of.do("Sub", lengths, of.integers(1)), places)
    places = of.do("Where", of.do("Less", places, lengths), turned, places)
    of.hand_out(of.do("GatherElements", of.read(0), of.do("Expand", places, of.integers(shape)), axis=time))


def _fourier(of: Rewriting) -> None:
    """Products with cosines and sines of an axis, which the last one, of real and imaginary parts, stands behind."""
    shape, axis, length = of.shape(0), of.get("axis", 1), len(of.node.input) > 1 and of.read(1)
    if of.opset >= _AXIS_AS_INPUT:
        given = of.value(of.read(2)) if of.read(2) else np.array(-2)
        axis = None if given is None else int(given.ravel()[0])
    count = of.value(length) if length else np.array(shape[axis or 0])
    if axis is None or count is None or (of.get("inverse", 0) and of.get("onesided", 0)):
        _refuse(of, "of a computed axis or length, or of one side back")
    axis, n, rank = axis % len(shape), int(count.ravel()[0]), len(shape) - 1
    angles = np.outer(np.arange(shape[axis]), np.arange(n // 2 + 1 if of.get("onesided", 0) else n)) % n * (2 * np.pi / n)
    share = (np.arange(shape[axis]) < n)[:, None] / (n if of.get("inverse", 0) else 1)
    turn = share * (1 if of.get("inverse", 0) else -1)
    cosines, sines = (of.constant(table.astype(np.float32)) for table in (share * np.cos(angles), turn * np.sin(angles)))
    order = [*(place for place in range(rank) if place != axis), axis]
    parts = [of.do("Gather", of.read(0), of.integers(place), axis=rank) for place in range(shape[-1])]
    parts = [of.do("Transpose", part, perm=order) for part in parts]
    real, imaginary = (of.do("MatMul", parts[0], table) for table in (cosines, sines))
    if len(parts) > 1:
        real = of.do("Sub", real, of.do("MatMul", parts[1], sines))
        imaginary = of.do("Add", imaginary, of.do("MatMul", parts[1], cosines))
    back = np.argsort(order).tolist()
    whole = (*shape[:axis], angles.shape[1], *shape[axis + 1 : -1], 1)
    found = [of.reshaped(of.do("Transpose", part, perm=back), whole) for part in (real, imaginary)]
    of.hand_out(of.do("Concat", *found, axis=rank))


def _sampled(of: Rewriting) -> None:
    """Pixels of an image at the places of a grid: a sum of the nearest four, or the nearest."""
    shape, mode = of.shape(0), of.get("mode", b"linear").decode()
    padding, aligned = of.get("padding_mode", b"zeros").decode(), of.get("align_corners", 0)
    if len(shape) != _IMAGE_RANK or mode not in ("linear", "bilinear", "nearest"):
        _refuse(of, f"of the mode {mode} and {len(shape)} axes")
    batch, channels, *sizes = shape
    points = math.prod(of.shape(1)[1:3])
    sides = []  # of each axis: for each pixel beside a place where it is, and what it counts
    for size, part in zip(sizes, (1, 0), strict=True):
        low, high = (0.0, size - 1.0) if aligned else (-0.5, size - 0.5)
        place = of.reshaped(of.do("Gather", of.read(1), of.integers(part), axis=3), (batch, points))
        place = of.do("Add", of.do("Mul", place, of.number((high - low) / 2)), of.number((high + low) / 2))
        place = of.do("Round", place) if mode == "nearest" else place
        if padding == "reflection" and high > low:
            beyond = of.do("Abs", of.do("Sub", place, of.number(low)))
            beyond = of.do("Mod", beyond, of.number(2 * (high - low)), fmod=1)
            beyond = of.do("Abs", of.do("Sub", beyond, of.number(high - low)))
            place = of.do("Sub", of.number(high), beyond)
        if padding == "border":
            place = _within(of, place, size)
        first = of.do("Floor", place) if mode != "nearest" else place
        behind = of.do("Sub", place, first)
        pixels = [(first, of.do("Sub", of.number(1), behind)), (of.do("Add", first, of.number(1)), behind)]
        near = []
        for pixel, weight in pixels[: 1 if mode == "nearest" else 2]:
            there = _within(of, pixel, size)
            counted = of.do("Where", of.do("Equal", there, pixel), weight, of.number(0)) if padding == "zeros" else weight
            near.append((of.do("Cast", there, to=TensorProto.INT64), counted))
        sides.append(near)
    flat, total = of.reshaped(of.read(0), (batch, channels, math.prod(sizes))), ""
    for row, above in sides[0]:
        for column, beside in sides[1]:
            place = of.do("Add", of.do("Mul", row, of.integers(sizes[1])), column)
            places = of.do("Expand", of.reshaped(place, (batch, 1, points)), of.integers((batch, channels, points)))
            weight = of.reshaped(of.do("Mul", above, beside), (batch, 1, points))
            term = of.do("Mul", of.do("GatherElements", flat, places, axis=2), weight)
            total = of.do("Add", total, term) if total else term
    of.hand_out(of.reshaped(total, (batch, channels, *of.shape(1)[1:3])))


def _within(of: Rewriting, place: str, size: int) -> str:
    return of.do("Min", of.do("Max", place, of.number(0)), of.number(size - 1))


def _eye(of: Rewriting) -> None:
    dtype = helper.tensor_dtype_to_np_dtype(of.get("dtype", 0) or of.known[of.node.input[0]][0])
    rows, columns = of.shape(0)
    of.hand_out(of.constant(np.eye(rows, columns, k=of.get("k", 0), dtype=dtype)))


#: How each operator is written, by its domain and name.
WRITTEN: Mapping[tuple[str, str], Way] = MappingProxyType(
    {
        ("", "Mean"): lambda of: of.hand_out(of.do("Mul", of.do("Sum", *of.node.input), of.number(1 / len(of.node.input)))),
        ("", "ThresholdedRelu"): _threshold,
        ("", "Shrink"): _shrink,
        ("", "LpNormalization"): _length_one,
        ("", "Hardmax"): _hardmax,
        ("", "OneHot"): _one_hot,
        ("", "EyeLike"): _eye,
        ("", "Compress"): _compress,
        ("", "ReverseSequence"): _reverse,
        ("", "DFT"): _fourier,
        ("", "GridSample"): _sampled,
        ("", "LayerNormalization"): lambda of: of.hand_out(
            *_normalised(of, of.read(0), _axes(of), of.read(1), of.read(2), centred=True)
        ),
        ("", "SimplifiedLayerNormalization"): _root_normalised,
        (MICROSOFT, "FusedConv"): _convolution,
        (MICROSOFT, "FusedGemm"): lambda of: of.hand_out(_activated(of, of.do("Gemm", *of.node.input, **_kept(of)))),
        (MICROSOFT, "FusedMatMul"): _product,
        (MICROSOFT, "Gelu"): lambda of: of.hand_out(_gelu(of, of.read(0))),
        (MICROSOFT, "BiasGelu"): lambda of: of.hand_out(_gelu(of, _biased(of))),
        (MICROSOFT, "FastGelu"): lambda of: of.hand_out(_gelu(of, _biased(of), by_tanh=True)),
        (MICROSOFT, "QuickGelu"): lambda of: of.hand_out(
            of.do("Mul", of.read(0), of.do("Sigmoid", of.do("Mul", of.read(0), of.number(of.get("alpha", 1.702)))))
        ),
        (MICROSOFT, "SkipLayerNormalization"): partial(_skip_normalised, centred=True),
        (MICROSOFT, "SkipSimplifiedLayerNormalization"): partial(_skip_normalised, centred=False),
        (MICROSOFT, "SimplifiedLayerNormalization"): _root_normalised,
        (MICROSOFT, "Attention"): _attention_whole,
        (MICROSOFT, "MultiHeadAttention"): _attention_apart,
        (MICROSOFT, "EmbedLayerNormalization"): _embedded,
        ("", "RotaryEmbedding"): partial(_rotated, at=3, angles=1),
        (MICROSOFT, "RotaryEmbedding"): partial(_rotated, at=1, angles=2),
    }
)


def is_composed(model: onnx.ModelProto) -> bool:
    """Tell whether a model holds operators that are written as others here."""
    opset = rewriting.opset_of(model)
    return any(_way(node, opset) or _has_function(node, opset) for node in model.graph.node)


def _way(node: onnx.NodeProto, opset: int) -> Way | None:
    known = node.op_type == "LayerNormalization" and opset >= _LAYER_NORMALIZATION
    return None if known else WRITTEN.get(rewriting.operator_key(node))


def _has_function(node: onnx.NodeProto, opset: int) -> bool:
    """Tell whether ONNX defines an operator by others, and it is not known here, or in another form."""
    if node.domain not in rewriting.OWN_DOMAINS or node.op_type in _NOT_WRITTEN or not defs.has(node.op_type, opset):
        return False
    schema = defs.get_schema(node.op_type, opset)
    defined = schema.has_function or schema.has_context_dependent_function
    return defined and (schema.deprecated or node.op_type not in KNOWN_ONNX_TYPES)


def plain_functions(model: onnx.ModelProto, source: str) -> None:
    """Write operators of a model that are made up of others as these; those that need shapes once they are known."""
    opset, before, static = rewriting.opset_of(model), list[str](), set[str]()

    def way_of(node: onnx.NodeProto) -> Way | None:
        return _way(node, opset) if static.issuperset(node.input) else None

    while before != (before := [node.op_type for node in model.graph.node]) and is_composed(model):
        _inline(model, opset, source)
        known = rewriting.known_tensors(model, source)
        static = {"", *(name for name, (_, shape) in known.items() if shape is not None and -1 not in shape)}
        Rewriting(model.graph, source, opset, known).run(way_of)


def _inline(model: onnx.ModelProto, opset: int, source: str) -> None:
    """Write out functions of ONNX's schemas where the types of what they read are known."""
    found = {node.op_type for node in model.graph.node if _has_function(node, opset) and not _way(node, opset)}
    if not found:
        return
    whole = rewriting.light(model)
    for node in whole.graph.node:
        if node.op_type in found:  # the inliner takes no defaults
            given = {attribute.name for attribute in node.attribute}
            defaults = [a.default_value for a in defs.get_schema(node.op_type, opset).attributes.values()]
            node.attribute.extend(value for value in defaults if value.name and value.name not in given)
    given = {value.name for value in whole.graph.input}
    whole.graph.value_info.append(helper.make_tensor_value_info("", TensorProto.FLOAT, None))  # of what is left out
    for name, (kind, shape) in rewriting.known_tensors(model, source).items():
        if kind and name not in given:
            told = helper.make_tensor_value_info(name, kind, shape and [size if size >= 0 else None for size in shape])
            whole.graph.value_info.append(told)
    try:
        whole = inliner.inline_selected_functions(whole, [("", name) for name in found], inline_schema_functions=True)
    except (RuntimeError, ValueError, TypeError) as error:  # of C++, over an untrusted graph
        reason = str(error).strip().splitlines()[0]
        what = f"{', '.join(sorted(found))} cannot be written as plain operators: {reason}"
        raise ModelError(what, where=source, next_step="export the model again with an earlier opset") from error
    before = rewriting.names_in(model.graph)
    maxima = {node.output[0] for node in whole.graph.node if node.op_type == "ReduceMax"}
    lowest = numpy_helper.from_array(np.array(np.finfo(np.float32).min, np.float32), free("lowest", before))
    for node in whole.graph.node:
        if node.op_type == "Equal" and node.input[0] in maxima and node.output[0] not in before:
            node.op_type, node.input[1] = "LessOrEqual", lowest.name  # than -inf: maxima here are numbers
            if lowest not in model.graph.initializer:
                model.graph.initializer.append(lowest)
    del model.graph.node[:]
    model.graph.node.extend(whole.graph.node)
