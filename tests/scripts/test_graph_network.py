"""The graph network learns from all families but one, and its table has means, intervals and what seeds do to them."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "workflow/scripts"))

from graph_network import SHARES, network, selected, write_table


@pytest.mark.parametrize("share", SHARES)
def test_no_model_of_the_family_left_out_is_learnt_from(share: float) -> None:
    families = np.array(["a"] * 8 + ["b"] * 8 + ["c"] * 8)
    chosen = selected(families, "b", share, 0)
    assert not set(families[chosen]) & {"b"}
    assert len(set(chosen)) == len(chosen) == 2 * 8 * share


def test_padding_and_the_order_of_nodes_change_no_prediction() -> None:
    random = np.random.default_rng(0)
    sizes = {
        "own_1": (5, 4),
        "near_1": (5, 4),
        "own_2": (4, 4),
        "near_2": (4, 4),
        "dense_1": (8, 4),
        "dense_2": (4, 4),
        "last": (4, 1),
    }
    weights = {name: random.normal(size=size) for name, size in sizes.items()}
    weights |= {f"{name}_bias": random.normal(size=size[1]) for name, size in sizes.items()}
    nodes, static = random.normal(size=(1, 6, 5)), random.normal(size=(1, 4))
    edges = random.random((1, 6, 6)) < 0.4
    real = np.ones((1, 6), bool)
    expected = network(np, weights, nodes, edges, real, static)
    order = random.permutation(6)
    moved = network(np, weights, nodes[:, order], edges[:, order][:, :, order], real, static)
    padded = [np.pad(nodes, ((0, 0), (0, 3), (0, 0))), np.pad(edges, ((0, 0), (0, 3), (0, 3))), np.pad(real, ((0, 0), (0, 3)))]
    assert moved == pytest.approx(expected)
    assert network(np, weights, *padded, static) == pytest.approx(expected)
    assert network(np, weights, nodes, ~edges, real, static) != pytest.approx(expected)


def test_the_table_tells_means_and_their_intervals_over_families(tmp_path: Path) -> None:
    rows = [(f, 1, 24, s, 0.5 + 0.2 * (f == "a"), 0.2, 0.1 + 0.1 * s) for f in ("a", "b") for s in range(2)]
    names = ["family", "share", "models", "seed", "within_10pct", "within_5pct", "mape"]
    pd.DataFrame(rows, columns=names).to_csv(tmp_path / "rows.csv", index=False)
    write_table(tmp_path / "rows.csv", tmp_path / "table.csv")
    found = pd.read_csv(tmp_path / "table.csv").set_index("models").loc[24]
    assert found["within_10pct"] == pytest.approx(0.6)
    assert found["within_10pct.half_width"] == pytest.approx(1.96 * 0.1, abs=1e-3)
    assert found["mape.over_seeds"] == pytest.approx(0.071)
