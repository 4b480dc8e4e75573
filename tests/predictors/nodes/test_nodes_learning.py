"""What is learnt where the truth is known: physics is extrapolated, what is unlike is told, measured nodes correct others."""

from __future__ import annotations

import itertools
import math
from functools import cache

import numpy as np
import pytest
from executed_nodes import CACHE, drawn, key, law, model, node, product, relu, samples, transpose

from edgeplan.errors import PredictionError
from edgeplan.graph.nodes import ExecutedModel, NodeConfig, Operand
from edgeplan.predictors.nodes.features import SIZES, SPILLED, TERMS, Table, describe, logs, spill, terms
from edgeplan.predictors.nodes.kernels import Kernels
from edgeplan.predictors.nodes.learner import Samples, Tuned, learn, out_of_fold, time_of
from edgeplan.predictors.nodes.predictor import NodePredictor, Relation, Trust, common_share, conformal, guess_bound
from edgeplan.predictors.nodes.training import MeasuredModel, train
from edgeplan.predictors.settings import TrainingSettings

SETTINGS = TrainingSettings(trials=0, folds=4)


@cache
def learnt() -> Kernels:
    rng = np.random.default_rng(1)
    return learn(samples(drawn(rng, 300), rng=rng), CACHE, SETTINGS)


def predictor(**trust: float) -> NodePredictor:
    return NodePredictor(learnt(), Relation(call_us=2.0), Trust(**trust))


def said(kernels: Kernels, *configs: NodeConfig) -> tuple[np.ndarray, np.ndarray]:
    return time_of(kernels, samples(configs))


def off(kernels: Kernels, configs: list[NodeConfig]) -> np.ndarray:
    return np.abs(said(kernels, *configs)[0] / [law(config) for config in configs] - 1)


def test_kinds_are_predicted_within_their_noise_and_extrapolated_by_physics() -> None:
    rng = np.random.default_rng(2)
    kernels = learn(samples([relu(int(2 ** rng.uniform(8, 17))) for _ in range(60)]), CACHE, SETTINGS)
    assert off(kernels, [relu(10 << 17)]).max() < 0.05
    assert np.quantile(off(learnt(), drawn(np.random.default_rng(3), 90)), 0.9) < 0.1


def test_products_of_one_row_are_slower_beyond_the_last_cache() -> None:
    """A term that only large models tell of is learnt from them, and leaves small ones as they are."""
    rng = np.random.default_rng(4)
    configs = [product(1, int(2 ** rng.uniform(8, 11)), int(2 ** rng.uniform(8, 11))) for _ in range(80)]
    context = np.array([1e6, 200e6] * 40)
    us = [
        law(config) + (6e-5 * config.weight_bytes if far > CACHE else 0) for config, far in zip(configs, context, strict=True)
    ]
    kernels = learn(Samples.of(configs, context, us, [f"m{i % 9}" for i in range(80)]), CACHE, SETTINGS)
    wide = product(1, 3000, 1500)
    near, far = (
        NodePredictor(kernels, Relation(call_us=0), Trust()).predict(model("m", [wide], size)) for size in (10**6, 10**9)
    )
    assert near.latency_us == pytest.approx(law(wide), rel=0.1)
    assert far.latency_us == pytest.approx(law(wide) + 6e-5 * wide.weight_bytes, rel=0.1)


def test_a_sliver_of_spilled_weights_teaches_no_term() -> None:
    """Fitted to rows of which hardly any byte is spilled, a term would be wild for a model that spills all."""
    rng = np.random.default_rng(5)
    configs = [product(8, int(2 ** rng.uniform(5, 9)), int(2 ** rng.uniform(5, 9))) for _ in range(40)]
    us = [law(c) * float(np.exp(rng.normal(0, 0.1))) for c in configs]
    kernels = learn(Samples.of(configs, [0.376 * CACHE] * 40, us, ["m"] * 40), CACHE, SETTINGS)
    many = NodePredictor(kernels, Relation(call_us=0), Trust()).predict_many([model("m", configs[:5], 10**9)])
    assert many[0] == pytest.approx(sum(law(c) for c in configs[:5]), rel=0.3)


