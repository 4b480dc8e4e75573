"""The report's page in a browser: it navigates, sorts, folds and follows the colour scheme, and asks for nothing."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from browser import Page, browser, needs_chromium
from cold_chapter_frames import evidence
from evaluation_evidence import full_evidence

from edgeplan.chapters import cold_start, prediction
from edgeplan.chapters.cold_start.evaluation.figures import COLD_FIGURES
from edgeplan.chapters.cold_start.evaluation.metrics import cold_metrics
from edgeplan.chapters.cold_start.evaluation.page import COLD_REPORT
from edgeplan.chapters.cold_start.evaluation.tables import COLD_TABLES
from edgeplan.chapters.prediction.evaluation.page import PREDICTION_REPORT
from edgeplan.report.stage import PageSection, render_page
from edgeplan.reporting import chapter_report as kit
from edgeplan.reporting.page import ChapterPage, PageTable, with_texts

pytestmark = [needs_chromium, pytest.mark.long]
WIDTHS = (390, 1400)
#: Cells that sort by number where all of a column are numbers: with signs, units, thousands, and some missing.
MIXED = ("9 %", "", "-3.5 %", "1,200 %", "0.04 %", "", "31 %")
NAMES = ("conv_10", "conv_9", "", "Add", "conv_100", "bn", "add")

#: What reaches beyond the window, unless it lies in a box that scrolls.
BEYOND = """[...document.querySelectorAll("body *")].filter((e) => e.getBoundingClientRect().right > innerWidth + 1
  && !e.closest(".skip") && !e.closest(".scroll > *, .drawing > *, .chapters > *")).map((e) => e.outerHTML.slice(0, 120))"""
UNFOLD = 'for (const fold of document.querySelectorAll("details")) fold.open = true'


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A report of two chapters of the package and of one that it does not know."""
    seen = full_evidence()
    one = PREDICTION_REPORT
    told = ["A long remark. " + "It goes on about what was seen. " * 30] * 8
    made = kit.make_or_explain(one.tables, seen)
    first = one.page(seen, made, kit.draw(one.figures, seen), one.metrics(seen))
    first = replace(first, findings=(*first.findings, *told))
    cold = evidence()
    tables, drawn = kit.make_or_explain(COLD_TABLES, cold), kit.draw(COLD_FIGURES, cold)
    second = COLD_REPORT.page(cold, tables, drawn, cold_metrics(cold))
    rows = tuple(zip(NAMES, MIXED, strict=True))
    other = PageTable("own_table", "Mixed", "Of a chapter of its own.", ("name", "share"), (False, False), rows)
    third = ChapterPage("own", "Chapter of its own", "Unknown to the page.", "", "", (), (), (), "", (), (), (other,))
    path = tmp_path_factory.mktemp("report") / "report.html"
    chapters = Path(prediction.__file__).parent, Path(cold_start.__file__).parent
    whole = [with_texts(page, folder / "captions", ()) for page, folder in zip((first, second), chapters, strict=True)]
    sections = [PageSection("x", chapter) for chapter in (*whole, third)]
    path.write_text(render_page(sections, [PageSection("other", third)]), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    with browser(tmp_path_factory.mktemp("profile")) as opened:
        yield opened


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", WIDTHS)
def test_nothing_overflows_complains_or_is_fetched(page: Page, report: Path, width: int, scheme: str) -> None:
    page.open(report, width, scheme=scheme)
    for unfolded in (False, True):
        if unfolded:
            page.ask(UNFOLD)
        assert page.ask("document.scrollingElement.scrollWidth") <= width
        assert page.ask(BEYOND) == []
    assert page.complaints == []
    assert [address for address in page.requests if not address.startswith("data:")] == [report.as_uri()]


@pytest.mark.parametrize("width", WIDTHS)
def test_navigation_stays_in_sight_and_leads_to_every_chapter_and_section(page: Page, report: Path, width: int) -> None:
    page.open(report, width)
    shown = page.ask('[...document.querySelectorAll(".contents a")].filter((a) => a.offsetParent).map((a) => a.hash)')
    assert {"#overview", "#x-prediction", "#x-cold-start", "#x-own"} <= set(shown)
    page.ask("document.documentElement.style.scrollBehavior = 'auto'")
    folded = [f"#x-cold-start-{part}" for part in ("findings", "pictures", "tables", "environment")]
    assert not set(folded) & set(shown), "sections of a chapter are folded until it is read"
    for target in [*shown[1:], *(["#x-cold-start", *folded] if width > 1000 else [])]:
        page.ask(f"document.querySelector('.contents a[href=\"{target}\"]').click()")
        page.ask("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
        top, bar, marked = page.ask(
            f"""[document.querySelector("{target}").getBoundingClientRect().top,
            document.querySelector(".contents").getBoundingClientRect().top,
            document.querySelector('.contents a[href="{target}"]').hasAttribute("aria-current")]"""
        )
        assert -1 <= top < 900 / 2, target
        assert abs(bar) < 1  # pixels: where the page ends, a fraction of one
        assert marked or target == shown[-1], target  # what ends the page may not reach the top
    if width < 1000:  # what a link leads to is not hidden by the bar above it
        page.ask("document.querySelector('.contents a[href=\"#x-cold-start\"]').click()")
        assert page.ask(
            """document.querySelector("#x-cold-start h2").getBoundingClientRect().top
            >= document.querySelector(".contents").getBoundingClientRect().bottom"""
        )


def column(page: Page, number: int) -> list[str]:
    found = page.ask(f'[...document.querySelectorAll("#x-own_table-grid tbody tr")].map((r) => r.cells[{number}].textContent)')
    assert isinstance(found, list)
    return found


def test_tables_sort_by_number_by_name_and_back(page: Page, report: Path) -> None:
    page.open(report)
    page.ask(UNFOLD)
    header = "document.querySelectorAll('#x-own_table-grid thead th')"
    for number, upwards in (
        (1, ["-3.5 %", "0.04 %", "9 %", "31 %", "1,200 %", "", ""]),
        (0, ["Add", "add", "bn", "conv_9", "conv_10", "conv_100", ""]),
    ):
        missing = upwards.count("")
        filled = upwards[: len(upwards) - missing]
        page.ask(f"{header}[{number}].querySelector('button').click()")
        assert column(page, number) == upwards
        assert page.ask(f"{header}[{number}].getAttribute('aria-sort')") == "ascending"
        page.ask(f"{header}[{number}].querySelector('button').click()")
        assert sorted(column(page, number)[: len(filled)]) == sorted(filled)
        assert column(page, number)[0] == filled[-1]
        assert column(page, number)[len(filled) :] == [""] * missing
        page.ask(f"{header}[{number}].querySelector('button').click()")
        assert column(page, number) == list((NAMES, MIXED)[number])
        assert page.ask(f"{header}[{number}].getAttribute('aria-sort')") == "none"


def test_headers_sort_by_the_keyboard(page: Page, report: Path) -> None:
    page.open(report)
    page.ask(UNFOLD)
    page.ask("document.querySelector('#x-own_table-grid thead button').focus()")
    page.key("Enter")
    assert column(page, 0)[0] == "Add"
    page.key(" ")
    assert column(page, 0)[0] == "conv_100"
    page.key("Tab")
    page.key("Enter")
    assert column(page, 1)[0] == "-3.5 %"


def test_every_table_sorts_whatever_it_holds(page: Page, report: Path) -> None:
    page.open(report)
    page.ask(UNFOLD)
    counted = "[...document.querySelectorAll('table')].map((t) => [...t.tBodies[0].rows].map((r) => r.textContent).sort())"
    before = page.ask(counted)
    assert page.ask("document.querySelectorAll('thead button').length") > 100
    page.ask("for (const b of document.querySelectorAll('thead button')) b.click()")
    assert page.ask(counted) == before
    assert page.complaints == []


def test_a_link_to_a_folded_table_opens_it(page: Page, report: Path) -> None:
    page.open(report)
    assert page.ask('document.getElementById("x-table_10").open') is False
    page.ask("document.documentElement.style.scrollBehavior = 'auto'; location.hash = 'x-table_10'")
    page.ask("new Promise((done) => setTimeout(done, 50))")
    assert page.ask('document.getElementById("x-table_10").open') is True
    assert page.ask('document.getElementById("x-table_10").getBoundingClientRect().top') < 900 / 2


def test_all_tables_of_a_chapter_unfold_and_fold(page: Page, report: Path) -> None:
    page.open(report)
    state = "[...document.querySelectorAll('#x-cold-start details.table')].map((d) => d.open)"
    assert set(page.ask(state)) == {True, False}
    for unfolded in (True, False):
        page.ask("document.querySelector('#x-cold-start .unfold').click()")
        assert set(page.ask(state)) == {unfolded}


def test_a_section_shows_ten_lines_of_text_at_most(page: Page, report: Path) -> None:
    page.open(report)
    lines = """[...document.querySelectorAll(".about, .caption, .findings")].filter((e) => e.offsetParent
      && !e.closest("details:not([open])")).map((e) => [e.textContent.slice(0, 60),
      [...e.querySelectorAll("p, li")].concat(e.matches("p") ? [e] : []).filter((t) => t.offsetParent
      && !t.parentElement.closest(".more")).reduce((sum, t) => { const range = document.createRange();
      range.selectNodeContents(t); const fold = t.querySelector(".more"); if (fold) range.setEndBefore(fold);
      return sum + new Set([...range.getClientRects()].map((r) => Math.round(r.bottom / 8))).size; }, 0)])"""
    found = page.ask(lines)
    assert len(found) > 10
    assert [told for told in found if told[1] > 10] == []


def test_theme_follows_the_system_until_the_reader_chooses(page: Page, report: Path) -> None:
    back = "getComputedStyle(document.body).backgroundColor"
    page.open(report, scheme="dark")
    dark = page.ask(back)
    page.open(report, scheme="light")
    light = page.ask(back)
    assert light != dark
    for chosen in (light, dark, light):  # light, dark, the system's
        page.ask("document.querySelector('.theme').click()")
        assert page.ask(back) == chosen


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_and_figures_stand_out_from_what_is_behind_them(page: Page, report: Path, scheme: str) -> None:
    page.open(report, scheme=scheme)
    names = ["paper", "page", "ink", "soft", "link", "pass", "miss", "undecided", *(f"series-{i}" for i in range(1, 9))]
    colour = page.ask(
        f"""(() => {{ const probe = document.body.appendChild(document.createElement("i"));
        return Object.fromEntries({names!r}.map((name) => {{ probe.style.color = `var(--${{name}})`;
        return [name, getComputedStyle(probe).color]; }})); }})()"""
    )
    for name in ("ink", "soft", "link", "pass", "miss", "undecided"):
        assert min(contrast(colour[name], colour[back]) for back in ("paper", "page")) >= 4.5, name
    for i in range(1, 9):
        assert contrast(colour[f"series-{i}"], colour["paper"]) >= 2.2, i
    drawn = page.ask("getComputedStyle(document.querySelector('.drawing svg text')).fill")
    assert contrast(drawn, colour["paper"]) >= 7


def contrast(one: str, other: str) -> float:
    """Contrast of two colours, `rgb(...)`, as WCAG defines it."""

    def luminance(text: str) -> float:
        parts = [int(v) / 255 for v in re.findall(r"\d+", text)[:3]]
        red, green, blue = (v / 12.92 if v <= 0.04045 else ((v + 0.055) / 1.055) ** 2.4 for v in parts)
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue

    lighter, darker = sorted((luminance(one), luminance(other)), reverse=True)
    return (lighter + 0.05) / (darker + 0.05)
