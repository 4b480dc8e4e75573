"""Stages that compute for minutes tell how far they are."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import law_of_latency as law
import pandas as pd
import pytest
from shipped_params import PARAMS_FILE

from edgeplan.chapters.params import Params, load_params
from edgeplan.chapters.prediction import speed
from edgeplan.chapters.prediction.stages import evaluation, training
from edgeplan.graph.fusion_rules import FusionRules
from edgeplan.support.frames import write_parquet
from edgeplan.zoo import FAMILIES, variants

ROOT = Path(__file__).parents[3]
RULES = FusionRules(pairs={"conv_bn": True, "conv_relu": True})


class Bars:
    """Takes the place of `progress`: the total of each bar, and what it was told."""

    def __init__(self) -> None:
        self.told: dict[str, tuple[int, list[int]]] = {}

    @contextmanager
    def __call__(self, description: str, total: int) -> Iterator[Callable[[int], None]]:
        self.told[description] = (total, [])
        yield self.told[description][1].append


@pytest.fixture
def bars(monkeypatch: pytest.MonkeyPatch) -> Bars:
    found = Bars()
    for module in (training, evaluation, speed):
        monkeypatch.setattr(module, "progress", found)
    return found


def _params() -> Params:
    params = load_params(PARAMS_FILE)
    return params.model_copy(update={"training": law.SETTINGS})


def _labelled(folder: Path) -> tuple[Path, Path]:
    """Kernels as all samplers label them, and the sampler's document."""
    rows = law.rows(200).assign(mode="in_situ")
    others = [
        rows[rows["sampler"] == "adaptive"].head(count).assign(sampler=name) for name, count in (("random", 40), ("prior", 80))
    ]
    pd.concat([rows, *others], ignore_index=True).to_parquet(folder / "kernels.parquet")
    about: dict[str, Any] = {
        **law.ABOUT,
        "mode": "in_situ",
        "sampler_seconds": dict.fromkeys(training.COMPARED, 1.0),
    }
    (folder / "sampling.json").write_text(json.dumps(about))
    return folder / "kernels.parquet", folder / "sampling.json"


@pytest.mark.long
def test_training_counts_the_rows_of_all_trainings(tmp_path: Path, bars: Bars) -> None:
    kernels, summary = _labelled(tmp_path)
    out, rules, calibration = (tmp_path / name for name in ("predictors", "rules.json", "calibration.parquet"))
    RULES.write(rules)
    spec = next(iter(variants(FAMILIES["nasbench201"], 1, 5))).to_json()
    write_parquet(pd.DataFrame([{"model_id": "a", "family": "nasbench201", "spec": spec, "measured_ms": 1.0}]), calibration)
    training.train(
        _params(),
        device=tmp_path / "bench.yaml",
        kernels=kernels,
        summary=summary,
        rules=rules,
        calibration=calibration,
        predictors=out,
        quality=out / "quality.parquet",
        samplers=out / "samplers.csv",
    )
    ((description, (total, told)),) = bars.told.items()
    assert description == "bench: kernels trained on"
    assert sum(told) == total
    folders = {path.parent.relative_to(out).as_posix() for path in out.rglob("card.json")}
    assert folders == {".", *training.COMPARED, training.FOREST}
    assert len(told) == len(folders) - 1, "forests take no time worth telling"
    judged = pd.read_csv(out / "samplers.csv").set_index("sampler")
    assert judged.loc["adaptive", ["rmspe_more_low", "rmspe_more_high"]].isna().all()
    others = judged.loc[["random", "prior"]]
    assert (others["rmspe_more_low"] < others["rmspe"] - judged.loc["adaptive", "rmspe"]).all()
    assert (others["rmspe_more_high"] > others["rmspe"] - judged.loc["adaptive", "rmspe"]).all()


def test_evaluation_counts_models(bars: Bars) -> None:
    table = pd.DataFrame({"model_id": ["a", "b"], "family": list(FAMILIES)[:2], "spec": ["", ""]})
    told: list[int] = []
    fused, single = evaluation._tables(table, RULES, told.append)
    assert told == [1, 1]
    assert fused.models == single.models == ("a", "b")
    assert not bars.told


def test_models_for_the_speed_are_counted_by_family(bars: Bars) -> None:
    count = len(FAMILIES) + 1
    speed.batch_tables(3, count, RULES, "dev: models built")
    assert bars.told == {"dev: models built": (count, [2, *[1] * (len(FAMILIES) - 1)])}
