"""Planning on a busy machine: it ends with a plan that states its noise, unless noise is refused, and keeps to its budget."""

from __future__ import annotations

import json
import math
import time
from pathlib import Path

import pytest
from tiny_profiled import QUICK, cores, own_state, tiny  # noqa: F401  a fixture

from edgeplan.chapters.cold_start import api
from edgeplan.chapters.cold_start.planners.registry import plan
from edgeplan.cli.cold_start import noise_line
from edgeplan.graph.onnx.write import save_onnx
from edgeplan.measurement.others import Preemption
from edgeplan.measurement.settings import TimeBudget
from edgeplan.planning.document import plan_of, plan_text
from edgeplan.planning.profile import Contention, Fresh, Profile
from edgeplan.profiling import disk, profiler, rounds
from edgeplan.profiling.fresh_process_factors import drawn
from edgeplan.profiling.profiler import profile_model
from edgeplan.profiling.rounds import Sample, undisturbed
from edgeplan.profiling.settings import FAST, ProfileSettings
from edgeplan.profiling.store import ProfileStore, alternatives, identity
from edgeplan.profiling.subjects import target_of
from edgeplan.runtime.dnnl import Dnnl
from edgeplan.runtime.layouts import LIKELY
from edgeplan.runtime.lowering import lower

_SHORT = FAST.model_copy(update={"budget_seconds": 0.01})


def test_disturbed_samples_count_only_where_there_are_no_others() -> None:
    assert undisturbed([Sample(9.0, disturbed=True), Sample(2.0), Sample(3.0)]) == (2.0, 3.0)
    assert undisturbed([Sample(9.0, disturbed=True), Sample(8.0, disturbed=True)]) == (8.0,)


def test_budgets_end_and_are_shared() -> None:
    assert not TimeBudget().over
    assert TimeBudget().part(0.5).left_s == math.inf
    assert not TimeBudget.of(0).bounded
    whole = TimeBudget.of(100.0)
    assert 49 < whole.part(0.5).left_s <= 50
    assert TimeBudget(time.monotonic() - 1).over
    assert TimeBudget(time.monotonic() - 1).part(0.5).over


def test_factors_of_disturbed_starts_are_drawn_to_usual_ones() -> None:
    found, usual = Contention(prepare=9.0, execute=4.0), Contention(prepare=1.0, execute=1.0)
    assert drawn(found, usual, 0.0) == found
    assert drawn(found, usual, 1.0) == usual
    half = drawn(found, usual, 0.5)
    assert (half.prepare, half.execute) == pytest.approx((3.0, 2.0))
    assert drawn(Fresh(hand_over_ms=0.4), Fresh(), 0.5).hand_over_ms == pytest.approx(0.2)


def test_preempted_time_is_never_negative() -> None:
    """A thread that ends takes what it waited with it."""
    assert Preemption(1, 2.0, 10.0).since(Preemption(0, 5.0, 10.0)) == Preemption(1, 0.0, 0.0)


@pytest.mark.parametrize("name", ["on_noise", "budget_seconds", "thorough"])
def test_settings_at_their_defaults_leave_keys_as_they_were(name: str) -> None:
    assert name not in ProfileSettings().key_fields()
    assert set(ProfileSettings().key_fields()) == {
        *("blocks", "warm_runs", "reference_runs", "margin", "exchange", "page_cache"),
    }
    assert ProfileSettings(on_noise="refuse").key_fields() != ProfileSettings().key_fields()
    assert ProfileSettings(thorough=False).key_fields() != ProfileSettings().key_fields()
    assert ProfileSettings(budget_seconds=5.0).key_fields() == ProfileSettings().key_fields()


