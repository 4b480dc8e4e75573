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
from executed_nodes import CACHE, drawn, law, model, node, relu, samples
from quantised_models import network, quantised
from quick_bench import DEVICE
from trained_nodes import RULES, device_file, trained, write_device

from edgeplan.errors import DeviceError, FormatError, ModelError
from edgeplan.graph.onnx.prepare import Preparation
from edgeplan.graph.onnx.read import load_onnx
from edgeplan.graph.simplify import simplify
from edgeplan.predictors import source
from edgeplan.predictors.nodes.learner import learn
from edgeplan.predictors.nodes.predictor import NodePredictor, Relation, Trust
from edgeplan.predictors.nodes.storing import (
    ARRAYS,
    CARD,
    MEASURED,
    load_predictor,
    own_folder,
    read_measured,
    save_predictor,
    write_measured,
)
from edgeplan.predictors.settings import TrainingSettings
from edgeplan.predictors.source import find_predictors
from edgeplan.predictors.teller import Teller
from edgeplan.predictors.walking import Forest, Walk, slim_text
from edgeplan.support.machine import fingerprint

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


def test_compiled_walks_give_the_same_bits_as_the_forest(data: Data) -> None:
    forest = forest_of(train(data, 3), train(data, 130, num_leaves=200))
    walk = Walk.of(forest, 1, data[0].shape[1])
    assert walk is not None
    for count in (1, 7, 8, 129, 400):
        rows, rng = data[0][:count].copy(), np.random.default_rng(1)
        for column, (begin, end) in enumerate(itertools.pairwise(walk.first)):  # on thresholds, which go left, and right above
            ties = rng.choice(walk.thresholds[begin:end], len(rows[::2])) if end > begin else np.zeros(len(rows[::2]))
            rows[::2, column] = np.where(rng.random(len(ties)) < 0.5, ties, np.nextafter(ties, np.inf))
        rows[-1, :3] = np.nan, np.inf, -np.inf
        np.testing.assert_array_equal(walk.raw(rows), forest.raw(rows, 1), str(count))


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
def learnt(*, adapted: bool = False) -> NodePredictor:
    rng = np.random.default_rng(1)
    kernels = learn(samples(drawn(rng, 180), rng=rng), CACHE, SETTINGS)
    if adapted:
        kernels = learn(samples(drawn(rng, 60), lambda c: 3 * law(c)), CACHE, SETTINGS, kernels)
    return NodePredictor(kernels, Relation(call_us=2.5, scale=0.97), Trust(guess=0.3), "a device", "an engine", "1.2")


@pytest.mark.parametrize("adapted", [False, True])
def test_what_is_read_is_what_was_kept(tmp_path: Path, *, adapted: bool) -> None:
    predictor = learnt(adapted=adapted)
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


@pytest.mark.parametrize("name", [CARD, ARRAYS])
def test_damaged_files_are_named(tmp_path: Path, name: str) -> None:
    save_predictor(learnt(), tmp_path)
    for content in (b"", b"PK\x03\x04 no archive", None):
        (tmp_path / name).unlink() if content is None else (tmp_path / name).write_bytes(content)
        with pytest.raises(FormatError, match=name) as raised:
            load_predictor(tmp_path)
        assert raised.value.next_step


@pytest.mark.parametrize(
    "change",
    [
        {"format_version": 1},
        {"terms": ["constant"]},
        {"kinds": []},
        {"arrays": "0" * 64},  # of another training
        {"relation": {"call_us": 1.0, "scale": 0.0}},
        {"unknown": 1},
    ],
)
def test_a_card_that_does_not_fit_is_refused(tmp_path: Path, change: dict[str, object]) -> None:
    save_predictor(learnt(), tmp_path)
    card = json.loads((tmp_path / CARD).read_text())
    (tmp_path / CARD).write_text(json.dumps({**card, **change}))
    with pytest.raises(FormatError, match="not those that the card" if "arrays" in change else None) as raised:
        load_predictor(tmp_path)
    assert raised.value.where
    assert raised.value.next_step


def test_a_prediction_imports_nothing_that_only_training_needs(tmp_path: Path) -> None:
    save_predictor(learnt(), tmp_path)
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


@pytest.fixture(autouse=True)
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A workspace, a state folder and shipped devices of the test's own."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("EDGEPLAN_WORKSPACE", str(tmp_path))
    monkeypatch.setattr(source, "SHIPPED", tmp_path / "shipped")
    (tmp_path / "config/devices").mkdir(parents=True)
    return tmp_path


def test_times_of_nodes_come_back_and_are_the_same_bytes(tmp_path: Path) -> None:
    known = {relu(n).key: n / 7 for n in range(1, 50)}
    write_measured(tmp_path, known)
    first = (tmp_path / MEASURED).read_bytes()
    assert read_measured(tmp_path) == pytest.approx(known, rel=1e-6)
    write_measured(tmp_path, dict(reversed(known.items())))
    assert (tmp_path / MEASURED).read_bytes() == first
    assert read_measured(tmp_path / "nowhere") == {}
    write_measured(tmp_path, {})
    assert read_measured(tmp_path) == {}


