"""Figures, findings and the report: complete, self-contained, escaped, of one run, and honest about what is absent."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import shutil
from collections.abc import Mapping
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from types import MappingProxyType

import numpy as np
import pytest
import yaml
from evaluation_evidence import full_evidence
from shipped_params import PARAMS_FILE

from edgeplan.chapters.prediction.evaluation import page as report
from edgeplan.chapters.prediction.evaluation.page import FIGURES, PREDICTION_REPORT, metrics
from edgeplan.chapters.prediction.evaluation.tables import TABLES, Evidence
from edgeplan.chapters.registry import Params, parts_of_report
from edgeplan.errors import FormatError
from edgeplan.report.stage import PageSection, parts, remarks_of, render_page, shown_first, summary, write_report
from edgeplan.reporting import chapter_report as kit
from edgeplan.reporting.bars import Bar
from edgeplan.reporting.page import (
    SUFFIX,
    CardOf,
    ChapterPage,
    bar_lines,
    make_cards,
    origin_of,
    read_chapter,
    with_texts,
    write_chapter,
)
from edgeplan.support.frames import read_document

ROOT = Path(__file__).parents[2]
CAPTIONS = Path(report.__file__).parents[1] / "captions"
VOID = {"meta", "img", "link", "br"}


class Balance(HTMLParser):
    """Checks that tags nest and gathers ids, in-page links and sources."""

    def __init__(self) -> None:
        super().__init__()
        self.open, self.ids, self.links = list[str](), list[str](), list[str]()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in VOID:
            self.open.append(tag)
        self.ids += [value or "" for name, value in attrs if name == "id"]
        self.links += [value or "" for name, value in attrs if name in ("href", "src")]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def chapter_of(evidence: Evidence, *findings: str, figures: Mapping[str, bytes] = MappingProxyType({})) -> ChapterPage:
    one = replace(report.PREDICTION_REPORT, findings=lambda *_: findings)
    return one.page(evidence, kit.make_or_explain(one.tables, evidence), figures, metrics(evidence))


def page(evidence: Evidence, *findings: str, figures: Mapping[str, bytes] = MappingProxyType({})) -> str:
    return render_page([PageSection("x", with_texts(chapter_of(evidence, *findings, figures=figures), CAPTIONS, []))])


@pytest.fixture(scope="module")
def evidence() -> Evidence:
    return full_evidence()


@pytest.fixture(scope="module")
def shown(evidence: Evidence, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of what a chapter hands over."""
    folder, told = tmp_path_factory.mktemp("shown"), replace(evidence, speed_told="The speed was measured then.")
    PREDICTION_REPORT.show(told, folder=folder, metrics=folder / "metrics.json", chapter=folder / f"dev/x{SUFFIX}")
    return folder


@pytest.fixture(scope="module")
def drawn(shown: Path) -> dict[str, bytes]:
    return {name: (shown / f"figures/{name}.svg").read_bytes() for name in FIGURES}


@pytest.fixture(scope="module")
def full_page(evidence: Evidence, drawn: dict[str, bytes]) -> str:
    return page(evidence, figures=drawn)


def test_the_page_holds_every_table_and_figure_once_and_asks_for_nothing(full_page: str) -> None:
    parsed = Balance()
    parsed.feed(full_page)
    assert parsed.open == []
    assert len(parsed.ids) == len(set(parsed.ids))
    assert {f"x-{name}" for name in {*TABLES, *FIGURES} - {report.TRANSFERRED}} <= set(parsed.ids)
    assert all(link.startswith(("data:,", "#")) for link in parsed.links)
    assert {link[1:] for link in parsed.links if link.startswith("#")} <= set(parsed.ids)
    assert not re.search(r"https?:|url\((?!#)|@import", full_page)
    (script,) = re.findall(r"<script>(.*?)</script>", full_page, re.DOTALL)  # the only one that may run
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{digest}'" in full_page


