"""What the cold-start chapter says of its tables, and the page that the stage writes."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
from cold_chapter_frames import frame_names
from profile_values_of import PROFILES, asked_of

from edgeplan.chapters.cold_start.evaluation import page as cold_report
from edgeplan.chapters.cold_start.evaluation.evidence import ColdEvidence
from edgeplan.chapters.cold_start.evaluation.metrics import BARS, cold_metrics
from edgeplan.errors import FormatError
from edgeplan.reporting.page import bar_lines


def write(e: ColdEvidence, folder: Path) -> None:
    folder.mkdir(parents=True)
    for name in frame_names():
        getattr(e, name).to_parquet(folder / f"{name}.parquet")
    for name in ("notes", "environment"):
        (folder / f"{name}.json").write_text(json.dumps(getattr(e, name)))


@pytest.mark.parametrize("profile", PROFILES)
def test_no_headline_of_a_profile_lacks_its_value(e: ColdEvidence, profile: str) -> None:
    asked = asked_of("cold_start", profile)
    runs = e.runs[e.runs["model"].isin(asked["models"]) & e.runs["plan"].isin(["", "optimal", *asked["plans"]])]
    runs = runs[runs["threads"].isin(asked["threads"]) & runs["state"].isin(asked.get("states", ["cached", "evicted"]))]
    few = replace(e, runs=runs[~runs["stock"] | runs["setting"].isin(asked["settings"])])
    page = cold_report.COLD_REPORT.page(few, {}, {}, cold_metrics(few))
    assert page.lacking == ()
    assert page.cards[0].sentence.startswith("starts ")


def test_what_is_missing_is_named(tmp_path: Path, e: ColdEvidence) -> None:
    write(e, tmp_path / "cold")
    (e.runs.drop(columns="cold_ms")).to_parquet(tmp_path / "cold" / "runs.parquet")
    with pytest.raises(FormatError, match="runs lacks the column 'cold_ms'"):
        cold_report.COLD_REPORT.read("cpu-test", tmp_path / "cold")
    (tmp_path / "cold" / "runs.parquet").unlink()
    with pytest.raises(FormatError, match="cannot read the table runs: No such file"):
        cold_report.COLD_REPORT.read("cpu-test", tmp_path / "cold")


def test_verdicts_follow_the_bars(figures: dict[str, float]) -> None:
    lines = {line.title: line for line in bar_lines(BARS, figures | {"cold.failed_starts": 1})}
    assert lines["starts of our plans that failed"].verdict == "miss"
    assert lines["cold over the work bound, page cache warm"].verdict == "miss", "one of two models is at 2"
    assert bar_lines(BARS, {})[0].value == "no value"


def test_a_start_that_beats_its_bound_breaks_the_bound_not_the_bar(e: ColdEvidence, tables: dict[str, pd.DataFrame]) -> None:
    key, title = "cold.over_work_bound_cached", "cold over the work bound, page cache warm"
    usual = cold_report.findings(e, tables, {key: 1.2})
    for value, verdict in ((0.89, "miss"), (1.2, "pass"), (1.4, "miss")):
        (line,) = (line for line in bar_lines(BARS, {key: value}) if line.title == title)
        assert (line.verdict, line.bar) == (verdict, ">= 1 and <= 1.3")
    assert len(set(cold_report.findings(e, tables, {key: 0.89})) - set(usual)) == 1
    assert set(cold_report.findings(e, tables, {key: 1.4})) <= set(usual)
