"""Builds models of sequences as torch.onnx writes them: ViT, GPT-2 and BERT at published sizes, or narrower and shallower.

Recurrent language models are of operators that are layers, or unrolled, as TVM does it (EOP, tables 1 and 5).

What follows from constants alone (position ids, the embedding of positions) is folded, as exporters fold it.
"""

from __future__ import annotations

import math
from typing import Literal

import numpy as np
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


#: What masked scores are lowered by: the least number of single precision, as `transformers` does.
_LEAST = float(np.finfo(np.float32).min)
_IMAGE, _CHANNELS = 224, 3


def vit(
    name: str = "vit_b_16", *, layers: int = 12, width: int = 768, heads: int = 12, hidden: int = 3072, patch: int = 16,
    image: int = _IMAGE, classes: int = 1000,
) -> Exported:  # fmt: skip
    """Build ViT-B/16 (Dosovitskiy et al., 2021, table 1): an image (1, 3, 224, 224) to scores (1, classes).

    Published: 86,567,656 parameters, 17.56 G multiply-adds (torchvision's documentation of `vit_b_16`).
    """
    b = ExportBuilder(name)
    pixels = b.input("pixel_values", (1, _CHANNELS, image, image))
    side = image // patch
    tokens, fan_in = side * side + 1, _CHANNELS * patch * patch
    scope = "/embeddings/patch_embeddings/projection"
    kernel = b.weight(f"{scope}.weight", (width, _CHANNELS, patch, patch), math.sqrt(3 / fan_in))
    x = b.node(
        "Conv", [pixels, kernel, b.bias(scope, width)], scope,
        kernel_shape=[patch, patch], strides=[patch, patch], pads=[0, 0, 0, 0], dilations=[1, 1], group=1,
    )  # fmt: skip
    scope = "/embeddings"
    x = b.node("Transpose", [b.reshape(x, (1, width, side * side), scope)], scope, perm=[0, 2, 1])
    x = b.node("Concat", [b.weight(f"{scope}.cls_token", (1, 1, width), 1.0), x], scope, axis=1)
    x = b.node("Add", [x, b.weight(f"{scope}.position_embeddings", (1, tokens, width), 1.0)], scope)
    damped = 1 / math.sqrt(2 * layers)
    for layer in range(layers):
        scope, epsilon = f"/encoder/layer.{layer}", 1e-6
        y = b.layer_norm(x, width, f"{scope}/layernorm_before", epsilon)
        y = _attention(b, y, (1, tokens, width), heads, f"{scope}/attention")
        y = b.linear(y, width, width, f"{scope}/attention/output/dense", gain=damped)
        x = b.node("Add", [y, x], scope)
        y = b.layer_norm(x, width, f"{scope}/layernorm_after", epsilon)
        y = gelu(b, b.linear(y, width, hidden, f"{scope}/intermediate/dense"), f"{scope}/intermediate")
        y = b.linear(y, hidden, width, f"{scope}/output/dense", gain=damped)
        x = b.node("Add", [y, x], f"{scope}/output")
    x = b.layer_norm(x, width, "/layernorm", 1e-6)
    return b.build({"logits": _dense(b, _token(b, x, "/head"), width, classes, "/classifier")})


