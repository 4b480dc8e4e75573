"""Profiles are measured once, complete, and good to plan from; what is damaged is refused or measured again.

On a busy machine they state their noise, unless it is refused, and keep to their budget.
"""

from __future__ import annotations

import json
import math
import time
from dataclasses import astuple, replace
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from executed_nodes import CACHE, samples
from tiny_profiled import QUICK, cores, own_state, tiny  # noqa: F401  a fixture

from edgeplan.chapters.cold_start import api
from edgeplan.chapters.cold_start.planners.registry import plan_start
from edgeplan.cli.cold_start import noise_line
from edgeplan.errors import FormatError, NoiseError, StoreError
from edgeplan.graph.builder import GraphBuilder
from edgeplan.graph.ir import Graph
from edgeplan.graph.kernel_nodes import REORDER, node_config, reorder_config
from edgeplan.graph.onnx.write import save_onnx
from edgeplan.measurement.others import DISTURBED, Preemption
from edgeplan.measurement.settings import TimeBudget
from edgeplan.planning.document import check_fits, plan_of, plan_text
from edgeplan.planning.profile import Contention, Fresh, Profile, check
from edgeplan.predictors.nodes.learner import learn
from edgeplan.predictors.nodes.predictor import NodePredictor, Relation, Trust
from edgeplan.predictors.settings import TrainingSettings
from edgeplan.profiling import disk, profiler, rounds
from edgeplan.profiling.fresh_process_factors import drawn
from edgeplan.profiling.predicted import PreparationCosts, predicted_profiles
from edgeplan.profiling.profiler import profile_model
from edgeplan.profiling.profiles import kernel_of, once_ms
from edgeplan.profiling.rounds import Sample, undisturbed
from edgeplan.profiling.settings import FAST, Cores, ProfileSettings
from edgeplan.profiling.store import Constants, ProfileStore, Row, alternatives, identity, read_profiled
from edgeplan.profiling.subjects import target_of
from edgeplan.runtime.dnnl import Dnnl
from edgeplan.runtime.layouts import HOMES, LIKELY
from edgeplan.runtime.lowering import lower

Measured = tuple[Path, tuple[Profile, ...], Path]
Noisy = tuple[Path, tuple[Profile, ...], ProfileStore]
CONSTANTS = Constants(nominal_compute_us=1.0, nominal_bandwidth_us=2.0, touch_ms_per_page=0.001, page_bytes=4096)


def other(folder: Path) -> tuple[Path, Graph]:
    """A model that shares no step with the tiny one, and its file."""
    b = GraphBuilder("other", (1, 32, 14, 14))
    graph = b.build(b.fc(b.flatten(b.gap(b.conv(b.conv(b.input, 48, 3), 32, 3))), 7))
    return save_onnx(graph, folder / "other.onnx"), graph


@pytest.fixture(scope="module")
def measured(dnnl: Dnnl, tmp_path_factory: pytest.TempPathFactory) -> Measured:
    folder = tmp_path_factory.mktemp("profiles")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(folder / "state"))
        model = save_onnx(tiny(), folder / "tiny.onnx")
        rows = folder / "rows" / "dev" / "cold"
        store = ProfileStore(rows, identity(dnnl.info, QUICK, cores()))
        profiles = profile_model(dnnl, model, tiny(), QUICK, cores=cores(), name="tiny", store=store, layouts=LIKELY)
        assert store.measured > 0
    return model, profiles, rows


def test_profiles_are_complete(measured: Measured) -> None:
    _, profiles, rows = measured
    found = [row for path in rows.glob("*.parquet") for row in read_profiled(path)]
    assert len({(row.signature, row.implementation) for row in found}) == len(found)
    steps = lower(tiny()).steps
    assert tuple(p.layout for p in profiles) == LIKELY
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
        assert all(1 <= f <= 20 for f in astuple(profile.contention))
        # equal steps share their rows, and are charged evenly
        first, second = ({(c.implementation, c.source): c for c in profile.layers[k].candidates} for k in (1, 2))
        assert first.keys() == second.keys()
        assert all(first[key].create_ms == second[key].create_ms for key in first)