def test_damaged_times_are_refused(tmp_path: Path) -> None:
    write_measured(tmp_path, {relu(n).key: 1.0 for n in range(1, 50)})
    content = (tmp_path / MEASURED).read_bytes()
    for share in (0.0, 0.3, 0.9):
        (tmp_path / MEASURED).write_bytes(content[: int(share * len(content))])
        with pytest.raises(FormatError, match="cannot be read") as caught:
            read_measured(tmp_path)
        assert caught.value.where == str(tmp_path / MEASURED)
    keys = np.array([b"a"])
    for us in ({"us": [-1.0]}, {"us": [np.nan]}, {"us": [1.0, 2.0]}, {}):
        np.savez(tmp_path / MEASURED, keys=keys, **{name: np.array(values) for name, values in us.items()})
        with pytest.raises(FormatError, match="remove the file"):
            read_measured(tmp_path)


def test_the_workspace_answers_before_the_package_and_the_package_where_it_does_not(own: Path) -> None:
    device_file(own / "config/devices")
    made = write_device(own / "made")  # and as the package has results of a device
    (made / "fusion/rules.json").rename(made / "predictors/rules.json")
    (own / "shipped").mkdir()
    (made / "predictors").rename(own / "shipped/dev")
    found = find_predictors("dev")
    assert (found.shipped, found.here, found.folder) == (True, False, own / "shipped/dev")
    write_device(own / "results", known={"k": 3.0}, environment={"fingerprint": fingerprint(), "cpu": "Example CPU"})
    found = find_predictors("dev")
    assert (found.device, found.shipped, found.here, found.about()) == ("dev", False, True, "")
    assert (found.processor, found.known) == ("Example CPU", {"k": 3.0})
    with pytest.raises(FormatError, match="no predictors"):
        find_predictors("dev", own / "elsewhere")  # nowhere else, not even the package


@pytest.mark.parametrize("about", [None, {"fingerprint": "another"}, {"fingerprint": "mine"}])
def test_what_was_measured_besides_is_known_whoever_measured_the_device(own: Path, about: dict[str, str] | None) -> None:
    """Boards and GPUs have fingerprints of their own, and old rows none."""
    write_device(
        own / "results", environment=about and {key: value.replace("mine", fingerprint()) for key, value in about.items()}
    )
    predictor = trained()
    write_measured(own_folder("dev", predictor.engine, predictor.engine_version), {"k": 2.0})
    assert find_predictors("dev").known == {"k": 2.0}
    write_measured(own_folder("dev", predictor.engine, "another version"), {"j": 2.0})
    assert find_predictors("dev").known == {"k": 2.0}


def test_what_is_missing_is_named_with_what_to_do(own: Path) -> None:
    def following(name: str = "dev", engine: str = "") -> str:
        with pytest.raises(FormatError, match="no predictors of device 'dev'") as caught:
            find_predictors(name, engine=engine)
        return caught.value.next_step

    path = device_file(own / "config/devices")
    assert following().startswith("edgeplan device adapt dev (a minute), or make reproduce DEVICE=dev")
    assert "use one of" not in following()
    write_device(own / "results", name="other")
    assert following(str(path)).endswith("or use one of: other")
    assert "other" not in following(engine="openvino")
    (own / "results/dev/measurements").mkdir(parents=True)
    assert following().startswith("dvc repro training@dev")
    path.write_text("{format_version: 2, name: dev, engine: onnxruntime, transport: {kind: ssh, host: phone}}")
    (own / "results/dev/measurements").rmdir()
    assert following().startswith("make reproduce DEVICE=dev, in a checkout of edgeplan")  # a board's are not adapted
    with pytest.raises(DeviceError, match="unknown device 'nobody'"):
        find_predictors("nobody")


def test_a_file_and_its_graph_have_the_same_nodes(tmp_path: Path) -> None:
    path, teller = network(tmp_path / "net.onnx"), Teller(DEVICE, RULES)
    of_file, of_graph = teller.of_file(path, Preparation()), teller.of_graph(simplify(load_onnx(path)))
    assert (of_file.name, of_graph.name) == ("net.onnx", load_onnx(path).name)
    assert [one.config.op for one in of_file.nodes] == [one.config.op for one in of_graph.nodes]
    assert of_file.told_by == of_graph.told_by == f"onnxruntime {trained().engine_version}"
    apart = teller.of_graph(simplify(load_onnx(path)), fused=False)
    assert not any(one.config.attribute("activation", "") or one.config.domain for one in apart.nodes)


def test_a_file_of_eight_bits_is_told_as_it_is_and_what_is_no_model_refused(tmp_path: Path) -> None:
    told = Teller(DEVICE, RULES).of_file(quantised(tmp_path, "dynamic"), Preparation())
    assert {"ConvInteger", "DynamicQuantizeLinear"} <= {one.config.op for one in told.nodes}
    (tmp_path / "no.onnx").write_bytes(b"no model")
    with pytest.raises(ModelError):
        Teller(DEVICE, RULES).of_file(tmp_path / "no.onnx", Preparation())