def test_deviation_grows_with_distance_and_for_kinds_never_measured() -> None:
    unknown = (node("Erf", [(4, 4)], (4, 4)), node("MaxPool", [(1, 4, 8, 8)], (1, 4, 4, 4), kernel_shape=(2, 2)))
    _, deviation = said(learnt(), relu(1 << 12), relu(1 << 21), relu(1 << 26), *unknown)
    assert (np.diff(deviation[:3]) > 0).all()
    assert (deviation[3:] > 5 * deviation[0]).all()


def test_nothing_to_learn_from_is_said() -> None:
    for us in ([], [0.0], [np.nan]):
        with pytest.raises(PredictionError, match="measure"):
            Samples.of([relu(8)] * len(us), [0.0] * len(us), us, ["m"] * len(us))


@pytest.mark.parametrize("factor", [0.5, 2.0, 7.0])
def test_a_prior_of_another_speed_is_found_by_ten_nodes(factor: float) -> None:
    few = drawn(np.random.default_rng(6), 10)
    kernels = learn(samples(few, lambda config: factor * law(config)), CACHE, SETTINGS, learnt())
    tested = [*drawn(np.random.default_rng(7), 60), node("Softmax", [(64, 64)], (64, 64), axis=-1)]
    ratio = said(kernels, *tested)[0] / said(learnt(), *tested)[0] / factor
    assert np.abs(ratio - 1).max() < 0.1


def test_a_prior_is_one_term_among_others_where_there_are_rows() -> None:
    """What the other device knows is kept, what differs is learnt: here products take thrice as long, all else as long."""
    rng = np.random.default_rng(8)

    def other(config: NodeConfig) -> float:
        return law(config) * (3.0 if config.op == "MatMul" else 1.0)

    kernels = learn(samples(drawn(rng, 90), other), CACHE, SETTINGS, learnt())
    tested = drawn(np.random.default_rng(9), 60)
    assert np.quantile(np.abs(said(kernels, *tested)[0] / [other(c) for c in tested] - 1), 0.9) < 0.12


def test_what_is_served_is_what_was_trained() -> None:
    """Terms, trees and process of a node give the same one by one, in a table, natively laid out and for many models."""
    configs = drawn(np.random.default_rng(10), 45)
    together = said(learnt(), *configs)[0]
    alone = np.concatenate([said(learnt(), config)[0] for config in configs])
    np.testing.assert_allclose(alone, together, rtol=1e-9)
    large = Table.of([relu(i) for i in range(1, 5000)])
    many, few = learnt().estimate(large, spread=False), learnt().estimate(Table.of([relu(i) for i in range(1, 1000)]))
    np.testing.assert_allclose(many.near[:999], few.near, rtol=1e-9)
    models = [model(f"m{i}", configs[i : i + 9], context_bytes=10**i, times=1 + i % 3) for i in range(9)]
    each = [predictor().predict(one).latency_us for one in [*models, model("empty", [])]]
    np.testing.assert_allclose(predictor().predict_many([*models, model("empty", [])]), each, rtol=1e-9)
    assert each[-1] == 2.0


def test_a_measured_node_is_taken_as_it_is_and_corrects_those_of_its_key() -> None:
    """Products of a model take twice what is predicted: one that is measured tells of the others, and of nothing else."""
    products, others = [product(256, 700 + i, 900) for i in range(5)], [relu(4096), transpose(64, 100)]
    one = model("m", [*products, *others])
    blind = predictor(together=0.8).predict(one)
    known = {products[0].key: 1.3 * blind.nodes[0].us}
    seen = predictor(together=0.8).predict(one, known)
    assert seen.nodes[0].us == known[products[0].key]
    assert [n.source for n in seen.nodes][:2] == ["measured", "learnt"]
    moved = np.array([after.us / before.us for after, before in zip(seen.nodes, blind.nodes, strict=True)])
    assert (moved[1:5] > 1.02).all()
    assert (moved[1:5] <= 1.3).all()
    assert moved[5:].tolist() == [1, 1]
    assert seen.deviation < blind.deviation
    assert (seen.nodes[1].high_us / seen.nodes[1].low_us) < (blind.nodes[1].high_us / blind.nodes[1].low_us)


