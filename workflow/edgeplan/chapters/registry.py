"""Registers the chapters by name, in the order of the report, and what is made of all of them.

A key of params.yaml that is misspelt, or a value out of range, is named in the error.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from types import MappingProxyType

import yaml
from pydantic import BaseModel, create_model

from edgeplan.chapters import NAMES
from edgeplan.chapters.base import Chapter, ChapterParams, Stage, covered, expanded
from edgeplan.devices.config import load_device
from edgeplan.errors import ParamsError
from edgeplan.support.files import read_yaml, validate

#: The first stage of dvc.yaml (`chapters.check`), which belongs to no chapter.
CHECK = "check"
#: Every chapter by name.
CHAPTERS: Mapping[str, Chapter] = MappingProxyType(
    {name: import_module(f"edgeplan.chapters.{name}.chapter").CHAPTER for name in NAMES}
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


#: The schema: each chapter's settings are a part of it, so that what was read is what each chapter's functions take.
Params: type[ChapterParams] = create_model("Params", __base__=tuple(chapter.settings for chapter in CHAPTERS.values()))


def load_params(path: Path) -> ChapterParams:
    """Read params.yaml, and validate every value of it."""
    params = read_yaml(path, Params, ParamsError, "params file")
    for name, section in params:
        # settings have defaults for those who use the package without the file; the file says everything
        left_out = type(section).model_fields.keys() - section.model_fields_set if isinstance(section, BaseModel) else ()
        if left_out:
            what = f"params file: {name}.{min(left_out)}: Field required"
            raise ParamsError(what, where=str(path), next_step="correct the named fields")
    return params


def params_on(params: ChapterParams, device: Path) -> ChapterParams:
    """Return the params with the values that a device's file has of its own (`DeviceFile.settings`)."""
    own = load_device(device).settings
    if not own:
        return params
    merged = params.model_dump()
    for section, values in own.items():
        known = merged.get(section)
        merged[section] = known | values if isinstance(known, dict) else values
    return validate(merged, Params, ParamsError, "what params.yaml is on this device", str(device))


if __name__ == "__main__":  # for `make tables`
    sys.stdout.write(" ".join(rebuilt(yaml.safe_load(Path("params.yaml").read_text(encoding="utf-8")))) + "\n")
