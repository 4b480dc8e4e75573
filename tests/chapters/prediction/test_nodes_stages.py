"""Stages over executed nodes: what is asked of engines, what is measured, what is learnt of it, and how that is judged."""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import pandas as pd
import pytest
from executed_nodes import Law, law, product, relu, transpose
from quick_bench import SETTINGS, measuring_alone, node_subjects  # noqa: F401  a fixture
from shipped_params import PARAMS_FILE
from trained_nodes import CALL_US, RULES, conv, device_file, trained, whole_us, write_device, write_measurements

from edgeplan.chapters.prediction import whole_models as parts
from edgeplan.chapters.prediction.stages import calibration, nodes, sampling, unseen
from edgeplan.chapters.prediction.stages.evaluation import STORED_ROWS_ONLY, evaluate
from edgeplan.chapters.prediction.stages.sampling import ADAPTIVE, Candidate, Sampler, node_key, sample_kernels
from edgeplan.chapters.prediction.stages.training import train_predictors
from edgeplan.chapters.prediction.whole_models import COLUMNS, executed_models, node_rows
from edgeplan.chapters.registry import load_params
from edgeplan.devices.config import DeviceFile
from edgeplan.errors import DeviceError, FormatError
from edgeplan.graph.nodes import ExecutedModel, ExecutedNode, NodeConfig
from edgeplan.measurement.bench import Bench
from edgeplan.measurement.records import Measurement, NodeSubject
from edgeplan.measurement.references import ReferenceTimes
from edgeplan.predictors.nodes.storing import load_predictor, read_measured
from edgeplan.support.frames import read_parquet, write_parquet
from edgeplan.workloads import exports
from edgeplan.zoo import FAMILIES, prior_models, variants
from edgeplan.zoo.unseen import UNSEEN

PARAMS = load_params(PARAMS_FILE)
_SECTIONS: dict[str, dict[str, Any]] = {
    "sampling": {"exports_per_family": 1, "frozen_variants": 2, "random_kernels": 2, "budget_seconds": 600.0},
    "calibration": {"variants_per_family": 1},
    "truth": {"min_gap_seconds": 0.0},
    "training": {"trials": 0, "seeds": (0,)},
    "evaluation": {"speed_runs": 0, "batch_models": 20},
}
_CHANGED = {name: getattr(PARAMS, name).model_copy(update=values) for name, values in _SECTIONS.items()}
TINY = PARAMS.model_copy(update={"measurement": SETTINGS, **_CHANGED})


