"""EOP's chapter: costs of what was measured, its ways, tables and figures of merit on made-up rows; bad input."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from partition_models import MODELS, Saved
from shipped_params import PROFILES, asked_of

from edgeplan.chapters.partition.costs import ModelCosts
from edgeplan.chapters.partition.eop import sweeps, ways
from edgeplan.chapters.partition.eop.sweeps import SweptModel
from edgeplan.chapters.partition.evaluation.eop_page import BARS, EOP_REPORT, eop_metrics
from edgeplan.chapters.partition.evaluation.eop_tables import EOP_FIGURES, EOP_TABLES, EopEvidence
from edgeplan.chapters.partition.planned import lowered_workload
from edgeplan.chapters.partition.settings import EopSettings
from edgeplan.chapters.partition.stages.partition_eop import COLUMNS
from edgeplan.reporting import chapter_report as kit
from edgeplan.runtime.partitioned.program import Split, partition, preceding
from edgeplan.runtime.partitioned.sections import Dimension, extent, why_not_cut

_BLOCK = 8


def _subject(tmp_path: Path, name: str = "images") -> SweptModel:
    return sweeps.subject_of(name, Saved(MODELS[name](), tmp_path).path, 0)


def _swept(subject: SweptModel, us: float) -> pd.DataFrame:
    """As if every step took as long on either processor, and parts in proportion."""
    rows: list[list[object]] = []
    for k, step in enumerate(subject.lowered.steps):
        rows += [[k, "", 1, 1, us, np.nan, us], [k, "", 0, 1, np.nan, us, us]]
        for dimension in Dimension:
            if not why_not_cut(subject.lowered, subject.layouts, _BLOCK, step, dimension):
                size = extent(subject.lowered, _BLOCK, step, dimension)
                for share in (0.25, 0.5, 0.75):
                    end = size.nearest(share)
                    cpu, gpu = us * end / size.size, us * (1 - end / size.size)
                    rows.append([k, dimension.value, end, size.size, cpu, gpu, max(cpu, gpu)])
    return pd.DataFrame(rows, columns=list(sweeps.SWEEP)).drop_duplicates(["step", "dimension", "end"])


def _costs(subject: SweptModel, us: float = 1000.0, handshake_ms: float = 0.002, refused: str = "") -> ModelCosts:
    """Of swept times; the GPU may refuse the first step."""
    swept, count = _swept(subject, us), len(subject.lowered.steps)
    if refused:
        swept = swept[~((swept["step"] == 0) & (swept["end"] != 1))]
    given = {"block": _BLOCK, "names": ("one", "another"), "handshake_ms": handshake_ms, "margin": 0.05}
    return sweeps.measured_costs(subject.lowered, subject.layouts, swept, [refused, *[""] * (count - 1)], **given)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["images", "three of them"])
def test_every_way_is_a_partition_that_can_be_made(tmp_path: Path, name: str) -> None:
    subject = _subject(tmp_path, name)
    costs = _costs(subject)
    for step, assigned in zip(costs.costs.steps, costs.assigned, strict=True):
        for option, place in zip(step.options, assigned, strict=True):
            assert option.dimension == (place.dimension.value if isinstance(place, Split) else "")
    found, tuned = ways.measured_ways(costs.costs)
    assert tuple(found) == tuple(way for way in ways.WAYS if way not in (ways.PREDICTED, ways.ALL_CORES))
    for way in found.values():
        made = partition(subject.lowered, subject.layouts, _BLOCK, costs.assignments(way.choice))
        assert len(made.lanes) >= len(subject.lowered.steps)
    assert found[ways.OURS].splits > 0
    assert found[ways.OURS].simulated_ms <= min(found[ways.CPU_WAY].simulated_ms, found[ways.GPU_WAY].simulated_ms)
    assert tuned.key
    assert ways.as_predicted(costs.costs).choice == found[ways.EOP].choice, "the same algorithms"
    best = sweeps.best_options(costs.costs, tuned.key)
    assert all(costs.costs.steps[k].options[o].span_ms <= costs.costs.steps[k].best_whole.span_ms for k, o in best.items())


def test_a_model_whose_every_operator_is_below_a_hand_over_stays_on_one_processor(tmp_path: Path) -> None:
    subject = _subject(tmp_path)
    costs = _costs(subject, us=1.0, handshake_ms=1.0)
    found, tuned = ways.measured_ways(costs.costs)
    for way in (ways.OURS, ways.EOP):
        assert len(set(costs.assignments(found[way].choice))) == 1
    assert set(tuned.ratios) <= {0.0, 1.0}
    lacking = _costs(subject, refused="no such kernel")
    assert lacking.costs.steps[0].unsplittable == "the GPU has no kernel of it: no such kernel"
    assert list(lacking.assigned[0]) == [0]


def _evidence(tmp_path: Path) -> EopEvidence:
    subject = _subject(tmp_path)
    swept = _swept(subject, 1000.0).assign(name="n", operator="conv2d", of_paper="HW", refused="")
    rng = np.random.default_rng(0)
    plans, parts, keys = [], [], []
    about = [(m, "", "", 0) for m in ("inception_v3", "bert_base", "lstm_unrolled_batch16")]
    about += [(f"{cell} batch 8", "figure_09", "batch", 8) for cell in ("LSTM", "GRU")]
    about += [("BERT heads 12", "figure_10", "heads", 12)]
    for model, figure, setting, value in about:
        rows = pd.DataFrame({"way": ways.WAYS}).reindex(columns=list(COLUMNS["plans"]))
        rows["median_ms"] = [10.0, 8.0, 9.0, 8.5, 7.0, 9.0, 8.0, 7.5, 6.0, 7.2, 6.5]
        rows = rows.assign(predicted_ms=5.0, repeat=1.0, error=1e-7, tolerance=1e-5, splits=3, steps=20, plan_seconds=1.0)
        rows = rows.assign(plan_gap=0.01, same_as="", reason="", simulated_ms=5.0, subgraphs=5.0)
        labels = {"model": model, "figure": figure, "setting": setting, "value": value}
        plans.append(rows.assign(**labels))
        parts.append(swept.assign(**labels))
        key = pd.DataFrame([[0, "n", "dense", "HW1W2", 0.25, "linear", "linear", 1.03, 1.0, 2]], columns=list(COLUMNS["key"]))
        keys.append(key.assign(**labels))
    sampled = [
        (one.operator, one.dimension, size, side, size * (1 + 0.01 * rng.random()))
        for one in sweeps.SAMPLED
        for size in (16, 32, 64, 128)
        for side in ("cpu", "gpu")
    ]
    frames = [pd.concat(some, ignore_index=True) for some in (parts, plans, keys)]
    samples = pd.DataFrame(sampled, columns=["operator", "dimension", "size", "side", "us"])
    return EopEvidence("pair", samples, *frames, {"cores": 2})


def test_tables_figures_and_figures_of_merit(tmp_path: Path) -> None:
    evidence = _evidence(tmp_path)
    metrics = eop_metrics(evidence)
    assert metrics["eop.ratio_time_over_grid"] == pytest.approx(1.03)
    assert metrics["eop.ours_over_eop"] == pytest.approx(6 / 7)
    assert metrics["eop.slower_than_best_single_models"] == 0
    assert metrics["eop.outputs_equal"] == 1
    assert metrics["eop.recurrent_slower_unchecked"] == 0
    named = evidence.patterns[evidence.patterns["paper"] != ""]
    assert (named["pattern"] == named["paper"]).mean() == pytest.approx(3 / 9), "all is linear here, three of nine in the paper"
    assert {bar.key for bar in BARS} <= set(metrics)
    tables, lacking = kit.make(EOP_TABLES, evidence)
    assert not lacking
    assert set(tables) == set(EOP_TABLES)
    figures = kit.draw(EOP_FIGURES, evidence)
    assert set(figures) == set(EOP_FIGURES)
    assert EOP_REPORT.page(evidence, tables, figures, metrics).tables


@pytest.mark.parametrize("profile", PROFILES)
def test_no_headline_of_a_profile_lacks_its_value(tmp_path: Path, profile: str) -> None:
    whole = _evidence(tmp_path)

    def of(rows: pd.DataFrame) -> pd.DataFrame:
        one = rows[rows["model"] == "bert_base"]
        return pd.concat([one.assign(model=name) for name in asked_of("partition", profile)["eop"]["models"]])

    few = replace(whole, **{name: of(getattr(whole, name)) for name in ("sweeps", "plans", "key")})
    assert EOP_REPORT.page(few, {}, {}, eop_metrics(few)).lacking == ()


def test_a_plan_that_failed_is_slower_and_told(tmp_path: Path) -> None:
    evidence = _evidence(tmp_path)
    assert eop_metrics(evidence)["eop.failed_plans"] == 0
    lost = (evidence.plans["model"] == "bert_base") & (evidence.plans["way"] == ways.OURS)
    evidence.plans.loc[lost, ["median_ms", "reason"]] = [np.nan, "the device is gone"]
    found = EopEvidence("pair", *(getattr(evidence, name) for name in ("sampled", "sweeps", "plans", "key")), {})
    metrics = eop_metrics(found)
    assert metrics["eop.failed_plans"] == 1
    assert metrics["eop.slower_than_best_single_models"] == pytest.approx(1 / 3, rel=1e-5)
    page = EOP_REPORT.page(found, {}, {}, metrics)
    assert any("the device is gone" in text for text in page.findings)
    assert "the better processor alone is over 2 % faster on 1 of 3" in page.findings[0]
    slowed = (evidence.plans["figure"] == "figure_09") & (evidence.plans["way"] == ways.OURS)
    evidence.plans.loc[slowed, "median_ms"] = 8.2
    assert eop_metrics(replace(evidence))["eop.recurrent_slower_unchecked"] == 2, "8.2 ms where the GPU takes 8"


def test_subgraphs_are_what_steps_that_all_others_run_before_or_after_leave_between_them(tmp_path: Path) -> None:
    rng = np.random.default_rng(7)
    for count in range(1, 9):
        for _ in range(40):
            before = [sorted({int(i) for i in rng.integers(0, k, rng.integers(0, 3))}) if k else [] for k in range(count)]
            reach = [{k} for k in range(count)]
            for k, read in enumerate(before):
                reach[k] |= set().union(*(reach[i] for i in read))
            cuts = [k for k in range(count) if all(k in reach[j] or j in reach[k] for j in range(count))]
            between = sum(after - at > 1 for at, after in pairwise([-1, *cuts, count]))
            assert sweeps.subgraphs_of(before) == len(cuts) + between
    subject = _subject(tmp_path)
    lowered = lowered_workload(MODELS["images"]())
    before = preceding(lowered, sweeps.swept_layouts(lowered), _BLOCK)
    assert before == preceding(subject.lowered, subject.layouts, _BLOCK)
    assert len(lowered.steps) > sweeps.subgraphs_of(before) >= 2, "its branches are one subgraph"


def test_what_is_varied_is_built_as_named(tmp_path: Path) -> None:
    for (_, setting, model), values in ways.VARIED.items():
        name, build = ways.variant(model, setting, values[0])
        assert name == f"{model} {setting} {values[0]}"
        if model == "BERT":
            continue
        written = build().seeded(0).save(tmp_path / "model.onnx")  # type: ignore[union-attr]
        lowered = sweeps.subject_of(name, written, 0).lowered
        batch = values[0] if setting == "batch" else 16
        assert lowered.shapes["logits"] == (batch, 32000)


def test_unknown_models_are_refused() -> None:
    given = {"models": ["no such model"], "shares": [0.5], "sweep_runs": 1, "runs": 1, "rounds": 1, "margin": 0.0}
    given |= {"batches": [1, 2], "heights": [1, 2], "widths": [1, 2], "sample_runs": 1, "varied": False}
    with pytest.raises(ValueError, match="there is no model 'no such model'"):
        EopSettings.model_validate(given)