def test_a_second_run_measures_nothing(dnnl: Dnnl, measured: Measured, monkeypatch: pytest.MonkeyPatch) -> None:
    model, profiles, rows = measured
    monkeypatch.setattr(profiler, "machine_lock", lambda *_: pytest.fail("the machine was asked for"))
    store = ProfileStore(rows, identity(dnnl.info, QUICK, cores()))
    again = profile_model(dnnl, model, tiny(), QUICK, cores=cores(), name="tiny", store=store, layouts=LIKELY)
    assert store.measured == 0
    assert again == profiles


@pytest.mark.parametrize("planner", ["optimal", "nnv12", "warm", "K+C"])
def test_plans_from_a_profile_fit(dnnl: Dnnl, measured: Measured, planner: str) -> None:
    model, profiles, _ = measured
    target = target_of(model, dnnl, len(cores().big))
    planned = plan_start(profiles, planner, target)
    check_fits(planned, target, tuple(s.name for s in lower(tiny()).steps))
    assert planned.makespan_ms >= planned.lower_bound_ms > 0
    with pytest.raises(FormatError, match="isa"):
        check_fits(planned, replace(target, isa="other"), ())


def test_damaged_and_foreign_files_are_refused(dnnl: Dnnl, measured: Measured, tmp_path: Path) -> None:
    source = next(measured[2].glob("*.parquet"))
    for keep in (0, 1, 100):
        (tmp_path / source.name).write_bytes(source.read_bytes()[:keep])
        with pytest.raises(FormatError, match="not a readable file of profile rows"):
            ProfileStore(tmp_path, identity(dnnl.info, QUICK, cores()))
    pq.write_table(pa.table({"a": [1]}), tmp_path / "x.parquet")
    with pytest.raises(FormatError, match="format version none"):
        read_profiled(tmp_path / "x.parquet")
    store = ProfileStore(tmp_path / "of", {"a": 1})
    (tmp_path / "of").mkdir()
    (tmp_path / f"of/{store.key}.json").write_text('{"format_version": 1, "constants": {"nominal_compute_us": -1}}')
    with pytest.raises(FormatError, match="nominal_compute_us"):
        store.constants()


def test_an_interrupted_run_goes_on(tmp_path: Path) -> None:
    rows = [Row("s1", "jit", 0, 4, 4, 0, {"create:big": (1.0, 2.0), "first:1": (0.5,)}, 1.0)]
    store = ProfileStore(tmp_path / "one" / "dev" / "cold", {"a": 1})
    store.keep_constants(CONSTANTS)
    store.add(rows)
    later = ProfileStore(tmp_path / "two" / "dev" / "cold", {"a": 1})
    assert later.rows("s1") == tuple(replace(row, samples_ms={k: list(v) for k, v in row.samples_ms.items()}) for row in rows)
    assert later.constants() == CONSTANTS
    later.merge()
    assert len(list(later.folder.glob("*.parquet"))) == 1  # type: ignore[union-attr]


def test_rows_of_another_folder_are_read_but_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    shared, own = tmp_path / "rows/dev/cold_start/profiles", tmp_path / "rows/dev/cold"
    first, second = (Row(name, "jit", 0, 4, 4, 0, {"create:big": (1.0,)}, 1.0) for name in ("s1", "s2"))
    pipeline = ProfileStore(shared, {"a": 1})
    pipeline.keep_constants(CONSTANTS)
    pipeline.add([first])
    before = sorted(shared.iterdir())
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "elsewhere"))
    store = ProfileStore(own, {"a": 1}, shared)
    assert (store.has("s1"), store.constants()) == (True, CONSTANTS)
    store.add([second])
    store.merge()
    assert sorted(shared.iterdir()) == before
    alone = ProfileStore(own, {"a": 1})
    assert ([row.signature for row in alone.all_rows()], alone.constants()) == (["s2"], CONSTANTS)
    assert [row.signature for row in ProfileStore(own, {"a": 1}, shared).all_rows()] == ["s1", "s2"]
    alone.keep_constants(CONSTANTS.model_copy(update={"nominal_compute_us": 3.0}))
    assert [row.signature for row in ProfileStore(own, {"a": 1}, shared).all_rows()] == ["s2"], "of another nominal speed"
    assert (ProfileStore(own, {"a": 2}, shared).all_rows(), ProfileStore(own, {"a": 2}).constants()) == ((), None)


