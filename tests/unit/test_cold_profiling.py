"""Profiles are measured once, complete, and good to plan from; what is damaged is refused or measured again."""

from __future__ import annotations

import math
import os
from dataclasses import replace
from pathlib import Path

import lightgbm
import numpy as np
import onnx
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from onnx import TensorProto, helper
from typer.testing import CliRunner

from edgeplan.cli import app
from edgeplan.cold.profiling import profiler
from edgeplan.cold.profiling.once import kernel_of, once_ms, work_of
from edgeplan.cold.profiling.predicted import predicted_profiles
from edgeplan.cold.profiling.profiler import profile_model
from edgeplan.cold.profiling.profiles import Charge, candidates_of, shares
from edgeplan.cold.profiling.reprofile import Reprofiler
from edgeplan.cold.profiling.settings import Cores, ProfileSettings
from edgeplan.cold.profiling.store import Constants, ProfileStore, Row, identity, read_rows
from edgeplan.cold.profiling.target import model_sha256, target_of
from edgeplan.devices.engines.base import random_inputs
from edgeplan.errors import EdgeplanError, FormatError, ModelError, NoiseError, StoreError
from edgeplan.graph.builder import GraphBuilder
from edgeplan.graph.ir import Graph
from edgeplan.graph.onnx_export import save_onnx, to_onnx
from edgeplan.planning.cold_start.plan import check_fits, read_plan
from edgeplan.planning.cold_start.planner import Options, plan
from edgeplan.planning.cold_start.profile import Profile, check
from edgeplan.predictors.card import Card, Interval, Regressor
from edgeplan.predictors.features import FEATURES, WORK_TERMS
from edgeplan.predictors.latency import EXTRA_FEATURES
from edgeplan.predictors.predictor import DevicePredictor
from edgeplan.runtime.dnnl import Dnnl
from edgeplan.runtime.layouts import HOMES
from edgeplan.runtime.lowering import lower
from edgeplan.runtime.steps import Step
from edgeplan.runtime.weights import locate_weights

QUICK = ProfileSettings(blocks=2, warm_runs=1, reference_runs=1, retries=0, max_noisy_share=1.0)


def tiny() -> Graph:
    """Two equal convolutions, a pool and a classifier."""
    b = GraphBuilder("tiny", (1, 16, 12, 12))
    x = b.relu(b.bn(b.conv(b.input, 16, 3, name="c0"), name="b0"), name="r0")
    x = b.relu(b.conv(x, 16, 3, name="c1"), name="r1")
    x = b.relu(b.conv(x, 16, 3, name="c2"), name="r2")
    return b.build(b.fc(b.flatten(b.gap(x, name="g"), name="f"), 10, name="fc"))


def cores() -> Cores:
    return Cores(tuple(sorted(os.sched_getaffinity(0)))[:2])


@pytest.fixture(scope="module")
def measured(dnnl: Dnnl, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, tuple[Profile, ...], Path]:
    """The tiny model, its profiles, and the folder of their rows."""
    folder = tmp_path_factory.mktemp("profiles")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(folder / "state"))
        model = save_onnx(tiny(), folder / "tiny.onnx")
        rows = folder / "rows" / "dev" / "cold"
        store = ProfileStore(rows, identity(dnnl.info, QUICK, cores()))
        profiles = profile_model(dnnl, model, tiny(), QUICK, cores=cores(), name="tiny", store=store)
        assert store.measured > 0
    return model, profiles, rows


@pytest.fixture(autouse=True)
def _state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


def test_profiles_are_complete(measured: tuple[Path, tuple[Profile, ...], Path]) -> None:
    _, profiles, _ = measured
    steps = lower(tiny()).steps
    assert tuple(p.layout for p in profiles) == HOMES
    for profile in profiles:
        assert check(profile) is profile
        assert [(layer.name, layer.members) for layer in profile.layers] == [(s.name, s.members) for s in steps]
        for layer, step in zip(profile.layers, steps, strict=True):
            sources = {c.source for c in layer.candidates}
            assert sources == ({"raw", "cached_read", "cached_mmap"} if step.weights else {"none"})
            assert any(sum(c.create_ms.values()) > 0 for c in layer.candidates)
            for c in layer.candidates:
                assert set(c.execute_ms) == set(cores().widths)
                assert min(c.execute_ms.values()) >= 0
                if step.weights:
                    assert min(c.read_ms["big"], c.create_ms["big"], *c.execute_ms.values()) > 0
                    assert (c.transform_ms["big"] > 0) == (c.source == "raw")
                    assert c.read_bytes > 0
                    assert (c.cache_bytes > 0) == (c.source != "raw")
        assert all(1 <= f <= 20 for f in (profile.contention.prepare, profile.contention.execute, profile.contention.read))


