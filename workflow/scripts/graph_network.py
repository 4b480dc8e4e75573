"""Trains the graph network NNLP on whole models, families left out in turns, beside the kernel predictors (nn-Meter's Fig. 9).

    python workflow/scripts/graph_network.py features DEVICE GRAPHS.npz
    python workflow/scripts/graph_network.py train GRAPHS.npz RESULTS.csv [--epochs N]
    python workflow/scripts/graph_network.py table RESULTS.csv TABLE.csv

NNLP (Liu et al., NNLQP, ICPP 2022): two SAGEConv layers of 512, a sum over the nodes, four static features of the model, two
fully connected layers of 512. It learns the logarithm of the latency. The graphs are those of the zoo, with the latencies that
the evaluation of the device has; the kernel predictors with the same family left out stand beside it. Training needs the
extra `graph-network`, and a GPU or hours: all families and seeds are trained at once.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

SEEDS, WIDTH, BATCH = 3, 512, 16
RATE, EPOCHS = 1e-3, 200
#: Of the models that are there with a family left out, those that are learnt from.
SHARES = (0.25, 0.5, 1.0)
Z_95 = 1.96
Arrays = dict[str, Any]


def main() -> None:
    """Write features, train or tabulate, as the command line says."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    features = commands.add_parser("features")
    features.add_argument("device")
    features.add_argument("graphs", type=Path)
    train = commands.add_parser("train")
    train.add_argument("graphs", type=Path)
    train.add_argument("results", type=Path)
    train.add_argument("--epochs", type=int, default=EPOCHS)
    table = commands.add_parser("table")
    table.add_argument("results", type=Path)
    table.add_argument("table", type=Path)
    given = parser.parse_args()
    if given.command == "features":
        write_features(given.device, given.graphs)
    elif given.command == "train":
        train_all(given.graphs, given.results, given.epochs)
    else:
        write_table(given.results, given.table)


# Features


def write_features(device: str, path: Path) -> None:
    """Write nodes, edges and latencies of all variants of the zoo, as the device's evaluation has them."""
    import pandas as pd  # noqa: PLC0415  training does without

    from edgeplan.chapters.params import load_params  # noqa: PLC0415  likewise
    from edgeplan.zoo.registry import FAMILIES, build_variant, variants  # noqa: PLC0415  likewise

    params = load_params(Path("params.yaml"))
    results = Path("results") / device
    models = pd.read_parquet(results / "evaluation/models.parquet").set_index("model_id")
    specs = [s for f in FAMILIES.values() for s in variants(f, params.zoo.variants_per_family, params.zoo.seed)]
    graphs = [build_variant(spec) for spec in specs]
    kinds = sorted({op.op_type for graph in graphs for op in graph.operators})
    most = max(len(graph.operators) for graph in graphs)
    nodes = np.zeros((len(graphs), most, len(kinds) + len(_numbers(graphs[0], graphs[0].operators[0]))), np.float32)
    edges = np.zeros((len(graphs), most, most), bool)
    for index, graph in enumerate(graphs):
        at = {output: k for k, op in enumerate(graph.operators) for output in op.outputs}
        for k, op in enumerate(graph.operators):
            nodes[index, k, kinds.index(op.op_type)] = 1
            nodes[index, k, len(kinds) :] = _numbers(graph, op)
            for name in op.inputs:
                if name in at:
                    edges[index, k, at[name]] = edges[index, at[name], k] = True
    found = models.loc[[f"{spec.family}-{spec.index:05d}" for spec in specs]]
    static = np.log1p(found[["macs", "parameters", "memory_bytes", "operators"]].to_numpy(float)).astype(np.float32)
    counts = np.array([len(graph.operators) for graph in graphs])
    np.savez_compressed(
        path, nodes=nodes, edges=np.packbits(edges, axis=-1), counts=counts, static=static, families=found.family.to_numpy(str),
        latency_ms=found.measured_ms.to_numpy(), left_out_ms=found.left_out_ms.to_numpy(),
    )  # fmt: skip


