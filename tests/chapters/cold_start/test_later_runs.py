"""Kernels for later runs (section 3.5): chosen by warm times, planned and run from the command line."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnxruntime as ort
import pandas as pd
import pytest
from plan_folders import cold_plan, records_in
from tiny_profiled import PLAN_TINY, tiny
from typer.testing import CliRunner

from edgeplan.chapters.cold_start import api
from edgeplan.chapters.cold_start.planners.registry import (
    REPAID_WITHIN,
    fastest_warm,
    outcomes,
    plan_start,
    repaid,
    with_warm_kernels,
)
from edgeplan.cli import app
from edgeplan.engines.base import random_inputs
from edgeplan.errors import FormatError
from edgeplan.measurement.process.job import RunJob
from edgeplan.planning.document import Target, plan_of, plan_text
from edgeplan.planning.profile import Candidate, Layer, Profile, check
from edgeplan.profiling.frame import from_frame, to_frame
from edgeplan.runtime.native_session import open_session

TARGET = Target("net.onnx", "a" * 64, "onednn", "3.2.0", "avx2", "here", 2)


def _candidate(name: str, prepare: float, first: float, warm: float | None, source: str = "raw") -> Candidate:
    times, none = {"big": prepare}, {"big": 0.0}
    known = {} if warm is None else {1: 2 * warm, 2: warm}
    return Candidate(name, source, times, none, none, {1: 2 * first, 2: first}, warm_ms=known)


def _two(warm: bool = True) -> Profile:
    """`lazy` generates code in its first execution, and is the faster one ever after; `eager` is fast at once."""
    eager, lazy = _candidate("eager", 1.0, 3.0, 3.0 if warm else None), _candidate("lazy", 1.0, 20.0, 2.0 if warm else None)
    return Profile("m", "nhwc", 2, 0, 1.0, (Layer("a", (), (eager, lazy)), Layer("b", (), (lazy, eager))))


def test_kernels_for_later_runs_are_chosen_by_their_warm_times() -> None:
    assert fastest_warm(_two()) == (1, 0)
    made = plan_start([_two()], "optimal", TARGET)
    assert {made.step(k).implementation for k in (0, 1)} == {"eager"}
    later = with_warm_kernels(made, [_two()])
    assert later.warm == ("lazy", "lazy")
    assert plan_of(plan_text(later), "here") == later
    assert made.warm == made.later == ()
    assert later.implementations == ("eager", "lazy")
    assert [later.step(k) for k in (0, 1)] == [made.step(k) for k in (0, 1)]  # the cold start stays as it was
    with pytest.raises(FormatError, match="no profile of layout"):
        with_warm_kernels(made, [replace(_two(), layout="nchw")])


def _switched(prepare: float, first: float) -> tuple[str, ...]:
    """The kernels for later runs of two steps, for each of which `lazy` saves a millisecond."""
    made = plan_start([_two()], "optimal", TARGET).model_copy(update={"widen_from": 0})  # on all cores already: not made again
    assert {made.step(k).implementation for k in (0, 1)} == {"eager"}
    eager, lazy = _candidate("eager", 1.0, 3.0, 3.0), _candidate("lazy", prepare, first, 2.0)
    again = Profile("m", "nhwc", 2, 0, 1.0, (Layer("a", (), (eager, lazy)), Layer("b", (), (lazy, eager))))
    assert fastest_warm(again) == (1, 0)
    return with_warm_kernels(made, [again]).warm


@pytest.mark.parametrize(("share", "kernel"), [(0.9, "lazy"), (1.1, "eager")])
def test_other_kernels_for_later_runs_must_repay_their_preparation_and_first_executions(share: float, kernel: str) -> None:
    assert _switched(2 * share * REPAID_WITHIN, 2.0) == (kernel, kernel)  # two cores share it
    # what is generated in a first execution serves both steps: each alone would repay half of it
    assert _switched(0.0, 2.0 + 2 * share * REPAID_WITHIN) == (kernel, kernel)


def test_a_kernel_that_is_made_from_cached_weights_is_not_for_later_runs() -> None:
    """What later runs prepare comes from the model's weights."""
    eager = _candidate("eager", 1.0, 3.0, 3.0)
    cached, raw = _candidate("lazy", 0.1, 20.0, 2.0, "cached_mmap"), _candidate("lazy", 500.0, 20.0, 2.0)
    profile = Profile("m", "nhwc", 2, 0, 1.0, (Layer("a", (), (eager, cached, raw)),))
    made = plan_start([profile], "optimal", TARGET)
    assert made.step(0).implementation == "eager"
    assert repaid(made, profile) == (0,)


