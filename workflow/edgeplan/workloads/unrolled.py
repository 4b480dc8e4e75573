"""Builds recurrent layers as the operators that they are made of, as TVM unrolls them (EOP, tables 1 and 5)."""

from __future__ import annotations

import math
from typing import Literal

from onnx import TensorProto

from edgeplan.workloads.exported import ExportBuilder, Exported

_GATES = {"LSTM": 4, "GRU": 3}
#: Of what is read and of the state: matrix and bias.
Weights = list[tuple[str, str]]


def unrolled_language_model(
    name: str, cell: Literal["LSTM", "GRU"], *, batch: int = 1, tokens: int = 1, vocabulary: int = 32000, embedding: int = 80,
    hidden: int = 64, layers: int = 2,
) -> Exported:  # fmt: skip
    """Build the model of `recurrent_language_model`, with as many parameters, of products, sums and gates, step by step.

    It maps token ids (tokens, batch) to logits (tokens * batch, vocabulary). States are (batch, hidden) of each layer,
    `hidden_0`, and `cell_0` of LSTMs; they come out joined, (layers * batch, hidden).
    """
    b = ExportBuilder(name)
    ids = b.input("input_ids", (tokens, batch), TensorProto.INT64)
    kinds = ("hidden", "cell") if cell == "LSTM" else ("hidden",)
    states = [[b.input(f"{kind}_{layer}", (batch, hidden)) for kind in kinds] for layer in range(layers)]
    table = b.weight("encoder.weight", (vocabulary, embedding), 1.0)
    embedded = b.reshape(b.node("Gather", [table, ids], "/encoder", axis=0), (tokens * batch, embedding), "/encoder")
    rows = b.nodes("Split", [embedded], tokens, "/encoder", axis=0) if tokens > 1 else (embedded,)
    weights = [_weights(b, k, (hidden if k else embedding, hidden), _GATES[cell] * hidden) for k in range(layers)]
    tops = []
    for x in rows:
        for layer in range(layers):
            made = (_lstm if cell == "LSTM" else _gru)(b, x, states[layer], weights[layer], f"/rnn/{layer}")
            states[layer] = made
            x = states[layer][0]  # noqa: PLW2901  what the next layer reads
        tops.append(x)
    top = b.node("Concat", tops, "/rnn", axis=0) if tokens > 1 else tops[0]
    weight = b.matrix("decoder.weight", hidden, vocabulary)
    outputs = {"logits": b.node("Gemm", [top, weight, b.bias("decoder", vocabulary)], "/decoder")}
    for k, kind in enumerate(kinds):
        outputs[f"{kind}_out"] = b.node("Concat", [of_layer[k] for of_layer in states], "/rnn", axis=0)
    return b.build(outputs)


def _weights(b: ExportBuilder, layer: int, widths: tuple[int, int], outputs: int) -> Weights:
    """Add the weights of a layer: the matrix and the bias of its input and of its state."""
    bound = 1 / math.sqrt(widths[1])
    return [
        (b.weight(f"rnn.{role}_l{layer}", (width, outputs), bound), b.weight(f"rnn.{role}b_l{layer}", (outputs,), bound))
        for role, width in zip(("W", "R"), widths, strict=True)
    ]


def _lstm(b: ExportBuilder, x: str, state: list[str], weights: Weights, scope: str) -> list[str]:
    gates = b.node("Add", [b.node("Gemm", [v, *w], scope) for v, w in zip((x, state[0]), weights, strict=True)], scope)
    i, o, f, c = b.nodes("Split", [gates], 4, scope, axis=1)
    i, o, f = (b.node("Sigmoid", [gate], scope) for gate in (i, o, f))
    written = b.node("Mul", [i, b.node("Tanh", [c], scope)], scope)
    cell = b.node("Add", [b.node("Mul", [f, state[1]], scope), written], scope)
    return [b.node("Mul", [o, b.node("Tanh", [cell], scope)], scope), cell]


def _gru(b: ExportBuilder, x: str, state: list[str], weights: Weights, scope: str) -> list[str]:
    products = [b.node("Gemm", [v, *w], scope) for v, w in zip((x, state[0]), weights, strict=True)]
    (zx, rx, nx), (zh, rh, nh) = (b.nodes("Split", [product], 3, scope, axis=1) for product in products)
    z, r = (b.node("Sigmoid", [b.node("Add", [one, other], scope)], scope) for one, other in ((zx, zh), (rx, rh)))
    n = b.node("Tanh", [b.node("Add", [nx, b.node("Mul", [r, nh], scope)], scope)], scope)
    moved = b.node("Mul", [z, b.node("Sub", [state[0], n], scope)], scope)
    return [b.node("Add", [n, moved], scope)]
