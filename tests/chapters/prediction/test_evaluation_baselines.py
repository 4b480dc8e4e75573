"""The table of the baselines beside our predictions."""

from __future__ import annotations

from dataclasses import replace

from evaluation_evidence import full_evidence

from edgeplan.chapters.prediction.evaluation import tables_baselines


def test_one_family_alone_has_no_regressions_beside_it() -> None:
    evidence = full_evidence()
    models = evidence.models
    table = tables_baselines.table_baselines(replace(evidence, models=models[models["family"] == "vgg"]))
    assert "operator sum: RMSPE (%)" in table
    assert not any(str(column).startswith("FLOPs") for column in table)
