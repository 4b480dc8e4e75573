"""Stage `report`: the self-contained page of a device, and the figures of merit of all its chapters in one file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from edgeplan.errors import FormatError
from edgeplan.evaluation.chapter import SUFFIX, read_chapter
from edgeplan.evaluation.pages import render_page
from edgeplan.evaluation.report import read_prediction_chapter
from edgeplan.evaluation.tables import read_table
from edgeplan.files import write_json, write_text
from edgeplan.frames import read_document


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
        chapters: a document of figures of merit for each chapter, and the further chapters as `chapter.write_chapter` wrote
            them.
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
        remarks=remarks_of(remarks, device, environment),
    )
    further = [read_chapter(path) for path in sorted(chapters.glob(f"*{SUFFIX}"))]
    write_text(report, render_page(device, machine_of(read_document(environment)), [prediction, *further]))


def machine_of(environment: Mapping[str, Any]) -> str:
    """The machine of a captured environment, as a line; what it does not tell is left out."""
    versions = " ".join(str(environment[key]) for key in ("engine", "engine_version") if key in environment)
    sizes = (("cores", "{} cores"), ("memory_gib", "{} GiB"))
    parts = [environment.get("cpu"), *(text.format(environment[key]) for key, text in sizes if key in environment)]
    parts += ["virtual" if environment.get("virtualised") else "", versions]
    return ", ".join(str(part) for part in parts if part)


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