def test_deviations_of_one_key_add_up_and_those_of_several_do_not() -> None:
    alike = predictor().predict(model("alike", [relu(40_000 + i) for i in range(16)]))
    single = predictor().predict(model("single", [relu(40_000)] * 16))
    assert alike.deviation == pytest.approx(single.deviation, rel=0.05)
    mixed = predictor().predict(model("mixed", [relu(1 << 16), transpose(256, 256), product(16, 128, 200)]))
    linear = sum((n.high_us - n.us) / n.us * n.share for n in mixed.nodes) / 1.645
    assert mixed.deviation < 0.9 * linear


def test_what_to_measure_is_what_is_unknown_and_weighs() -> None:
    unknown, small = node("Erf", [(1, 1 << 20)], (1, 1 << 20)), node("Tanh", [(1, 4)], (1, 4))
    one = model("m", [relu(1 << 14), unknown, product(16, 64, 64), small])
    first = predictor().to_measure(one)
    assert first[0] == unknown
    assert small not in first  # nothing hangs on it
    assert len(set(first)) == len(first)
    known = {config.key: law(config) for config in first}
    assert predictor().predict(one, known).deviation < 0.05
    assert predictor().to_measure(one, known) == []
    assert predictor().to_measure(one, most=0) == predictor().to_measure(one, seconds=0.01) == []
    assert predictor().to_measure(model("empty", [])) == []


def test_guesses_are_named_and_get_no_interval() -> None:
    guessed = predictor().predict(model("m", [node("Erf", [(1, 1 << 20)], (1, 1 << 20)), relu(64)]))
    assert [n.source for n in guessed.nodes] == ["guessed", "learnt"]
    assert guessed.interval_us is None
    assert guessed.share("guessed") + guessed.share("learnt") == pytest.approx(1)
    learned = predictor().predict(model("m", [relu(1 << 14)]))
    assert learned.interval_us is not None
    assert learned.interval_us[0] < learned.latency_us < learned.interval_us[1]
    wide = predictor(quantile=3.0, model_deviation=0.1).predict(model("m", [relu(1 << 14)]))
    assert wide.interval_us is not None
    assert np.log(wide.interval_us[1] / wide.latency_us) == pytest.approx(3.0 * np.hypot(wide.deviation, 0.1))
    assert all(n.low_us < n.us < n.high_us for n in guessed.nodes)
    assert sum(n.share for n in learned.nodes) + 2.0 / learned.latency_us == pytest.approx(1)


@cache
def trained() -> tuple[NodePredictor, list[tuple[ExecutedModel, float]]]:
    """A device whose models take 1.5 us more a node, and whose keys err by 15 % in each model, all of a key alike."""
    rng = np.random.default_rng(11)
    rows: list[tuple[NodeConfig, float, str]] = []
    wholes, fresh = [], []
    for number in range(120):
        bias: dict[str, float] = {}
        configs = drawn(rng, 12, scale=float(2 ** rng.uniform(0, 1)))
        us = [law(c) * bias.setdefault(c.op, float(np.exp(rng.normal(0, 0.15)))) for c in configs]
        one = model(f"m{number}", configs)
        total = (2.0 + sum(us) + 1.5 * len(us)) * float(np.exp(rng.normal(0, 0.02)))
        if number < 60:
            rows += [(c, t, one.name) for c, t in zip(configs, us, strict=True)]
            wholes.append(MeasuredModel(one, total, {c.key: t for c, t in zip(configs, us, strict=True)}))
        else:
            fresh.append((one, total))
    measured = Samples.of([r[0] for r in rows], [1e6] * len(rows), [r[1] for r in rows], [r[2] for r in rows])
    return train(measured, wholes, 2.0, CACHE, SETTINGS)[0], fresh


def test_intervals_hold_as_often_as_they_say() -> None:
    device, fresh = trained()
    said_of = [(device.predict(one).interval_us, us) for one, us in fresh]
    held = [low_high[0] <= us <= low_high[1] for low_high, us in said_of if low_high]
    assert len(held) >= 50
    assert 0.8 <= np.mean(held) <= 0.99
    assert np.median([i[1] / i[0] for i, _ in said_of if i]) < 1.8
    extra = device.relation.node_us + device.relation.warm_node_us / 3  # of contexts of a megabyte
    assert (device.relation.scale, extra) == (pytest.approx(1, abs=0.05), pytest.approx(1.5, abs=0.15))
    assert device.trust.together > 0.3  # of what nodes of a key have in common there is plenty here