def test_report_renders_with_one_model_of_one_family(evidence: Evidence) -> None:
    one = evidence.models.iloc[:1]
    tiny = replace(evidence, models=one, breakdown=evidence.breakdown[lambda f: f["model_id"].isin(one["model_id"])])
    text = page(tiny)
    assert set(FIGURES) <= set(kit.draw(FIGURES, tiny))
    lost = evidence.sweeps[lambda f: f["sweep"] == "kernel_size"].assign(predicted_us=np.nan)
    assert {"figure_07", "figure_08"} <= set(kit.draw(FIGURES, Evidence("cpu-test", sweeps=lost)))
    assert 'id="x-table_baselines"' in text


def test_report_escapes_what_it_is_given_and_code_that_names_a_table_is_a_link(evidence: Evidence) -> None:
    nasty = "<script>alert('x')</script>"
    verification = evidence.verification.assign(pair=nasty)
    text = page(replace(evidence, device=nasty, verification=verification, environment={nasty: nasty}), nasty)
    assert text.count("<script") == 1
    assert "alert('x')" not in text
    assert text.count("&lt;script&gt;") >= 5
    text = page(evidence, "see `table_99` and `<b>`, not a lone ` one", "see `table_10`.")
    assert "<li>see <code>table_99</code> and <code>&lt;b&gt;</code>, not a lone ` one</li>" in text
    assert 'see <a href="#x-table_10"><code>table_10</code></a>.' in text


def test_long_texts_are_folded_behind_their_first_sentences() -> None:
    text = "One of 3.5 ms. " + "Another that goes on, see e.g. table 3. " * 9
    lead, rest = parts(text.strip())
    assert f"{lead} {rest}" == text.strip()
    assert lead.startswith("One of 3.5 ms. Another")
    assert len(lead) <= 190
    assert parts("Short.") == ("Short.", "")
    assert shown_first(["x" * 94] * 30) == 10
    assert shown_first(["x" * 96] * 30) == 5


def test_cards_and_lines_tell_value_bar_verdict_and_the_papers_value(evidence: Evidence) -> None:
    cards = {card.title: card for card in chapter_of(evidence).cards}
    assert 3 <= len(cards) <= 5
    held = cards["has {} of the measurements in its 90 % intervals"]
    assert (held.value, held.verdict, held.bar) == ("96.1 %", "miss", ">= 85 % and <= 95 %")
    assert held.sentence == "has 96.1 % of the measurements in its 90 % intervals"
    assert cards["needs {} of measuring kernels"].paper == "2.5 days (CPU)"
    nothing = Evidence("cpu-test", models=evidence.models[["repeat_ms", "measured_ms", "normalised_ms", "repeat_gap_s"]])
    lost = [card for card in chapter_of(nothing).cards if "measured twice" not in card.title]
    assert {card.value for card in lost} == {"no value"}
    assert lost[0].sentence == "no value: predicts ... of the models within 10 %"
    lines = {line.title: line for line in chapter_of(evidence).lines}
    assert (lines["fusion rules: precision"].verdict, lines["fusion rules: precision"].value) == ("miss", "75 %")
    assert lines["kernel measuring time (min)"].verdict == "pass"


def test_chapters_come_back_as_they_were_handed_over(
    tmp_path: Path, evidence: Evidence, shown: Path, drawn: dict[str, bytes]
) -> None:
    shutil.copytree(shown, tmp_path, dirs_exist_ok=True)
    path, folders = tmp_path / f"dev/x{SUFFIX}", {"tables": tmp_path / "tables", "figures": tmp_path / "figures"}
    assert json.loads((tmp_path / "metrics.json").read_text()) == metrics(evidence)
    chapter = read_chapter(path)
    assert replace(chapter, findings=()) == chapter_of(evidence, figures=drawn)
    assert sorted(figure.stem for figure in folders["figures"].iterdir()) == sorted(FIGURES)
    text = render_page([PageSection("dev", with_texts(chapter, CAPTIONS, ["Seen by a person."]))])
    assert 0 < text.index("Seen by a person.") < text.index("The speed was measured then.")
    # The page depends on the documents alone, so these change with their tables and figures.
    write_chapter(chapter, tmp_path / "same.json", **folders)
    table = folders["tables"] / "table_08.md"
    table.write_text(table.read_text().replace("| all |", "| everything |"))
    write_chapter(chapter, tmp_path / "other.json", **folders)
    same, other = ((tmp_path / f"{name}.json").read_bytes() for name in ("same", "other"))
    assert path.read_bytes().replace(b'"../', b'"') == same != other
    whole = path.read_text()
    for damaged in ("{", '{"id": "x"}', json.dumps({**json.loads(whole), "cards": [{"value": 1}]})):
        path.write_text(damaged)
        with pytest.raises(FormatError, match=r"x\.page\.json"):
            read_chapter(path)
    path.write_text(whole)
    (folders["figures"] / "figure_09.svg").unlink()
    with pytest.raises(FormatError, match=r"no chapter of a report: FileNotFoundError: .*figure_09\.svg"):
        read_chapter(path)


