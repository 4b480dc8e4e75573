"""Small models whose operators become several steps, or steps that only they become: more rows of `test_forms.py`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import helper
from written_forms import IMAGE, Form, behind, gemm, node, one, resized, sequence, value

LINE = (2, 6, 20)
_CONV = node("Conv", "x w", "h", "first")
_FC = node("MatMul", "x w", "h", "first")
_SQUARE = (6, 6, 1, 1)
_COORDINATES = (
    "half_pixel",
    "pytorch_half_pixel",
    "align_corners",
    "asymmetric",
    "tf_half_pixel_for_nn",
)
_LINES = {"x": LINE, "z": LINE}


def _line(op_type: str, reads: str = "x", constants: Mapping[str, Any] | None = None, **attributes: Any) -> Form:
    return one(op_type, reads, LINE, constants, **attributes)


def _chain(*nodes: onnx.NodeProto, inputs: Mapping[str, Sequence[int]], **constants: Any) -> Form:
    return Form(nodes, inputs, {name: value(v) for name, v in constants.items()})


#: Forms that take several steps, or steps that only they take.
COMPOSED: dict[str, Form] = {
    **{
        f"{op_type} of {first} and {second}": one(op_type, "x z", {"x": first, "z": second})
        for op_type, first, second in (
            ("Add", IMAGE, (8, 10)),
            ("Mul", (10,), (2, 6, 8, 10)),
            ("Add", IMAGE, (6, 1, 1)),
            ("Add", (2, 6, 8, 10), (1,)),
            ("Mul", (2, 3, 5), (5,)),
            ("Add", (1, 6, 1, 10), (2, 1, 8, 1)),
            ("Mul", (3, 1), (1, 4)),
            ("Add", (6, 1), (2, 3, 1, 5)),
        )
    },
    "sum with a larger constant": one("Add", "x c", {"x": (10,)}, {"c": IMAGE}),
    "product with a larger constant": one("Mul", "c x", {"x": (1, 6, 1, 10)}, {"c": (1, 1, 8, 1)}),
    "sum of a lower rank behind a convolution": behind(_CONV, one("Add", "z h", {"x": IMAGE, "z": (8, 10)}), w=_SQUARE),
    "sum of a convolution and an enlarged one": _chain(
        node("Conv", "x w", "h", "a"),
        node("Conv", "z w", "k", "b"),
        node("Add", "h k"),
        inputs={"x": IMAGE, "z": (1, 6, 1, 1)},
        w=_SQUARE,
    ),
    "a product of 3 axes and a sum": behind(_FC, one("Add", "h z", {"x": (2, 3, 5), "z": (2, 3, 4)}), w=(5, 4)),
    "a product of 3 axes and a bias for each column": behind(
        _FC, one("Add", "h z", {"x": (2, 3, 5), "z": (1, 1, 4)}), w=(5, 4)
    ),
    **{
        f"gemm with C of {shape}": gemm("x w c", (4, 7), (7, 4), shape, alpha=0.5, beta=beta)
        for shape, beta in (((), 2.0), ((1,), 1.0), ((1, 1), 0.5), ((4, 4), 2.0), ((4, 1), 1.0), ((4,), 1.0), ((1, 4), 3.0))
    },
    "gemm with C of one value, one column": gemm("x w c", (4, 7), (7, 1), (4, 1), transB=0),
    "gemm with a computed C": gemm("x w z", (4, 7), (7, 4), (4, 4), beta=2.0),
    "gemm with a computed C for each column": gemm("x w z", (4, 7), (7, 4), (4,), alpha=2.0),
    "gemm of itself": one("Gemm", "x x x", (5, 5), alpha=0.5, beta=0.25),
    "gemm, transposed": gemm("x w", (7, 5), (7, 4), transA=1),
    "gemm, both transposed": gemm("x w c", (7, 5), (4, 7), (5, 4), transA=1, transB=1, beta=0.5),
    "gemm of two activations": gemm("x z", (5, 7), (7, 4), alpha=1.0),
    "gemm of two activations, transposed": gemm("x z c", (7, 5), (4, 7), (4,), alpha=0.3, beta=2.0, transA=1, transB=1),
    "gemm of a constant": gemm("w x c", (5, 7), (7, 4), (4,)),
    "gemm of a constant, transposed": gemm("w x c", (7, 5), (4, 7), (5, 1), transA=1, transB=1, alpha=0.5, beta=2.0),
    **{
        f"matmul of {reads}, {first} by {second}": gemm(reads, first, second)
        for reads, first, second in (
            ("w x", (5, 7), (7, 3)),
            ("w x", (9, 9), (9, 9)),
            ("w x", (5, 7), (2, 7, 3)),
            ("w x", (3, 5, 7), (7, 2)),
            ("w x", (7,), (7, 3)),
            ("x w", (2, 5, 7), (2, 7, 3)),
            ("x w", (1, 3, 2, 7), (7, 4)),
            ("x w", (2, 3, 2, 5, 7), (7, 4)),
            ("x w", (7,), (7, 4)),
            ("x w", (2, 3, 7), (7,)),
            ("x z", (5, 7), (7, 3)),
            ("x z", (2, 3, 5), (2, 5, 3)),
            ("x z", (2, 4, 3, 5), (2, 4, 5, 6)),
            ("x z", (2, 1, 3, 5), (4, 5, 6)),
            ("x z", (3, 5), (2, 5, 6)),
            ("x z", (7,), (2, 7, 3)),
            ("x z", (2, 3, 7), (7,)),
            ("x z", (7,), (7,)),
        )
        if (first, second) != ((7,), (7,))  # a number: the runtime knows none
    },
    "attention": _chain(
        node("Transpose", "z", "k", "a", perm=[0, 1, 3, 2]),
        node("MatMul", "x k", "s", "b"),
        node("Mul", "s c", "t", "c"),
        node("Softmax", "t", "p", "d", axis=-1),
        node("MatMul", "p z"),
        inputs={"x": (1, 2, 5, 4), "z": (1, 2, 5, 4)},
        c=[0.5],
    ),
    "a product and an activation": _chain(
        node("MatMul", "x z", "h"), node("Relu", "h", name="b"), inputs={"x": (2, 3, 5), "z": (2, 5, 4)}
    ),
    "a product with both operands alike behind a flatten": _chain(
        node("Flatten", "x", "h", "a"), node("Gemm", "h w h"), inputs={"x": (2, 3, 2, 1)}, w=(6, 6)
    ),
    **{
        f"convolution of a line, {name}": _line("Conv", "x w b", {"w": weight, "b": weight[:1]}, **attributes)
        for name, weight, attributes in (
            ("plain", (4, 6, 3), {}),
            ("padded and strided", (4, 6, 5), {"pads": [2, 1], "strides": [2]}),
            ("same upper", (4, 6, 4), {"auto_pad": "SAME_UPPER", "strides": [3]}),
            ("dilated", (4, 6, 3), {"dilations": [3], "pads": [3, 3]}),
            ("grouped", (4, 3, 3), {"group": 2}),
            ("depthwise", (6, 1, 3), {"group": 6, "pads": [1, 1]}),
        )
    },
    "a block of lines": _chain(
        node("Conv", "x w", "h", "a", pads=[1, 1]),
        node("BatchNormalization", "h s b m v", "n", "b"),
        node("Relu", "n", "r", "c"),
        node("Conv", "r u", "k", "d"),
        node("Add", "k z", "t", "e"),
        node("Relu", "t", name="odd"),
        inputs=_LINES,
        w=(6, 6, 3),
        u=(6, 6, 1),
        s=(6,),
        b=(6,),
        m=(6,),
        v=np.arange(6) / 4 + 0.5,
    ),
    "batch normalisation of a line": _line(
        "BatchNormalization", "x s b m v", {"s": (6,), "b": (6,), "m": (6,), "v": np.arange(6) / 4 + 0.5}
    ),
    **{
        f"{op_type} of a line, {name}": _line(op_type, kernel_shape=[3], **attributes)
        for op_type, name, attributes in (
            ("MaxPool", "rounded up", {"strides": [2], "ceil_mode": 1}),
            ("AveragePool", "padded", {"pads": [1, 0]}),
            ("AveragePool", "padding counted", {"pads": [1, 2], "strides": [2], "count_include_pad": 1}),
            (
                "AveragePool",
                "padding counted, rounded up",
                {"pads": [1, 1], "strides": [2], "count_include_pad": 1, "ceil_mode": 1},
            ),
        )
    },
    "mean over all of a line": _line("GlobalAveragePool"),
    "mean over a line": _line("ReduceMean", axes=[2], keepdims=0),
    "linear along a line": one("Resize", "x - - s", LINE, {"s": [2, 6, 31]}, mode="linear"),
    **{
        f"AveragePool, padding counted, rounded up, {pads}": one(
            "AveragePool", "x", (2, 3, 8, 9), kernel_shape=[3, 2], strides=[2, 2], pads=pads, ceil_mode=1, count_include_pad=1
        )
        for pads in ([0, 0, 0, 0], [1, 1, 1, 0], [1, 0, 2, 0])
    },
    "AveragePool, padding counted, rounded up, dilated": one(
        "AveragePool",
        "x",
        (1, 3, 12, 12),
        opset=19,
        kernel_shape=[3, 3],
        strides=[2, 2],
        dilations=[2, 2],
        pads=[1, 1, 1, 1],
        ceil_mode=1,
        count_include_pad=1,
    ),
    **{
        f"mean over axes {axes} of {shape}": one("ReduceMean", "x", shape, axes=axes, keepdims=keep)
        for axes, shape, keep in (
            ([1], IMAGE, 1),
            ([1], (2, 6, 8, 10), 0),
            ([-1], (2, 3, 5), 1),
            ([0, 2], (2, 6, 8, 10), 1),
            ([1, 3], (2, 6, 8, 10), 0),
            ([0, 1, 2, 3], (2, 6, 8, 10), 1),
            ([0], (7,), 1),
            ([2, 4], (1, 2, 3, 2, 3, 2), 1),
            ([1, 2], (2, 6, 8, 10), 1),
        )
    },
    "mean over all axes": one("ReduceMean", keepdims=1),
    "mean over no axes": one("ReduceMean", keepdims=1, noop_with_empty_axes=1, opset=18),
    "mean over channels, opset 18": one("ReduceMean", "x a", constants={"a": [-3]}, opset=18, keepdims=0),
    "relu of 6 axes": one("Relu", "x", (1, 2, 1, 2, 3, 2)),
    "transpose of 6 axes": one("Transpose", "x", (2, 3, 2, 3, 4, 2), perm=[0, 3, 5, 1, 4, 2]),
    "transpose of 8 axes": one("Transpose", "x", (2, 3, 2, 3, 2, 2, 3, 2), perm=[7, 3, 5, 1, 4, 2, 0, 6]),
    "pixel shuffle": _chain(
        node("Reshape", "x s", "a", "p"),
        node("Transpose", "a", "b", perm=[0, 1, 4, 2, 5, 3]),
        node("Reshape", "b t", "y", "q"),
        inputs={"x": (2, 8, 3, 3)},
        s=[2, 2, 2, 2, 3, 3],
        t=[2, 2, 6, 6],
    ),
    "pixel shuffle between convolutions": _chain(
        node("Conv", "x w", "h", "c"),
        node("Reshape", "h s", "a", "p"),
        node("Transpose", "a", "b", perm=[0, 1, 4, 2, 5, 3]),
        node("Reshape", "b t", "k", "q"),
        node("Conv", "k u", "y", "d"),
        inputs={"x": (1, 8, 3, 3)},
        w=(8, 8, 1, 1),
        u=(3, 2, 1, 1),
        s=[1, 2, 2, 2, 3, 3],
        t=[1, 2, 6, 6],
    ),
    **{
        f"{mode}, {coordinates}, to {sizes}": resized(mode, sizes, coordinate_transformation_mode=coordinates, opset=19)
        for mode in ("nearest", "linear", "cubic")
        for coordinates in (*_COORDINATES, "half_pixel_symmetric")
        for sizes in ((8, 12), (2, 3), (5.0 / 4, 1.75), (1, 7), (4, 9))
        if (mode, coordinates) != ("cubic", "half_pixel_symmetric")
        and (coordinates != "tf_half_pixel_for_nn" or mode == "nearest")
    },
    **{
        f"nearest, {coordinates} and {rounding} by {scale}": resized(
            "nearest", (scale, 1.0), coordinate_transformation_mode=coordinates, nearest_mode=rounding
        )
        for coordinates in ("half_pixel", "asymmetric")
        for rounding in ("floor", "ceil", "round_prefer_ceil", "round_prefer_floor")
        for scale in (2.0, 3.0, 0.5, 2.05, 0.7)
    },
    "linear by more than the sizes": resized("linear", (2.05, 2.05)),
    "linear of the channels": one("Resize", "x - - s", (1, 4, 3, 3), {"s": [1, 6, 3, 3]}, mode="linear"),
    **{
        f"{mode} with antialias, {outside}, to {sizes}": resized(
            mode, sizes, antialias=1, exclude_outside=outside, opset=18, coordinate_transformation_mode=coordinates
        )
        for mode, coordinates in (("linear", "half_pixel"), ("cubic", "half_pixel"), ("linear", "align_corners"))
        for outside in (0, 1)
        for sizes in ((2, 3), (3, 5), (1, 2), (0.6, 0.4), (3, 9), (8, 12))
    },
    **{
        f"{mode} of a region to {sizes}": one(
            "Resize",
            "x r - s",
            (1, 3, 4, 6),
            {"r": [0.0, 0.0, 0.2, 0.1, 1.0, 1.0, 0.9, 1.2], "s": [1, 3, *sizes]},
            opset=13,
            mode=mode,
            coordinate_transformation_mode="tf_crop_and_resize",
            extrapolation_value=2.5,
        )
        for mode in ("nearest", "linear", "cubic")
        for sizes in ((3, 3), (7, 9), (1, 4))
    },
    **{
        f"{mode} of axes {axes}, {policy}": one(
            "Resize", "x - - s", (1, 3, 4, 6), {"s": [9, 5]}, opset=19, mode=mode, axes=axes, keep_aspect_ratio_policy=policy
        )
        for mode, axes in (("nearest", [2, 3]), ("linear", [3, 2]), ("cubic", [2, 3]), ("nearest", [1, 3]))
        for policy in ("stretch", "not_larger", "not_smaller")
    },
    "sizes of axes counted from behind": one("Resize", "x - - s", (1, 3, 4, 6), {"s": [9, 5]}, opset=18, axes=[-1, -2]),
    "scales of chosen axes": one("Resize", "x - s", (1, 3, 4, 6), {"s": [1.5, 2.0]}, opset=18, mode="linear", axes=[3, 2]),
    **{
        f"Upsample of opset {opset}, {mode}": Form(
            (
                node(
                    "Upsample", "x s" if opset == 9 else "x", mode=mode, **({} if opset == 9 else {"scales": [1.0, 1, 2, 1.5]})
                ),
            ),
            {"x": (1, 3, 4, 6)},
            {"s": value([1.0, 1, 2, 1.5])} if opset == 9 else {},
            opset,
        )
        for opset in (7, 9)
        for mode in ("nearest", "linear")
    },
    "cubic, outside left out": resized("cubic", (2.0, 1.5), cubic_coeff_a=-0.5, exclude_outside=1),
    **{
        f"{mode} of opset 10 by {scales}": one("Resize", "x s", (1, 3, 4, 6), {"s": [1.0, 1.0, *scales]}, mode=mode, opset=10)
        for mode in ("nearest", "linear")
        for scales in ((2.0, 2.0), (0.5, 0.5), (1.5, 2.5), (0.6, 1.0))
    },
    "resize between convolutions": _chain(
        node("Conv", "x w", "h", "c"),
        node("Resize", "h - - s", "k", mode="linear", coordinate_transformation_mode="align_corners"),
        node("Conv", "k w", name="d"),
        inputs={"x": IMAGE},
        w=_SQUARE,
        s=[1, 6, 11, 20],
    ),
    **{
        f"concat of {reads} along {axis}": one("Concat", reads, {"x": shape, "z": shape}, {"c": shape, "d": shape}, axis=axis)
        for reads, axis, shape in (
            ("x c z", 1, IMAGE),
            ("c x z d", 1, (2, 16, 3, 3)),
            ("x z c", 3, IMAGE),
            ("c z x c", 0, (2, 3, 4)),
            ("d z x", -1, (2, 5)),
        )
    },
    "concat between convolutions": _chain(
        node("Conv", "x w", "h", "a"),
        node("Concat", "h c", "k", axis=1),
        node("Conv", "k u", name="b"),
        inputs={"x": IMAGE},
        w=_SQUARE,
        u=(4, 8, 1, 1),
        c=(1, 2, 8, 10),
    ),
    **{
        f"lstm, {direction}, of which {writes} is read": sequence(
            2 if direction == "bidirectional" else 1, bias=True, direction=direction, writes=writes
        )
        for direction in ("forward", "reverse", "bidirectional")
        for writes in ("y q", "y q t")
    },
    **{
        f"lstm whose {role} alone is read": Form(
            (
                helper.make_node(
                    "LSTM", ["x", "w", "r"], ["", "y", ""] if role == "Y_h" else ["", "", "y"], name="odd", hidden_size=5
                ),
            ),
            {"x": (4, 2, 3)},
            {"w": value((1, 20, 3)), "r": value((1, 20, 5))},
        )
        for role in ("Y_h", "Y_c")
    },
}