def test_equal_steps_share_their_rows(measured: tuple[Path, tuple[Profile, ...], Path]) -> None:
    _, profiles, rows = measured
    found = [row for path in rows.glob("*.parquet") for row in read_rows(path)]
    assert len({(row.signature, row.implementation) for row in found}) == len(found)
    for profile in profiles:
        first, second = ({(c.implementation, c.source): c for c in profile.layers[k].candidates} for k in (1, 2))
        assert first.keys() == second.keys()
        assert all(first[key].create_ms == second[key].create_ms for key in first)  # charged evenly


def test_a_second_run_measures_nothing(
    dnnl: Dnnl, measured: tuple[Path, tuple[Profile, ...], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    model, profiles, rows = measured
    monkeypatch.setattr(profiler, "machine_lock", lambda *_: pytest.fail("the machine was asked for"))
    store = ProfileStore(rows, identity(dnnl.info, QUICK, cores()))
    again = profile_model(dnnl, model, tiny(), QUICK, cores=cores(), name="tiny", store=store)
    assert store.measured == 0
    assert again == profiles


def test_other_settings_are_other_rows(dnnl: Dnnl, measured: tuple[Path, tuple[Profile, ...], Path]) -> None:
    _, profiles, rows = measured
    assert profiles
    other = ProfileStore(rows, identity(dnnl.info, QUICK.model_copy(update={"blocks": 3}), cores()))
    assert other.all_rows() == ()
    assert other.constants() is None
    same = QUICK.model_copy(update={"statistic": "min", "max_drift": 0.2})
    assert ProfileStore(rows, identity(dnnl.info, same, cores())).all_rows()


@pytest.mark.parametrize("planner", ["optimal", "nnv12", "warm", "K+C"])
def test_plans_from_a_profile_fit(dnnl: Dnnl, measured: tuple[Path, tuple[Profile, ...], Path], planner: str) -> None:
    model, profiles, _ = measured
    target = target_of(model, dnnl, len(cores().big))
    planned = plan(profiles, planner, target)
    check_fits(planned, target, tuple(s.name for s in lower(tiny()).steps))
    assert planned.makespan_ms >= planned.lower_bound_ms > 0
    with pytest.raises(FormatError, match="isa"):
        check_fits(planned, replace(target, isa="other"), ())


def test_reprofiling_measures_each_candidate_once(dnnl: Dnnl, measured: tuple[Path, tuple[Profile, ...], Path]) -> None:
    model, profiles, rows = measured
    lowered = lower(tiny())
    store = ProfileStore(rows, identity(dnnl.info, QUICK, cores()))
    with Reprofiler(
        dnnl, model, lowered, locate_weights(model, lowered), random_inputs(tiny()), settings=QUICK, cores=cores(), store=store
    ) as again:
        first = tuple(0 for _ in profiles[0].layers)
        calibrated = again(profiles[0], first)
        assert again.measured == len({*_signed(profiles[0])})
        assert again(calibrated, first) is calibrated
        check(calibrated)
        assert calibrated.layers[0].candidates[0] != profiles[0].layers[0].candidates[0]
        assert calibrated.layers[0].candidates[-1] == profiles[0].layers[0].candidates[-1]
        done = plan(profiles, "nnv12", target_of(model, dnnl, len(cores().big)), options=Options(exhaustive=1, reprofile=again))
    assert done.planner == "nnv12"


def _signed(profile: Profile) -> list[str]:
    return ["equal" if layer.name in ("c1", "c2") else layer.name for layer in profile.layers]


@pytest.mark.parametrize("keep", [0, 1, 100])
def test_a_damaged_row_file_is_refused(
    dnnl: Dnnl, measured: tuple[Path, tuple[Profile, ...], Path], tmp_path: Path, keep: int
) -> None:
    _, _, rows = measured
    source = next(rows.glob("*.parquet"))
    (tmp_path / source.name).write_bytes(source.read_bytes()[:keep])
    with pytest.raises(FormatError, match="not a readable file of profile rows"):
        ProfileStore(tmp_path, identity(dnnl.info, QUICK, cores()))


def test_a_foreign_row_file_is_refused(tmp_path: Path) -> None:
    pq.write_table(pa.table({"a": [1]}), tmp_path / "x.parquet")
    with pytest.raises(FormatError, match="format version none"):
        read_rows(tmp_path / "x.parquet")


def test_an_interrupted_run_goes_on(tmp_path: Path) -> None:
    """Rows that reached only the journal, since the workspace went away, are found again."""
    rows = [Row("s1", "jit", 0, 4, 4, 0, {"create:big": (1.0, 2.0), "first:1": (0.5,)}, 1.0)]
    constants = Constants(nominal_compute_us=1.0, nominal_bandwidth_us=2.0, touch_ms_per_page=0.001, page_bytes=4096)
    store = ProfileStore(tmp_path / "one" / "dev" / "cold", {"a": 1})
    store.keep_constants(constants)
    store.add(rows)
    later = ProfileStore(tmp_path / "two" / "dev" / "cold", {"a": 1})
    assert later.rows("s1") == tuple(replace(row, samples_ms={k: list(v) for k, v in row.samples_ms.items()}) for row in rows)
    assert later.constants() == constants
    later.merge()
    assert len(list(later.folder.glob("*.parquet"))) == 1  # type: ignore[union-attr]


def test_first_executions_are_charged_to_their_kernels() -> None:
    kernels = [
        Row("once-conv gemm:jit", "conv gemm:jit", 0, 0, 0, 0, {"once": (20.0,)}, 1.0),
        Row("once-conv jit", "conv jit", 0, 0, 0, 0, {"once": (0.0,)}, 1.0),
    ]
    samples = {"create:big": (1.0,), "first:1": (2.0,), "first:2": (1.5,)}
    cases = (("conv", "gemm:jit@nchw+plain", 20.0), ("conv", "gemm:jit", 20.0), ("fc", "gemm:jit", 0.0), ("conv", "jit", 0.0))
    for kind, name, extra in cases:
        charge = Charge(kind, arena_ms=0.25, once_ms=once_ms(kernels))
        (found,) = candidates_of(Row("s", name, 0, 0, 0, 0, samples, 1.0), QUICK, Cores((0, 1)), charge)
        assert found.execute_ms == {1: 2.25 + extra, 2: 1.75 + extra}


def test_a_product_of_one_row_is_other_work_than_one_of_several() -> None:
    fc = Step("fc", "fc", ("fc",), ("x",), ("y",))
    assert work_of(fc, {"y": (1, 10)}) == work_of(fc, {"y": (1, 1, 10)}) == "fc-row"
    assert work_of(fc, {"y": (26, 10)}) == work_of(fc, {"y": (26, 1, 10)}) == "fc"
    assert work_of(replace(fc, kind="conv"), {"y": (1, 8, 1, 1)}) == "conv"
    kernels = [Row("once-fc gemm:jit", "fc gemm:jit", 0, 0, 0, 0, {"once": (30.0,)}, 1.0)]
    samples = {"create:big": (1.0,), "first:1": (2.0,), "first:2": (1.5,)}
    costs = {}
    for rows in (1, 26):
        charge = Charge(work_of(fc, {"y": (rows, 10)}), once_ms=once_ms(kernels))
        (found,) = candidates_of(Row("s", "gemm:jit", 0, 0, 0, 0, samples, 1.0), QUICK, Cores((0, 1)), charge)
        costs[rows] = found.execute_ms[1]
    assert costs == {1: 2.0, 26: 32.0}


def test_first_touches_are_charged_by_size() -> None:
    stages = ("create:big", "read:big", "transform:big", "cached_read:big", "cached_mmap:big", "first:1", "first:2")
    row = Row("s", "jit", 0, 900, 1000, 0, dict.fromkeys(stages, (1.0,)), 1.0)
    raw, copied, mapped = candidates_of(row, QUICK, Cores((0, 1)), Charge(weights_ms_per_byte=0.001))
    assert (raw.read_ms["big"], raw.transform_ms["big"]) == (1.0, 2.0)
    assert (copied.read_ms["big"], mapped.read_ms["big"]) == (2.0, 1.0)


def test_a_busy_machine_stores_nothing(dnnl: Dnnl, tmp_path: Path) -> None:
    model = save_onnx(tiny(), tmp_path / "tiny.onnx")
    strict = QUICK.model_copy(update={"max_noisy_share": 0.0, "max_drift": 1e-9})  # no two timings are that near
    store = ProfileStore(tmp_path / "rows" / "dev" / "cold", identity(dnnl.info, strict, cores()))
    with pytest.raises(NoiseError, match="rounds stayed disturbed"):
        profile_model(dnnl, model, tiny(), strict, cores=cores(), name="tiny", store=store)
    assert store.all_rows() == ()


def test_a_foreign_identity_is_refused(tmp_path: Path) -> None:
    store = ProfileStore(tmp_path, {"a": 1})
    (tmp_path / f"{store.key}.json").write_text('{"format_version": 1, "constants": {"nominal_compute_us": -1}}')
    with pytest.raises(FormatError, match="nominal_compute_us"):
        store.constants()


def test_shared_creations_are_paid_once() -> None:
    signed = ["a", "b", "a", "a"]
    for charge in ("even", "first"):
        assert math.isclose(sum(s for s, name in zip(shares(signed, charge), signed, strict=True) if name == "a"), 1)
    assert shares(signed, "first") == [1.0, 1.0, 0.0, 0.0]


def test_the_hash_covers_external_data(tmp_path: Path) -> None:
    model = tmp_path / "m.onnx"
    onnx.save(to_onnx(tiny()), model, save_as_external_data=True, location="w.bin", size_threshold=0)
    before = model_sha256(model)
    weights = bytearray((tmp_path / "w.bin").read_bytes())
    weights[100] ^= 1
    (tmp_path / "w.bin").write_bytes(weights)
    assert model_sha256(model) != before
    (tmp_path / "w.bin").unlink()
    with pytest.raises(ModelError, match="cannot read"):
        model_sha256(model)


def test_predictions_need_predictors(dnnl: Dnnl, measured: tuple[Path, tuple[Profile, ...], Path], tmp_path: Path) -> None:
    model, _, rows = measured
    store = ProfileStore(rows, identity(dnnl.info, QUICK, cores()))
    with pytest.raises(FormatError, match="no predictors"):
        predicted_profiles(dnnl, model, tiny(), QUICK, cores=cores(), name="tiny", store=store, predictors=tmp_path)


def _workspace(folder: Path, **fields: object) -> None:
    device = {"format_version": 1, "name": "dev", "engine": "onednn", **fields}
    (folder / "config/devices").mkdir(parents=True)
    (folder / "config/devices/dev.yaml").write_text(yaml.safe_dump(device))


def _cosh(path: Path) -> None:
    shape = [1, 4, 8, 8]
    node = helper.make_node("Cosh", ["x"], ["y"], name="odd")
    values = [helper.make_tensor_value_info(n, TensorProto.FLOAT, shape) for n in "xy"]
    onnx.save(helper.make_model(helper.make_graph([node], "g", [values[0]], [values[1]])), path)


def test_the_command_writes_a_plan(dnnl: Dnnl, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    _workspace(tmp_path)
    save_onnx(tiny(), tmp_path / "tiny.onnx")
    arguments = ["plan", "cold-start", "tiny.onnx", "-d", "dev", "-o", "plan", "--layouts", "nhwc", "--accept-noise"]
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0, done.output
    assert "ms predicted" in done.output
    planned = read_plan(tmp_path / "plan" / "plan.json")
    check_fits(planned, target_of(tmp_path / "tiny.onnx", dnnl, planned.threads), tuple(s.name for s in lower(tiny()).steps))
    assert planned.layout == "nhwc"
    assert list((tmp_path / "data/rows/dev/cold").glob("*.parquet"))


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [("odd.onnx", None, "Cosh"), ("bad.onnx", b"no model at all" * 9, "not a readable"), ("none.onnx", b"", "no model file")],
)
def test_the_command_refuses_models(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, content: bytes | None, message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    _workspace(tmp_path)
    if content is None:
        _cosh(tmp_path / name)
    elif content:
        (tmp_path / name).write_bytes(content)
    done = CliRunner().invoke(app, ["plan", "cold-start", name, "-d", "dev", "-o", "plan"])
    assert isinstance(done.exception, ModelError)
    assert message in str(done.exception)
    assert not (tmp_path / "plan").exists()
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [(["--planner", "best"], "no planner"), (["--layouts", "nwch"], "no layout"), (["--costs", "predicted"], "no predictors")],
)
def test_the_command_refuses_options(
    dnnl: Dnnl, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], message: str
) -> None:
    assert dnnl
    monkeypatch.chdir(tmp_path)
    _workspace(tmp_path)
    save_onnx(tiny(), tmp_path / "tiny.onnx")
    done = CliRunner().invoke(app, ["plan", "cold-start", "tiny.onnx", "-d", "dev", "-o", "plan", *arguments])
    assert isinstance(done.exception, EdgeplanError)
    assert message in str(done.exception)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"big_cores": [0, 0]}, "named twice"),
        ({"little_cores": [1]}, "needed beside little_cores"),
        ({"little_ratio": 3.0}, "only with little_cores"),
        ({"big_cores": [0], "little_cores": [4096]}, "core 4096 does not exist"),
    ],
)
def test_core_sets_are_checked(
    dnnl: Dnnl, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fields: dict[str, object], message: str
) -> None:
    assert dnnl
    monkeypatch.chdir(tmp_path)
    _workspace(tmp_path, **fields)
    save_onnx(tiny(), tmp_path / "tiny.onnx")
    done = CliRunner().invoke(app, ["plan", "cold-start", "tiny.onnx", "-d", "dev", "-o", "plan"])
    assert isinstance(done.exception, EdgeplanError)
    assert message in str(done.exception)