@pytest.mark.parametrize(
    ("fingerprint", "commits", "shown"),
    [("aa", ["c1", "c2"], True), ("bb", ["c1", "c2"], False), ("aa", ["c3"], False), (None, None, False)],
)
def test_remarks_are_shown_for_the_rows_that_they_are_about(
    tmp_path: Path, fingerprint: str | None, commits: list[str] | None, shown: bool
) -> None:
    (tmp_path / "dev.md").write_text("Rows: aa c1 c2\n\nOne.\n\nTwo\nlines.\n")
    known = {} if fingerprint is None else {"fingerprint": fingerprint, "commits": commits}
    found = remarks_of(tmp_path, "dev", origin_of(known))
    assert (found == ["One.", "Two\nlines."]) is shown
    assert shown or (len(found) == 1 and "machine aa" in found[0])
    (tmp_path / "dev.md").write_text("One.\n")  # about all rows
    assert (remarks_of(tmp_path, "dev", origin_of(known)), remarks_of(tmp_path, "other", ("aa",))) == (["One."], [])


@pytest.mark.parametrize("device", ["cpu-onnxruntime", "cpu-openvino", "cpu-onednn"])
@pytest.mark.committed
def test_the_committed_texts_are_about_the_committed_rows(device: str) -> None:
    measured = origin_of(read_document(ROOT / f"results/{device}/evaluation/environment.json"))
    assert len(remarks_of(ROOT / "docs/remarks", device, measured)) > 1


_ONE = {"devices": ["cpu-onnxruntime"], "transfer": {"source": "cpu-onnxruntime", "target": "cpu-onnxruntime"}}
PARAMS = Params.model_validate(yaml.safe_load(PARAMS_FILE.read_text()) | _ONE)
HERE, ELSEWHERE = "aaaaaaaa00000000", "bbbbbbbb00000000"


def hand_over(path: Path, value: float, machine: str, grade: str = "good") -> None:
    """What a chapter hands over: one figure with a bar, one without a value."""
    name = path.name.removesuffix(SUFFIX)
    figures = {f"{name}.ratio": value}
    bars = (Bar(f"{name}.ratio", "ratio", high=1), Bar(f"{name}.lost", "lost", high=1))
    cards = make_cards([CardOf("has a ratio of {}", bars[0].key), CardOf("loses {}", bars[1].key)], bars, figures)
    page = ChapterPage(
        name.replace("_", "-"), name, "About.", "2026-11-28", cards=tuple(cards), lines=tuple(bar_lines(bars, figures)),
        machine=f"Machine {machine[0]}", rows=(machine,), grade=grade, graded="Because.",
    )  # fmt: skip
    path.parent.mkdir(parents=True, exist_ok=True)
    write_chapter(page, path, tables=path.parent, figures=path.parent)
    path.with_name(f"{name}.json").write_text(json.dumps(figures))


@pytest.fixture
def results(tmp_path: Path) -> Path:
    """Every part of this run, and beside them two of another machine's."""
    folder = tmp_path / "results"
    parts = [tmp_path / part for part in parts_of_report(PARAMS.model_dump())]
    for path in parts:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("{}")  # of the chapter that hands over figures without a page
    for path in parts:
        if path.name.endswith(SUFFIX):
            hand_over(path, 0.5, HERE)
    for other in ("cpu-openvino", "cpu-onednn"):
        hand_over(folder / f"chapters/{other}/prediction{SUFFIX}", 0.77777, ELSEWHERE, "poor")
    (tmp_path / "remarks").mkdir()
    return folder


