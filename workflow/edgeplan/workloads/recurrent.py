"""Builds recurrent language models: of operators that are layers, and unrolled, as TVM does it (EOP, tables 1 and 5)."""

from __future__ import annotations

import math
from typing import Literal

from onnx import TensorProto

from edgeplan.workloads.exported import ExportBuilder, Exported

_GATES = {"LSTM": 4, "GRU": 3}
Cell = Literal["LSTM", "GRU"]


def recurrent_language_model(
    name: str, cell: Cell, *, batch: int = 1, tokens: int = 1, vocabulary: int = 32000, embedding: int = 80,
    hidden: int = 64, layers: int = 2,
) -> Exported:  # fmt: skip
    """Build a recurrent language model: token ids (tokens, batch) and states to logits (tokens, batch, vocabulary), states.

    The layers are those of EOP's table 3: one step, 80 inputs, two layers of 64 units, at a batch of 16;
    the paper's vocabulary of 32,000 is that of its BERT. It counts no parameters: by hand, with LSTM
    (GRU: 3 in place of 4), 32,000 x 80 of the embedding, 4 x 64 x (80 + 64 + 2) and 4 x 64 x (64 + 64 + 2)
    of the layers, 32,000 x (64 + 1) of the logits. At the size of Zaremba et al., 2014 (section 4.1: large,
    1500 units, vocabulary 10,000), the same builder has the 66 M that Gal and Ghahramani, 2016, table 1 state.

    States are of shape (layers, batch, hidden): `hidden`, and `cell` of LSTMs. Layers are cut out of them
    and joined again as torch.onnx writes it.
    """
    b = ExportBuilder(name)
    ids = b.input("input_ids", (tokens, batch), TensorProto.INT64)
    kinds = ("hidden", "cell") if cell == "LSTM" else ("hidden",)
    states = [b.input(kind, (layers, batch, hidden)) for kind in kinds]
    x = b.node("Gather", [b.weight("encoder.weight", (vocabulary, embedding), 1.0), ids], "/encoder", axis=0)
    left: list[list[str]] = [[] for _ in kinds]
    for layer in range(layers):
        inputs, gates = embedding if layer == 0 else hidden, _GATES[cell] * hidden
        bound = 1 / math.sqrt(hidden)  # as torch draws them
        weights = [
            b.weight(f"rnn.{role}_l{layer}", shape, bound)
            for role, shape in (("W", (1, gates, inputs)), ("R", (1, gates, hidden)), ("B", (1, 2 * gates)))
        ]
        cut = [b.integers(ends) for ends in ((layer,), (layer + 1,), (0,))]
        given = [b.node("Slice", [state, *cut], "/rnn") for state in states]
        settings = {"hidden_size": hidden} | ({"linear_before_reset": 1} if cell == "GRU" else {})
        y, *last = b.nodes(cell, [x, *weights, "", *given], 1 + len(kinds), "/rnn", **settings)
        for states_of_kind, state in zip(left, last, strict=True):
            states_of_kind.append(state)
        x = b.node("Squeeze", [y, b.integers((1,))], "/rnn")
    outputs = {"logits": b.linear(x, hidden, vocabulary, "/decoder")}
    for kind, found in zip(kinds, left, strict=True):
        outputs[f"{kind}_out"] = b.node("Concat", found, "/rnn", axis=0)
    return b.build(outputs)


#: Of what is read and of the state: matrix and bias.
Weights = list[tuple[str, str]]


def unrolled_language_model(
    name: str, cell: Cell, *, batch: int = 1, tokens: int = 1, vocabulary: int = 32000, embedding: int = 80,
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