def gpt2(
    name: str = "gpt2", *, tokens: int = 128, layers: int = 12, width: int = 768, heads: int = 12,
    vocabulary: int = 50257, batch: int = 1,
) -> Exported:  # fmt: skip
    """Build GPT-2 small (Radford et al., 2019): token ids (batch, tokens) to logits (batch, tokens, vocabulary), one pass.

    Published: 124,439,808 parameters (the checkpoint `gpt2` of Hugging Face), of which `tokens` rows of
    the 1024 positions remain; 84,934,656 multiply-adds a token without embeddings, attention scores and
    logits (12 layers of 12 width², Kaplan et al., 2020, table 1). Logits are products with the embedding
    itself, one weight for both. Layers are Gemm between two Reshape, as of the `Conv1D` of `transformers`.
    """
    b = ExportBuilder(name)
    ids = b.input("input_ids", (batch, tokens), TensorProto.INT64)
    words = b.weight("transformer.wte.weight", (vocabulary, width), math.sqrt(3 / width))
    x = b.node("Gather", [words, ids], "/transformer/wte", axis=0)
    x = b.node("Add", [x, b.weight("transformer.wpe.weight", (1, tokens, width), math.sqrt(3 / width))], "/transformer")
    mask = b.constant("causal_mask", np.triu(np.full((1, 1, tokens, tokens), _LEAST), 1))
    shape, damped = (batch, tokens, width), 1 / math.sqrt(2 * layers)
    for layer in range(layers):
        scope = f"/transformer/h.{layer}"
        y = b.layer_norm(x, width, f"{scope}/ln_1", 1e-5)
        y = _projected(b, y, shape, 3 * width, f"{scope}/attn/c_attn")
        sizes = b.integers((width, width, width))
        query, key, value = b.nodes("Split", [y, sizes], 3, f"{scope}/attn", axis=2)
        y = _scores(b, (query, key, value), shape, heads, f"{scope}/attn", mask)
        x = b.node("Add", [_projected(b, y, shape, width, f"{scope}/attn/c_proj", damped), x], scope)
        y = b.layer_norm(x, width, f"{scope}/ln_2", 1e-5)
        y = gelu_by_tanh(b, _projected(b, y, shape, 4 * width, f"{scope}/mlp/c_fc"), f"{scope}/mlp/act")
        x = b.node("Add", [x, _projected(b, y, (batch, tokens, 4 * width), width, f"{scope}/mlp/c_proj", damped)], scope)
    x = b.reshape(b.layer_norm(x, width, "/transformer/ln_f", 1e-5), (batch * tokens, width), "/lm_head")
    logits = b.node("Gemm", [x, words], "/lm_head", transB=1)
    return b.build({"logits": b.reshape(logits, (batch, tokens, vocabulary), "/lm_head")})


def bert(
    name: str = "bert_base", *, tokens: int = 128, layers: int = 12, width: int = 768, heads: int = 12, hidden: int = 3072,
    vocabulary: int = 30522, batch: int = 1,
) -> Exported:  # fmt: skip
    """Build BERT-base (Devlin et al., 2019): token ids and their mask to the states of tokens and their pool.

    Inputs are (batch, tokens), states (batch, tokens, width), the pool (batch, width). The mask
    holds 1 for tokens that count, 0 for padding. EOP runs it with a vocabulary of 32,000 (table 3).

    Published: 109,482,240 parameters (the checkpoint `bert-base-uncased` of Hugging Face), of which `tokens`
    rows of the 512 positions and one of the 2 types remain; 22.5 G FLOPs, two a multiply-add, for 128 tokens
    (TinyBERT: Jiao et al., 2020, table 1).
    """
    b = ExportBuilder(name)
    ids = b.input("input_ids", (batch, tokens), TensorProto.INT64)
    given = b.input("attention_mask", (batch, tokens), TensorProto.INT64)
    mask = b.node("Cast", [b.node("Unsqueeze", [given, b.integers((1, 2))], "")], "", to=TensorProto.FLOAT)
    mask = b.scalar("Mul", b.scalar("Sub", mask, 1.0, "", first=True), _LEAST, "")
    scope = "/embeddings"
    x = b.node("Gather", [b.weight(f"{scope}.word", (vocabulary, width), 1.0), ids], f"{scope}/word", axis=0)
    x = b.node("Add", [x, b.weight(f"{scope}.token_type", (1, 1, width), 1.0)], scope)
    x = b.node("Add", [x, b.weight(f"{scope}.position", (1, tokens, width), 1.0)], scope)
    x = b.layer_norm(x, width, f"{scope}/LayerNorm", 1e-12)
    for layer in range(layers):
        scope = f"/encoder/layer.{layer}"
        y = _attention(b, x, (batch, tokens, width), heads, f"{scope}/attention", mask)
        y = b.node("Add", [b.linear(y, width, width, f"{scope}/attention/output/dense"), x], f"{scope}/attention/output")
        x = b.layer_norm(y, width, f"{scope}/attention/output/LayerNorm", 1e-12)
        y = gelu(b, b.linear(x, width, hidden, f"{scope}/intermediate/dense"), f"{scope}/intermediate")
        y = b.node("Add", [b.linear(y, hidden, width, f"{scope}/output/dense"), x], f"{scope}/output")
        x = b.layer_norm(y, width, f"{scope}/output/LayerNorm", 1e-12)
    pooled = b.node("Tanh", [_dense(b, _token(b, x, "/pooler"), width, width, "/pooler/dense")], "/pooler")
    return b.build({"last_hidden_state": x, "pooler_output": pooled})


