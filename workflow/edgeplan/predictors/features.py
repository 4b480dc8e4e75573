"""Computes the features of all predictors: kernel configurations in, a matrix of finite numbers out.

Features are the configuration itself (batch, both spatial axes, both kernel axes, stride, dilation, groups, padding, element
type, what is fused), and what decides how well an implementation can use the machine: work, traffic, how channels fit blocks
of 4, 8 and 16 lanes, the size of the working sets that have to stay in a cache (nn-Meter, section 5.3, extended). Trees split
on them one at a time, so products and remainders have to be spelt out.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import MappingProxyType

import numpy as np
import numpy.typing as npt

from edgeplan.graph.ir import BYTES_PER_ELEMENT
from edgeplan.graph.kernels import KernelConfig
from edgeplan.predictors.configs import NUMBERS, ConfigTable
from edgeplan.predictors.launches import LAUNCH_FEATURES, LAUNCH_TERMS

Floats = npt.NDArray[np.float64]

#: Element types that labels can be of: carriers and zoo models are built in float32, and every engine is told to compute in it.
#: Nothing was learnt of another type, although its kernels have features.
LABELLED_TYPES = frozenset({"float32"})

_ACTIVATION_CODE = MappingProxyType(
    {
        "": 0.0,
        "relu": 1.0,
        "relu6": 2.0,
        "clip": 3.0,
        "leakyrelu": 4.0,
        "hsigmoid": 5.0,
        "hswish": 6.0,
        "sigmoid": 7.0,
        "tanh": 8.0,
    }
)
_UNKNOWN_ACTIVATION = 9.0
_LANES = 16
_TILE_ROWS = 12  # rows of a register tile: 12 x 32 values fill the vector registers of AVX-512
_PADS = ("pad_top", "pad_left", "pad_bottom", "pad_right")
_CONVOLUTIONS = frozenset({"conv", "dwconv"})
#: Versions of how work is counted, by what predictors have learnt: from 1 on that of every recurrent layer, of transposed
#: convolutions and of products of activations counts, which was nothing in version 0.
FIRST_WORK, WORK_VERSION = 0, 1
#: Gates of recurrent layers.
_GATES = MappingProxyType({"lstm": 4.0, "gru": 3.0, "rnn": 1.0})

#: Terms of the linear work model (`work_terms`), in order.
WORK_TERMS = (
    "constant",
    "macs",
    "padded_macs",
    "input_bytes",
    "weight_bytes",
    "output_bytes",
    "window_reads",
    "im2col_bytes",
    "gemm_macs",
)

_RAW = tuple(name for name in NUMBERS if name not in _PADS)
_DERIVED = (
    "pad_height",
    "pad_width",
    "pad_skew",
    "activation",
    "fused_operators",
    "element_bytes",
    "permutation",
    "permuted_axes",
    "moves_last_axis",
    "macs",
    "padded_macs",
    "lane_use",
    "gemm_macs",
    "gemm_use",
    "input_bytes",
    "weight_bytes",
    "output_bytes",
    "total_bytes",
    "intensity",
    "window",
    "window_reads",
    "reduction",
    "group_inputs",
    "group_outputs",
    "in_mod_4",
    "in_mod_8",
    "in_mod_16",
    "out_mod_4",
    "out_mod_8",
    "out_mod_16",
    "in_gcd_64",
    "out_gcd_64",
    "in_blocks",
    "out_blocks",
    "out_pixels",
    "pixels_mod_8",
    "width_mod_4",
    "width_mod_6",
    "width_mod_14",
    "out_mod_12",
    "out_blocks_mod_4",
    "pixels_mod_16",
    "interior_share",
    "interior_width",
    "im2col_bytes",
    "row_slab_bytes",
    "block_weight_bytes",
    "other_ratio",
    "part_ratio",
    "shrink",
    "border_share",
)
FEATURES: tuple[str, ...] = _RAW + _DERIVED


def features(configs: Sequence[KernelConfig] | ConfigTable, version: int = FIRST_WORK) -> Floats:
    """Compute the features of kernel configurations.

    Args:
        configs: n configurations.
        version: how their work is counted (`WORK_VERSION`).

    Returns:
        Shape (n, len(FEATURES)), finite; columns in the order of `FEATURES`.
    """
    table = configs if isinstance(configs, ConfigTable) else ConfigTable.of(configs)
    values = {name: table.column(name) for name in NUMBERS}
    values |= _work(table, values, version)
    values |= _shape(values)
    values |= _words(table)
    return np.column_stack([values[name] for name in FEATURES]) if len(table) else np.zeros((0, len(FEATURES)))


def known_features(*, launched: bool) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the names of the features and of the terms of the work model, of kernels whose launches are known or not."""
    return (FEATURES + LAUNCH_FEATURES, WORK_TERMS + LAUNCH_TERMS) if launched else (FEATURES, WORK_TERMS)


