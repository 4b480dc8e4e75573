"""dvc.yaml, written from the chapters' stages and from what the code of each imports: `make wire`."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from edgeplan.chapters.base import Stage, Targets, covered
from edgeplan.chapters.registry import CHAPTERS, STAGES
from edgeplan.engines.registry import PROCESSORS
from edgeplan.support.files import write_text

PACKAGE = Path(__file__).parents[1]
#: Modules that word messages, check values, find files, declare stages, start and end processes: no result depends on them.
NEUTRAL = (
    *("__init__.py", "errors.py", "progress.py", "params.py", "terminal.py", "workspace.py", "writable.py"),
    *("chapters/base.py", "chapters/registry.py", "chapters/*/chapter.py", "chapters/prediction/settings.py"),
    *("support/lifeline.py", "support/scratch.py", "support/subprocesses.py", "support/termination.py"),
    "support/protocols.py",  # a new name comes with changed sources
    *("support/lifeline.py", "support/termination.py", "support/subprocesses.py"),  # start and end processes
)
#: More modules of a folder than this, or half of them, stand as the folder: longer lists are read by nobody.
_MODULES = 3
_CODE = "workflow/edgeplan"
_SNAKEMAKE = "EDGEPLAN_STARTED_BY=$PPID snakemake --nolock -s workflow/rules/stages.smk"
#: What is in git, and stays there until there is something to put in its place.
_KEPT: Mapping[str, bool] = {"cache": False, "persist": True}
_HEAD = """\
# The stages of the pipeline: what each reads and writes. Written by `make wire` from the stages that workflow/edgeplan/chapters
# declare and from what their code imports; change those. Inside a stage Snakemake builds (workflow/rules/stages.smk); between
# stages DVC decides, by content. `foreach` makes one stage a target, e.g. sampling@cpu-openvino.
# EDGEPLAN_STARTED_BY: what a stage runs ends with the dvc that runs it.
# --nolock: one Snakemake at a time in a workspace, by a lock of our own that no killed run leaves behind (common.smk).
# cache: false puts a file into git (rows, tables, metrics, figures); the rest is in DVC's cache.
# persist: true keeps the measured rows when a stage runs again: it measures what is missing. What else is in git is kept, too,
# until there is something to put in its place: Snakemake restores it when the stage fails (update). It may be newer than what
# it was made from, so that Snakemake has to be told to make it again (--force).
# Modules that word messages, check values, find files or start processes are no dependencies: no result depends on them.
"""


class _Flow(list[Any]):
    """A list on one line."""


class _Dumper(yaml.SafeDumper):
    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:  # noqa: ARG002  lists are indented
        super().increase_indent(flow, indentless=False)


_Dumper.add_representer(_Flow, lambda dumper, data: dumper.represent_sequence("tag:yaml.org,2002:seq", data, flow_style=True))


def main() -> None:
    """Write dvc.yaml of the folder that the package lies in."""
    write_text(PACKAGE.parents[1] / "dvc.yaml", document())


def document() -> str:
    """What dvc.yaml holds."""
    stages: dict[str, Any] = {"check": _check()}
    stages |= {stage.name: _entry(stage) for stage in STAGES}
    plots = [
        {one.path: {"template": "bar_horizontal", "title": one.title, "x": one.x, "y": one.y}}
        for chapter in CHAPTERS.values()
        for one in chapter.compared
    ]
    return _HEAD + yaml.dump({"stages": stages, "plots": plots}, Dumper=_Dumper, sort_keys=False, width=200)


def _check() -> dict[str, Any]:
    """Runs first, as the first of the file, whenever a value of params.yaml or a device file changed."""
    return {
        "cmd": "EDGEPLAN_STARTED_BY=$PPID PYTHONPATH=workflow python workflow/scripts/check.py",
        "deps": ["config/devices", "config/pairs", "workflow/scripts/check.py", *code("edgeplan.chapters.check")],
        "params": [{"params.yaml": None}],
    }


def _entry(stage: Stage) -> dict[str, Any]:
    target = next(iter(stage.outputs.values()))
    made: dict[str, Any] = {
        "cmd": f"{_SNAKEMAKE} --force {target} --allowed-rules {stage.name}",
        "deps": [*sorted(stage.read), *code(stage.function.partition(":")[0])],
    }
    if stage.params:
        made["params"] = _Flow(stage.params)
    own = [path for path in stage.written if path not in (*stage.plots, *stage.metrics)]
    made["outs"] = [_out(path, stage) for path in own]
    if stage.rows:
        made["outs"].append({stage.rows: dict(_KEPT)})
    for kind, paths in (("plots", stage.plots), ("metrics", stage.metrics)):
        if paths:
            made[kind] = [_out(path, stage) for path in paths]
    return _targeted(made, stage.targets)


def _out(path: str, stage: Stage) -> str | dict[str, Mapping[str, bool]]:
    return path if covered(path, stage.cached) else {path: dict(_KEPT)}


def _targeted(entry: dict[str, Any], targets: Targets | None) -> dict[str, Any]:
    """The entry of a stage for all its targets, with DVC's names of them in place of Snakemake's wildcards."""
    if targets is None:
        return entry
    outputs = [path for out in entry["outs"] for path in ([out] if isinstance(out, str) else out)]
    fixed = not any(f"{{{wildcard}}}" in path for path in outputs for wildcard in targets.wildcards)
    names = {
        w: f"${{{targets.path}.{w}}}" if fixed else "${item}" if len(targets.wildcards) == 1 else f"${{item.{w}}}"
        for w in targets.wildcards
    }
    made: dict[str, Any] = _named(entry, names)
    return made if fixed else {"foreach": f"${{{targets.path}}}", "do": made}


def _named(value: Any, names: Mapping[str, str]) -> Any:
    if isinstance(value, str):
        for wildcard, name in names.items():
            value = value.replace(f"{{{wildcard}}}", name)
        return value
    if isinstance(value, dict):
        return {_named(key, names): _named(item, names) for key, item in value.items()}
    return type(value)(_named(item, names) for item in value) if isinstance(value, list) else value


def code(module: str) -> list[str]:
    """The code that a stage depends on: what the module of its function imports, itself included.

    Modules of stages stand one by one, and so do those at the head of a chapter: one changes without the others being built
    again. Of other folders that more than a few modules are imported of, the folder stands.
    """
    by_folder: dict[Path, list[Path]] = {}
    for path in sorted(imported(module)):
        by_folder.setdefault(_folder(path), []).append(path)
    found: list[Path] = []
    for folder, paths in by_folder.items():
        everything = [path for path in folder.rglob("*.py") if not _says_nothing(path)]
        alone = folder == PACKAGE or folder.name in ("stages", "chapters") or folder.parent.name == "chapters"
        many = len(paths) > _MODULES or 2 * len(paths) >= len(everything)
        found += [folder] if many and not alone else paths
    return sorted(f"{_CODE}/{path.relative_to(PACKAGE).as_posix()}" for path in found)


def _folder(path: Path) -> Path:
    """The folder that may stand for a file: of the foundation one below the package, of a chapter one below the chapter."""
    parts = path.relative_to(PACKAGE).parts[:-1]
    return PACKAGE.joinpath(*parts[: 3 if parts[:1] == ("chapters",) else 1])


def imported(module: str) -> set[Path]:
    """All files of the package that a module imports, directly or not, itself included; not through neutral ones."""
    seen: set[Path] = set()
    ahead = _files(module)
    while ahead:
        path = ahead.pop()
        if path not in seen and not _neutral(path):
            seen.add(path)
            ahead |= _imports(path)
    return {path for path in seen if not _says_nothing(path)}


def _neutral(path: Path) -> bool:
    relative = path.relative_to(PACKAGE)
    return any(len(relative.parts) == pattern.count("/") + 1 and relative.match(pattern) for pattern in NEUTRAL)


@cache
def _says_nothing(path: Path) -> bool:
    """Whether a file holds its docstring alone."""
    return path.name == "__init__.py" and len(ast.parse(path.read_text(encoding="utf-8")).body) <= 1


def _files(name: str) -> set[Path]:
    """The files that importing `edgeplan.a.b` reads: the module and the packages above it."""
    parts = name.split(".")[1:]
    found = {PACKAGE.joinpath(*parts[:depth], "__init__.py") for depth in range(1, len(parts) + 1)}
    found.add(PACKAGE.joinpath(*parts).with_suffix(".py"))
    return {path for path in found if path.is_file()}


@cache
def _imports(path: Path) -> frozenset[Path]:
    return frozenset(found for name in _names(path) for found in _files(name))


def _names(path: Path) -> Iterator[str]:
    """Modules of the package that a file imports, at its head or later."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "edgeplan":
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.split(".")[0] == "edgeplan")
    if path == PACKAGE / "devices/pairs.py":  # which imports the processors of pairs by their names
        own = (one.processor for one in PROCESSORS.values() if one.processor.startswith("edgeplan."))
        yield from (name.partition(":")[0] for name in own)


if __name__ == "__main__":
    main()
