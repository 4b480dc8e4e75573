"""What the cold-start chapter says of its tables, and the page that the stage writes."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
from cold_chapter_frames import frame_names
from profile_values_of import PROFILES, asked_of
from told import numbers

from edgeplan.chapters.cold_start.evaluation import figures as cold_figures
from edgeplan.chapters.cold_start.evaluation import findings
from edgeplan.chapters.cold_start.evaluation import page as cold_report
from edgeplan.chapters.cold_start.evaluation.evidence import ColdEvidence
from edgeplan.chapters.cold_start.evaluation.metrics import BARS, METRICS, cold_metrics
from edgeplan.chapters.cold_start.evaluation.tables import COLD_TABLES
from edgeplan.errors import FormatError
from edgeplan.report.pages import PageSection, render_page
from edgeplan.reporting.page import bar_lines, read_chapter


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


def test_findings_tell_on_how_many_runs_the_medians_rest(e: ColdEvidence) -> None:
    first = (e.runs["repeat"] == 2) & (e.runs["plan"] == "K") & (e.runs["state"] == "cached")
    reason = "99% of the files were in the page cache, not as in state 'cached'"
    told = findings.counts(replace(e, runs=e.runs.assign(reason=e.runs["reason"].where(~first, reason))))
    assert ", ".join(f"{number:.0f}" for number in numbers(told)).find("3, 2, 2, 1, 0, 3") >= 0, "runs that medians rest on"


def test_findings_tell_how_many_runs_were_disturbed(e: ColdEvidence) -> None:
    assert numbers(findings.disturbed(e))[0] == 0
    shared = (e.runs["threads"] == 2) & (e.runs["repeat"] == 0)
    runs = e.runs.assign(interference=e.runs["interference"].where(~shared, 1.9))
    assert 33.3 in numbers(findings.disturbed(replace(e, runs=runs)))  # of those on two threads
    assert findings.disturbed(replace(e, runs=runs.assign(reason="crashed"))) == ""


@pytest.mark.long
def test_stage_writes_the_whole_chapter(tmp_path: Path, e: ColdEvidence) -> None:
    measured, chapters = tmp_path / "cold", tmp_path / "chapters"
    write(e, measured)
    handed = chapters / "cold_start.page.json"
    cold_report.write(measured=measured, metrics=chapters / "cold_start.json", chapter=handed)
    assert {p.stem for p in (measured / "tables").glob("*.csv")} == COLD_TABLES.keys()
    assert {p.stem for p in (measured / "tables").glob("*.md")} == COLD_TABLES.keys()
    assert {p.stem for p in (measured / "figures").glob("*.svg")} == cold_figures.COLD_FIGURES.keys()
    frame = pd.read_csv(measured / "tables" / "cold_table_04.csv", keep_default_na=False, na_values=[""])
    measured_at = frame.pop("measured_at")[0]
    assert (len(frame), measured_at) == (2, "2024-05-06")
    chapter = read_chapter(handed)
    page = render_page([PageSection("dev", chapter)])
    assert {table.id for table in chapter.tables} == COLD_TABLES.keys()
    ids = re.findall(r' id="([^"]+)"', page)
    assert len(set(ids)) == len(ids)
    assert {f"dev-{name}" for name in COLD_TABLES} <= set(ids)
    assert 3 <= len(chapter.cards) <= 5
    assert not re.search(r"https?:", page), "the page is not self-contained"
    metrics = json.loads((chapters / "cold_start.json").read_text())
    ends = {key for key in metrics if key.endswith((".low", ".high"))}
    assert metrics.keys() - ends == METRICS.keys()
    assert ends


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