def _numbers(graph: Any, op: Any) -> list[float]:
    """Attributes and output shape of a node: window, stride, groups, four extents, values of its weights."""
    window, stride = op.integers("kernel_shape", (0, 0)), op.integers("strides", (0, 0))
    shape = graph.tensors[op.outputs[0]].shape
    extents = ([0] * 4 + list(shape))[-4:]
    weights = sum(graph.tensors[name].elements for name in op.weights)
    numbers = (window[0], window[-1], stride[0], op.integer("group", 0), *extents, weights)
    return [math.log1p(number) for number in numbers]


# Training


def train_all(graphs: Path, results: Path, epochs: int) -> None:
    """Train a network for each family left out, share of the models and seed; write the errors on that family."""
    with np.load(graphs, allow_pickle=False) as stored:
        data: Arrays = {name: stored[name] for name in stored.files}
    most = data["nodes"].shape[1]
    data["edges"] = np.unpackbits(data["edges"], axis=-1, count=most).astype(bool)
    scaled(data)
    families = sorted(set(data["families"]))
    lines = ["family,share,models,seed,within_10pct,within_5pct,mape"]
    for share in SHARES:
        began = time.perf_counter()
        chosen = [selected(data["families"], family, share, seed) for family in families for seed in range(SEEDS)]
        predicted = np.exp(fit(data, np.stack(chosen), epochs))
        for number, (family, seed) in enumerate((f, s) for f in families for s in range(SEEDS)):
            held = data["families"] == family
            errors = np.abs(predicted[number][held] / data["latency_ms"][held] - 1)
            figures = (np.mean(errors <= 0.1), np.mean(errors <= 0.05), np.mean(errors))
            lines.append(f"{family},{share:g},{len(chosen[number])},{seed}," + ",".join(f"{v:.4f}" for v in figures))
        print(f"share {share:g}: {time.perf_counter() - began:.0f} s", flush=True)  # noqa: T201  minutes pass between lines
    results.write_text("\n".join(lines) + "\n", encoding="utf-8")


def scaled(data: Arrays) -> None:
    """Bring features to about one: columns by their largest magnitude, static ones by mean and deviation."""
    data["nodes"] = data["nodes"] / np.maximum(np.abs(data["nodes"]).max((0, 1)), 1e-6)
    data["static"] = (data["static"] - data["static"].mean(0)) / data["static"].std(0)


def selected(families: Any, left_out: str, share: float, seed: int) -> Any:
    """Indices of the models that are learnt from: as many of each other family."""
    random = np.random.default_rng((seed, sorted(set(families)).index(left_out)))
    found = []
    for family in sorted(set(families) - {left_out}):
        at = np.flatnonzero(families == family)
        found.append(random.choice(at, max(1, round(share * len(at))), replace=False))
    return np.concatenate(found)