def test_a_busy_machine_stores_nothing(dnnl: Dnnl, tmp_path: Path) -> None:
    model = save_onnx(tiny(), tmp_path / "tiny.onnx")
    no_two_timings = {"on_noise": "refuse", "max_noisy_share": 0.0, "max_drift": 1e-9}
    strict = QUICK.model_copy(update=no_two_timings)
    store = ProfileStore(tmp_path / "rows" / "dev" / "cold", identity(dnnl.info, strict, cores()))
    with pytest.raises(NoiseError, match="rounds stayed disturbed"):
        profile_model(dnnl, model, tiny(), strict, cores=cores(), name="tiny", store=store, layouts=("nhwc",))
    assert store.all_rows() == ()


@cache
def _predictor(implementation: str = "") -> NodePredictor:
    """Predictors that say 100 us for every convolution, 10 us for every conversion and 20 us for everything else."""
    us, configs = {"Conv": 100.0, REORDER: 10.0}, []
    for channels in range(8, 72, 4):
        b = GraphBuilder("sizes", (1, channels, 14, 14))
        graph = b.build(b.fc(b.flatten(b.gap(b.conv(b.input, 2 * channels, 3))), 7))
        configs += [node_config(graph, [op.name], "nhwc", "nhwc", implementation) for op in graph.operators]
        configs.append(reorder_config(graph.tensors[graph.inputs[0]], "nchw", "nhwc"))
    kernels = learn(samples(configs, lambda config: us.get(config.op, 20.0)), CACHE, TrainingSettings(trials=0))
    return NodePredictor(kernels, Relation(call_us=0.0), Trust())


def predicted_of(
    dnnl: Dnnl, model: tuple[Path, Graph], store: ProfileStore, implementation: str = "", **given: Any
) -> tuple[tuple[Profile, ...], PreparationCosts]:
    predictor = _predictor(implementation)
    return predicted_profiles(dnnl, *model, cores=cores(), name="other", store=store, predictor=predictor, **given)


def test_shipped_costs_of_preparation_stand_in_where_nothing_was_profiled_undisturbed(
    dnnl: Dnnl, measured: Measured, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Row, "others", 0.0)
    _, _, rows = measured
    what = identity(dnnl.info, QUICK, cores())
    model, graph = other(tmp_path)
    store, empty = ProfileStore(rows, what), ProfileStore(None, what)
    learnt = PreparationCosts.of_store(store, frozenset(), cores())
    learnt.write(tmp_path / "dev/preparation.json")
    shipped = PreparationCosts.shipped("dev", tmp_path)
    assert shipped == learnt

    def predicted(rows: ProfileStore, shipped: PreparationCosts | None) -> tuple[Profile, ...]:
        return predicted_of(dnnl, (model, graph), rows, shipped=shipped)[0]

    assert predicted(empty, shipped) == predicted(store, None)
    foreign = learnt.model_copy(update={"constants": learnt.constants.model_copy(update={"touch_ms_per_page": 1e3})})
    assert predicted(store, foreign) == predicted(store, None)  # what was profiled here goes first
    with pytest.raises(StoreError, match="only 0 candidates"):
        predicted(empty, None)
    monkeypatch.setattr(Row, "others", 2 * DISTURBED)  # two cores may take longer than one beside other work
    assert predicted(store, foreign) == predicted(empty, foreign)
    assert predicted(store, None) == predicted(empty, shipped)


def test_an_implementation_that_no_predictor_knows_is_predicted_as_the_one_most_like_it(
    dnnl: Dnnl, measured: Measured, tmp_path: Path
) -> None:
    """Kinds that one implementation was seen of serve any other, named after instructions of another processor."""
    _, _, rows = measured
    store = ProfileStore(rows, identity(dnnl.info, QUICK, cores()))
    one, unheard = (predicted_of(dnnl, other(tmp_path), store, name)[0] for name in ("", "jit:unheard_of"))
    for here, there in zip(one, unheard, strict=True):
        for layer, same in zip(here.layers, there.layers, strict=True):
            for c, d in zip(layer.candidates, same.candidates, strict=True):
                assert d.execute_ms[1] == pytest.approx(c.execute_ms[1], rel=0.02, abs=1e-6)


