"""Steps are executed by the runtime; each is a fused group of operators. Values only; nothing here knows oneDNN."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING

import msgspec

from edgeplan.graph.shapes import Shape

if TYPE_CHECKING:  # who runs plans reads no graphs
    from edgeplan.graph.ir import StoredWeight

Setting = int | float | str | tuple[int, ...]
#: Kinds of steps that are computed in eight bits, and the sides of one that are bytes with a scale and a zero point.
INT8_CONV, INT8_FC = INT8_KINDS = ("int8_conv", "int8_fc")
#: Largest bytes of windows; and kinds that want the channels of images of bytes side by side.
INT8_POOL = "int8_pool"
SIDE_BY_SIDE = (INT8_CONV, INT8_POOL)
#: From bytes to bytes by a compiled kernel: its `form` is `table`, `add`, `mul`, `concat` or `mean`.
INT8_LINE = "int8_line"
#: Kinds that kernels of `runtime.kernels` compute.
COMPILED = ("compiled", INT8_LINE)
SIDES = ("source", "written")
#: What names of compiled kernels begin with that pick places by indices, or write there; the type of these, or whose places,
#: follows.
GATHERED, SCATTERED = PICKING = ("gathered_by_", "scattered_by_")


class PostOp(msgspec.Struct, frozen=True):
    """A post-operation is fused behind a step's main one.

    Attributes:
        kind: `eltwise`, `sum` (adds to what the output buffer holds: `tensor`, whose buffer becomes the output's), `binary`.
        algorithm: `relu`, `clip` ... of an eltwise, `add` or `mul` of a binary.
        alpha, beta: parameters of an eltwise.
        tensor: the other operand of a sum or binary.
    """

    kind: str
    algorithm: str = ""
    alpha: float = 0.0
    beta: float = 0.0
    tensor: str = ""


class Step(msgspec.Struct, frozen=True):
    """A step has its place in the fixed execution order ("layer" of the papers).

    Attributes:
        name: name of the operator that does the work.
        kind: conv, fc, pool, concat, split, shuffle, binary, eltwise, scale, lrn, softmax, resize, lstm, gru, lbr_gru (a GRU
            that multiplies before it resets), rnn, transpose, reshape, matmul, mix (a product with a matrix that follows from
            the settings: `axis_matrices`), compiled (a kernel of `runtime.kernels` with the block of numbers of `blocks`; its
            weights are called by their place, `operand_1`), constant (a weight that is an output), rows (of a table in the
            file: `runtime.streaming.build`), int8_conv, int8_fc, int8_pool and int8_line (in eight bits: `runtime.eight_bits`).
        members: ONNX operators that run in it, in topological order.
        inputs, outputs: activations read (post-operations' operands apart) and written.
        weights: role -> initialiser: weight, bias, and of a folded batch normalisation bn_scale, bn_bias, bn_mean, bn_variance;
            of constants behind a convolution, which are folded into it: factor, summand; of what is computed in eight bits
            weight_scale, and source_scale, source_zero, written_scale, written_zero of what is read and written in bytes.
        settings: parameters of the operation, by kind (see `lowering`).
        post_ops: what is fused behind it, in order.
    """

    name: str
    kind: str
    members: tuple[str, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    weights: Mapping[str, str] = msgspec.field(default_factory=lambda: MappingProxyType({}))
    settings: Mapping[str, Setting] = msgspec.field(default_factory=lambda: MappingProxyType({}))
    post_ops: tuple[PostOp, ...] = ()

    @property
    def reads(self) -> tuple[str, ...]:
        """Return the names of all activations read."""
        return (*self.inputs, *(p.tensor for p in self.post_ops if p.tensor))

    @property
    def picks_places(self) -> bool:
        """Tell whether the step fails where an input is no index: it cannot run on arbitrary memory."""
        return self.kind == "compiled" and self.text("kernel").startswith(PICKING)

    def sizes(self, key: str) -> tuple[int, ...]:
        """Return a setting that is a list of integers."""
        value = self.settings[key]
        return value if isinstance(value, tuple) else (int(value),)

    def integer(self, key: str) -> int:
        """Return a setting that is an integer."""
        return int(self.settings[key])  # type: ignore[arg-type]

    def number(self, key: str) -> float:
        """Return a setting that is a number."""
        return float(self.settings[key])  # type: ignore[arg-type]

    def text(self, key: str) -> str:
        """Return a setting that is a text."""
        return str(self.settings[key])


class Lowered(msgspec.Struct, frozen=True):
    """A lowered graph consists of steps in the order of execution.

    Attributes:
        name, steps, inputs, outputs: of the graph, and activations at its border.
        shapes: of every activation and weight that the steps name.
        types: element type of those that are not of float32, which are row-major everywhere.
        limits: what the values of inputs stay below that places of an axis are picked by (`index_limits`).
        stored: weights of float32 that the file holds in fewer bytes.
    """

    name: str
    steps: tuple[Step, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    shapes: Mapping[str, Shape]
    types: Mapping[str, str] = msgspec.field(default_factory=lambda: MappingProxyType({}))
    limits: Mapping[str, int] = msgspec.field(default_factory=lambda: MappingProxyType({}))
    stored: Mapping[str, StoredWeight] = msgspec.field(default_factory=lambda: MappingProxyType({}))
