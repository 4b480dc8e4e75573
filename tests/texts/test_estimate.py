"""What `make reproduce` says of its duration before it starts."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from edgeplan.chapters.estimate import estimate, merged, profile, told
from edgeplan.chapters.params import Params

ROOT = Path(__file__).parents[2]
SHIPPED: dict[str, Any] = yaml.safe_load((ROOT / "params.yaml").read_text())


def _estimated(name: str, **more: Any) -> dict[str, float]:
    values = profile(ROOT / f"config/profiles/{name}.yaml")
    params = Params.model_validate(merged(merged(SHIPPED, values), {"devices": ["cpu-onnxruntime"], **more}))
    return estimate(params, ["onnxruntime"])


def test_profiles_are_as_long_as_they_say() -> None:
    """quick.yaml is meant to end within about 20 minutes, tiny.yaml is for tests, paper.yaml measures for days."""
    minutes = {name: sum(_estimated(name).values()) / 60 for name in ("tiny", "quick", "paper")}
    assert minutes["tiny"] < 13
    assert 15 < minutes["quick"] < 27
    assert minutes["paper"] > 24 * 60


def test_the_committed_values_take_what_the_committed_measurements_took() -> None:
    """Seconds of the rows of cpu-onnxruntime: sampling with what was discarded, whole models in one pass."""
    params = Params.model_validate(merged(SHIPPED, {"devices": ["cpu-onnxruntime"], "truth": {"repeat": []}}))
    found = estimate(params, ["onnxruntime"])
    assert estimate(params, ["onednn"])["sampling"] == found["sampling"] + params.sampling.beyond_seconds["onednn"]
    assert found["fusion"] == pytest.approx(455, rel=0.15)
    assert found["sampling"] == pytest.approx(866, rel=0.15)
    assert found["whole models"] == pytest.approx(728 / 2 + 190, rel=0.15)


@pytest.mark.parametrize(
    ("part", "more"),
    [
        ("fusion", {"fusion": {"max_rounds": 6}}),
        ("sampling", {"sampling": {"budget_seconds": 100}}),
        ("training", {"training": {"trials": 40}}),
        ("whole models", {"truth": {"repeat": ["cpu-onnxruntime"]}}),
        ("whole models", {"calibration": {"variants_per_family": 6}}),
        ("evaluation", {"evaluation": {"batch_models": 26000}}),
        ("cold starts", {"cold_start": {"repeats": 9}}),
    ],
)
def test_each_part_follows_its_budget(part: str, more: dict[str, Any]) -> None:
    assert _estimated("quick", **more)[part] > 1.2 * _estimated("quick")[part]


def test_the_line_names_what_takes_at_least_half_a_minute() -> None:
    line = told({"fusion": 240.0, "sampling": 65.0, "evaluation": 20.0})
    assert line.startswith("about 5 minutes on two quiet cores (in minutes: fusion 4, sampling 1); ")
    assert told({"fusion": 4 * 3600.0}).startswith("about 4 hours ")


def _script(*arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "workflow")}
    command = [sys.executable, "workflow/scripts/estimate.py", *arguments]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)


def test_make_reproduce_says_it_once_before_it_starts() -> None:
    recipe = (ROOT / "Makefile").read_text().partition("\nreproduce: ")[2].partition("\n\n")[0]
    assert recipe.count("estimate.py") == 1
    assert recipe.index("estimate.py") < recipe.index("dvc exp run")
    shown = _script("config/profiles/quick.yaml", "cpu-onnxruntime")
    assert shown.returncode == 0, shown.stderr
    assert shown.stdout.startswith("about ")
    assert shown.stdout.count("\n") == 1


def test_a_profile_that_does_not_fit_is_told(tmp_path: Path) -> None:
    (tmp_path / "wrong.yaml").write_text("fusion: {alpha: -1}\n")
    shown = _script(str(tmp_path / "wrong.yaml"), "cpu-onnxruntime")
    assert shown.returncode == 4
    assert "error: params file does not fit: fusion.alpha" in shown.stderr
    assert "wrong.yaml" in shown.stderr