@pytest.fixture(scope="module")
def noisy(dnnl: Dnnl, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, tuple[Profile, ...], ProfileStore, float]:
    """A model profiled where every sample is preempted, with next to no budget: its profiles, rows and the seconds it took."""
    folder = tmp_path_factory.mktemp("noisy")
    counted = iter(range(10**9))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(folder / "state"))
        patch.setattr(rounds, "switches", lambda: next(counted))
        patch.setattr(profiler, "_TRIALS", 1)
        model = save_onnx(tiny(), folder / "tiny.onnx")
        store = ProfileStore(folder / "rows" / "dev" / "cold", identity(dnnl.info, _SHORT, cores()))
        start = time.monotonic()
        profiles = profile_model(dnnl, model, tiny(), _SHORT, cores=cores(), name="tiny", store=store, layouts=LIKELY)
    return model, profiles, store, time.monotonic() - start


def test_noise_ends_with_a_plan_that_states_it(
    dnnl: Dnnl, noisy: tuple[Path, tuple[Profile, ...], ProfileStore, float]
) -> None:
    model, profiles, _, _ = noisy
    assert all(profile.noise == 1.0 for profile in profiles)
    made = plan(profiles, "optimal", target_of(model, dnnl, len(cores().big)))
    assert made.noise == 1.0
    assert noise_line(made.model_copy(update={"others": 0.0})).startswith("100.0 %")
    assert plan_of(plan_text(made), "here") == made
    quiet = made.model_copy(update={"noise": 0.0})
    assert "noise" not in json.loads(plan_text(quiet))
    assert plan_of(plan_text(quiet), "here") == quiet


def test_beyond_the_budget_every_candidate_has_a_look(
    dnnl: Dnnl, noisy: tuple[Path, tuple[Profile, ...], ProfileStore, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, profiles, store, _ = noisy
    assert dnnl
    assert [p.layout for p in profiles] == list(LIKELY)
    steps = lower(tiny()).steps
    assert all(len(profile.layers) == len(steps) for profile in profiles)
    rows = [row for row in store.all_rows() if "first:1" in row.samples_ms]
    assert rows
    # one sample a stage: beyond the budget nothing is come back to
    assert all(len(samples) == 1 for row in rows for samples in row.samples_ms.values())
    assert all("create:big" in row.samples_ms or "first:1" in row.samples_ms for row in rows)
    monkeypatch.setattr(profiler, "machine_lock", lambda *_: pytest.fail("the machine was asked for"))


@pytest.mark.long
def test_disturbed_candidates_are_come_back_to_while_there_is_time(
    dnnl: Dnnl, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first rounds are disturbed, those after them are not: nothing of the noise stays in the steps' rows."""
    settings = QUICK.model_copy(update={"blocks": 2, "retries": 4, "thorough": False})
    original, made = rounds.quiet_round, []

    def first_disturbed(*arguments: object) -> object:
        times, scale, _ = original(*arguments)  # type: ignore[arg-type]
        made.append(None)
        for by_step in times.stages.values():
            for step, samples in by_step.items():
                by_step[step] = [Sample(s.ms, disturbed=len(made) <= _DISTURBED_ROUNDS) for s in samples]
        return times, scale, True

    monkeypatch.setattr(rounds, "quiet_round", first_disturbed)
    model = save_onnx(tiny(), tmp_path / "tiny.onnx")
    store = ProfileStore(tmp_path / "rows" / "dev" / "cold", identity(dnnl.info, settings, cores()))
    profile_model(dnnl, model, tiny(), settings, cores=cores(), name="tiny", store=store, layouts=("nhwc",))
    assert len(made) > _DISTURBED_ROUNDS
    last = f"first:{cores().widths[-1]}"
    kept = [row for row in store.all_rows() if last in row.samples_ms]
    assert kept
    assert all(row.noise == 0 for row in kept)


_DISTURBED_ROUNDS = 2


def test_rows_of_other_settings_are_found(dnnl: Dnnl, noisy: tuple[Path, tuple[Profile, ...], ProfileStore, float]) -> None:
    _, _, store, _ = noisy
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