def _attention(b: ExportBuilder, x: str, shape: tuple[int, int, int], heads: int, scope: str, mask: str = "") -> str:
    """Return the self-attention whose queries, keys and values are layers of their own, without the layer behind."""
    width = shape[2]
    parts = tuple(b.linear(x, width, width, f"{scope}/{part}") for part in ("query", "key", "value"))
    return _scores(b, parts, shape, heads, scope, mask)


def _scores(
    b: ExportBuilder, parts: tuple[str, ...], shape: tuple[int, int, int], heads: int, scope: str, mask: str = ""
) -> str:
    """Add attention of queries, keys and values (batch, tokens, width), by heads; the keys' two transpositions are merged."""
    batch, tokens, width = shape
    each = width // heads
    split = [b.reshape(part, (batch, tokens, heads, each), scope) for part in parts]
    orders = ([0, 2, 1, 3], [0, 2, 3, 1], [0, 2, 1, 3])
    query, key, value = (b.node("Transpose", [x], scope, perm=order) for x, order in zip(split, orders, strict=True))
    scores = b.scalar("Div", b.node("MatMul", [query, key], scope), math.sqrt(each), scope)
    if mask:
        scores = b.node("Add", [scores, mask], scope)
    found = b.node("MatMul", [b.node("Softmax", [scores], scope, axis=-1), value], scope)
    return b.reshape(b.node("Transpose", [found], scope, perm=[0, 2, 1, 3]), shape, scope)


def _projected(b: ExportBuilder, x: str, shape: tuple[int, int, int], outputs: int, scope: str, gain: float = 1.0) -> str:
    """Return a layer as the `Conv1D` of `transformers` is exported: Gemm on all tokens as rows."""
    batch, tokens, width = shape
    rows = b.reshape(x, (batch * tokens, width), scope)
    weights = b.matrix(f"{scope}.weight", width, outputs, gain)
    return b.reshape(b.node("Gemm", [rows, weights, b.bias(scope, outputs)], scope), (batch, tokens, outputs), scope)


def _dense(b: ExportBuilder, x: str, inputs: int, outputs: int, scope: str) -> str:
    weights = b.weight(f"{scope}.weight", (outputs, inputs), math.sqrt(3 / inputs))
    return b.node("Gemm", [x, weights, b.bias(scope, outputs)], scope, transB=1)


def _token(b: ExportBuilder, x: str, scope: str) -> str:
    """Return the first token of each sequence: (batch, tokens, width) to (batch, width)."""
    return b.node("Gather", [x, b.constant("first_token", 0, np.int64)], scope, axis=1)


def gelu(b: ExportBuilder, x: str, scope: str = "") -> str:
    """Add GELU (Hendrycks and Gimpel, 2016), exact: x (1 + erf(x / sqrt 2)) / 2."""
    error = b.node("Erf", [b.scalar("Div", x, math.sqrt(2), scope)], scope)
    return b.scalar("Mul", b.node("Mul", [x, b.scalar("Add", error, 1.0, scope)], scope), 0.5, scope)


def gelu_by_tanh(b: ExportBuilder, x: str, scope: str = "") -> str:
    """Add GELU by its tangent, `NewGELUActivation` of `transformers`."""
    half = b.scalar("Mul", x, 0.5, scope, first=True)
    inner = b.node("Add", [x, b.scalar("Mul", b.scalar("Pow", x, 3.0, scope), 0.044715, scope, first=True)], scope)
    tangent = b.node("Tanh", [b.scalar("Mul", inner, math.sqrt(2 / math.pi), scope, first=True)], scope)
    return b.node("Mul", [half, b.scalar("Add", tangent, 1.0, scope, first=True)], scope)
