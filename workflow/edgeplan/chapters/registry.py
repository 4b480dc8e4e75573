"""The chapters, in the order of the report. A new one is a folder and a line of `_CHAPTERS`."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from types import MappingProxyType

from edgeplan.chapters.base import DEVICES, PAIRS, Chapter, Stage

#: Folders beside this module, each with a `chapter.py`.
_CHAPTERS = (
    "prediction",
    "cold_start",
    "memory",
    "partition",
)

#: Every chapter by name.
CHAPTERS: Mapping[str, Chapter] = MappingProxyType(
    {name: import_module(f"edgeplan.chapters.{name}.chapter").CHAPTER for name in _CHAPTERS}
)


def _captions(report: str) -> tuple[str, ...]:
    """Captions of the chapters that a report shows."""
    shown = (name for name, chapter in CHAPTERS.items() if chapter.tables and chapter.merged_by == report)
    return tuple(f"workflow/edgeplan/chapters/{name}/captions" for name in shown)


#: Belongs to no chapter: one page a device, and the figures of merit of all chapters in one file.
REPORT = Stage(
    name="report",
    function="edgeplan.report.stage:write_report",
    targets=DEVICES,
    inputs={
        "environment": "results/{device}/evaluation/environment.json",
        "transfer": "results/transfer/table_11.csv",
    },
    paths={
        "tables": "results/{device}/tables",
        "figures": "results/{device}/figures",
        "chapters": "results/{device}/chapters",
        "remarks": "docs/remarks",
    },
    reads=(
        "results/{device}/chapters",
        "results/{device}/figures",
        "results/{device}/tables",
        "docs/remarks",
        *_captions("report"),
    ),
    outputs={"report": "results/{device}/report.html", "metrics": "results/{device}/metrics.json"},
    metrics=("results/{device}/metrics.json",),
    cached=("results/{device}/report.html",),
)

#: The same of a pair of processors.
PAIR_REPORT = Stage(
    name="pair_report",
    function="edgeplan.report.stage:write_pair_report",
    targets=PAIRS,
    paths={"chapters": "results/{pair}/chapters", "remarks": "docs/remarks"},
    reads=("results/{pair}/chapters", "docs/remarks", *_captions("pair_report")),
    outputs={"report": "results/{pair}/report.html", "metrics": "results/{pair}/metrics.json"},
    metrics=("results/{pair}/metrics.json",),
    cached=("results/{pair}/report.html",),
)

#: The stages that gather what chapters wrote.
REPORTS = (REPORT, PAIR_REPORT)

#: Every stage that Snakemake builds, in the order in which they build on each other.
STAGES: tuple[Stage, ...] = (*(stage for chapter in CHAPTERS.values() for stage in chapter.stages), *REPORTS)


def parts_of_report(report: Stage, name: str, params: Mapping[str, object]) -> list[str]:
    """What the report of a device or a pair takes in: the figures of merit and the pages that chapters wrote of it."""
    assert report.targets is not None  # noqa: S101  of a target each
    (wildcard,) = report.targets.wildcards
    return [
        path.format(**target)
        for chapter in CHAPTERS.values()
        if chapter.merged_by == report.name
        for stage in chapter.stages
        if stage.targets is not None
        for target in stage.targets.of(params)
        if target.get(wildcard) == name
        for path in stage.outputs.values()
        if path.startswith(f"results/{{{wildcard}}}/chapters/")
    ]
