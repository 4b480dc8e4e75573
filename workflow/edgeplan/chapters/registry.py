"""Registers the chapters by name, in the order of the report, and what is made of all of them."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import yaml

from edgeplan.chapters import chapter_modules
from edgeplan.chapters.base import Chapter, Stage, covered, expanded

#: Every chapter by name.
CHAPTERS: Mapping[str, Chapter] = MappingProxyType(
    {module.CHAPTER.name: module.CHAPTER for module in chapter_modules("chapter")}
)


#: Where chapters hand over what they found of a target: `<target>/<name>.json`, figures of merit, and `<name>.page.json`.
HANDED_OVER = "results/chapters"
_OF_PARAMS = tuple(dict.fromkeys(s.targets.path for c in CHAPTERS.values() for s in c.stages if s.targets))
_CAPTIONS = tuple(f"workflow/edgeplan/chapters/{name}/captions" for name, chapter in CHAPTERS.items() if chapter.tables)

#: Belongs to no chapter: a page of all devices and pairs, and the figures of merit of each in `results/<target>/metrics.json`.
REPORT = Stage(
    name="report",
    function="edgeplan.report.stage:write_report",
    params=_OF_PARAMS,
    paths={"chapters": HANDED_OVER, "remarks": "docs/remarks"},
    reads=(HANDED_OVER, "docs/remarks", *_CAPTIONS),
    outputs={"report": "results/report.html"},
    cached=("results/report.html",),
)

#: Every stage that Snakemake builds, in the order in which they build on each other.
STAGES: tuple[Stage, ...] = (*(stage for chapter in CHAPTERS.values() for stage in chapter.stages), REPORT)


def parts_of_report(params: Mapping[str, object]) -> dict[str, str]:
    """Map the documents that chapters hand over of the targets in params.yaml to each one's chapter."""
    return {
        path: name
        for name, chapter in CHAPTERS.items()
        for stage in chapter.stages
        for output in stage.outputs.values()
        if output.startswith(f"{HANDED_OVER}/")
        for path in expanded(output, stage.targets, params)
    }


def merged_figures(params: Mapping[str, object]) -> list[str]:
    """Return the file of figures of merit of each target that a chapter has some of."""
    targets = dict.fromkeys(path.split("/")[-2] for path in parts_of_report(params) if not path.endswith(".page.json"))
    return [f"results/{target}/metrics.json" for target in targets]


def rebuilt(params: Mapping[str, object]) -> list[str]:
    """Return the stages that write committed files from stored rows, in order, and not those that only fill DVC's cache."""
    return [
        stage.name
        for stage in STAGES
        if not all(covered(path, stage.cached) for path in stage.written)
        and (stage.targets is None or stage.targets.of(params))
    ]


if __name__ == "__main__":  # for `make tables`
    sys.stdout.write(" ".join(rebuilt(yaml.safe_load(Path("params.yaml").read_text(encoding="utf-8")))) + "\n")