@pytest.fixture
def little(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[str, Path]:
    """One family and one published network, few exported models and sweeps; the inputs of stage `nodes`."""
    family = FAMILIES["nasbench201"]
    for module in (nodes, calibration):
        monkeypatch.setattr(module, "FAMILIES", {family.id: family})
    monkeypatch.setattr(nodes, "prior_models", lambda: {"squeezenet1_1": prior_models()["squeezenet1_1"]})
    monkeypatch.setattr(exports, "FAMILIES", {name: exports.FAMILIES[name] for name in ("table", "recurrent")})
    sweeps = list(itertools.islice(nodes.sweep_graphs(), 3))
    monkeypatch.setattr(nodes, "sweep_graphs", lambda: sweeps)
    (spec,) = variants(family, 1, 1)
    row = {"model_id": "a", "family": family.id, "index": 0, "spec": spec.to_json(), "macs": 0, "memory_bytes": 0}
    write_parquet(pd.DataFrame([row]), tmp_path / "models.parquet")
    RULES.write(tmp_path / "rules.json")
    return {"device": device_file(tmp_path), "models": tmp_path / "models.parquet", "rules": tmp_path / "rules.json"}


def told(folder: Path, little: dict[str, Path], name: str = "nodes") -> pd.DataFrame:
    nodes.tell_nodes(TINY, **little, nodes=folder / f"{name}.parquet")
    return read_parquet(folder / f"{name}.parquet", *COLUMNS)


@pytest.mark.long
def test_every_model_is_told_for_its_part_and_the_same_every_time(tmp_path: Path, little: dict[str, Path]) -> None:
    found = told(tmp_path, little)
    models = found.drop_duplicates("model_id").groupby("part")["model_id"].apply(list).to_dict()
    counts = {
        parts.PRIOR: 1, parts.OPERATORS: 2, parts.CALIBRATING: 1, parts.EVALUATED: 1, parts.FROZEN: 2, parts.EXPORTED: 2,
        parts.SWEEP: 3, parts.CONV_CHECK: 36, parts.RANDOM: 2,
    }  # fmt: skip
    assert {part: len(names) for part, names in models.items()} == counts
    assert found["told_by"].unique().tolist() == [f"onnxruntime {trained().engine_version}"]
    fused, apart = (executed_models(found, (part,)) for part in (parts.EVALUATED, parts.OPERATORS))
    assert len(apart["a-operators"].nodes) > len(fused["a"].nodes)
    told(tmp_path, little, "again")
    assert (tmp_path / "nodes.parquet").read_bytes() == (tmp_path / "again.parquet").read_bytes()


def test_without_its_engine_rules_tell_and_files_of_eight_bits_are_left_out(
    tmp_path: Path, little: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(_: DeviceFile) -> None:
        raise DeviceError("not installed", where="here", next_step="install it")

    monkeypatch.setattr(DeviceFile, "load_engine", missing)
    found = told(tmp_path, little)
    assert set(found["told_by"]) == {f"fusion rules of {RULES.provenance.device}", "operators"}
    assert set(found["part"]) >= {parts.PRIOR, parts.EVALUATED, parts.FROZEN}
    assert found.loc[found["part"] == parts.OPERATORS, "told_by"].eq("operators").all()


class Clock:
    """A bench on a machine that is bound by the law, where each measurement takes a tenth of a second and erf is refused."""

    late, cache_bytes = False, 32 << 20

    def __init__(self, of: Law = law) -> None:
        self.asked: list[NodeSubject] = []
        self._law = of

    def has(self, one: NodeSubject) -> bool:
        return one in self.asked and one.config.op != "Erf"

    def measure(self, subjects: Sequence[NodeSubject], **_: str) -> list[Measurement]:
        return [self._measured(one) for one in subjects]

    def measure_in_time(self, subjects: Sequence[NodeSubject], **_: str) -> list[Measurement | None]:
        self.asked += subjects
        return [None if one.config.op == "Erf" else self._measured(one) for one in subjects]

    def _measured(self, one: NodeSubject) -> Measurement:
        us, ones = np.full(3, 2.0 + one.copies * self._law(one.config)), np.ones(3)
        machine = ReferenceTimes(1.0, 1.0), SETTINGS.reference_exponents
        return Measurement(one.id, 0, us, us, ones, ones, np.zeros(3), (), np.zeros((3, 0)), *machine, 0.1)


def pool_of(configs: Sequence[NodeConfig]) -> list[Candidate]:
    return [Candidate(config, 1 << 20, f"m{number % 7}", "f") for number, config in enumerate(configs)]


COMMON = [*(relu(n) for n in range(100, 180)), *(product(1 + n % 9, 8 * n, 64) for n in range(1, 41))]


def told_of(pool: Sequence[Candidate], times: Mapping[str, int]) -> pd.DataFrame:
    """Each node once in its model, or as often as its operator is run."""
    rows = [(one.model, one.family, one.config.to_json(), times.get(one.config.op, 1)) for one in pool]
    return pd.DataFrame(rows, columns=["model_id", "family", "config", "times"])


def test_labels_are_of_one_node_and_refused_ones_are_counted() -> None:
    clock = Clock()
    sampler = Sampler(cast("Bench", clock), 1)
    assert sampler.call == pytest.approx(2.0)
    erf = NodeConfig("Erf", "", (), relu(8).inputs, relu(8).outputs)
    left = sampler.spend(pool_of([relu(64), erf, product(4, 64, 64)]), np.inf, ADAPTIVE)
    assert (left, sampler.refused) == ([], 1)
    assert [row["latency_us"] for row in sampler.rows] == pytest.approx([law(relu(64)), law(product(4, 64, 64))])
    assert sampler.seconds == {ADAPTIVE: pytest.approx(0.2)}
    assert sampler.seconds_of(ADAPTIVE, "product/") + sampler.seconds_of(ADAPTIVE, node_key(relu(1))) == pytest.approx(0.2)


def test_rounds_measure_more_of_what_is_predicted_worst() -> None:
    """Products of this machine take times that nothing explains."""
    drawn = {config.key: float(np.exp(np.random.default_rng(n).normal(0, 1))) for n, config in enumerate(COMMON)}
    clock = Clock(lambda c: law(c) * (drawn[c.key] if c.op == "MatMul" else 1.0))
    settings = TINY.sampling.model_copy(update={"budget_seconds": 6.0, "initial_share": 0.5, "rounds": 2})
    sampler = Sampler(cast("Bench", clock), 1)
    pool = pool_of(COMMON)
    ordered = sampling.by_weight(pool, told_of(pool, {"Relu": 50}), 1)
    sampler.adaptive(ordered, settings)
    first, later = clock.asked[:30], clock.asked[30:]
    assert 55 <= len(clock.asked) <= 65
    assert len({one.id for one in clock.asked}) == len(clock.asked)
    products = [np.mean([one.config.op == "MatMul" for one in of]) for of in (first, later)]
    assert products[1] > products[0]
    assert [one["rows"] for one in sampler.rounds] == [30, pytest.approx(45, abs=2)]
    settings = settings.model_copy(update={"error_threshold": 0.99})
    again = Sampler(cast("Bench", Clock()), 1)
    again.adaptive(ordered, settings)
    assert (len(again.rounds), len(again.rows)) == (1, 30)


def nodes_of(of_part: Mapping[str, Sequence[NodeConfig]]) -> pd.DataFrame:
    """A model a part."""
    rows: list[dict[str, object]] = []
    for part, configs in of_part.items():
        executed = tuple(ExecutedNode(f"n{i}", config) for i, config in enumerate(configs))
        rows += node_rows(ExecutedModel(part, executed, 1 << 20), "f", part)
    return pd.DataFrame(rows, columns=list(COLUMNS))


def test_what_several_samplers_take_counts_alike_where_nothing_may_be_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    erf, convolutions = NodeConfig("Erf", "", (), relu(8).inputs, relu(8).outputs), [conv(8, n) for n in range(1, 31)]
    told = nodes_of({
        parts.PRIOR: [*convolutions, erf, *COMMON], parts.OPERATORS: [erf, *(relu(n) for n in range(10, 30))],
        parts.FROZEN: [relu(15), relu(20)], parts.SWEEP: [*COMMON[::9], relu(29)], parts.CONV_CHECK: convolutions[::2],
        parts.RANDOM: [*convolutions, *(conv(16, n) for n in range(1, 9))],
    })  # fmt: skip
    params = TINY.model_copy(update={"sampling": TINY.sampling.model_copy(update={"budget_seconds": 3.0})})
    clock = Clock()
    measured = sampling.sampled_nodes(cast("Bench", clock), told, params)
    once = len(set(clock.asked))
    monkeypatch.setenv(STORED_ROWS_ONLY, "1")
    stored = sampling.sampled_nodes(cast("Bench", clock), told, params)
    assert len(set(clock.asked)) == once
    assert (stored.rows, stored.seconds) == (measured.rows, measured.seconds)
    adaptive = {str(row["config"]) for row in stored.rows if row["sampler"] == ADAPTIVE}
    assert {config.to_json() for config in [*COMMON[::9], *convolutions[::2]]} <= adaptive
    assert len(adaptive) < len(COMMON)


@pytest.mark.long
def test_the_stage_measures_on_a_real_engine_and_reads_the_same_of_stored_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    of_part = {
        parts.PRIOR: [relu(64), product(2, 32, 16), transpose(8, 9), conv(8, 8), node_subjects(refused=True)[-1].config],
        parts.OPERATORS: [relu(64), relu(96)],
        parts.FROZEN: [product(2, 32, 16), product(3, 32, 16), conv(8, 6)],
        parts.RANDOM: [conv(16, 8)],
        parts.EVALUATED: [relu(100)],
    }
    write_parquet(nodes_of(of_part), tmp_path / "nodes.parquet")
    files = {}
    for name in ("first", "stored"):
        outputs = {"kernels": tmp_path / name / "kernels.parquet", "summary": tmp_path / name / "sampling.json"}
        given = {"device": device_file(tmp_path), "nodes": tmp_path / "nodes.parquet", "rows": tmp_path / "rows/dev/sampling"}
        sample_kernels(TINY, **given, **outputs)
        files[name] = [path.read_bytes() for path in outputs.values()]
        monkeypatch.setenv(STORED_ROWS_ONLY, "1")
        monkeypatch.setattr(Bench, "_measure_missing", lambda *_: pytest.fail("measured"))
    assert files["first"] == files["stored"]
    assert "a node is left out" in caplog.text
    found, about = pd.read_parquet(outputs["kernels"]), json.loads(outputs["summary"].read_text())
    counts = {"adaptive": 4, parts.OPERATORS: 1, "frozen": 2, parts.RANDOM: 1}
    assert found["sampler"].value_counts().to_dict() == counts
    assert min(about["call_us"], found["latency_us"].min()) > 0
    assert set(about["seconds"]) == {*counts, parts.SWEEP, parts.CONV_CHECK}


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What training leaves of a machine that was a quarter slower than its quiet self."""
    found = write_measurements(tmp_path_factory.mktemp("stages"), 1.25)
    files = {
        "device": "dev.yaml", "nodes": "nodes/models.parquet", "kernels": "measurements/kernels.parquet",
        "summary": "measurements/sampling.json", "calibration": "calibration/models.parquet", "predictors": "predictors",
        "quality": "predictors/quality.parquet", "samplers": "predictors/samplers.csv",
        "compared": "predictors/compared.parquet",
    }  # fmt: skip
    train_predictors(TINY, **{name: found / file for name, file in files.items()})
    return found


def test_training_recovers_what_is_known_and_writes_what_it_is_compared_with(results: Path) -> None:
    predictor, known = load_predictor(results / "predictors"), read_measured(results / "predictors")
    assert (predictor.device, predictor.measured_at, predictor.speed) == ("dev", "2026-01-01", 1.25)
    evaluated = executed_models(read_parquet(results / "nodes/models.parquet"), (parts.EVALUATED,))
    for one in evaluated.values():
        assert predictor.predict(one).latency_us == pytest.approx(1.25 * whole_us(one), rel=0.1)
    kernels = pd.read_parquet(results / "predictors/kernels.parquet")
    assert {NodeConfig.from_json(text).key for text in kernels["config"]} == set(known)
    assert all(known[(c := NodeConfig.from_json(t)).key] == pytest.approx(1.25 * law(c), rel=1e-6) for t in kernels["config"])
    quality = pd.read_parquet(results / "predictors/quality.parquet")
    frozen = quality[quality["split"] == "frozen"]
    assert set(quality["kernel"]) == {"conv", "dwconv", "relu", "fc", "transpose"}
    assert (frozen["predicted_us"] / frozen["measured_us"] - 1).abs().median() < 0.1
    assert frozen["forest_us"].notna().all()
    samplers = pd.read_csv(results / "predictors/samplers.csv").set_index("sampler")
    assert list(samplers.index) == [ADAPTIVE, parts.RANDOM]
    assert samplers.loc[parts.RANDOM, ["rows", "seconds"]].tolist() == [20, pytest.approx(1.0)]
    assert samplers.loc[parts.RANDOM, "rmspe_more_low"] <= samplers.loc[parts.RANDOM, "rmspe_more_high"]
    compared = pd.read_parquet(results / "predictors/compared.parquet")
    assert list(compared["model_id"]) == list(evaluated)
    assert compared.notna().all(axis=None)


def test_evaluation_holds_predictions_against_what_models_took_as_they_ran(
    results: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv(STORED_ROWS_ONLY, raising=False)
    outputs = {"metrics": tmp_path / "metrics.json", "chapter": tmp_path / "page.json"}
    evaluate(TINY, device="dev", results=results, zoo=results.parents[1] / "zoo", **outputs)
    figures = json.loads(outputs["metrics"].read_text())
    assert figures["prediction.within_10pct"] == figures["prediction.normalised_within_10pct"] == 1.0
    assert 0 < figures["interval.coverage_90"] <= 1
    assert figures["measuring.kernel_minutes"] == pytest.approx((30 + 15) / 60)
    models = pd.read_parquet(results / "evaluation/models.parquet")
    assert (models["predicted_ms"] / models["measured_ms"] - 1).abs().max() < 0.1
    np.testing.assert_allclose(models["operator_sum_ms"], models["predicted_ms"], rtol=0.1)
    np.testing.assert_allclose(models["left_out_ms"], models["measured_ms"], rtol=0.1)
    kinds = pd.read_parquet(results / "evaluation/breakdown.parquet").groupby("model_id")["predicted_ms"].sum()
    np.testing.assert_allclose(kinds[models["model_id"]] + CALL_US / 1e3, models["plain_sum_ms"], rtol=1e-6)
    sweeps = pd.read_parquet(results / "evaluation/sweeps.parquet")
    assert sweeps[["sweep", "x"]].to_numpy().tolist() == [["kernel_size", 3]]
    assert sweeps["predicted_us"][0] == pytest.approx(sweeps["measured_us"][0], rel=0.1)
    assert sorted(pd.read_csv(results / "evaluation/conv_fusion.csv")["type"]) == ["conv", "conv++bn"]
    assert {"table_08.csv", "table_09.csv", "table_10.csv"} <= {path.name for path in (results / "tables").iterdir()}
    monkeypatch.setenv(STORED_ROWS_ONLY, "1")
    monkeypatch.setattr("edgeplan.reporting.chapter_report.draw", lambda *_: {})  # as before
    before = outputs["metrics"].read_bytes()
    evaluate(TINY, device="dev", results=results, zoo=results.parents[1] / "zoo", **outputs)
    assert outputs["metrics"].read_bytes() == before
    zoo = pd.read_parquet(results.parents[1] / "zoo/models.parquet")
    write_parquet(zoo.iloc[::-1], tmp_path / "zoo/models.parquet")
    with pytest.raises(FormatError, match="not those of the zoo"):
        evaluate(TINY, device="dev", results=results, zoo=tmp_path / "zoo", **outputs)


def test_architectures_outside_the_families_are_measured_and_predicted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    few = {name: UNSEEN[name] for name in ("lenet5", "keyword_cnn")}
    monkeypatch.setattr(unseen, "UNSEEN", few)
    folder = write_device(tmp_path)
    read = {"device": device_file(tmp_path), "rules": folder / "fusion/rules.json", "predictors": folder / "predictors"}
    made = {"rows": tmp_path / "rows", "models": tmp_path / "models.csv", "metrics": tmp_path / "unseen.json"}
    unseen.evaluate_unseen(TINY, **read, **made)
    models = pd.read_csv(tmp_path / "models.csv")
    assert list(models["model"]) == list(few)
    assert (models[["measured_ms", "predicted_ms"]] > 0).all(axis=None)
    assert (models["guessed_share"] > 0.1).equals(models["low_ms"].isna())  # this predictor knows no convolution
    assert json.loads((tmp_path / "unseen.json").read_text())["unseen.models"] == 2


def test_figures_of_intervals_are_of_models_that_have_one() -> None:
    predicted = {"predicted_ms": [1.04, 1.08, 1.3, 9.0], "low_ms": [0.9, 1.05, 0.9, np.nan], "high_ms": [1.1, 1.2, 1.4, np.nan]}
    models = pd.DataFrame({"measured_ms": [1.0] * 4, **predicted})
    known = {"unseen.models": 4, "unseen.within_10pct": 0.5}
    assert unseen.model_figures(models) == pytest.approx({**known, "unseen.interval_coverage_90": 2 / 3})
    assert unseen.model_figures(models.assign(low_ms=np.nan)) == known


def test_nodes_that_a_family_spends_its_time_in_are_measured_early_and_each_key_is() -> None:
    """Cells repeat a few nodes many times; drawn alike, they would be lost among those of models that never repeat one."""
    cells = [product(64, 64, 64 + place) for place in range(3)]
    others = [product(64, 64, 128 + place) for place in range(400)]
    told = pd.DataFrame(
        [(f"cells-{k}", "cells", config.to_json(), 10) for k in range(4) for config in cells]
        + [(f"others-{k}", "others", config.to_json(), 1) for k, config in enumerate(others)]
        + [("others-0", "others", relu(64).to_json(), 1)],
        columns=["model_id", "family", "config", "times"],
    )
    pool = [Candidate(config, 0, "cells-0", "cells") for config in cells]
    pool += [Candidate(config, 0, f"others-{k}", "others") for k, config in enumerate(others)]
    pool.append(Candidate(relu(64), 0, "others-0", "others"))
    found = sampling.by_weight(pool, told, 1)
    assert sorted(one.config.key for one in found) == sorted(one.config.key for one in pool)
    assert {config.key for config in cells} <= {one.config.key for one in found[:20]}
    assert relu(64).key in {one.config.key for one in found[:3]}
    assert [one.config.key for one in sampling.by_weight(pool[::-1], told[::-1], 1)] == [one.config.key for one in found]
    assert sampling.by_weight(pool, told, 2) != found