def work_terms(matrix: Floats) -> Floats:
    """Compute the terms of the linear work model from features (n, terms).

    Args:
        matrix: columns of `FEATURES`, behind them of `LAUNCH_FEATURES` where launches are known, then others (n, features).
    """
    names, terms = known_features(launched=matrix.shape[1] >= len(FEATURES) + len(LAUNCH_FEATURES))
    at = {name: i for i, name in enumerate(names)}
    return np.column_stack([np.ones(len(matrix)), *(matrix[:, at[name]] for name in terms[1:])])


def _words(table: ConfigTable) -> dict[str, Floats]:
    permutations = table.words["permutation"]
    moved = {p: float(sum(int(axis) != i for i, axis in enumerate(p))) for p in permutations}
    last = {p: float(bool(p) and int(p[-1]) != len(p) - 1) for p in permutations}
    # Batch normalisations are folded into weights: they cost nothing and must not tell two equal kernels apart.
    fused = {t: float(sum(k != "bn" for k in t.split("++")[1:])) for t in table.words["type"]}
    return {
        "activation": table.mapped("activation", _ACTIVATION_CODE, _UNKNOWN_ACTIVATION),
        "permutation": table.mapped("permutation", {p: float(p or 0) for p in permutations}, 0.0),
        "permuted_axes": table.mapped("permutation", moved, 0.0),
        "moves_last_axis": table.mapped("permutation", last, 0.0),
        "fused_operators": table.mapped("type", fused, 0.0),
    }