def test_shipped_costs_refuse_a_class_of_cores_that_they_do_not_know() -> None:
    shipped = PreparationCosts.shipped("cpu-onednn")
    assert shipped is not None
    shipped.require_classes(Cores((0,)))
    with pytest.raises(StoreError, match="nothing was profiled on little cores"):
        shipped.require_classes(Cores((0,), (1,)))


def test_predicted_profiles(dnnl: Dnnl, measured: Measured, tmp_path: Path) -> None:
    """Preparation learnt from the tiny model, for others alone; execution as the predictors say, conversions included."""
    own, _, rows = measured
    store = ProfileStore(rows, identity(dnnl.info, QUICK, cores()))
    with pytest.raises(StoreError, match="only 0 candidates of other models"):
        predicted_of(dnnl, (own, tiny()), store)
    model, graph = other(tmp_path)
    found, costs = predicted_of(dnnl, (model, graph), store)
    assert costs.about() == ""  # of this machine
    assert store.measured == 0
    assert tuple(p.layout for p in found) == HOMES
    for profile in found:
        for c in profile.layers[1].candidates:
            plain = "@" not in c.implementation
            touched = c.execute_ms[1] - 0.1 - (0 if plain else 0.01)
            assert touched >= -0.002, c
            assert c.create_ms["big"] > 0
            assert c.read_bytes > 0
    once = once_ms(store.all_rows())  # charged to any step, since any may be the first
    times = {
        c.implementation: c.execute_ms[1] - once[kernel_of("conv", c.implementation)] for c in found[0].layers[1].candidates
    }
    assert max(t for name, t in times.items() if "@" not in name) < min(t for name, t in times.items() if "@" in name)
    target = target_of(model, dnnl, len(cores().big))
    planned = plan_start(found, "optimal", target, costs="predicted")
    assert planned.costs == "predicted"
    check_fits(planned, target, tuple(layer.name for layer in found[0].layers))


_SHORT = FAST.model_copy(update={"budget_seconds": 0.01})


def test_factors_of_disturbed_starts_are_drawn_to_usual_ones() -> None:
    found, usual = Contention(prepare=9.0, execute=4.0), Contention(prepare=1.0, execute=1.0)
    assert drawn(found, usual, 0.0) == found
    assert drawn(found, usual, 1.0) == usual
    half = drawn(found, usual, 0.5)
    assert (half.prepare, half.execute) == pytest.approx((3.0, 2.0))
    assert drawn(Fresh(hand_over_ms=0.4), Fresh(), 0.5).hand_over_ms == pytest.approx(0.2)


def test_what_others_disturb_and_take_counts_for_little() -> None:
    assert undisturbed([Sample(9.0, disturbed=True), Sample(2.0), Sample(3.0)]) == (2.0, 3.0)
    assert undisturbed([Sample(9.0, disturbed=True), Sample(8.0, disturbed=True)]) == (8.0,)
    # a thread that ends takes what it waited with it
    assert Preemption(1, 2.0, 10.0).since(Preemption(0, 5.0, 10.0)) == Preemption(1, 0.0, 0.0)
    assert TimeBudget().part(0.5).left_s == math.inf
    assert 49 < TimeBudget.of(100.0).part(0.5).left_s <= 50
    assert TimeBudget(time.monotonic() - 1).part(0.5).over


def test_settings_at_their_defaults_leave_keys_as_they_were() -> None:
    plain = ProfileSettings().key_fields()
    assert set(plain) == {"blocks", "warm_runs", "reference_runs", "margin", "exchange", "page_cache"}
    assert ProfileSettings(on_noise="refuse").key_fields() != plain != ProfileSettings(thorough=False).key_fields()
    assert ProfileSettings(budget_seconds=5.0).key_fields() == plain


