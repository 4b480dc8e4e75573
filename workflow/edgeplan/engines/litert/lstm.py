"""Writes an `LSTM` in TFLite, step by step.

TFLite has an operator for it, but that keeps its states in variable tensors, which LiteRT's compiled models refuse to load.
So the steps are written out, as LiteRT's converter of PyTorch models does: one product for the inputs of all steps, and one a
step for the state.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from edgeplan.engines.description import UnsupportedError
from edgeplan.engines.litert.context import LoweringContext, layout
from edgeplan.graph.ir import Operator
from edgeplan.support.tensors import Array

_ABSENT = -1
_GATES = 4  # input, output, forget, cell
_DIRECTIONS_LAST = (0, 2, 1, 3)


class Recurrent(LoweringContext):
    """This class lowers `LSTM` to operators of TFLite."""

    def lstm(self, op: Operator) -> None:
        """Lower an LSTM that runs forward, backward or both ways over a sequence (steps, batch, features), from zero states."""
        if op.outputs[1:]:
            raise UnsupportedError(f"an LSTM whose last states are read ({op.name})")
        weight, recurrence, *rest = self._weights(op)
        directions, hidden = recurrence.shape[0], recurrence.shape[2]
        steps, batch, _ = self._graph.shape(op.inputs[0])
        bias = rest[0] if rest else np.zeros((directions, 2 * _GATES * hidden), np.float32)
        backward = {"forward": (False,), "reverse": (True,)}.get(str(op.attributes.get("direction", "forward")), (False, True))
        results = [
            self._direction(op, (weight[i], recurrence[i], bias[i]), backwards=backwards)
            for i, backwards in enumerate(backward)
        ]
        joined = results[0]
        if directions > 1:
            joined = self._scratch(op, "joined", (steps, batch, directions * hidden))
            self._file.operator("CONCATENATION", results, [joined], "Concatenation", axis=2)
        self._directions_apart(op, joined, (steps, batch, directions, hidden))

    def _direction(self, op: Operator, values: tuple[Array, Array, Array], *, backwards: bool) -> int:
        """Return the states of one direction at every step, (steps, batch, hidden)."""
        weight, recurrence, bias = values
        hidden, prefix = recurrence.shape[1], "backward" if backwards else "forward"
        steps, batch, _ = self._graph.shape(op.inputs[0])
        wide = _GATES * hidden

        def scratch(role: str, *shape: int) -> int:
            return self._scratch(op, f"{prefix}/{role}", shape)

        def constant(role: str, value: Array) -> int:
            return self._file.constant(f"{op.name}/{prefix}/{role}", value)

        projected = scratch("projected", steps, batch, wide)
        operands = [self._index[op.inputs[0]], constant("weight", weight), constant("bias", bias[:wide] + bias[wide:])]
        self._file.operator("FULLY_CONNECTED", operands, [projected], "FullyConnected", keepNumDims=True)
        parts = [scratch(f"projected/{step}", 1, batch, wide) for step in range(steps)]
        axis = self._file.constant(f"{op.name}/{prefix}/steps", np.array(0, np.int32))
        self._file.operator("SPLIT", [axis, projected], parts, "Split", numSplits=steps)
        recurrent = constant("recurrence", recurrence)
        gate_axis = self._file.constant(f"{op.name}/{prefix}/gates", np.array(2, np.int32))
        states: dict[int, int] = {}
        state = cell = _ABSENT  # both are zero
        for step in reversed(range(steps)) if backwards else range(steps):
            gates = parts[step]
            if state != _ABSENT:
                product, gates = (scratch(f"{role}/{step}", 1, batch, wide) for role in ("product", "sum"))
                operands = [state, recurrent, _ABSENT]
                self._file.operator("FULLY_CONNECTED", operands, [product], "FullyConnected", keepNumDims=True)
                self._file.operator("ADD", [product, parts[step]], [gates], "Add")
            state, cell = self._cell(op, f"{prefix}/{step}", (gates, gate_axis), cell, (1, batch, hidden))
            states[step] = state
        out = scratch("states", steps, batch, hidden)
        self._file.operator("CONCATENATION", [states[i] for i in range(steps)], [out], "Concatenation", axis=0)
        return out

    def _cell(
        self, op: Operator, prefix: str, gates: tuple[int, int], cell: int, shape: tuple[int, int, int]
    ) -> tuple[int, int]:
        """Return state and cell after a step, from the sums that enter its gates (and their axis) and the cell before."""

        def emit(code: str, inputs: Sequence[int], role: str, options: str = "") -> int:
            out = self._scratch(op, f"{prefix}/{role}", shape)
            self._file.operator(code, inputs, [out], options)
            return out

        sums, axis = gates
        raw = [self._scratch(op, f"{prefix}/raw/{gate}", shape) for gate in range(_GATES)]
        self._file.operator("SPLIT", [axis, sums], raw, "Split", numSplits=_GATES)
        enter, leave = emit("LOGISTIC", raw[:1], "enter"), emit("LOGISTIC", raw[1:2], "leave")
        new = emit("MUL", [enter, emit("TANH", raw[3:], "candidate")], "new", "Mul")
        if cell != _ABSENT:
            kept = emit("MUL", [emit("LOGISTIC", raw[2:3], "keep"), cell], "kept", "Mul")
            new = emit("ADD", [kept, new], "cell", "Add")
        return emit("MUL", [leave, emit("TANH", [new], "squashed")], "state", "Mul"), new

    def _directions_apart(self, op: Operator, joined: int, shape: Sequence[int]) -> None:
        """Move directions apart, as ONNX keeps them: (steps, directions, batch, hidden), unless what follows joins them."""
        transpose = self._only_reader(op.outputs[0], "Transpose")
        if transpose is not None and transpose.integers("perm", ()) == _DIRECTIONS_LAST:
            reshape = self._only_reader(transpose.outputs[0], "Reshape")
            if reshape is not None:
                after = self._graph.shape(reshape.outputs[0])
                if layout(len(after)) == tuple(range(len(after))):
                    self._done.update((transpose.name, reshape.name))
                    self._emit_reshape(op, joined, self._out(reshape.outputs[0]))
                    return
        apart = self._scratch(op, "apart", shape)
        self._emit_reshape(op, joined, apart)
        stored = [_DIRECTIONS_LAST.index(axis) for axis in layout(len(shape))]
        order = self._file.integers(f"{op.name}/order", stored)
        self._file.operator("TRANSPOSE", [apart, order], [self._out(op.outputs[0])], "Transpose")