def build(results: Path) -> str:
    remarks, page = results.parent / "remarks", results / "report.html"
    write_report(params=PARAMS, chapters=results / "chapters", remarks=remarks, report=page)
    return page.read_text()


def test_all_parts_of_the_run_stand_on_the_first_screen_and_no_other_figure_does(results: Path) -> None:
    (results.parent / "remarks/cpu-onednn-cold-start.md").write_text("Seen by a person.\n")
    page = build(results)
    overview = page[page.index('id="overview"') : page.index("</section>")]
    assert "0.77777" not in page
    assert "0.778" not in page
    wanted = (
        "cpu-onnxruntime-prediction",
        "cpu-onednn-cold-start",
        "cpu-onednn-memory",
        *(f"{device}-cold-gpu" for device in PARAMS.model_dump()["cold_gpu"]["devices"]),
        *(f"{pair}-partition-checked" for pair in PARAMS.model_dump()["partition"]["checked_pairs"]),
        "pair-pocl-partition",
        "pair-pocl-partition-eop",
    )
    for place in wanted:
        assert f'href="#{place}"' in overview
        assert f'<section class="chapter" id="{place}"' in page
    shown, _, rest = overview.partition("Results of other runs beside this one")
    assert ELSEWHERE[:8] not in shown
    assert shown.count(f"({HERE[:8]})") == len(wanted) + 1
    assert "machines, told apart" not in shown
    assert re.findall(r"<li>prediction on (\S+): Machine b \(bbbbbbbb\), 2026-11-28", rest) == ["cpu-onednn", "cpu-openvino"]
    assert "has a ratio of 0.5" in shown
    assert "Without a value" in shown
    assert "memory on cpu-onednn: no value: loses ...." in shown
    assert "Seen by a person." in page


def test_figures_of_merit_of_a_target_are_those_of_this_run_with_machine_and_grade(results: Path) -> None:
    earlier = results / "cpu-openvino/metrics.json"
    earlier.parent.mkdir()
    earlier.write_text("earlier")
    build(results)
    assert json.loads((results / "cpu-onednn/metrics.json").read_text()) == {
        "cold_start.ratio": 0.5,
        "grade.cold_start": "good",
        "grade.memory": "good",
        "machine.cold_start": HERE,
        "machine.memory": HERE,
        "memory.ratio": 0.5,
    }
    assert earlier.read_text() == "earlier", "of another run, which the page names"
    assert not (results / "transfer/metrics.json").exists()


def test_rows_of_another_machine_among_those_of_the_run_are_told_apart(results: Path) -> None:
    hand_over(results / f"chapters/cpu-onednn/memory{SUFFIX}", 0.5, ELSEWHERE)
    page = build(results)
    assert "These rows are of 2 machines" in page
    assert json.loads((results / "cpu-onednn/metrics.json").read_text())["machine.memory"] == ELSEWHERE


def test_a_line_says_what_came_out_of_each(results: Path) -> None:
    told = summary(PARAMS, results / "chapters")
    assert "memory on cpu-onednn: has a ratio of 0.5; grade good; bars: 1 of 2 pass, 1 without a value" in told
    document = PARAMS.model_dump()
    assert len(told) == 6 + len(document["partition"]["checked_pairs"]) + len(document["cold_gpu"]["devices"])


def test_a_missing_part_and_a_figure_of_two_chapters_are_errors(results: Path) -> None:
    memory = results / "chapters/cpu-onednn/memory.json"
    memory.write_text('{"cold_start.ratio": 1.0}')
    with pytest.raises(FormatError, match=r"two chapters have a figure cold_start\.ratio"):
        build(results)
    memory.unlink()
    with pytest.raises(FormatError, match=r"memory\.json"):
        build(results)
    assert not (results / "report.html").exists()