@pytest.fixture(scope="module")
def noisy(dnnl: Dnnl, tmp_path_factory: pytest.TempPathFactory) -> Noisy:
    """A model profiled where every sample is preempted, with next to no budget: its profiles and rows."""
    folder = tmp_path_factory.mktemp("noisy")
    counted = iter(range(10**9))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(folder / "state"))
        patch.setattr(rounds, "switches", lambda: next(counted))
        patch.setattr(profiler, "_TRIALS", 1)
        model = save_onnx(tiny(), folder / "tiny.onnx")
        store = ProfileStore(folder / "rows" / "dev" / "cold", identity(dnnl.info, _SHORT, cores()))
        profiles = profile_model(dnnl, model, tiny(), _SHORT, cores=cores(), name="tiny", store=store, layouts=LIKELY)
    return model, profiles, store


def test_noise_ends_with_a_plan_that_states_it(dnnl: Dnnl, noisy: Noisy) -> None:
    model, profiles, store = noisy
    assert [(p.layout, len(p.layers), p.noise) for p in profiles] == [(of, len(lower(tiny()).steps), 1.0) for of in LIKELY]
    rows = [row for row in store.all_rows() if "first:1" in row.samples_ms]
    assert rows
    # one sample a stage: beyond the budget every candidate has a look, and nothing is come back to
    assert all(len(samples) == 1 for row in rows for samples in row.samples_ms.values())
    made = plan_start(profiles, "optimal", target_of(model, dnnl, len(cores().big)))
    assert made.noise == 1.0
    assert noise_line(made.model_copy(update={"others": 0.0})).startswith("100.0 %")
    assert plan_of(plan_text(made), "here") == made
    quiet = made.model_copy(update={"noise": 0.0})
    assert "noise" not in json.loads(plan_text(quiet))
    assert plan_of(plan_text(quiet), "here") == quiet


@pytest.mark.long
def test_disturbed_candidates_are_come_back_to_while_there_is_time(
    dnnl: Dnnl, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first rounds are disturbed, those after them are not: nothing of the noise stays in the steps' rows."""
    settings = QUICK.model_copy(update={"blocks": 2, "retries": 4, "thorough": False})
    original, made, disturbed = rounds.quiet_round, [], 2

    def first_disturbed(*arguments: object) -> object:
        times, scale, _ = original(*arguments)  # type: ignore[arg-type]
        made.append(None)
        for by_step in times.stages.values():
            for step, times_ms in by_step.items():
                by_step[step] = [Sample(s.ms, disturbed=len(made) <= disturbed) for s in times_ms]
        return times, scale, True

    monkeypatch.setattr(rounds, "quiet_round", first_disturbed)
    model = save_onnx(tiny(), tmp_path / "tiny.onnx")
    store = ProfileStore(tmp_path / "rows" / "dev" / "cold", identity(dnnl.info, settings, cores()))
    profile_model(dnnl, model, tiny(), settings, cores=cores(), name="tiny", store=store, layouts=("nhwc",))
    assert len(made) > disturbed
    last = f"first:{cores().widths[-1]}"
    kept = [row for row in store.all_rows() if last in row.samples_ms]
    assert kept
    assert all(row.noise == 0 for row in kept)


def test_rows_of_other_settings_are_found(dnnl: Dnnl, noisy: Noisy) -> None:
    _, _, store = noisy
    assert store.folder is not None
    other = identity(dnnl.info, ProfileSettings(), cores())
    assert [what["settings"] for what in alternatives([store.folder], other)] == [_SHORT.key_fields()]
    assert alternatives([store.folder], {**other, "isa": "another"}) == ()


def test_predicted_costs_ask_for_no_machine(dnnl: Dnnl, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor for a quiet moment, where a disk is looked at."""
    assert dnnl
    model = save_onnx(tiny(), tmp_path / "tiny.onnx")
    for module in (profiler, disk):
        monkeypatch.setattr(module, "machine_lock", lambda *_: pytest.fail("the machine was asked for"))
    found = api._disk(model, predicted=True)
    assert found.mb_per_s > 0
    with pytest.raises(pytest.fail.Exception, match="asked for"):
        api._disk(model, predicted=False)
