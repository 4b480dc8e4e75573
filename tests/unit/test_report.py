"""Figures, findings and the report: complete, self-contained, escaped, deterministic, and honest about what is absent."""

import re
from dataclasses import replace
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from evaluation_evidence import full_evidence
from told import numbers

from edgeplan.chapters.prediction.evaluation import analysis
from edgeplan.chapters.prediction.evaluation.dates import STAGES
from edgeplan.chapters.prediction.evaluation.evidence import Evidence
from edgeplan.chapters.prediction.evaluation.figures import FIGURES, make_figures, write_figures
from edgeplan.chapters.prediction.evaluation.figures_kernels import shares_by_family
from edgeplan.chapters.prediction.evaluation.metrics import metrics, write_metrics
from edgeplan.chapters.prediction.evaluation.table_registry import TABLES
from edgeplan.chapters.prediction.evaluation.tables import make_tables, write_tables
from edgeplan.errors import FormatError
from edgeplan.report import report

MAX_FIGURE_BYTES = 150_000
VOID = {"meta", "img", "link", "br"}


class Balance(HTMLParser):
    """Checks that tags nest and gathers ids, in-page links and sources."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: list[str] = []
        self.links: list[str] = []
        self.tags: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        if tag not in VOID:
            self.open.append(tag)
        self.ids += [value or "" for name, value in attrs if name == "id"]
        self.links += [value or "" for name, value in attrs if name in ("href", "src")]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def page(evidence: Evidence, findings: list[str] | None = None, *, drawn: bool = False) -> str:
    told = analysis.findings(evidence) if findings is None else findings
    return report.render(
        evidence.device,
        make_tables(evidence),
        make_figures(evidence) if drawn else {},
        metrics(evidence),
        evidence.environment or {},
        told,
        "2024-05-06",
    )


@pytest.fixture(scope="module")
def evidence() -> Evidence:
    return full_evidence()


@pytest.fixture(scope="module")
def full_page(evidence: Evidence) -> str:
    return page(evidence, drawn=True)


def test_figures_are_small_and_the_same_every_time(evidence: Evidence, tmp_path: Path) -> None:
    drawn = write_figures(evidence, tmp_path)
    assert list(drawn) == list(FIGURES)
    assert all(data.startswith(b"\x89PNG") and len(data) < MAX_FIGURE_BYTES for data in drawn.values())
    assert make_figures(evidence) == drawn
    assert not any(b"matplotlib" in data.lower() for data in drawn.values())
    assert sorted(p.stem for p in tmp_path.iterdir()) == sorted(FIGURES)


def test_sweeps_that_were_not_measured_still_draw(evidence: Evidence) -> None:
    sweeps = evidence.frame("sweeps")
    part = sweeps[sweeps["sweep"] == "kernel_size"].assign(predicted_us=np.nan)
    assert {"figure_07", "figure_08"} <= set(make_figures(Evidence("cpu-test", sweeps=part)))


def test_breakdown_shares_sum_to_one(evidence: Evidence) -> None:
    shares = shares_by_family(evidence)
    np.testing.assert_allclose(shares.sum(axis=1), 1.0)
    assert shares.index[-1] == "all"
    assert shares.columns[0] == "conv"


def test_report_holds_every_table_and_figure_once(full_page: str) -> None:
    parsed = Balance()
    parsed.feed(full_page)
    assert parsed.open == []
    assert len(parsed.ids) == len(set(parsed.ids))
    assert set(TABLES) | set(FIGURES) <= set(parsed.ids)
    assert "2024-05-06" in full_page


def test_report_is_self_contained(full_page: str) -> None:
    parsed = Balance()
    parsed.feed(full_page)
    assert "script" not in parsed.tags
    assert "link" not in parsed.tags
    assert all(link.startswith(("data:image/png;base64,", "#")) for link in parsed.links)
    assert {link[1:] for link in parsed.links if link.startswith("#")} <= set(parsed.ids)
    assert "http" not in re.sub(r"base64,[^\"]*", "", full_page)


def test_report_renders_with_nothing_and_says_so() -> None:
    empty = page(Evidence("cpu-test"))
    parsed = Balance()
    parsed.feed(empty)
    assert parsed.open == []
    assert "No figure that has a bar was measured." in empty
    assert "No whole models were evaluated." in empty
    assert "Not measured in this run" in empty


def test_report_renders_with_one_model_of_one_family(evidence: Evidence) -> None:
    one = evidence.frame("models").iloc[:1]
    tiny = replace(evidence, models=one, breakdown=evidence.frame("breakdown")[lambda f: f["model_id"].isin(one["model_id"])])
    text = page(tiny)
    assert set(FIGURES) <= set(make_figures(tiny))
    assert 'id="table_baselines"' in text
    assert "FLOPs+MAC beaten" not in text


def test_report_names_what_is_absent(evidence: Evidence) -> None:
    text = page(replace(evidence, transfer=None, modes=None), drawn=True)
    assert 'id="table_11"' not in text
    assert "Not measured in this run: Predictors of another device; Measuring modes." in text


def test_report_escapes_what_it_is_given(evidence: Evidence) -> None:
    nasty = "<script>alert('x')</script>"
    verification = evidence.frame("verification").assign(pair=nasty)
    text = page(replace(evidence, device=nasty, verification=verification, environment={nasty: nasty}), [nasty])
    assert "<script" not in text
    assert text.count("&lt;script&gt;") >= 5


def test_what_stands_between_backticks_is_code_and_escaped(evidence: Evidence) -> None:
    text = page(evidence, ["see `table_10` and `<b>`, not a lone ` one"])
    assert "<li>see <code>table_10</code> and <code>&lt;b&gt;</code>, not a lone ` one</li>" in text


def test_headline_says_pass_and_miss(evidence: Evidence) -> None:
    lines = {line.title: line for line in report.headline(evidence.device, metrics(evidence), make_tables(evidence))}
    assert lines["fusion rules: precision, without reshapes"].verdict == "miss"
    assert lines["fusion rules: precision, without reshapes"].value == "75 %"
    assert lines["fusion rules: recall, with reshapes"].value == "62.96 %"
    assert lines["models evaluated"].verdict == "miss"
    assert lines["kernel measuring time (min)"].verdict == "pass"
    assert lines["operator sum beaten on every family"].verdict == "pass"
    resolved = lines["conv RMSPE on labels of at least 1 us of the frozen set: adaptive, random, prior"]
    everything = lines["conv RMSPE on all labels of the frozen set: adaptive, random, prior"]
    assert (resolved.value, resolved.verdict) == ("8 %, 40 %, 12 %", "pass")
    assert (everything.value, everything.verdict) == ("26 %, 44 %, 21 %", "miss")


def test_findings_name_a_biased_family(evidence: Evidence) -> None:
    models = evidence.frame("models").assign(predicted_ms=lambda f: f["measured_ms"])
    models.loc[models["family"] == "vgg", "predicted_ms"] *= 1.3
    told = analysis.findings(replace(evidence, models=models))
    assert numbers(told[0])[:2] == [6, 78]
    assert any(text.startswith("VGGs") and 30.0 in numbers(text) for text in told)


def test_findings_tell_unrepeatable_models_from_mispredicted_ones(evidence: Evidence) -> None:
    models = evidence.frame("models").assign(predicted_ms=lambda f: f["measured_ms"], repeat_ms=lambda f: f["measured_ms"])
    models.loc[:3, "predicted_ms"] *= 1.2
    models.loc[:1, "repeat_ms"] *= 1.2
    told = analysis.findings(replace(evidence, models=models))
    assert any((2, 4) in pairwise(numbers(text)) for text in told), "of the misses, those whose own measurement moved"


def test_findings_name_families_whose_intervals_hold_too_few(evidence: Evidence) -> None:
    models = evidence.frame("models").assign(
        low_ms=lambda f: f["measured_ms"] * 0.9,
        high_ms=lambda f: f["measured_ms"] * 1.1,
        predicted_ms=lambda f: f["measured_ms"],
    )
    alexnet = models.index[models["family"] == "alexnet"]
    models.loc[alexnet[:2], "low_ms"] = models.loc[alexnet[:2], "measured_ms"] * 1.05
    told = [text for text in analysis.findings(replace(evidence, models=models)) if text.startswith("The 90 % intervals")]
    overall, families = told
    assert numbers(overall) == [90, 97.4]
    assert "AlexNets" in families
    assert numbers(families)[-4:] == [66.7, 33.3, 0, 20]  # inside, below, above, median width


def test_findings_judge_the_rules_with_and_without_reshapes(evidence: Evidence) -> None:
    assert any(numbers(text)[-4:] == [75.00, 94.44, 75.00, 62.96] for text in analysis.findings(evidence))


def test_findings_compare_samplers_on_both_sets_of_labels(evidence: Evidence) -> None:
    told = next(text for text in analysis.findings(evidence) if text.startswith("Adaptive sampling"))
    assert {60, 8, 80, 40, 20, 50, 24, 21, -9, -2} <= set(numbers(told))


def test_errors_are_attributed_to_the_kind_that_causes_them(evidence: Evidence) -> None:
    parts = evidence.frame("breakdown")
    factor = parts["kind"].map({"dwconv": 1.25}).fillna(1.0)
    truth = (parts["predicted_ms"] * factor).groupby(parts["model_id"]).sum()
    models = evidence.frame("models").assign(measured_ms=lambda f: f["model_id"].map(truth))
    changed = replace(evidence, models=models)
    table = analysis.kind_factors(changed, changed.evaluated()).set_index("kind")
    assert table.loc["dwconv", "factor"] == pytest.approx(1.25)
    assert table.loc["conv", "factor"] == pytest.approx(1.0)
    assert any("dwconv" in text and "1.250" in text for text in analysis.findings(changed))


def test_report_is_gathered_from_files(tmp_path: Path, evidence: Evidence) -> None:
    made = write_tables(replace(evidence, transfer=None), tmp_path / "tables", dict.fromkeys(STAGES, "2024-05-06"))
    write_figures(evidence, tmp_path / "figures")
    write_metrics(metrics(evidence), tmp_path / "metrics.json")
    (tmp_path / "environment.json").write_text('{"cpu": "Example"}', encoding="utf-8")
    report.write_findings(["A finding."], tmp_path / "findings.json")

    def write() -> None:
        report.write_report(
            "cpu-test",
            tables=tmp_path / "tables",
            figures=tmp_path / "figures",
            metrics=tmp_path / "metrics.json",
            environment=tmp_path / "environment.json",
            findings=tmp_path / "findings.json",
            report=tmp_path / "out" / "report.html",
            more={"table_11": TABLES["table_11"].function(evidence)},
            remarks=["Seen by a person."],
        )

    write()
    text = (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
    assert all(f'id="{name}"' in text for name in [*made, *FIGURES, "table_11"])
    assert 0 < text.index("Seen by a person.") < text.index("A finding.")
    assert all(f"{stage} 2024-05-06" in text for stage in STAGES)
    assert [p.name for p in (tmp_path / "out").iterdir()] == ["report.html"]
    (tmp_path / "findings.json").write_text("{", encoding="utf-8")
    with pytest.raises(FormatError, match=r"findings\.json"):
        write()
    assert (tmp_path / "out" / "report.html").read_text(encoding="utf-8") == text


def test_further_chapters_follow_the_first(evidence: Evidence) -> None:
    tables = make_tables(evidence)
    alone = report.render("cpu-test", tables, {}, {}, {}, [], "2024-05-06")
    both = report.render("cpu-test", tables, {}, {}, {}, [], "2024-05-06", ['<section id="cold-start">C</section>'])
    assert "cold-start" not in alone
    assert both.index('id="tables"') < both.index('<section id="cold-start">C</section>') < both.index("</main>")
    assert '<a href="#cold-start">' in both
