"""What is kept of predictors of nodes is what is read, and damage is told by file."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from executed_nodes import CACHE, drawn, law, model, node, samples

from edgeplan.errors import FormatError
from edgeplan.predictors.nodes.learner import learn
from edgeplan.predictors.nodes.predictor import NodePredictor, Relation, Trust
from edgeplan.predictors.nodes.storing import ARRAYS, CARD, load, save
from edgeplan.predictors.settings import TrainingSettings

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
    save(predictor, tmp_path)
    read = load(tmp_path)
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
    save(read, tmp_path)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == first


def test_an_empty_predictor_is_kept(tmp_path: Path) -> None:
    kernels = learn(samples(drawn(np.random.default_rng(1), 3)), CACHE, SETTINGS)
    save(NodePredictor(kernels, Relation(call_us=2.5), Trust()), tmp_path)
    assert load(tmp_path).predict(ONE).latency_us == pytest.approx(
        NodePredictor(kernels, Relation(call_us=2.5), Trust()).predict(ONE).latency_us
    )


def test_a_kind_whose_nodes_are_all_alike_is_kept(tmp_path: Path) -> None:
    kernels = learn(samples([node("Erf", [(3, 5)], (3, 5))] * 12), CACHE, SETTINGS)
    save(NodePredictor(kernels, Relation(call_us=2.5), Trust()), tmp_path)
    assert load(tmp_path).predict(ONE).latency_us > 2.5


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 no archive", None])
@pytest.mark.parametrize("name", [CARD, ARRAYS])
def test_damaged_files_are_named(tmp_path: Path, name: str, content: bytes | None) -> None:
    save(trained(), tmp_path)
    if content is None:
        (tmp_path / name).unlink()
    else:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(FormatError, match=name) as raised:
        load(tmp_path)
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
    save(trained(), tmp_path)
    card = json.loads((tmp_path / CARD).read_text())
    (tmp_path / CARD).write_text(json.dumps({**card, **change}))
    with pytest.raises(FormatError) as raised:
        load(tmp_path)
    assert raised.value.where
    assert raised.value.next_step


def test_arrays_of_another_training_are_refused(tmp_path: Path) -> None:
    save(trained(), tmp_path / "one")
    save(trained(adapted=True), tmp_path / "two")
    (tmp_path / "one" / ARRAYS).write_bytes((tmp_path / "two" / ARRAYS).read_bytes())
    with pytest.raises(FormatError, match="not those that the card"):
        load(tmp_path / "one")


def test_a_prediction_imports_nothing_that_only_training_needs(tmp_path: Path) -> None:
    save(trained(), tmp_path)
    program = (
        "import sys; from pathlib import Path; from edgeplan.predictors.nodes.storing import load;"
        "from edgeplan.graph.nodes import *; o = Operand('float32', (8, 8));"
        "relu = ExecutedNode('n', NodeConfig('Relu', inputs=(o,), outputs=(o,)));"
        "p = load(Path(sys.argv[1])).predict(ExecutedModel('m', (relu,), 0));"
        "assert p.latency_us > 0;"
        "print([m for m in ('lightgbm', 'scipy', 'optuna', 'pandas', 'sklearn', 'onnx', 'onnxruntime') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True, check=True, env={**os.environ}
    )
    assert done.stdout.strip() == "[]"
