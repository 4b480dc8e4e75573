"""Small models of operators that exporters write beside layers: the third table of `test_forms.py`."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from onnx import TensorProto, helper
from written_forms import IMAGE, Form, behind, node, one, value

_LINE = (2, 5, 7)
_BIG = np.iinfo(np.int64).max


def _pair(op_type: str, first: tuple[int, ...], second: tuple[int, ...]) -> Form:
    nodes = (node("Abs", "b", "c", name="before"), node("Add", "c one", "d", name="raised"), node(op_type, "a d"))
    return Form(nodes, {"a": first, "b": second}, {"one": value([0.5])})


_UNARY: Mapping[str, Form] = {
    "softsign": one("Softsign"),
    **{f"{op.lower()} of a number": one(op, inputs=()) for op in ("Relu", "Selu", "Ceil")},
    "a square of both signs": one("Pow", "x p", constants={"p": 2.0}),
    "an integer exponent": one("Pow", "x p", constants={"p": [2]}),
}

_ROOT, _SLOPE = 2**0.5, (2 / np.pi) ** 0.5


def _written(*lines: str, shape: tuple[int, ...] = _LINE, **constants: object) -> Form:
    """Nodes as `type reads > writes`; the last one is called `odd`."""
    parted = [line.replace(">", "").split() for line in lines]
    nodes = [
        node(op_type, " ".join(reads), writes, name="odd" if place == len(parted) else f"n{place}")
        for place, (op_type, *reads, writes) in enumerate(parted, start=1)
    ]
    return Form(nodes, {"x": shape}, {name: value(given) for name, given in constants.items()})


_GELUS: Mapping[str, Form] = {
    "gelu of halves first": _written(
        "Mul x half > h", "Mul x root > a", "Erf a > b", "Add one b > c", "Mul h c > y", root=_ROOT / 2, one=1.0, half=0.5
    ),
    "gelu, halved by division": _written(
        "Div x root > a", "Erf a > b", "Add b one > c", "Div c two > d", "Mul d x > y", root=[_ROOT], one=[1.0], two=[2.0]
    ),
    "gelu by tanh of a power": _written(
        "Pow x three > p", "Mul p k > q", "Add x q > r", "Mul r slope > s", "Tanh s > t", "Add t one > u", "Mul x u > v",
        "Mul v half > y", three=3.0, k=0.044715, slope=_SLOPE, one=1.0, half=0.5,
    ),
    "gelu by tanh of products": _written(
        "Mul x x > p", "Mul p k > q", "Add q one > r", "Mul x slope > s", "Mul s r > t", "Tanh t > u", "Add u one > v",
        "Mul x half > h", "Mul h v > y", k=0.044715, slope=_SLOPE, one=1.0, half=0.5,
    ),
    "gelu behind a convolution": _written(
        "Conv x w > h", "Div h root > a", "Erf a > b", "Add b one > c", "Mul h c > d", "Mul d half > y",
        shape=IMAGE, w=(4, 6, 1, 1), root=_ROOT, one=1.0, half=0.5,
    ),
    "gelu behind a product": _written(
        "MatMul x w > h", "Div h root > a", "Erf a > b", "Add b one > c", "Mul h c > d", "Mul d half > y",
        w=(7, 4), root=_ROOT, one=1.0, half=0.5,
    ),
    "nearly a gelu": _written(
        "Div x root > a", "Erf a > b", "Add b one > c", "Mul x c > d", "Mul d half > y", root=1.4, one=1.0, half=0.5
    ),
    "nearly a gelu by tanh": _written(
        "Pow x three > p", "Mul p k > q", "Add x q > r", "Mul r slope > s", "Tanh s > t", "Add t one > u", "Mul x u > v",
        "Mul v half > y", three=3.0, k=0.05, slope=_SLOPE, one=1.0, half=0.5,
    ),
    "gelu whose parts are read, too": Form(
        (
            node("Div", "x root", "a", "n1"), node("Erf", "a", "b", "n2"), node("Add", "b one", "c", "n3"),
            node("Mul", "x c", "d", "n4"), node("Mul", "d half"),
        ),
        {"x": _LINE}, {"root": value(_ROOT), "one": value(1.0), "half": value(0.5)}, outputs=("y", "b", "d"),
    ),
    "error function": one("Erf"),
    "error function of zeros and large values": _written(
        "Relu x > a", "Mul a k > b", "Erf b > y", k=1e9
    ),
}  # fmt: skip


def _layer(*lines: str, shape: tuple[int, ...] = _LINE, axes: tuple[int, ...] = (-1,), **constants: object) -> Form:
    """A layer normalisation in parts up to its quotient, `n`, and what follows it."""
    form = _written(
        "Sub x m > d", "Pow d two > p", "ReduceMean p > v", "Add v e > w", "Sqrt w > r", "Div d r > n", *lines,
        shape=shape, two=2.0, e=1e-5, **constants,
    )  # fmt: skip
    nodes = [helper.make_node("ReduceMean", ["x"], ["m"], name="first", axes=axes), *form.nodes]
    nodes[3].attribute.append(helper.make_attribute("axes", axes))
    return Form(nodes, form.inputs, form.constants)


_LAYERS: Mapping[str, Form] = {
    "layer normalisation in parts": _layer("Mul n g > s", "Add s b > y", g=(7,), b=(7,)),
    "layer normalisation in parts, scaled": _layer("Mul n g > s", "Relu s > y", g=(7,)),
    "layer normalisation in parts, as it is": _layer("Relu n > y"),
    "layer normalisation in parts, shifted": _layer("Add n b > y", b=(7,)),
    "layer normalisation in parts of two axes": _layer("Mul n g > s", "Add s b > y", axes=(1, 2), g=(5, 7), b=(5, 7)),
    "layer normalisation in parts over channels": _layer("Mul n g > s", "Add s b > y", axes=(1,), g=(5, 1), b=(5, 1)),
    "layer normalisation in parts, scaled otherwise": _layer("Mul n g > s", "Add s b > y", g=(5, 7), b=(1,)),
}

_PAIRS: Mapping[str, Form] = {
    **{f"{op.lower()} of numbers": one(op, "x z", {"x": (), "z": ()}) for op in ("Add", "Sub", "Div")},
    "a number from an image": one("Sub", "x z", {"x": IMAGE, "z": ()}),
    "an image from a number": one("Sub", "z x", {"x": IMAGE, "z": ()}),
    "a constant to a number": one("Mul", "x k", (), {"k": (5,)}),
    "a product of vectors, and constants": Form(
        (node("MatMul", "x z", "h", "first"), node("Add", "h k")), {"x": (7,), "z": (7,)}, {"k": value((3, 1))}
    ),
    "product of vectors": one("MatMul", "x z", {"x": (7,), "z": (7,)}),
    **{f"{op.lower()}, both broadcast": _pair(op, (1, 6, 1, 10), (1, 1, 8, 1)) for op in ("Sub", "Div", "Min", "Max", "Add")},
    "prelu by channel": one("PRelu", "x s", constants={"s": (6, 1, 1)}),
}

_COPIES: Mapping[str, Form] = {
    "every second": one("Slice", "x s e a p", constants={"s": [0, 1], "e": [_BIG, _BIG], "a": [2, 3], "p": [2, 2]}),
    "pad by reflection": one("Pad", "x p", mode="reflect", constants={"p": [0, 0, 2, 3, 0, 0, 1, 4]}),
    "gather of several": one("Gather", "x i", axis=3, constants={"i": [3, 0, -1, 3]}),
    "tile": one("Tile", "x r", constants={"r": [1, 2, 1, 3]}),
    "depth to space": one("DepthToSpace", inputs=(1, 12, 4, 5), blocksize=2),
    "slice as of opset 9": one("Slice", opset=9, starts=[1], ends=[5], axes=[2]),
    "pad by infinity": one("Pad", "x p v", constants={"p": [0, 1, 1, 2, 0, 0, 3, 0], "v": 3e38}),
    "two outputs of one input": Form(
        (node("Identity", "x", "y", "first"), node("Identity", "x", "z", "second"), node("Relu", "x", "v")),
        {"x": IMAGE},
        {},
        outputs=("y", "z", "v"),
    ),
    "nothing but an identity": one("Identity"),
    "pad cuts": one("Pad", "x p", constants={"p": [0, 0, -1, 2, 0, 0, -2, 0]}),
    "pad of some axes": one("Pad", "x p - a", opset=18, constants={"p": [1, 2], "a": [3]}),
    "pad as of opset 10": one("Pad", opset=10, pads=[0, 0, 1, 2, 0, 0, 3, 0], value=0.5),
}

_REDUCED: Mapping[str, Form] = {
    "Mean of channels, dropped": one("ReduceMean", axes=[1], keepdims=0),
    "logarithm of a sum of large exponentials": Form(
        (node("Mul", "x k", "h", name="before"), node("ReduceLogSumExp", "h", axes=[1])), {"x": (4, 9)}, {"k": value([100.0])}
    ),
    "lengths of vectors of both signs": one("ReduceL2", axes=[1]),
}

_NORMS: Mapping[str, Form] = {
    "layers whose shift is stored first": one("LayerNormalization", "x s b", _LINE, {"b": (7,), "s": (7,)}),
    **{
        f"layers that hand out {told}": one(
            "LayerNormalization", "x s b", (2, 3, 5, 7), {"s": (5, 7), "b": (5, 7)}, axis=2, writes=writes
        )
        for told, writes in (("their mean", "y q"), ("their mean and deviation", "y q r"))
    },
    "groups": one("GroupNormalization", "x s b", opset=21, num_groups=3, constants={"s": (6,), "b": (6,)}),
    "the mean of layers alone": Form(
        (node("LayerNormalization", "x s", "h q r", axis=1), node("Relu", "q", name="last")),
        {"x": _LINE},
        {"s": value((5, 7))},
    ),
    "rows by their root mean square": one("RMSNormalization", "x s", _LINE, {"s": (7,)}, opset=23, epsilon=1e-3),
}

_TRANSPOSED: Mapping[str, Form] = {
    **{
        f"transposed, {name}": one("ConvTranspose", "x w", constants={"w": (6, 4, 3, 4)}, **attributes)
        for name, attributes in (
            ("to larger sizes", {"strides": [2, 3], "output_shape": [18, 32], "output_padding": [1, 1]}),
            ("same upper to sizes", {"strides": [2, 3], "auto_pad": "SAME_UPPER", "output_shape": [16, 29]}),
        )
    },
}  # fmt: skip


_BEHIND: Mapping[str, Form] = {
    f"{name} by {by} behind a {first.lower()}": behind(
        node(first, "x w" if bias is None else "x w b", "h", "first", pads=[1, 1, 1, 1]),
        Form(nodes, {"x": IMAGE}, {"k": value(shape), "l": value(shape)}),
        **({"w": (6, 4, 3, 3) if first == "ConvTranspose" else (4, 6, 3, 3)} | ({} if bias is None else {"b": (4,)})),
    )
    for first in ("Conv", "ConvTranspose")
    for bias in (None, 4)
    for by, shape in (("a number", (1,)), ("channel, of lower rank", (4, 1, 1)), ("row", (8, 1)))
    for name, nodes in (
        (f"both, bias {bias},", (node("Mul", "h k", "g", "scaled"), node("Add", "g l"))),
        (f"both the other way, bias {bias},", (node("Add", "h k", "g", "moved"), node("Mul", "g l"))),
    )
}

_SEQUENCES: Mapping[str, Form] = {
    "LSTM of whole lengths, states and peepholes to its last states": one(
        "LSTM", "x w r b n h c p", {"x": (4, 2, 3), "h": (2, 2, 5), "c": (2, 2, 5)},
        {"w": (2, 20, 3), "r": (2, 20, 5), "b": (2, 40), "n": np.array([4, 4], np.int32), "p": (2, 15)}, writes="- yh yc",
        hidden_size=5, direction="bidirectional",
    ),
    "GRU behind a GRU": Form(
        (
            node("GRU", "x w r b", "h", "first", hidden_size=5, linear_before_reset=1), node("Squeeze", "h a", "s", "s"),
            node("GRU", "s v r b", hidden_size=5, linear_before_reset=1),
        ),
        {"x": (4, 2, 3)},
        {"w": value((1, 15, 3)), "v": value((1, 15, 5)), "r": value((1, 15, 5)), "b": value((1, 30)), "a": value([1])},
    ),
}  # fmt: skip

_BOOL, _INT, _LONG = TensorProto.BOOL, TensorProto.INT32, TensorProto.INT64
_UNSIGNED, _SIGNED = TensorProto.UINT8, TensorProto.INT8
_ODD = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 2.5, -2.5, 0.5, -1e30, 3], np.float32)


def _all(kind: int) -> Mapping[str, int]:
    return dict.fromkeys("xzy", kind)


def _moved(kind: int) -> Mapping[str, Form]:
    """What moves or reduces elements of a type, whatever they are."""
    own, pads = {"types": _all(kind)}, [1, 0, 2, 0, 3, 0]
    found = {
        "concatenation": one("Concat", "x z", {"x": (2, 3, 4), "z": (2, 5, 4)}, axis=1, **own),
        "tiles": one("Tile", "x r", (2, 3, 4), {"r": [3, 1, 2]}, **own),
        "edges": one("Pad", "x p", _LINE, {"p": pads}, opset=18, mode="edge", **own),
        "zeros around": one("Pad", "x p", _LINE, {"p": pads}, **own),
        "places": one("Gather", "x i", axis=3, constants={"i": [[3, 0], [-1, 3]]}, **own),
        "upper triangle": one("Trilu", "x k", _LINE, {"k": np.array(1)}, **own),
        "lower triangle": one("Trilu", "x k", _LINE, {"k": np.array(-2)}, upper=0, **own),
        "maximum": one("ReduceMax", "x a", constants={"a": [1, 3]}, opset=20, keepdims=0, **own),
        "minimum": one("ReduceMin", "x a", constants={"a": [0, 2, 3]}, opset=20, **own),
        "parts": Form(
            (node("Split", "x s", "y z", axis=2), node("Cast", "z", "v", "last", to=TensorProto.FLOAT)),
            {"x": (2, 3, 7)},
            {"s": np.array([2, 5])},
            outputs=("y", "v"),
            types={"x": kind, "y": kind},
        ),
    }
    if kind != _BOOL:
        found["sum"] = one("ReduceSum", "x a", constants={"a": [1, 3]}, **own)
        found["product"] = one("ReduceProd", "x a", constants={"a": [1, 2]}, opset=18, **own)
    return found


_COMPILED: Mapping[str, Form] = {
    "where of constants": one("Where", "m k l", {"m": IMAGE}, {"k": (8, 10), "l": [-1e9]}, types={"m": _BOOL}),
    "where of five axes": one("Where", "m x z", {"m": (2, 3, 1, 2, 5), "x": (3, 4, 1, 5), "z": (1,)}, types={"m": _BOOL}),
    "where between convolutions": Form(  # whose activations have other layouts than it reads and writes
        (
            node("Conv", "z w", "x", "before"), node("Greater", "x half", "m", "which"), node("Where", "m x k", "o"),
            node("Conv", "o w", name="behind"),
        ),
        {"z": IMAGE}, {"w": value((6, 6, 1, 1)), "half": value([0.05]), "k": value((6, 1, 1))},
    ),
    "where by a constant": one("Where", "m x z", {"x": IMAGE, "z": IMAGE}, {"m": np.arange(80).reshape(8, 10) % 3 > 0}),
    "Equal of truth": one("Equal", "x z", {"x": IMAGE, "z": IMAGE}, types=_all(_BOOL)),
    **{
        f"{op} of odd numbers": one(op, "x k", (3, 10), {"k": _ODD}, types={"y": _BOOL})
        for op in ("Equal", "Greater", "Less", "GreaterOrEqual", "LessOrEqual")
    },
    **{
        f"cast of {a} to {b}": one("Cast", to=b, types={"x": a, "y": b})
        for a in (TensorProto.FLOAT, _INT, _LONG, _BOOL)
        for b in (TensorProto.FLOAT, _INT, _LONG, _BOOL, *((_UNSIGNED, _SIGNED) if a != TensorProto.FLOAT else ()))
    },
    "embedding": one("Gather", "k i", {"i": (2, 5)}, {"k": (3, 4)}, types={"i": _LONG}),
    "embedding, 32 bits": one("Gather", "k i", {"i": (2, 5)}, {"k": (3, 4)}, types={"i": _INT}),
    "gather of integers": one("Gather", "x i", {"x": IMAGE, "i": (5,)}, axis=-1, types={**_all(_LONG), "i": _LONG}),
    "power by a tensor": Form((node("Abs", "x", "a", "before"), node("Pow", "a z")), {"x": IMAGE, "z": (10,)}, {}),
    "power of a number by a tensor": one("Pow", "k x", constants={"k": [2.0]}),
    **{
        f"{op} of {kind}": one(op, "x z", {"x": IMAGE, "z": (8, 1)}, types=_all(kind))
        for op in ("Add", "Sub", "Mul", "Min", "Max")
        for kind in (_INT, _LONG)
    },
    "quotient of integers": one("Div", "x k", (3, 7), {"k": [3, -3, 2, 1, -1, 7, -5]}, types=_all(_LONG)),
    **{f"{op} of integers": one(op, types=_all(_LONG)) for op in ("Sign", "Abs", "Neg")},
    "integers turned": one("Transpose", perm=[0, 2, 3, 1], types=_all(_LONG)),
    "integers in another shape": one("Reshape", "x s", constants={"s": [8, -1]}, types=_all(_LONG)),
    **{f"{told} of {kind}": form for kind in (_INT, _LONG, _BOOL) for told, form in _moved(kind).items()},
    "integers padded by a number": one(
        "Pad", "x p v", _LINE, {"p": [1, 0, 2, 0, 3, 0], "v": np.array(-7)}, types=_all(_LONG)
    ),
    "integers and constants joined": one("Concat", "k x", (4, 9), {"k": np.arange(9)[None]}, axis=0, types=_all(_LONG)),
    **{
        f"best {count} of {kind}, {more}": one("TopK", "x k", (3, 9, 4), {"k": [count]}, writes="y z", types=types, **more)
        for kind, types in (("floats", {"z": _LONG}), ("integers", {"x": _INT, "y": _INT, "z": _LONG}))
        for count, more in ((4, {"axis": 1}), (1, {"axis": -1}), (9, {"axis": 1, "largest": 0}))
    },
    "truth expanded": one("Expand", "x s", (6, 1, 10), {"s": [2, 6, 8, 1]}, types=_all(_BOOL)),
    "integers sliced": one(
        "Slice", "x s e a p", constants={"s": [-1, 1], "e": [-_BIG, 5], "a": [3, 1], "p": [-2, 1]}, types=_all(_INT)
    ),
    "integers at one place": one("Gather", "x i", constants={"i": np.array(-1)}, axis=2, types=_all(_LONG)),
    "integers at places far apart": one("Gather", "x i", constants={"i": [5, 3, 1]}, axis=1, types=_all(_INT)),
}  # fmt: skip

_BYTES: Mapping[str, Form] = {
    **{
        f"{dtype} moved": Form(
            (
                node("Concat", "x k", "c", "joined", axis=1), node("Slice", "c b e a t", "s", "sliced"),
                node("Gather", "s p", "g", "picked", axis=1), node("Pad", "g n v", "q", "padded"),
                node("Tile", "q r", "l", "tiled"), node("Reshape", "l h", "o", "shaped"), node("ReduceMax", "o"),
            ),
            {"x": (2, 3, 4)},
            {
                "k": np.arange(8).reshape(2, 1, 4).astype(dtype), "b": value([0]), "e": value([4]), "a": value([2]),
                "t": value([2]), "p": value([3, 0, 1]), "n": value([0, 1, 0, 0, 0, 1]), "v": np.array(5, dtype),
                "r": value([1, 2, 1]), "h": value([2, -1]),
            },
            types=_all(kind),
        )
        for kind, dtype in ((_UNSIGNED, "uint8"), (_SIGNED, "int8"))
    },
    "bytes as truth": one("Cast", to=_BOOL, types={"x": _UNSIGNED, "y": _BOOL}),
    "bytes that are equal": one("Equal", "x z", {"x": (3, 4), "z": (4,)}, types={**_all(_SIGNED), "y": _BOOL}),
    # their places in the file are the other way around than among the operands
    "a choice of two constants": one("Where", "c b a", {"c": _LINE}, {"a": -2.0, "b": 3.0}, types={"c": _BOOL}),
}  # fmt: skip
_ROOTS: Mapping[str, Form] = {
    "root of squares of the image": one("GlobalLpPool"),
    "root of cubes of the image": one("GlobalLpPool", p=3),
}

#: Layers written as arithmetic: read as one operator, or not, where they are nearly one.
DECOMPOSED: Mapping[str, Form] = {**_GELUS, **_LAYERS}
EXPORTED: Mapping[str, Form] = {
    **_BEHIND, **_COMPILED, **_UNARY, **DECOMPOSED, **_PAIRS, **_COPIES, **_REDUCED, **_NORMS, **_TRANSPOSED, **_SEQUENCES,
    **_ROOTS, **_BYTES,
}  # fmt: skip
