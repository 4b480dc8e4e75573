"""Stage `report`: the self-contained page of a device."""

from __future__ import annotations

from pathlib import Path

from edgeplan.evaluation.report import write_report as write_page
from edgeplan.evaluation.tables import read_table


def write_report(
    *, device: str, tables: Path, figures: Path, metrics: Path, environment: Path, transfer: Path, remarks: Path, report: Path
) -> None:
    """Gather what the evaluation wrote; `remarks` is a folder with a text per device, one paragraph a remark, or none."""
    written = remarks / f"{device}.md"
    paragraphs = [p.strip() for p in written.read_text().split("\n\n")] if written.is_file() else []
    write_page(
        device,
        tables=tables,
        figures=figures,
        metrics=metrics,
        environment=environment,
        findings=tables / "findings.json",
        report=report,
        more={"table_11": read_table(transfer)[0]} if transfer.is_file() else {},
        remarks=[p for p in paragraphs if p],
    )
