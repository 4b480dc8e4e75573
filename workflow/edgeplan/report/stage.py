"""Stages `report`, `pair_report` and `cold_report`: pages, and the figures of merit of all chapters of a device in one file.

What people wrote, captions and remarks, is read here and by no stage before.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from edgeplan.chapters.prediction.evaluation.page import read_prediction_chapter
from edgeplan.errors import FormatError
from edgeplan.report.pages import render_page
from edgeplan.reporting.page import SUFFIX, ChapterPage, read_chapter, with_texts
from edgeplan.reporting.table import read_table
from edgeplan.support.files import write_json, write_text
from edgeplan.support.frames import read_document

_CHAPTERS = Path(__file__).parents[1] / "chapters"


def write_report(
    *,
    device: str,
    tables: Path,
    figures: Path,
    chapters: Path,
    metrics: Path,
    environment: Path,
    transfer: Path,
    remarks: Path,
    report: Path,
) -> None:
    """Gather what the chapters wrote.

    Args:
        device: name of the device.
        tables: of the first chapter.
        figures: of the first chapter.
        chapters: a document of figures of merit for each chapter, and the further chapters (`reporting.page.write_chapter`).
        metrics: where the figures of merit of all chapters go.
        environment: environment.json of the first chapter.
        transfer: Table 11; may be absent.
        remarks: folder with a text per device, one paragraph a remark, or none.
        report: the page.
    """
    write_json(metrics, merged_metrics(chapters))
    prediction = read_prediction_chapter(
        device,
        tables=tables,
        figures=figures,
        metrics=chapters / "prediction.json",
        environment=environment,
        findings=tables / "findings.json",
        more={"table_11": read_table(transfer)[0]} if transfer.is_file() else {},
    )
    own = with_texts(prediction, _CHAPTERS / "prediction/captions", remarks_of(remarks, device, prediction.rows))
    shown = [own, *(_complete(path, device, remarks) for path in sorted(chapters.glob(f"*{SUFFIX}")))]
    write_text(report, render_page(device, own.machine, shown))


def write_pair_report(*, pair: str, chapters: Path, metrics: Path, remarks: Path, report: Path) -> None:
    """Gather what the chapters on pairs of processors wrote.

    Args:
        pair: its name.
        chapters: as for `write_report`.
        metrics: where the figures of merit of all chapters go.
        remarks: folder of texts written by people.
        report: the page.
    """
    write_json(metrics, merged_metrics(chapters))
    shown = [_complete(path, pair, remarks) for path in sorted(chapters.glob(f"*{SUFFIX}"))]
    write_text(report, render_page(pair, shown[0].machine if shown else "", shown))


def write_chapter_report(*, device: str, chapter: Path, remarks: Path, page: Path) -> None:
    """A page of one chapter alone, for devices that the first was not built for.

    Args:
        device: name of the device.
        chapter: as its stage wrote it.
        remarks: folder of texts written by people.
        page: where it goes.
    """
    shown = _complete(chapter, device, remarks)
    write_text(page, render_page(device, shown.machine, [shown]))


def _complete(path: Path, device: str, remarks: Path) -> ChapterPage:
    """A chapter that a stage wrote, with what people wrote of it."""
    name, chapter = path.name.removesuffix(SUFFIX), read_chapter(path)
    told = remarks_of(remarks, f"{device}-{name.replace('_', '-')}", chapter.rows)
    folder = _CHAPTERS / name
    if not folder.is_dir():  # a further page of a chapter, called after it
        folder = _CHAPTERS / name.rpartition("_")[0]
    return with_texts(chapter, folder / "captions", told)


def merged_metrics(chapters: Path) -> dict[str, float]:
    """The figures of merit of all chapters, sorted by key.

    Raises:
        FormatError: a document cannot be read or is of another format version, or two chapters have a figure of the same name.
    """
    merged: dict[str, float] = {}
    for path in sorted(set(chapters.glob("*.json")) - set(chapters.glob(f"*{SUFFIX}"))):
        found = read_document(path)
        if merged.keys() & found.keys():
            twice = min(merged.keys() & found.keys())
            raise FormatError(f"two chapters have a figure {twice}", where=str(path), next_step="rename one of them")
        merged |= found
    return dict(sorted(merged.items()))


#: Begins the paragraph that says which rows a text is about: the machine's fingerprint, and the commits that measured them.
_ABOUT = "Rows: "


def remarks_of(folder: Path, name: str, rows: Sequence[str]) -> list[str]:
    """The paragraphs of a text written by people about these rows; none where there is no such text.

    Args:
        folder: of the texts.
        name: of the text, without `.md`.
        rows: fingerprint and commits of the rows (`ChapterPage.rows`). Of a text about others a sentence says that it is there.
    """
    written = folder / f"{name}.md"
    paragraphs = [p.strip() for p in written.read_text().split("\n\n")] if written.is_file() else []
    about = next((p.removeprefix(_ABOUT).split() for p in paragraphs if p.startswith(_ABOUT)), [])
    if about and about != list(rows):
        return [f"What people wrote about other rows of this device, those of machine {about[0]}, is in {written}."]
    return [p for p in paragraphs if p and not p.startswith(_ABOUT)]
