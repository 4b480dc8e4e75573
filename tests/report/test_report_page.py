"""The report's page in a browser: it navigates, sorts, folds and follows the colour scheme, and asks for nothing."""

from __future__ import annotations

import json
import os
import select
import shutil
import subprocess
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cold_chapter_frames import evidence
from evaluation_evidence import full_evidence

from edgeplan.chapters import cold_start, prediction
from edgeplan.chapters.cold_start.evaluation.page import COLD_REPORT
from edgeplan.chapters.prediction.evaluation.page import PREDICTION_REPORT
from edgeplan.report.stage import PageSection, render_page
from edgeplan.reporting import chapter_report as kit
from edgeplan.reporting.page import ChapterPage, PageTable, with_texts

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed (Debian: apt-get install chromium)")
#: Seconds that an answer may take on a machine that has other work.
PATIENCE_S = 180.0
_FLAGS = ("--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run", "--remote-debugging-pipe")


class Page:
    """One page."""

    def __init__(self, reading: int, writing: int) -> None:
        self._reading, self._writing, self._buffer, self._last, self._session = reading, writing, b"", 0, ""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]

    def call(self, method: str, **params: Any) -> Any:
        """Ask the browser for something and wait for its answer."""
        self._last += 1
        message = {"id": self._last, "method": method, "params": params} | (
            {"sessionId": self._session} if self._session else {}
        )
        os.write(self._writing, json.dumps(message).encode() + b"\0")
        while (answer := self._next()).get("id") != self._last:
            pass
        assert "error" not in answer, f"{method}: {answer['error']}"
        return answer["result"]

    def open(self, path: Path, width: int = 1400, height: int = 900, *, scheme: str = "light") -> None:
        """Load a file in a window of that size, under a colour scheme of the system."""
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600)
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        for address in ("about:blank", path.as_uri()):
            self.call("Page.navigate", url=address)
        self.ask("document.readyState == 'complete' || new Promise((done) => addEventListener('load', () => done(true)))")

    def ask(self, expression: str) -> Any:
        """The value of a JavaScript expression, which may be a promise."""
        found = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def _next(self) -> dict[str, Any]:
        until = time.monotonic() + PATIENCE_S
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._reading], [], [], max(0.0, until - time.monotonic()))
            assert ready, "the browser does not answer"
            got = os.read(self._reading, 1 << 20)
            assert got, "the browser has ended"
            self._buffer += got
        message, _, self._buffer = self._buffer.partition(b"\0")
        answer: dict[str, Any] = json.loads(message)
        return answer


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
    told = ["A long remark. " + "It goes on about what was seen. " * 30] * 8
    sections = []
    for one, seen, chapter in ((PREDICTION_REPORT, full_evidence(), prediction), (COLD_REPORT, evidence(), cold_start)):
        made = one.page(seen, kit.make_or_explain(one.tables, seen), kit.draw(one.figures, seen), one.metrics(seen))
        captions = Path(chapter.__file__).parent / "captions"
        sections.append(PageSection("x", with_texts(replace(made, findings=(*made.findings, *told)), captions, ())))
    rows = tuple(zip(NAMES, MIXED, strict=True))
    other = PageTable("own_table", "Mixed", "Of a chapter of its own.", ("name", "share"), (False, False), rows)
    third = ChapterPage("own", "Chapter of its own", "Unknown to the page.", "", "", (), (), (), "", (), (), (other,))
    path = tmp_path_factory.mktemp("report") / "report.html"
    path.write_text(render_page([*sections, PageSection("x", third)], [PageSection("other", third)]), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    """A page of a browser of its own, which ends with the tests."""
    assert CHROMIUM is not None
    (to_read, to_write), (from_read, from_write) = os.pipe(), os.pipe()
    # The protocol is spoken on descriptors 3 and 4.
    plug = f'exec "$@" 3<&{to_read} 4>&{from_write}'
    command = ["bash", "-c", plug, "bash", CHROMIUM, *_FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('profile')}"]
    quiet, passed = subprocess.DEVNULL, (to_read, from_write)
    with subprocess.Popen(command, pass_fds=passed, stdout=quiet, stderr=quiet) as process:
        os.close(to_read)
        os.close(from_write)
        yield Page(from_read, to_write)
        os.close(to_write)
        os.close(from_read)
        process.terminate()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", WIDTHS)
def test_nothing_overflows_or_is_fetched(page: Page, report: Path, width: int, scheme: str) -> None:
    page.open(report, width, scheme=scheme)
    for unfolded in (False, True):
        if unfolded:
            page.ask(UNFOLD)
        assert page.ask("document.scrollingElement.scrollWidth") <= width
        assert page.ask(BEYOND) == []
    assert page.ask("performance.getEntriesByType('resource').filter((e) => !e.name.startsWith('data:')).length") == 0


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
    whole = "[...document.querySelectorAll('table')].map((t) => [...t.tBodies[0].rows].map((r) => r.textContent).sort())"
    before = page.ask(whole)
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
    assert page.ask("document.querySelectorAll('thead button').length") > 100
    page.ask("for (const b of document.querySelectorAll('thead button')) b.click()")
    assert page.ask(whole) == before


def test_tables_unfold_by_a_link_to_them_and_all_of_a_chapter_at_once(page: Page, report: Path) -> None:
    page.open(report)
    assert page.ask('document.getElementById("x-table_10").open') is False
    page.ask("document.documentElement.style.scrollBehavior = 'auto'; location.hash = 'x-table_10'")
    page.ask("new Promise((done) => setTimeout(done, 50))")
    assert page.ask('document.getElementById("x-table_10").open') is True
    assert page.ask('document.getElementById("x-table_10").getBoundingClientRect().top') < 900 / 2
    state = "[...document.querySelectorAll('#x-cold-start details.table')].map((d) => d.open)"
    assert set(page.ask(state)) == {True, False}
    for unfolded in (True, False):
        page.ask("document.querySelector('#x-cold-start .unfold').click()")
        assert set(page.ask(state)) == {unfolded}


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
