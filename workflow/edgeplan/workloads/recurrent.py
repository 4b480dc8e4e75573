"""Builds language models of recurrent layers, one step or several at a time, with their states in and out."""

from __future__ import annotations

import math
from typing import Literal

from onnx import TensorProto

from edgeplan.workloads.exported import ExportBuilder, Exported

_GATES = {"LSTM": 4, "GRU": 3}


def recurrent_language_model(
    name: str, cell: Literal["LSTM", "GRU"], *, batch: int = 1, tokens: int = 1, vocabulary: int = 32000, embedding: int = 80,
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
