"""Stage `report`: the self-contained page of a device, and the figures of merit of all its chapters in one file."""

from __future__ import annotations

from pathlib import Path

from edgeplan.errors import FormatError
from edgeplan.report.report import write_report as write_page
from edgeplan.reporting.table import read_table
from edgeplan.support.files import write_json
from edgeplan.support.frames import read_document


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
        chapters: a JSON document of figures of merit for each chapter, and the further chapters as HTML fragments.
        metrics: where the figures of merit of all chapters go.
        environment: environment.json of the first chapter.
        transfer: Table 11; may be absent.
        remarks: folder with a text per device, one paragraph a remark, or none.
        report: the page.
    """
    write_json(metrics, merged_metrics(chapters))
    write_page(
        device,
        tables=tables,
        figures=figures,
        metrics=metrics,
        environment=environment,
        findings=tables / "findings.json",
        report=report,
        more={"table_11": read_table(transfer)[0]} if transfer.is_file() else {},
        remarks=remarks_of(remarks, device, environment),
        chapters=[path.read_text() for path in sorted(chapters.glob("*.html"))],
    )


def merged_metrics(chapters: Path) -> dict[str, float]:
    """The figures of merit of all chapters, sorted by key.

    Raises:
        FormatError: a document cannot be read or is of another format version, or two chapters have a figure of the same name.
    """
    merged: dict[str, float] = {}
    for path in sorted(chapters.glob("*.json")):
        found = read_document(path)
        if merged.keys() & found.keys():
            twice = min(merged.keys() & found.keys())
            raise FormatError(f"two chapters have a figure {twice}", where=str(path), next_step="rename one of them")
        merged |= found
    return dict(sorted(merged.items()))


#: Begins the paragraph that says which rows a text is about: the machine's fingerprint, and the commits that measured them.
_ABOUT = "Rows: "


def remarks_of(folder: Path, name: str, environment: Path) -> list[str]:
    """The paragraphs of a text written by people about these rows; none where there is no such text.

    Args:
        folder: of the texts.
        name: of the text, without `.md`.
        environment: environment.json of the rows. Of a text about others a sentence says that it is there.
    """
    written = folder / f"{name}.md"
    paragraphs = [p.strip() for p in written.read_text().split("\n\n")] if written.is_file() else []
    about = next((p.removeprefix(_ABOUT).split() for p in paragraphs if p.startswith(_ABOUT)), [])
    if about:
        known = read_document(environment) if environment.is_file() else {}
        if about != [known.get("fingerprint"), *known.get("commits", [])]:
            return [f"What people wrote about other rows of this device, those of machine {about[0]}, is in {written}."]
    return [p for p in paragraphs if p and not p.startswith(_ABOUT)]
