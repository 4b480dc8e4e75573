"""Files of predictors: what is kept is what is read, trees agree with LightGBM, and damage is told by file."""

from __future__ import annotations

import dataclasses
import itertools
import json
import os
import subprocess
import sys
from functools import cache
from pathlib import Path

import lightgbm
import numpy as np
import pytest
from executed_nodes import CACHE, drawn, law, model, node, samples

from edgeplan.errors import FormatError
from edgeplan.predictors.nodes.learner import learn
from edgeplan.predictors.nodes.predictor import NodePredictor, Relation, Trust
from edgeplan.predictors.nodes.storing import ARRAYS, CARD, load_predictor, save_predictor
from edgeplan.predictors.settings import TrainingSettings
from edgeplan.predictors.trees import Forest, slim_text
from edgeplan.predictors.walking import Walk

FIXED = {"verbosity": -1, "num_threads": 1, "deterministic": True, "force_row_wise": True, "min_data_in_leaf": 2, "seed": 1}
Data = tuple[np.ndarray, np.ndarray]


@pytest.fixture(scope="module")
def data() -> Data:
    rng = np.random.default_rng(0)
    rows = np.round(rng.normal(size=(400, 6)), 2)
    return rows, rows[:, 0] * rows[:, 1] + np.sin(3 * rows[:, 2])


def train(data: Data, rounds: int = 40, **parameters: object) -> lightgbm.Booster:
    return lightgbm.train({**FIXED, "objective": "l2", **parameters}, lightgbm.Dataset(*data), rounds)


def forest_of(*boosters: lightgbm.Booster) -> Forest:
    return Forest.parse([[booster.model_to_string()] for booster in boosters], "test")


def test_a_forest_agrees_with_lightgbm_which_reads_slimmed_text_too(data: Data) -> None:
    one_leaf = lightgbm.train({**FIXED, "objective": "l2"}, lightgbm.Dataset(data[0][:5], np.full(5, 2.5)), 1)
    boosters = [train(data), train(data, num_leaves=63, max_depth=20), train(data, objective="l1"), one_leaf]
    forest = forest_of(*boosters)
    for number, booster in enumerate(boosters):
        np.testing.assert_allclose(forest.raw(data[0], number), booster.predict(data[0]), rtol=1e-9, atol=1e-12)
    mean = Forest.parse([[booster.model_to_string() for booster in boosters]], "test").raw(data[0], 0)
    np.testing.assert_allclose(mean, np.mean([b.predict(data[0]) for b in boosters], axis=0), rtol=1e-9, atol=1e-12)
    slim = slim_text(boosters[0].model_to_string())
    assert len(slim) < 0.8 * len(boosters[0].model_to_string())
    np.testing.assert_array_equal(lightgbm.Booster(model_str=slim).predict(data[0]), boosters[0].predict(data[0]))


@pytest.mark.parametrize("count", [1, 7, 8, 129, 400])
def test_compiled_walks_give_the_same_bits_as_the_forest(data: Data, count: int) -> None:
    forest = forest_of(train(data, 3), train(data, 130, num_leaves=200))
    rows = data[0][:count].copy()
    walk = Walk.of(forest, 1, rows.shape[1])
    assert walk is not None
    rng = np.random.default_rng(1)
    for column, (begin, end) in enumerate(itertools.pairwise(walk.first)):  # on thresholds, which go left, and right above
        ties = rng.choice(walk.thresholds[begin:end], len(rows[::2])) if end > begin else np.zeros(len(rows[::2]))
        rows[::2, column] = np.where(rng.random(len(ties)) < 0.5, ties, np.nextafter(ties, np.inf))
    rows[-1, :3] = np.nan, np.inf, -np.inf
    np.testing.assert_array_equal(walk.raw(rows), forest.raw(rows, 1))


def test_walks_refuse_what_compiled_code_would_not_survive(data: Data) -> None:
    forest = forest_of(train(data, 3))
    with pytest.raises(ValueError, match="not trees over these features"):
        Walk.of(forest, 0, 2)
    shared = dataclasses.replace(forest, roots=np.repeat(forest.roots[:1], 50), tree_start=np.array([0, 50], dtype=np.int32))
    with pytest.raises(ValueError, match="not trees over these features"):
        Walk.of(shared, 0, 6)
    walk = Walk.of(forest, 0, 6)
    assert walk is not None
    with pytest.raises(ValueError, match="rows of 7 features, not 6"):
        walk.raw(np.zeros((3, 7)))


def test_packed_trees_that_do_not_fit_are_refused(data: Data) -> None:
    arrays = forest_of(train(data, 3)).arrays()
    Forest.from_arrays(arrays, 6)
    for name, changed in (
        ("value", arrays["value"].astype(">f8")),
        ("feature", arrays["feature"][:, None]),
        ("child", arrays["child"][:-1]),
    ):
        with pytest.raises(ValueError, match="belong together"):
            Forest.from_arrays({**arrays, name: changed}, 6)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("end of trees", ""),
        ("Tree=1\n", "Tree=7\n"),
        ("leaf_value=", "leaf_value=x "),
        ("leaf_value=", "leaf_value=nan "),
        ("num_leaves=", "num_leaves=9"),
        ("left_child=", "left_child=0 "),
        ("split_feature=", "split_features="),
        ("max_feature_idx=5", "max_feature_idx=0"),
        ("num_tree_per_iteration=1", "num_tree_per_iteration=3"),
        ("tree\n", "__import__('os')\n"),
    ],
)
def test_damaged_text_is_refused(data: Data, old: str, new: str) -> None:
    text = train(data, 3).model_to_string()
    assert old in text
    with pytest.raises(FormatError, match=r"model.txt"):
        Forest.parse([[text.replace(old, new, 1)]], "model.txt")