def test_a_device_is_trained_on_a_prior_by_few_nodes_and_no_whole_model() -> None:
    few = samples(drawn(np.random.default_rng(17), 24), lambda config: 2 * law(config), models=4)
    adapted, checked = train(few, [], 3.0, CACHE, SETTINGS, predictor())
    assert adapted.relation == Relation(call_us=3.0)
    assert np.isfinite(checked.us).all()
    assert np.abs(checked.us / few.us - 1).max() < 0.2
    said_of = adapted.predict(model("m", drawn(np.random.default_rng(18), 9)))
    assert said_of.interval_us is not None
    truth = 3.0 + sum(2 * law(one.config) for one in said_of.nodes)
    assert said_of.interval_us[0] < truth < said_of.interval_us[1]
    assert truth == pytest.approx(said_of.latency_us, rel=0.1)


def test_a_relation_is_fitted_in_spite_of_outliers_and_left_alone_without_models() -> None:
    rng = np.random.default_rng(12)
    sums, nodes, context = 10 ** rng.uniform(0.7, 3.7, 60), rng.integers(1, 200, 60).astype(float), 10 ** rng.uniform(3, 8, 60)
    spilled = spill(context, CACHE)
    true = Relation(call_us=2.0, scale=0.96, node_us=0.17, warm_node_us=0.42, cold_node_us=1.5)
    us = true.total(sums, nodes, context, spilled)
    us[::10] *= 3
    found = Relation.fit(2.0, us.tolist(), sums, nodes, context, spilled)
    assert found.scale == pytest.approx(0.96, abs=0.02)
    assert found.node_us == pytest.approx(0.17, abs=0.05)
    assert found.warm_node_us == pytest.approx(0.42, abs=0.1)
    assert found.cold_node_us == pytest.approx(1.5, abs=0.2)
    assert Relation.fit(2.0, us[:3].tolist(), sums[:3], nodes[:3], context[:3], spilled[:3]) == Relation(call_us=2.0)
    assert Relation.fit(1e9, us.tolist(), sums, nodes, context, spilled).scale == 1.0  # no time is left for any node


def test_figures_of_trust() -> None:
    rng = np.random.default_rng(13)
    assert conformal(np.arange(99.0), 0.9) == 89
    assert conformal(np.arange(3.0), 0.9) == 2
    common = np.repeat(rng.normal(size=200), 4)
    own = rng.normal(size=800)
    groups = np.repeat(np.arange(200), 4).tolist()
    assert common_share(0.8 * common + 0.6 * own, groups) == pytest.approx(0.64, abs=0.1)
    assert common_share(own, groups) < 0.1
    assert common_share(own[:5], list(range(5))) == Trust().together
    deviation = np.concatenate([np.full(90, 0.05), np.full(10, 0.6)])
    bound = guess_bound(deviation, deviation * 1.5)
    assert 0.05 < bound <= 0.6
    assert guess_bound(deviation, np.zeros(100)) == Trust().guess


def test_folds_leave_whole_models_out_and_use_what_was_tuned() -> None:
    measured, tuned = samples(drawn(np.random.default_rng(14), 120), models=6), Tuned()
    learn(measured, CACHE, SETTINGS, None, tuned)
    numbers = dict(tuned.numbers)
    seen: list[int] = []
    for kernels, held in out_of_fold(measured, CACHE, SETTINGS, None, tuned):
        seen += held.tolist()
        kept = np.setdiff1d(np.arange(120), held)
        assert not set(measured.group[held]) & set(measured.group[kept])
        assert sum(int(kind.rows.sum()) for kind in kernels.kinds.values()) == len(kept)
    assert sorted(seen) == list(range(120))
    assert tuned.numbers == numbers


def test_a_search_of_the_trees_is_the_same_every_time() -> None:
    measured = samples([relu(i) for i in range(8, 1008, 4)], rng=np.random.default_rng(16))
    first, again = (learn(measured, CACHE, SETTINGS.model_copy(update={"trials": 2})) for _ in range(2))
    tested = [relu(i) for i in range(9, 400, 7)]
    assert said(first, *tested)[0].tolist() == said(again, *tested)[0].tolist()


