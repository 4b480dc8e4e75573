"""Small models whose operators become several steps, or steps that only they become: more rows of `test_forms.py`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import onnx
from written_forms import IMAGE, Form, behind, gemm, node, one, resized, value

LINE = (2, 6, 20)
_CONV = node("Conv", "x w", "h", "first")
_FC = node("MatMul", "x w", "h", "first")
_SQUARE = (6, 6, 1, 1)
_LINES = {"x": LINE, "z": LINE}


def _line(op_type: str, reads: str = "x", constants: Mapping[str, Any] | None = None, **attributes: Any) -> Form:
    return one(op_type, reads, LINE, constants, **attributes)


def _chain(*nodes: onnx.NodeProto, inputs: Mapping[str, Sequence[int]], **constants: Any) -> Form:
    return Form(nodes, inputs, {name: value(v) for name, v in constants.items()})


#: Forms that take several steps, or steps that only they take.
COMPOSED: dict[str, Form] = {
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
    "gemm with a computed C": gemm("x w z", (4, 7), (7, 4), (4, 4), beta=2.0),
    "gemm with a computed C for each column": gemm("x w z", (4, 7), (7, 4), (4,), alpha=2.0),
    "gemm of itself": one("Gemm", "x x x", (5, 5), alpha=0.5, beta=0.25),
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
    "mean over no axes": one("ReduceMean", keepdims=1, noop_with_empty_axes=1, opset=18),
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
        f"nearest, tf_half_pixel_for_nn, to {sizes}": resized(
            "nearest", sizes, coordinate_transformation_mode="tf_half_pixel_for_nn", opset=19
        )
        for sizes in ((8, 12), (2, 3), (5.0 / 4, 1.75), (1, 7), (4, 9))
    },
    "linear by more than the sizes": resized("linear", (2.05, 2.05)),
    "linear of the channels": one("Resize", "x - - s", (1, 4, 3, 3), {"s": [1, 6, 3, 3]}, mode="linear"),
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
    "concat between convolutions": _chain(
        node("Conv", "x w", "h", "a"),
        node("Concat", "h c", "k", axis=1),
        node("Conv", "k u", name="b"),
        inputs={"x": IMAGE},
        w=_SQUARE,
        u=(4, 8, 1, 1),
        c=(1, 2, 8, 10),
    ),
}