def _predictors(folder: Path) -> Path:
    """Predictors that say 100 us for every convolution, 10 us for every conversion and 20 us for everything else."""
    width = len(FEATURES) + len(EXTRA_FEATURES)
    flat = lightgbm.Dataset(np.random.default_rng(0).random((60, width)), np.zeros(60))
    text = lightgbm.train({"verbosity": -1, "num_threads": 1, "min_data_in_leaf": 2}, flat, 1).model_to_string()
    us = {"conv": 100.0, "reorder": 10.0, "fc": 20.0, "gap": 20.0}
    blank = (0.0,) * (len(WORK_TERMS) - 1)
    regressors = tuple(Regressor(kind=kind, file=f"{kind}.txt", work=(time, *blank), rows=60) for kind, time in us.items())
    card = Card(
        device="dev", engine="onednn", engine_version="1", measured_at="2026-01-01", rows=60, features=FEATURES,
        work_terms=WORK_TERMS, call_us=5.0, plain_layouts={}, states=("", "mixed", "nchw"), implementations=("",),
        regressors=regressors, interval=Interval(nominal=0.9, common=0.0, single=0.0, quantile=1.0, subjects=0),
    )  # fmt: skip
    DevicePredictor(card, {f"{kind}.txt": text for kind in us}).save(folder)
    return folder