def sizes(config: NodeConfig) -> dict[str, float]:
    return dict(zip(SIZES, describe(config).sizes, strict=True))


def conv(channels: int, groups: int = 1, batch: int = 1, size: tuple[int, ...] = (8, 8), domain: str = "") -> NodeConfig:
    kernel = (channels, channels // groups, *(3 for _ in size))
    made = node("Conv", [(batch, channels, *size), kernel], (batch, channels, *size), weights=1, group=groups, pads=(1,) * 4)
    return NodeConfig("Conv", domain, made.attributes, made.inputs, made.outputs)


def reorder(before: str, after: str) -> NodeConfig:
    one = (Operand("float32", (1, 16, 8, 8)),)
    return NodeConfig("Reorder", attributes=(("from", before), ("to", after)), inputs=one, outputs=one)


def quantised(dtype: str) -> NodeConfig:
    inputs = (Operand("uint8", (4, 64)), Operand(dtype, (64, 32), constant=True), Operand("float32", (), constant=True))
    return NodeConfig("MatMulIntegerToFloat", "com.microsoft", (), inputs, (Operand("float32", (4, 32)),))


@pytest.mark.parametrize(
    "different",
    [
        (product(4, 8, 8), product(1, 8, 8)),  # rows
        (product(4, 8, 8), node("MatMul", [(4, 8), (8, 8)], (4, 8))),  # a constant right side
        (conv(32), conv(32, groups=32)),
        (conv(32, groups=4), conv(32, groups=32)),
        (conv(32), conv(32, size=(8,))),
        (conv(32), conv(32, domain="com.microsoft.nchwc")),
        (quantised("int8"), quantised("uint8")),
        (reorder("nchw", "nhwc"), reorder("nhwc", "nchw")),
        (reorder("nchw", "nhwc"), reorder("nchw", "blocked16")),
        (transpose(8, 9), node("Transpose", [(8, 9, 4)], (9, 8, 4), perm=(1, 0, 2))),
        (transpose(8, 9), transpose(1, 9)),
        (node("ReduceMean", [(4, 5, 6)], (4, 5, 1), axes=(-1,)), node("ReduceMean", [(4, 5, 6)], (4, 1, 6), axes=(1,))),
    ],
)
def test_another_algorithm_is_another_key(different: tuple[NodeConfig, NodeConfig]) -> None:
    assert key(different[0]) != key(different[1])


def test_what_is_fused_shares_the_key_and_is_a_size() -> None:
    plain = conv(32)
    fused = NodeConfig("FusedConv", "com.microsoft", (*plain.attributes, ("activation", "Relu")), plain.inputs, plain.outputs)
    assert key(plain) == key(fused)
    assert sizes(fused) == {**sizes(plain), "activation": 1.0}


def test_work_is_counted() -> None:
    assert sizes(product(6, 10, 20))["flops"] == 2 * 6 * 10 * 20
    assert sizes(node("MatMul", [(2, 3, 6, 10), (2, 3, 10, 20)], (2, 3, 6, 20)))["flops"] == 2 * 6 * 6 * 10 * 20
    assert sizes(node("Gemm", [(10, 6), (20, 10)], (6, 20), transA=1, transB=1))["flops"] == 2 * 6 * 10 * 20
    for batch in (1, 10):
        assert sizes(conv(32, batch=batch))["flops"] == 2 * batch * 32 * 64 * 32 * 9
        assert sizes(conv(32, groups=32, batch=batch))["flops"] == 2 * batch * 64 * 32 * 9
        assert sizes(conv(32, groups=32, batch=batch))["outer_runs"] == 32 * batch
    up = node("ConvTranspose", [(1, 8, 5, 5), (8, 4, 2, 2)], (1, 4, 10, 10), weights=1, strides=(2, 2))
    assert sizes(up)["flops"] == 2 * 8 * 25 * 4 * 4
    lstm = node("LSTM", [(7, 1, 16), (2, 128, 16), (2, 128, 32)], (7, 2, 1, 32), weights=2, hidden_size=32)
    assert sizes(lstm)["flops"] == 2 * 7 * 2 * 128 * (16 + 32)
    assert sizes(lstm)["reread"] == 4 * 7 * 2 * 128 * 32


def test_moves_read_what_they_take() -> None:
    table, rows = Operand("float32", (50_000, 64), constant=True), Operand("int64", (1, 8))
    gather = NodeConfig("Gather", "", (("axis", 0),), (table, rows), (Operand("float32", (1, 8, 64)),))
    assert (sizes(gather)["read"], sizes(gather)["weights"]) == (8 * 64 * 4, 0)
    cut = node("Slice", [(1000, 1000)], (1000, 4))
    assert sizes(cut)["read"] == 1000 * 4 * 4
    assert (sizes(cut)["inner"], sizes(cut)["outer_runs"]) == (4, 1000)
    assert sizes(cut)["cold"] == 0
    assert sizes(relu(1 << 20))["cold"] == 7 << 20  # what a core's caches do not hold


def test_operands_that_start_again_cost_steps_and_those_that_stay_do_not() -> None:
    scaled = node("Mul", [(1, 8, 28, 28), (1, 8, 1, 1)], (1, 8, 28, 28))  # one element for each plane
    assert (sizes(scaled)["inner"], sizes(scaled)["scalar_steps"]) == (28 * 28, 0)
    biased = node("Add", [(100, 64), (64,)], (100, 64))
    assert (sizes(biased)["inner"], sizes(biased)["outer_runs"]) == (64, 100)
    last = node("Mul", [(100, 64), (100, 1)], (100, 64))
    assert sizes(last)["inner"] == 64
    alternating = node("Mul", [(64, 64, 2), (64, 1, 2)], (64, 64, 2))
    assert sizes(alternating)["scalar_steps"] == 64 * 64 * 2


def test_operators_of_other_domains_and_nodes_without_operands_have_bytes_and_work() -> None:
    """One that nobody heard of goes by its bytes."""
    attributes = (("N", 96), ("coefficients", (0.5,) * 64), ("nodes_treeids", (0,) * 31 + (1,) * 31), ("num_heads", 4))
    attending = "Attention MultiHeadAttention SkipLayerNormalization EmbedLayerNormalization BiasGelu QAttention"
    learning = "RotaryEmbedding MatMulNBits TreeEnsembleRegressor LinearClassifier Scaler Normalizer NeverHeardOf"
    for op, shape in itertools.product(f"{attending} {learning}".split(), [(8, 128), (1, 8, 128), (2, 5, 8, 128)]):
        x, weight = Operand("float32", shape), Operand("float32", (shape[-1], 3 * shape[-1]), constant=True)
        seen = sizes(NodeConfig(op, "com.microsoft", attributes, (x, weight), (x,)))
        assert seen["read"] == seen["written"] == 4 * math.prod(shape), op
        assert seen["flops"] > 0, op
        assert seen["weights"] >= weight.bytes, op
        assert np.isfinite(list(seen.values())).all()
    for op in ("Shape", "Concat", "Slice", "Transpose", "ReduceMean", "Softmax", "Gather", "Conv", "LSTM", "MaxPool", "Gemm"):
        for config in (NodeConfig(op, outputs=(Operand("float32", ()),)), node(op, [()], ()), node(op, [(0, 3)], (0, 3))):
            assert np.isfinite(describe(config).sizes).all()


def test_weights_spill_over_the_last_cache_and_nothing_else_does() -> None:
    table = Table.of([product(1, 1024, 1024), relu(1 << 20)])
    spilled = spill(np.array([0.0, 0.25, 1.0, 10.0]) * CACHE, CACHE)
    assert spilled[0] == spilled[1] == 0
    assert 0 < spilled[2] < spilled[3] == 1
    assert terms(table.sizes, 1.0)[:, SPILLED].tolist() == [4 << 20, 0]
    assert terms(table.sizes).shape == (2, len(TERMS))
    assert not terms(table.sizes)[:, SPILLED].any()
    assert np.isfinite(logs(table.sizes)).all()
    assert terms(table.sizes)[:, TERMS.index("weights")].tolist() == [4 << 20, 0]
