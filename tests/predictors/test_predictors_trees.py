"""Trees read from text agree with LightGBM, and damaged text is refused."""

import dataclasses
import itertools
from typing import Any

import lightgbm
import numpy as np
import pytest

from edgeplan.errors import FormatError
from edgeplan.predictors.trees import Forest, merge_texts, parse_ensemble, slim_text
from edgeplan.predictors.walking import Walk, on_all_cores

FIXED = {"verbosity": -1, "num_threads": 1, "deterministic": True, "force_row_wise": True, "min_data_in_leaf": 2, "seed": 1}


@pytest.fixture(scope="module")
def data() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    rows = np.round(rng.normal(size=(400, 6)), 2)
    return rows, rows[:, 0] * rows[:, 1] + np.sin(3 * rows[:, 2])


def train(data: tuple[np.ndarray, np.ndarray], rounds: int = 40, **parameters: object) -> lightgbm.Booster:
    return lightgbm.train({**FIXED, "objective": "l2", **parameters}, lightgbm.Dataset(*data), rounds)


def predict(texts: list[str], rows: np.ndarray, ensemble: np.ndarray, outputs: int = 1) -> np.ndarray:
    return Forest.pack([parse_ensemble(t, "test") for t in texts]).raw(rows, ensemble, outputs)


@pytest.mark.parametrize(
    "parameters",
    [
        {},
        {"num_leaves": 63, "max_depth": 20},
        {"boosting": "rf", "bagging_freq": 1, "bagging_fraction": 0.7},
        {"objective": "l1"},
    ],
)
def test_agrees_with_lightgbm(data: tuple[np.ndarray, np.ndarray], parameters: dict[str, object]) -> None:
    booster = train(data, **parameters)
    got = predict([booster.model_to_string()], data[0], np.zeros(400, dtype=int))[:, 0]
    np.testing.assert_allclose(got, booster.predict(data[0]), rtol=1e-9, atol=1e-12)


def test_agrees_on_classes_and_many_ensembles(data: tuple[np.ndarray, np.ndarray]) -> None:
    rows, target = data
    classes = lightgbm.train(
        {**FIXED, "objective": "multiclass", "num_class": 3}, lightgbm.Dataset(rows, np.digitize(target, [-0.5, 0.5])), 10
    )
    one = train(data, 3)
    which = np.arange(400) % 2
    got = predict([one.model_to_string(), classes.model_to_string()], rows, which, 3)
    np.testing.assert_allclose(got[which == 0, 0], one.predict(rows[which == 0]), rtol=1e-9)
    np.testing.assert_allclose(got[which == 1], classes.predict(rows[which == 1], raw_score=True), rtol=1e-9)
    assert np.isneginf(got[which == 0, 1:]).all()


@pytest.mark.parametrize(
    "parameters",
    [
        {},
        {"num_leaves": 200},
        {"boosting": "rf", "bagging_freq": 1, "bagging_fraction": 0.7},
        {"objective": "multiclass", "num_class": 3},
    ],
)
@pytest.mark.parametrize("count", [1, 7, 8, 129, 400])
def test_compiled_walks_give_the_same_bits_as_the_forest(
    data: tuple[np.ndarray, np.ndarray], parameters: dict[str, object], count: int
) -> None:
    rows, target = data
    target = np.digitize(target, [-0.5, 0.5]) if "num_class" in parameters else target
    outputs = 3 if "num_class" in parameters else 1
    texts = [train(data, 3).model_to_string(), slim_text(train((rows, target), 130, **parameters).model_to_string())]
    forest = Forest.pack([parse_ensemble(text, "test") for text in texts])
    rows = rows[:count].copy()
    walk = Walk.of(forest, 1, rows.shape[1])
    assert walk is not None
    rng = np.random.default_rng(1)
    for column, (begin, end) in enumerate(itertools.pairwise(walk.first)):  # on thresholds, which go left, and right above
        ties = rng.choice(walk.thresholds[begin:end], len(rows[::2])) if end > begin else np.zeros(len(rows[::2]))
        rows[::2, column] = np.where(rng.random(len(ties)) < 0.5, ties, np.nextafter(ties, np.inf))
    rows[-1, :3] = np.nan, np.inf, -np.inf
    np.testing.assert_array_equal(walk.raw(rows), forest.raw(rows, np.ones(count, dtype=int), outputs))