def test_children_that_lead_back_and_truncation_anywhere_are_refused(data: Data) -> None:
    text = train(data, 2, num_leaves=4).model_to_string()
    line = next(x for x in text.split("\n") if x.startswith("left_child="))
    looped = "left_child=" + " ".join(["0"] * len(line.split("=")[1].split()))
    with pytest.raises(FormatError, match="child"):
        Forest.parse([[text.replace(line, looped)]], "model.txt")
    end = text.index("end of trees")
    for cut in range(0, end, max(1, end // 60)):
        with pytest.raises(FormatError):
            Forest.parse([[text[:cut]]], "model.txt")


SETTINGS = TrainingSettings(trials=0)
ONE = model("m", [*drawn(np.random.default_rng(3), 30), node("Erf", [(3, 5)], (3, 5))], 10**8)


@cache
def trained(*, adapted: bool = False) -> NodePredictor:
    rng = np.random.default_rng(1)
    kernels = learn(samples(drawn(rng, 180), rng=rng), CACHE, SETTINGS)
    if adapted:
        kernels = learn(samples(drawn(rng, 60), lambda c: 3 * law(c)), CACHE, SETTINGS, kernels)
    return NodePredictor(kernels, Relation(call_us=2.5, scale=0.97), Trust(guess=0.3), "a device", "an engine", "1.2")


@pytest.mark.parametrize("adapted", [False, True])
def test_what_is_read_is_what_was_kept(tmp_path: Path, *, adapted: bool) -> None:
    predictor = trained(adapted=adapted)
    save_predictor(predictor, tmp_path)
    read = load_predictor(tmp_path)
    assert (read.device, read.engine, read.engine_version) == ("a device", "an engine", "1.2")
    assert (read.relation, read.trust) == (predictor.relation, predictor.trust)
    for known in ({}, {ONE.nodes[3].config.key: 7.0}):
        before, after = predictor.predict(ONE, known), read.predict(ONE, known)
        # Not bit by bit: linear algebra rounds by where its arrays lie.
        assert after.latency_us == pytest.approx(before.latency_us, rel=1e-9)
        assert after.deviation == pytest.approx(before.deviation, rel=1e-9)
        assert [n.source for n in after.nodes] == [n.source for n in before.nodes]
        np.testing.assert_allclose([n.us for n in after.nodes], [n.us for n in before.nodes], rtol=1e-9)
    first = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    save_predictor(read, tmp_path)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == first


@pytest.mark.parametrize("alike", [False, True])
def test_a_predictor_of_little_and_of_nodes_all_alike_is_kept(tmp_path: Path, *, alike: bool) -> None:
    configs = [node("Erf", [(3, 5)], (3, 5))] * 12 if alike else drawn(np.random.default_rng(1), 3)
    predictor = NodePredictor(learn(samples(configs), CACHE, SETTINGS), Relation(call_us=2.5), Trust())
    save_predictor(predictor, tmp_path)
    assert load_predictor(tmp_path).predict(ONE).latency_us == pytest.approx(predictor.predict(ONE).latency_us)


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 no archive", None])
@pytest.mark.parametrize("name", [CARD, ARRAYS])
def test_damaged_files_are_named(tmp_path: Path, name: str, content: bytes | None) -> None:
    save_predictor(trained(), tmp_path)
    if content is None:
        (tmp_path / name).unlink()
    else:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(FormatError, match=name) as raised:
        load_predictor(tmp_path)
    assert raised.value.next_step


@pytest.mark.parametrize(
    "change",
    [
        {"format_version": 1},
        {"cache_bytes": -1},
        {"terms": ["constant"]},
        {"kinds": []},
        {"arrays": "0" * 64},
        {"relation": {"call_us": 1.0, "scale": 0.0}},
        {"trust": {"quantile": -1.0}},
        {"unknown": 1},
    ],
)
def test_a_card_that_does_not_fit_is_refused(tmp_path: Path, change: dict[str, object]) -> None:
    save_predictor(trained(), tmp_path)
    card = json.loads((tmp_path / CARD).read_text())
    (tmp_path / CARD).write_text(json.dumps({**card, **change}))
    with pytest.raises(FormatError) as raised:
        load_predictor(tmp_path)
    assert raised.value.where
    assert raised.value.next_step


def test_arrays_of_another_training_are_refused(tmp_path: Path) -> None:
    save_predictor(trained(), tmp_path / "one")
    save_predictor(trained(adapted=True), tmp_path / "two")
    (tmp_path / "one" / ARRAYS).write_bytes((tmp_path / "two" / ARRAYS).read_bytes())
    with pytest.raises(FormatError, match="not those that the card"):
        load_predictor(tmp_path / "one")


def test_a_prediction_imports_nothing_that_only_training_needs(tmp_path: Path) -> None:
    save_predictor(trained(), tmp_path)
    program = (
        "import sys; from pathlib import Path; from edgeplan.predictors.nodes.storing import load_predictor;"
        "from edgeplan.graph.nodes import *; o = Operand('float32', (8, 8));"
        "relu = ExecutedNode('n', NodeConfig('Relu', inputs=(o,), outputs=(o,)));"
        "p = load_predictor(Path(sys.argv[1])).predict(ExecutedModel('m', (relu,), 0));"
        "assert p.latency_us > 0;"
        "print([m for m in ('lightgbm', 'scipy', 'optuna', 'pandas', 'sklearn', 'onnx', 'onnxruntime') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True, check=True, env={**os.environ}
    )
    assert done.stdout.strip() == "[]"
