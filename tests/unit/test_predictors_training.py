"""Training on labels of a known law, and predicting whole models with what comes out."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from edgeplan.errors import FormatError, PredictionError
from edgeplan.graph.kernels import KernelConfig
from edgeplan.predictors.forest import fit_forest
from edgeplan.predictors.intervals import calibrate, held_out_sums, sums_by_subject
from edgeplan.predictors.kernel_tables import KernelTables, ModelKernels
from edgeplan.predictors.labels import group_folds, read_labels
from edgeplan.predictors.predictor import DevicePredictor
from edgeplan.predictors.settings import TrainingSettings
from edgeplan.predictors.training import train_forest_predictor, train_predictor

SETTINGS = TrainingSettings(trials=0, folds=3, min_rows_per_implementation=25)
TUNED = SETTINGS.model_copy(update={"trials": 2, "max_seconds": 1e6})
ABOUT = {
    "device": "bench",
    "engine": "law",
    "engine_version": "1",
    "call_us": 7.0,
    "plain_layouts": {"4": "nchw"},
    "measured_at": "2026-01-01",
}


def conv(cin: int, cout: int, size: int, kernel: int = 3) -> KernelConfig:
    pad = kernel // 2
    return KernelConfig(
        "conv", "conv++bn++relu", in_channels=cin, in_height=size, in_width=size, out_channels=cout, out_height=size,
        out_width=size, kernel_h=kernel, kernel_w=kernel, pad_top=pad, pad_left=pad, pad_bottom=pad, pad_right=pad, bias=True,
        activation="relu",
    )  # fmt: skip


def relu(channels: int, size: int) -> KernelConfig:
    sizes = {"in_channels": channels, "in_height": size, "in_width": size}
    return KernelConfig("relu", "relu", **sizes, out_channels=channels, out_height=size, out_width=size)  # type: ignore[arg-type]


def reorder(channels: int, size: int) -> KernelConfig:
    sizes = {"in_channels": channels, "in_height": size, "in_width": size}
    return KernelConfig("reorder", "reorder", **sizes, out_channels=channels, out_height=size, out_width=size)  # type: ignore[arg-type]


def law(config: KernelConfig, implementation: str) -> float:
    """Blocked convolutions are twice as fast; channels that are no multiple of 16 cost their padding."""
    elements = config.out_channels * config.out_height * config.out_width
    if config.kind != "conv":
        return 0.5 + elements / (4e3 if config.kind == "relu" else 2e3)
    padded = -(-config.out_channels // 16) * 16
    macs = padded * config.out_height * config.out_width * config.in_channels * config.kernel_h * config.kernel_w
    return 2.0 + macs / (4e4 if implementation == "Conv.blocked" else 2e4)


def rows(count: int = 700, *, told: bool = True) -> pd.DataFrame:
    """Labels of the law. Convolutions of 32 channels and more are dispatched to the blocked implementation."""
    rng = np.random.default_rng(3)
    found = []
    for number in range(count):
        kind = ("conv", "conv", "conv", "relu", "reorder")[number % 5]
        channels, size = int(rng.integers(8, 129)), int(rng.integers(7, 57))
        state = ("nchw", "nchwc")[int(rng.integers(2))]
        if kind == "conv":
            config = conv(channels, int(rng.integers(8, 129)), size, (1, 3, 5)[int(rng.integers(3))])
            blocked = config.in_channels >= 32
            names = ("Conv.blocked", "nchwc", "nchwc") if blocked else ("Conv.plain", "nchw", "nchw")
        elif kind == "relu":
            config, names = relu(channels, size), ("Relu", state, state)
        else:
            to = "nchw" if state == "nchwc" else "nchwc"
            config, names = reorder(channels, size), (f"{state}>{to}", state, to)
        found.append(
            {
                "subject": f"carrier{number // 10}",
                "sampler": "frozen" if number >= count * 0.85 else "adaptive",
                "kind": kind,
                "type": config.type,
                "config": config.to_json(),
                "implementation": names[0] if told else "",
                "input_state": state if told else "",
                "input_layout": names[1] if told else "",
                "output_layout": names[2] if told else "",
                "latency_us": law(config, names[0]) * float(rng.lognormal(0, 0.01)),
                "noise": 0.01,
            }
        )
    return pd.DataFrame(found)


def model(name: str = "net") -> ModelKernels:
    """Plain conv, blocked conv, relu, blocked conv (graph output); the relu is read by a plain conv too (graph output)."""
    configs = (conv(16, 64, 28), conv(64, 64, 28), relu(64, 28), conv(64, 48, 28), conv(24, 32, 28))
    shapes = (reorder(16, 28), reorder(64, 28), reorder(64, 28), reorder(64, 28), reorder(48, 28), reorder(32, 28))
    return ModelKernels(
        name,
        ("c0", "c1", "r2", "c3", "c4"),
        configs,
        ((0,), (1,), (2,), (3,), (3,)),
        shapes,
        (4,) * 6,
        (-1, 0, 1, 2, 3, 4),
        (4, 5),
    )


@pytest.fixture(scope="module")
def trained() -> tuple[DevicePredictor, pd.DataFrame]:
    return train_predictor(rows(), SETTINGS, **ABOUT)


@pytest.fixture(scope="module")
def folder(trained: tuple[DevicePredictor, pd.DataFrame], tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("predictors") / "stored"
    trained[0].save(path)
    return path


@pytest.fixture
def copy(folder: Path, tmp_path: Path) -> Path:
    for file in folder.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    return tmp_path


def test_recovers_the_law(trained: tuple[DevicePredictor, pd.DataFrame]) -> None:
    quality = trained[1]
    frozen = quality[(quality["split"] == "frozen") & (quality["kind"] == "conv")]
    assert len(frozen) > 30
    error = (frozen["predicted_us"] / frozen["measured_us"] - 1).abs()
    assert error.median() < 0.05
    assert (error < 0.1).mean() > 0.85
    forest = (frozen["forest_us"] / frozen["measured_us"] - 1).abs()
    assert error.median() < forest.median()
    assert list(quality.columns) == ["kind", "type", "config", "measured_us", "predicted_us", "forest_us", "split"]


def test_frozen_rows_are_never_trained_on() -> None:
    table = rows(150)
    spoilt = table.copy()
    spoilt.loc[spoilt["sampler"] == "frozen", "latency_us"] *= 50
    one, two = (train_predictor(t, SETTINGS, **ABOUT)[0] for t in (table, spoilt))
    assert one.texts == two.texts
    assert one.card == two.card


def test_layouts_propagate_and_conversions_are_counted(trained: tuple[DevicePredictor, pd.DataFrame]) -> None:
    prediction = trained[0].predict(model())
    told = [(k.name, k.implementation) for k in prediction.kernels]
    assert told[:5] == [
        ("c0", "Conv.plain"), ("c1", "Conv.blocked"), ("r2", "Relu"), ("c3", "Conv.blocked"), ("c4", "Conv.plain"),
    ]  # fmt: skip
    # c0's output is blocked for c1, the relu's made plain for c4, and the blocked graph output made plain.
    assert told[5:] == [
        ("c0 (output)", "nchw>nchwc"), ("r2 (output)", "nchwc>nchw"), ("c3 (output)", "nchwc>nchw"),
    ]  # fmt: skip
    network = model()
    true = sum(law(c, i) for c, (_, i) in zip(network.configs, told, strict=False))
    true += law(reorder(64, 28), "") * 2 + law(reorder(48, 28), "")
    assert prediction.latency_ms == pytest.approx((true + 7.0) / 1e3, rel=0.1)
    assert sum(k.latency_us for k in prediction.kernels) + prediction.call_us == pytest.approx(1e3 * prediction.latency_ms)
    assert prediction.low_ms < prediction.latency_ms < prediction.high_ms
    assert prediction.coverage == 1


def test_one_conversion_serves_all_readers_of_a_layout(trained: tuple[DevicePredictor, pd.DataFrame]) -> None:
    network = ModelKernels(
        "fork", ("a", "b"), (conv(64, 64, 14), conv(64, 48, 14)), ((0,), (0,)),
        (reorder(64, 14), reorder(64, 14), reorder(48, 14)), (4, 4, 4), (-1, 0, 1), (1, 2),
    )  # fmt: skip
    reorders = [k for k in trained[0].predict(network).kernels if k.kind == "reorder"]
    assert [(k.name, k.implementation) for k in reorders] == [
        ("graph input", "nchw>nchwc"), ("a (output)", "nchwc>nchw"), ("b (output)", "nchwc>nchw"),
    ]  # fmt: skip


def test_many_models_agree_with_one(trained: tuple[DevicePredictor, pd.DataFrame], tmp_path: Path) -> None:
    other = ModelKernels("small", ("only",), (relu(9, 9),), ((0,),), (reorder(9, 9),) * 2, (4, 4), (-1, 0), (1,))
    tables = KernelTables.of([model("a"), other, model("b")])
    tables.save(tmp_path / "tables.parquet")
    for version in (tables, KernelTables.load(tmp_path / "tables.parquet")):
        batch = trained[0].predict_many(version)
        single = [trained[0].predict(m) for m in (model("a"), other, model("b"))]
        assert batch.models == ("a", "small", "b")
        np.testing.assert_allclose(batch.latency_ms, [p.latency_ms for p in single], rtol=1e-12)
        np.testing.assert_allclose(batch.high_ms, [p.high_ms for p in single], rtol=1e-12)
        np.testing.assert_allclose(batch.by_kind_ms.sum(axis=0) + 0.007, batch.latency_ms, rtol=1e-12)


def test_large_batches_go_through_lightgbm_and_agree(trained: tuple[DevicePredictor, pd.DataFrame]) -> None:
    configs = [conv(8 + i % 100, 8 + i // 100, 7, 1) for i in range(5200)]
    shape = reorder(8, 7)
    many = [ModelKernels(str(i), ("k",), (c,), ((0,),), (shape, shape), (4, 4), (-1, 0), (1,)) for i, c in enumerate(configs)]
    for predictor in (trained[0], train_forest_predictor(rows(), SETTINGS, trained[0])):
        large = predictor.predict_many(KernelTables.of(many)).latency_ms
        small = predictor.predict_many(KernelTables.of(many[100:200])).latency_ms
        np.testing.assert_allclose(large[100:200], small, rtol=1e-9)


def test_a_kind_without_predictor_is_an_error_that_names_the_node(trained: tuple[DevicePredictor, pd.DataFrame]) -> None:
    unknown = KernelConfig("lrn", "lrn", in_channels=8, out_channels=8)
    network = ModelKernels(
        "odd", ("r0", "norm_7"), (relu(8, 8), unknown), ((0,), (1,)), (reorder(8, 8),) * 3, (4,) * 3, (-1, 0, 1), (2,)
    )
    with pytest.raises(PredictionError, match=r"(?s)lrn.*norm_7"):
        trained[0].predict(network)
    with pytest.raises(PredictionError, match=r"(?s)lrn.*odd"):
        trained[0].predict_many(KernelTables.of([network]))
    partial = trained[0].predict(network, allow_partial=True)
    assert partial.missing == ("norm_7",)
    assert partial.coverage == 0.5
    assert [k.name for k in partial.kernels] == ["r0"]


def test_black_box_labels_have_no_conversions() -> None:
    table = rows(300, told=False)
    predictor, _ = train_predictor(table[table["kind"] != "reorder"], SETTINGS, **{**ABOUT, "plain_layouts": {}})
    assert {r.implementation for r in predictor.card.regressors} == {""}
    assert [k.name for k in predictor.predict(model()).kernels] == ["c0", "c1", "r2", "c3", "c4"]


def test_few_rows_still_give_a_predictor() -> None:
    table = rows(40)
    predictor, _ = train_predictor(table, SETTINGS, **ABOUT)
    got = predictor.predict(
        ModelKernels("one", ("r",), (relu(64, 28),), ((0,),), (reorder(64, 28),) * 2, (4, 4), (-1, 0), (1,))
    )
    assert got.kernels[0].latency_us == pytest.approx(law(relu(64, 28), ""), rel=0.15)


def test_loading_gives_the_same_predictions(trained: tuple[DevicePredictor, pd.DataFrame], folder: Path) -> None:
    loaded = DevicePredictor.load(folder)
    assert loaded.predict(model()) == trained[0].predict(model())
    assert loaded.card == trained[0].card


def test_a_stale_pack_is_noticed_and_rebuilt(copy: Path, caplog: pytest.LogCaptureFixture) -> None:
    card = json.loads((copy / "card.json").read_text())
    name = next(r["file"] for r in card["regressors"] if r["kind"] == "relu")
    text = (copy / name).read_text()
    lines = [
        "leaf_value=" + " ".join("0" for _ in line.split("=")[1].split()) if line.startswith("leaf_value=") else line
        for line in text.split("\n")
    ]
    before = DevicePredictor.load(copy).predict(model()).kernels[2].latency_us
    assert not caplog.records
    (copy / name).write_text("\n".join(lines))
    after = DevicePredictor.load(copy).predict(model()).kernels[2].latency_us
    assert "does not belong" in caplog.text
    assert after != before


@pytest.mark.parametrize("content", [None, b"", b"PK\x03\x04 truncated"])
def test_a_damaged_pack_is_rebuilt(copy: Path, content: bytes | None, caplog: pytest.LogCaptureFixture) -> None:
    expected = DevicePredictor.load(copy).predict(model())
    pack = copy / "packed.npz"
    if content is None:
        pack.unlink()
    else:
        pack.write_bytes(content)
    assert DevicePredictor.load(copy).predict(model()) == expected
    assert "packed.npz" in caplog.text


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("format_version", 2, "format_version"),
        ("device", None, "device"),
        ("features", ["macs"], "other features"),
        ("states", [""], "states"),
        ("call_us", -1, "call_us"),
        ("surprise", 1, "surprise"),
    ],
)
def test_a_card_that_does_not_fit_is_refused(copy: Path, key: str, value: object, said: str) -> None:
    card = json.loads((copy / "card.json").read_text())
    card[key] = value
    (copy / "card.json").write_text(json.dumps(card))
    with pytest.raises(FormatError, match=said):
        DevicePredictor.load(copy)


def test_a_file_name_cannot_lead_out_of_the_folder(copy: Path) -> None:
    card = json.loads((copy / "card.json").read_text())
    card["regressors"][0]["file"] = "../secret.txt"
    (copy / "card.json").write_text(json.dumps(card))
    with pytest.raises(FormatError, match="file"):
        DevicePredictor.load(copy)


def test_missing_and_truncated_files_are_refused(copy: Path) -> None:
    card = json.loads((copy / "card.json").read_text())
    text = copy / card["regressors"][0]["file"]
    text.write_text(text.read_text()[:500])
    with pytest.raises(FormatError, match=text.name):
        DevicePredictor.load(copy)
    text.unlink()
    with pytest.raises(FormatError, match=text.name):
        DevicePredictor.load(copy)
    (copy / "card.json").write_text("{")
    with pytest.raises(FormatError, match="JSON"):
        DevicePredictor.load(copy)


@pytest.mark.parametrize("column", ["subject", "config", "latency_us"])
def test_a_training_table_without_a_column_is_refused(column: str) -> None:
    with pytest.raises(FormatError, match=column):
        train_predictor(rows(20).drop(columns=column), SETTINGS, **ABOUT)


def test_kernel_tables_of_another_format_are_refused(tmp_path: Path) -> None:
    rows(5).to_parquet(tmp_path / "other.parquet")
    (tmp_path / "text.parquet").write_text("no")
    for name in ("other", "text", "missing"):
        with pytest.raises(FormatError, match=name):
            KernelTables.load(tmp_path / f"{name}.parquet")


def test_training_with_tuning_is_deterministic() -> None:
    table = rows(500)
    table = table[table["kind"] == "conv"]
    one, two = (train_predictor(table, TUNED, **ABOUT)[0] for _ in range(2))
    assert one.card == two.card
    assert one.texts == two.texts


def test_forest_and_swapped_kinds(trained: tuple[DevicePredictor, pd.DataFrame]) -> None:
    predictor = trained[0]
    forest = train_forest_predictor(rows(), SETTINGS, predictor)
    told = [k.implementation for k in forest.predict(model()).kernels]
    assert told == [k.implementation for k in predictor.predict(model()).kernels]
    assert forest.predict(model()).latency_ms == pytest.approx(predictor.predict(model()).latency_ms, rel=0.5)
    swapped = predictor.with_kinds_of(forest, ["conv"]).predict(model())
    for got, own, other in zip(
        swapped.kernels, predictor.predict(model()).kernels, forest.predict(model()).kernels, strict=True
    ):
        assert got.latency_us == (other if got.kind == "conv" else own).latency_us


@pytest.mark.parametrize("count", [1, 2, 3])
def test_a_forest_of_very_few_rows_predicts_their_mean(count: int) -> None:
    labels = read_labels(rows(count))
    matrix = np.column_stack([labels.matrix, np.zeros(count), np.full(count, -1.0)])
    np.testing.assert_allclose(fit_forest(labels, matrix, 1).predict(matrix), labels.latency.mean())


def test_intervals_cover_what_they_say() -> None:
    rng = np.random.default_rng(1)

    def draw(count: int) -> tuple[np.ndarray, np.ndarray]:
        effective = rng.uniform(2, 40, count)
        return rng.normal(0, np.sqrt(0.02**2 + 0.1**2 / effective)), effective

    interval = calibrate(*draw(2000), 0.9)
    residual, effective = draw(20_000)
    half = interval.quantile * np.sqrt(interval.common**2 + interval.single**2 / effective)
    for part in (effective < 10, effective > 25):
        assert 0.87 < (np.abs(residual) <= half)[part].mean() < 0.93


def test_sums_and_folds_go_by_subject() -> None:
    group = np.array([0, 0, 2, 2, 2])
    residual, effective = sums_by_subject(group, np.array([1.0, 3, 2, 2, 9]), np.array([2.0, 2, 1, 1, np.nan]))
    np.testing.assert_allclose(residual, np.log([1.0, 2.0]))
    np.testing.assert_allclose(effective, [2, 2])
    many = np.repeat(np.arange(30), 4)
    folds = group_folds(many, 5, 0)
    assert set(folds) == set(range(5))
    assert all(len(set(folds[many == g])) == 1 for g in range(30))


def test_frozen_carriers_calibrate_where_they_are_enough() -> None:
    table = rows(700)
    table["sampler"] = ["adaptive"] * 300 + ["frozen"] * 400
    labels = read_labels(table)
    frozen = labels.frame.iloc[300:].assign(predicted_us=labels.latency[300:] * 2)
    out_of_fold = np.where(np.arange(700) < 300, labels.latency * 4, np.nan)
    residual, effective = held_out_sums(labels, frozen, np.arange(300), out_of_fold)
    np.testing.assert_allclose(residual, np.log([0.5] * 40))
    assert ((effective >= 1) & (effective <= 10)).all()
    few, _ = held_out_sums(labels, frozen.iloc[:200], np.arange(300), out_of_fold)
    np.testing.assert_allclose(few, np.log([0.25] * 30))