def test_walks_refuse_what_compiled_code_would_not_survive(data: tuple[np.ndarray, np.ndarray]) -> None:
    forest = Forest.pack([parse_ensemble(train(data, 3).model_to_string(), "test")])
    with pytest.raises(ValueError, match="not trees over these features"):
        Walk.of(forest, 0, 2)
    shared = dataclasses.replace(forest, roots=np.repeat(forest.roots[:1], 50), tree_start=np.array([0, 50], dtype=np.int32))
    with pytest.raises(ValueError, match="not trees over these features"):
        Walk.of(shared, 0, 6)
    walk = Walk.of(forest, 0, 6)
    assert walk is not None
    with pytest.raises(ValueError, match="rows of 7 features, not 6"):
        walk.raw(np.zeros((3, 7)))


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("value", lambda a: a.astype(">f8")),
        ("feature", lambda a: a[:, None]),
        ("scale", lambda a: a[:-1]),
        ("tree_start", lambda a: a[:-1]),
    ],
)
def test_packed_trees_that_do_not_fit_are_refused(data: tuple[np.ndarray, np.ndarray], name: str, change: Any) -> None:
    arrays = Forest.pack([parse_ensemble(train(data, 3).model_to_string(), "test")]).arrays()
    Forest.from_arrays(arrays, 6)
    with pytest.raises(ValueError, match="belong together"):
        Forest.from_arrays({**arrays, name: change(arrays[name])}, 6)


def test_jobs_on_all_cores_are_each_done_once_and_errors_are_raised() -> None:
    done = np.zeros(50, dtype=int)

    def work(i: int) -> None:
        done[i] += 1
        if i == 49:
            raise ValueError("the last")

    with pytest.raises(ValueError, match="the last"):
        on_all_cores(work, range(50))
    assert (done == 1).all()


def test_a_tree_of_one_leaf(data: tuple[np.ndarray, np.ndarray]) -> None:
    booster = lightgbm.train({**FIXED, "objective": "l2"}, lightgbm.Dataset(data[0][:5], np.full(5, 2.5)), 1)
    assert predict([booster.model_to_string()], data[0][:3], np.zeros(3, dtype=int)).ravel().tolist() == [2.5, 2.5, 2.5]


def test_merged_texts_predict_the_mean_also_in_lightgbm(data: tuple[np.ndarray, np.ndarray]) -> None:
    boosters = [train(data, 20, bagging_fraction=0.6, bagging_freq=1, seed=seed) for seed in (1, 2, 3)]
    text = merge_texts([b.model_to_string() for b in boosters])
    mean = np.mean([b.predict(data[0]) for b in boosters], axis=0)
    np.testing.assert_allclose(predict([text], data[0], np.zeros(400, dtype=int))[:, 0], mean, rtol=1e-9)
    np.testing.assert_allclose(lightgbm.Booster(model_str=text).predict(data[0]), mean, rtol=1e-9)


def test_slimmed_text_is_smaller_and_predicts_the_same(data: tuple[np.ndarray, np.ndarray]) -> None:
    booster = train(data)
    slim = slim_text(booster.model_to_string())
    assert len(slim) < 0.8 * len(booster.model_to_string())
    np.testing.assert_array_equal(lightgbm.Booster(model_str=slim).predict(data[0]), booster.predict(data[0]))


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
        ("num_tree_per_iteration=1", "num_tree_per_iteration=0"),
        ("tree\n", "__import__('os')\n"),
    ],
)
def test_damaged_text_is_refused(data: tuple[np.ndarray, np.ndarray], old: str, new: str) -> None:
    text = train(data, 3).model_to_string()
    assert old in text
    with pytest.raises(FormatError, match=r"model.txt"):
        parse_ensemble(text.replace(old, new, 1), "model.txt")


def test_a_child_that_leads_back_is_refused(data: tuple[np.ndarray, np.ndarray]) -> None:
    text = train(data, 1, num_leaves=4).model_to_string()
    line = next(x for x in text.split("\n") if x.startswith("left_child="))
    looped = "left_child=" + " ".join(["0"] * len(line.split("=")[1].split()))
    with pytest.raises(FormatError, match="child"):
        parse_ensemble(text.replace(line, looped), "model.txt")


def test_truncation_anywhere_is_refused_or_complete(data: tuple[np.ndarray, np.ndarray]) -> None:
    text = train(data, 2).model_to_string()
    end = text.index("end of trees")
    for cut in range(0, end, max(1, end // 60)):
        with pytest.raises(FormatError):
            parse_ensemble(text[:cut], "model.txt")