def fit(data: Arrays, chosen: Any, epochs: int) -> Any:
    """Train one network for each row of indices, all at once; return the logarithms that each predicts for all models."""
    import jax  # noqa: PLC0415  the other commands do without
    import jax.numpy as jnp  # noqa: PLC0415  likewise
    import optax  # noqa: PLC0415  likewise

    nodes, edges = jnp.asarray(data["nodes"]), jnp.asarray(data["edges"])
    static, labels = jnp.asarray(data["static"]), jnp.log(jnp.asarray(data["latency_ms"]))
    real = jnp.arange(nodes.shape[1])[None] < jnp.asarray(data["counts"])[:, None]
    copies, count = chosen.shape
    means = jnp.asarray([np.mean(np.log(data["latency_ms"][row])) for row in chosen])
    steps = max(1, count // BATCH)
    schedule = optax.cosine_decay_schedule(RATE, epochs * steps)
    optimiser = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(schedule, weight_decay=1e-3))

    def loss(weights: Any, mean: Any, at: Any) -> Any:
        predicted = network(jnp, weights, nodes[at], edges[at], real[at], static[at]) + mean
        return jnp.mean(optax.huber_loss(predicted, labels[at], delta=0.1))

    def step(carried: Any, at: Any) -> Any:
        weights, state = carried
        gradients = jax.vmap(jax.grad(loss))(weights, means, at)
        updates, state = jax.vmap(optimiser.update)(gradients, state, weights)
        return (optax.apply_updates(weights, updates), state), None

    keys = jax.random.split(jax.random.PRNGKey(0), copies)
    weights = jax.vmap(partial(initial, jax, nodes.shape[-1]))(keys)
    carried = (weights, jax.vmap(optimiser.init)(weights))
    random = np.random.default_rng(0)
    run: Callable[[Any, Any], Any] = jax.jit(lambda carried, order: jax.lax.scan(step, carried, order)[0])
    for _ in range(epochs):
        order = np.stack([random.permutation(row)[: steps * min(BATCH, count)] for row in chosen])
        carried = run(carried, jnp.asarray(order.reshape(copies, steps, -1).transpose(1, 0, 2)))
    predict = jax.jit(lambda w, at: network(jnp, w, nodes[at], edges[at], real[at], static[at]))
    parts = np.array_split(np.arange(len(labels)), max(1, len(labels) // BATCH))
    found = [
        np.concatenate([predict(jax.tree.map(lambda v, k=k: v[k], carried[0]), jnp.asarray(part)) for part in parts])
        for k in range(copies)
    ]
    return np.stack(found) + np.asarray(means)[:, None]


def initial(jax: Any, features: int, key: Any) -> Arrays:
    """Weights of a network before training, uniform as PyTorch's linear layers begin."""
    shapes = {
        "own_1": (features, WIDTH), "near_1": (features, WIDTH), "own_2": (WIDTH, WIDTH), "near_2": (WIDTH, WIDTH),
        "dense_1": (WIDTH + 4, WIDTH), "dense_2": (WIDTH, WIDTH), "last": (WIDTH, 1),
    }  # fmt: skip
    made: Arrays = {}
    for name, (rows, columns) in shapes.items():
        key, own = jax.random.split(key)
        made[name] = jax.random.uniform(own, (rows, columns), minval=-1, maxval=1) / math.sqrt(rows)
        made[f"{name}_bias"] = jax.numpy.zeros(columns)
    return made


def network(jnp: Any, weights: Arrays, nodes: Any, edges: Any, real: Any, static: Any) -> Any:
    """Predict the logarithm of each graph's latency: nodes (graphs, most, features), edges (graphs, most, most)."""
    near = edges / jnp.maximum(edges.sum(-1, keepdims=True), 1)
    for layer in ("1", "2"):
        own = nodes @ weights[f"own_{layer}"] + weights[f"own_{layer}_bias"]
        nodes = own + near @ (nodes @ weights[f"near_{layer}"]) + weights[f"near_{layer}_bias"]
        nodes = nodes / jnp.sqrt(jnp.sum(nodes**2, -1, keepdims=True) + 1e-12)
        nodes = jnp.maximum(nodes, 0) * real[..., None]
    found = jnp.concatenate([nodes.sum(1) / 10, static], -1)  # a hundred nodes or so, each of length one
    for layer in ("dense_1", "dense_2"):
        found = jnp.maximum(found @ weights[layer] + weights[f"{layer}_bias"], 0)
    return (found @ weights["last"] + weights["last_bias"])[..., 0]


# Table


def write_table(results: Path, table: Path) -> None:
    """Write means over families and seeds by share, with the half width of their 95 % interval over families."""
    import pandas as pd  # noqa: PLC0415  training does without

    found = pd.read_csv(results)
    figures = ["within_10pct", "within_5pct", "mape"]
    families = found.groupby(["models", "family"])[figures].mean()
    means, spread = families.groupby("models").mean(), families.groupby("models").sem()
    seeds = found.groupby(["models", "seed"])[figures].mean().groupby("models").std()
    others = ((Z_95 * spread).round(3).add_suffix(".half_width"), seeds.round(3).add_suffix(".over_seeds"))
    rows = pd.concat([means.round(3), *others], axis=1)
    rows.to_csv(table)


if __name__ == "__main__":
    main()