def test_preparation_is_not_learnt_from_the_model_itself(
    dnnl: Dnnl, measured: tuple[Path, tuple[Profile, ...], Path], tmp_path: Path
) -> None:
    model, _, rows = measured
    store = ProfileStore(rows, identity(dnnl.info, QUICK, cores()))
    folder = _predictors(tmp_path / "predictors")
    with pytest.raises(StoreError, match="only 0 candidates of other models"):
        predicted_profiles(dnnl, model, tiny(), QUICK, cores=cores(), name="tiny", store=store, predictors=folder)


def test_predicted_profiles(dnnl: Dnnl, measured: tuple[Path, tuple[Profile, ...], Path], tmp_path: Path) -> None:
    """Preparation learnt from the tiny model; execution as the predictors say, conversions included."""
    _, _, rows = measured
    store = ProfileStore(rows, identity(dnnl.info, QUICK, cores()))
    b = GraphBuilder("other", (1, 32, 14, 14))
    x = b.relu(b.conv(b.conv(b.input, 48, 3, name="c0"), 32, 3, name="c1"), name="r1")
    graph = b.build(b.fc(b.flatten(b.gap(x, name="g"), name="f"), 7, name="fc"))
    model = save_onnx(graph, tmp_path / "other.onnx")
    folder = _predictors(tmp_path / "predictors")
    found = predicted_profiles(dnnl, model, graph, QUICK, cores=cores(), name="other", store=store, predictors=folder)
    assert store.measured == 0
    assert tuple(p.layout for p in found) == HOMES
    for profile in found:
        for c in profile.layers[1].candidates:
            plain = "@" not in c.implementation
            touched = c.execute_ms[1] - 0.1 - (0 if plain else 0.01)
            assert touched >= -1e-9, c
            assert c.create_ms["big"] > 0
            assert c.read_bytes > 0
    once = once_ms(store.all_rows())  # charged to any step, since any may be the first
    times = {
        c.implementation: c.execute_ms[1] - once[kernel_of("conv", c.implementation)] for c in found[0].layers[1].candidates
    }
    assert max(t for name, t in times.items() if "@" not in name) < min(t for name, t in times.items() if "@" in name)
    target = target_of(model, dnnl, len(cores().big))
    planned = plan(found, "optimal", target, costs="predicted")
    assert planned.costs == "predicted"
    check_fits(planned, target, tuple(layer.name for layer in found[0].layers))