def test_the_plan_of_a_stock_engine_takes_what_is_fastest_when_warm_and_pays_its_first_execution() -> None:
    found = outcomes([_two()], "warm")["nhwc"]
    assert [c.implementation for c in found.chosen] == ["lazy", "lazy"]
    assert found.makespan_ms == pytest.approx(2 * (1 + 20))
    assert fastest_warm(_two(warm=False)) == (0, 1), "without warm times the first executions stand for them"
    slow, quick = _candidate("slow", 5.0, 9.0, 2.0), _candidate("quick", 1.0, 9.0, 2.0)  # prepared sooner
    assert fastest_warm(Profile("m", "nhwc", 2, 0, 1.0, (Layer("a", (), (slow, quick)),))) == (1,)


def test_warm_times_survive_a_table_and_may_be_missing(tmp_path: Path) -> None:
    path = tmp_path / "profile.parquet"
    to_frame([_two()]).to_parquet(path, index=False)
    frame = pd.read_parquet(path)
    assert from_frame(frame) == (_two(),)
    assert from_frame(frame.drop(columns=["warm_1_ms", "warm_2_ms"])) == (_two(warm=False),)
    some = frame.assign(warm_2_ms=frame["warm_2_ms"].where(frame["implementation"] == "lazy"))
    (found,) = from_frame(some)
    assert [[c.warm(2) for c in layer.candidates] for layer in found.layers] == [[3.0, 2.0], [2.0, 3.0]]
    with pytest.raises(FormatError, match=r"not of its column's type.*fast"):
        from_frame(frame.assign(warm_1_ms="fast"))
    for wrong, message in (({2: -1.0}, "negative"), ({3: 1.0}, "another width")):
        layer = Layer("a", (), (replace(_two().layers[0].candidates[0], warm_ms=wrong),))
        with pytest.raises(FormatError, match=message):
            check(replace(_two(), layers=(layer,)))


def _hesitant(profiles: Sequence[Profile]) -> tuple[Profile, ...]:
    """The profiles as if whatever is slow in a cold start were fast when warm: every step with a choice switches."""

    def warmed(c: Candidate) -> Candidate:
        cold = sum(c.stages_ms("big")) + c.execute_ms[2]
        return replace(c, warm_ms=dict.fromkeys(c.execute_ms, 1.0 / cold))

    return tuple(
        replace(p, layers=tuple(replace(x, candidates=tuple(map(warmed, x.candidates))) for x in p.layers)) for p in profiles
    )


@pytest.fixture(scope="module")
def planned(planned_tiny: tuple[Path, str]) -> tuple[Path, dict[str, str]]:
    """A workspace with a plan of a small model, one with kernels for later runs, and what the command said of each."""
    folder, _ = planned_tiny
    measure = api.profile_model
    told = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(folder / "state"))
        patch.chdir(folder)
        patch.setattr(api, "profile_model", lambda *given, **how: _hesitant(measure(*given, **how)))
        for name, options in (("plain", []), ("continuous", ["--continuous"])):
            done = CliRunner().invoke(app, [*PLAN_TINY, "-o", name, *options])
            assert done.exit_code == 0, done.output
            told[name] = done.output
    return folder, told


def test_a_plan_names_the_kernels_that_later_runs_switch_to(planned: tuple[Path, dict[str, str]]) -> None:
    folder, told = planned
    plain, made = (cold_plan(folder / name) for name in ("plain", "continuous"))
    assert plain.later == ()
    assert "later runs      with the kernels of the first one" in told["plain"]
    switching = [k for k, name in enumerate(made.warm) if name != made.step(k).implementation]
    assert switching
    assert f"later runs      {len(switching)} of {len(made.steps)} steps switch kernels" in told["continuous"]
    _, later = records_in(folder / "continuous")
    assert all(later[k] is not None for k in switching)


def test_runs_switch_to_the_warm_kernels(planned: tuple[Path, dict[str, str]]) -> None:
    folder, _ = planned
    done = CliRunner().invoke(app, ["run", str(folder / "continuous"), "--repeat", "12"])
    assert done.exit_code == 0, done.output
    assert "warm, what was left of them prepared first" in done.output
    assert "and 2 more, warm" in done.output
    assert "ms of 11\n" in done.output
    known = ort.InferenceSession(folder / "tiny.onnx", providers=["CPUExecutionProvider"])
    inputs = random_inputs(tiny())
    (wanted,) = known.run(None, inputs)
    with open_session(folder / "continuous") as session:
        assert session.continuous
        for _ in range(3):  # before the switch and after it
            (found,) = session.run(inputs).values()
            assert np.abs(found - wanted).max() <= 1e-4 * np.abs(wanted).max()


@pytest.mark.parametrize(("name", "setting"), [("plain", "edgeplan"), ("continuous", "edgeplan-continuous")])
def test_a_fresh_process_starts_as_it_was_planned(
    planned: tuple[Path, dict[str, str]], jobs: list[RunJob], name: str, setting: str
) -> None:
    done = CliRunner().invoke(app, ["run", str(planned[0] / name), "--cold"])
    assert done.exit_code == 0, done.output
    assert {job.setting for job in jobs} == {setting}
    assert "cold: " in done.output