def _work(table: ConfigTable, v: dict[str, Floats], version: int) -> dict[str, Floats]:
    """Compute multiply-adds and bytes moved."""
    size = table.mapped("dtype", {name: float(b) for name, b in BYTES_PER_ELEMENT.items()}, 4.0)
    is_conv = table.mapped("kind", dict.fromkeys(_CONVOLUTIONS, 1.0), 0.0) > 0
    is_fc = table.mapped("kind", {"fc": 1.0}, 0.0) > 0
    is_lstm = table.mapped("kind", {"lstm": 1.0}, 0.0) > 0
    into = v["batch"] * v["in_channels"] * v["in_height"] * v["in_width"]
    out = v["batch"] * v["out_channels"] * v["out_height"] * v["out_width"]
    group_inputs = v["in_channels"] / v["groups"]
    group_outputs = v["out_channels"] / v["groups"]
    window = v["kernel_h"] * v["kernel_w"]
    # A fully connected layer multiplies the last axis of any rank; (batch, channels) leaves height and width 1.
    flat = (v["in_height"] * v["in_width"] * v["out_height"] * v["out_width"]) == 1
    deep = (v["in_width"] * v["out_width"]) > 1
    fc_reduction = np.where(flat, v["in_channels"], np.where(deep, v["in_width"], v["in_height"]))
    fc_outputs = np.where(flat, v["out_channels"], np.where(deep, v["out_width"], v["out_height"]))
    # Input (steps, sequences, features), output (steps, directions, sequences, hidden): four gates read both.
    gates = 4 * (v["in_height"] + v["out_width"])
    reduction = np.select([is_conv, is_fc, is_lstm], [group_inputs * window, fc_reduction, gates], 1.0)
    weights = np.select(
        [is_conv, is_fc, is_lstm],
        [v["out_channels"] * reduction, fc_reduction * fc_outputs, v["out_channels"] * v["out_width"] * reduction],
        0.0,
    )
    macs = np.where(is_conv | is_fc | is_lstm, out * reduction, 0.0)
    padded = np.where(
        is_conv & (v["groups"] == 1),
        out / v["out_channels"] * _padded(v["out_channels"]) * _padded(v["in_channels"]) * window,
        np.where(is_conv, v["groups"] * (out / v["out_channels"]) * _padded(group_outputs) * group_inputs * window, macs),
    )
    # A convolution as a product of matrices (out x reduction) (reduction x pixels), in tiles of registers.
    pixels = v["batch"] * v["out_height"] * v["out_width"]
    gemm = np.where(is_conv, v["groups"] * reduction * _padded(group_outputs, _TILE_ROWS) * _padded(pixels, _LANES), macs)
    found = {
        "element_bytes": size,
        "macs": macs,
        "padded_macs": padded,
        "lane_use": macs / np.maximum(padded, 1.0),
        "gemm_macs": gemm,
        "gemm_use": macs / np.maximum(gemm, 1.0),
        "input_bytes": size * (into + v["other_elements"] + np.where(v["residual"] > 0, out, 0.0)),
        "weight_bytes": size * weights,
        "output_bytes": size * out,
        "total_bytes": size * (into + v["other_elements"] + weights + out),
        "intensity": macs / np.maximum(into + weights + out, 1.0),
        "window": window,
        "window_reads": out * window,
        "reduction": reduction,
        "group_inputs": group_inputs,
        "group_outputs": group_outputs,
        "im2col_bytes": size * np.where(is_conv, out / v["out_channels"] * v["in_channels"] * window, 0.0),
        "row_slab_bytes": size * v["in_channels"] * v["in_width"] * np.minimum(v["kernel_h"], v["in_height"]),
        "block_weight_bytes": size * np.minimum(v["out_channels"], _LANES) * reduction,
        "other_ratio": v["other_elements"] / np.maximum(into, 1.0),
    }
    return _with_further(table, v, found, size) if version > FIRST_WORK else found


def _with_further(table: ConfigTable, v: dict[str, Floats], work: dict[str, Floats], size: Floats) -> dict[str, Floats]:
    """Return the work with that of the kinds that version 0 counts nothing of, or not what decides."""
    gates = table.mapped("kind", _GATES, 0.0)
    recurrent, is_matmul, is_deconv = (gates > 0, *(table.mapped("kind", {k: 1.0}, 0.0) > 0 for k in ("matmul", "deconv")))
    kinds = [recurrent, is_matmul, is_deconv]
    out = v["batch"] * v["out_channels"] * v["out_height"] * v["out_width"]
    steps, hidden, pixels = v["batch"] * v["out_channels"], v["out_width"], v["batch"] * v["in_height"] * v["in_width"]
    of_gates, window = gates * (v["in_height"] + hidden), v["kernel_h"] * v["kernel_w"]
    group_outputs = v["out_channels"] / v["groups"]
    per_pixel = group_outputs * window  # each input of a transposed convolution is spread over so many outputs
    macs = np.select(kinds, [out * of_gates, out * v["in_width"], pixels * v["in_channels"] * per_pixel], 0.0)
    tiles = v["batch"] * _padded(v["in_height"], _TILE_ROWS) * _padded(v["out_width"], _LANES) * v["in_width"]
    spread = pixels * v["in_channels"] * window * _padded(group_outputs, _TILE_ROWS)
    weights = size * np.select(kinds, [v["out_channels"] * hidden * of_gates, 0.0, v["in_channels"] * per_pixel], 0.0)
    again = size * np.select(
        # each step of a recurrent layer reads the weights of its state again, and waits for the one before
        kinds,
        [steps * hidden * gates * hidden, 0.0, pixels * v["out_channels"] * window],
        0.0,
    )
    padded = np.select(kinds, [macs, tiles, spread], 0.0)
    known = np.any(kinds, axis=0)
    told = {
        "macs": macs,
        "padded_macs": padded,
        "gemm_macs": padded,
        "lane_use": macs / np.maximum(padded, 1.0),
        "gemm_use": macs / np.maximum(padded, 1.0),
        "weight_bytes": weights,
        "total_bytes": work["input_bytes"] + weights + work["output_bytes"],
        "intensity": macs / np.maximum((work["input_bytes"] + weights + work["output_bytes"]) / size, 1.0),
        "window_reads": np.select(kinds, [steps, out, pixels * v["in_channels"] * window], 0.0),
        "reduction": macs / np.maximum(out, 1.0),
        "im2col_bytes": again,
    }
    return {name: np.where(known, told[name], values) if name in told else values for name, values in work.items()}


