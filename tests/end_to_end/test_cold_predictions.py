"""Predictions beside cold starts: profile, plan, run in fresh processes. Prints the ratios (`pytest -m slow -s`)."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from edgeplan.chapters.cold_start.planners.registry import plan
from edgeplan.graph.onnx.read import load_onnx
from edgeplan.graph.onnx.write import save_onnx
from edgeplan.graph.simplify import simplify
from edgeplan.profiling.check import STAGES, measured_ms, predicted_ms, start_job
from edgeplan.profiling.profiler import profile_model
from edgeplan.profiling.settings import Cores, ProfileSettings
from edgeplan.profiling.target import target_of
from edgeplan.runtime.dnnl import Dnnl
from edgeplan.runtime.plan_folder import build_plan_folder
from edgeplan.zoo.cold_start_models import COLD_START_MODELS

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]


@pytest.mark.parametrize("name", ["squeezenet", "mobilenetv2", "resnet18", "resnet50"])
def test_predictions_beside_cold_starts(name: str, dnnl: Dnnl, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No bound on the ratios, which are the machine's; but a stage that runs is predicted, and one that does not is not."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    model = save_onnx(COLD_START_MODELS[name](), tmp_path / f"{name}.onnx")
    graph, cores = simplify(load_onnx(model)), Cores(tuple(sorted(os.sched_getaffinity(0)))[:2])
    settings = ProfileSettings(blocks=3, max_noisy_share=1.0)
    profiles = profile_model(dnnl, model, graph, settings, cores=cores, name=name)
    planned = plan(profiles, "optimal", target_of(model, dnnl, len(cores.big)))
    folder = build_plan_folder(dnnl, model, planned, tmp_path / "plan")
    predicted = predicted_ms(next(p for p in profiles if p.layout == planned.layout), planned)
    measured = measured_ms({folder: start_job(planned, folder, cores.big)}, 9, None)[folder]
    for stage in ("total", *STAGES):
        print(f"{name:<12}{stage:<10}{predicted[stage]:9.2f}{measured[stage]:9.2f}")  # noqa: T201  what this is run for
    assert predicted["total"] == pytest.approx(planned.makespan_ms)
    for stage in STAGES:
        assert (predicted[stage] > 0) == (measured[stage] > 0), stage