def _shape(v: dict[str, Floats]) -> dict[str, Floats]:
    """Compute how channels and pixels fit blocks, and the cost of padding."""
    cin, cout = v["in_channels"], v["out_channels"]
    pad_h, pad_w = v["pad_top"] + v["pad_bottom"], v["pad_left"] + v["pad_right"]
    pixels = v["out_height"] * v["out_width"]
    # Outputs whose window lies inside the input: the others run slower code on most engines.
    inside_h = _inside(v["in_height"], v["kernel_h"], v["stride_h"], v["dilation_h"], v["out_height"])
    inside_w = _inside(v["in_width"], v["kernel_w"], v["stride_w"], v["dilation_w"], v["out_width"])
    result = {f"in_mod_{n}": np.mod(cin, n) for n in (4, 8, 16)} | {f"out_mod_{n}": np.mod(cout, n) for n in (4, 8, 16)}
    return result | {
        "in_gcd_64": np.gcd(cin.astype(np.int64), 64).astype(np.float64),
        "out_gcd_64": np.gcd(cout.astype(np.int64), 64).astype(np.float64),
        "in_blocks": np.ceil(cin / _LANES),
        "out_blocks": np.ceil(cout / _LANES),
        "out_pixels": pixels,
        "pixels_mod_8": np.mod(pixels, 8),
        "width_mod_4": np.mod(v["out_width"], 4),
        "width_mod_6": np.mod(v["out_width"], 6),
        "width_mod_14": np.mod(v["out_width"], 14),
        "out_mod_12": np.mod(cout, _TILE_ROWS),
        "out_blocks_mod_4": np.mod(np.ceil(cout / _LANES), 4),
        "pixels_mod_16": np.mod(pixels, _LANES),
        "interior_share": inside_h * inside_w / np.maximum(pixels, 1.0),
        "interior_width": inside_w,
        "pad_height": pad_h,
        "pad_width": pad_w,
        "pad_skew": v["pad_bottom"] - v["pad_top"] + v["pad_right"] - v["pad_left"],
        "part_ratio": v["min_part"] / np.maximum(v["max_part"], 1.0),
        "shrink": (v["in_height"] * v["in_width"]) / np.maximum(pixels, 1.0),
        # Share of window positions that lie in the padding: implementations skip them or pay for copying borders.
        "border_share": 1.0
        - (v["in_height"] / np.maximum(v["in_height"] + pad_h, 1.0)) * (v["in_width"] / np.maximum(v["in_width"] + pad_w, 1.0)),
    }


def _padded(size: Floats, block: int = _LANES) -> Floats:
    return np.ceil(size / block) * block


def _inside(size: Floats, kernel: Floats, stride: Floats, dilation: Floats, out: Floats) -> Floats:
    return np.asarray(np.clip(np.floor((size - (kernel - 1) * dilation - 1) / stride) + 1, 0.0, out), dtype=np.float64)
