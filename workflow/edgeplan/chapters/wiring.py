"""Writes files made from the stages that chapters declare (`make wire`): dvc.yaml, Snakemake's rules, digests of code."""

from __future__ import annotations

import ast
import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from edgeplan.chapters.base import Chapter, Stage, covered
from edgeplan.chapters.registry import CHAPTERS, CHECK, REPORT, STAGES
from edgeplan.engines.registry import PROCESSORS
from edgeplan.support.files import write_text
from edgeplan.support.sources import PACKAGE, ROOT, digest, imported

#: Digests of the code of each stage, which DVC reads as params. Words, comments and where a module stands are no part of them.
CODE = Path("workflow/code.json")
#: What is in git, and stays there until there is something to put in its place.
_KEPT: Mapping[str, bool] = {"cache": False, "persist": True}
_DVC_HEAD = """\
# The stages of the pipeline: what each reads and writes. Written by `make wire` from the stages that workflow/edgeplan/chapters
# declare; change those. `foreach` makes one stage a target, e.g. sampling@cpu-openvino.
# workflow/code.json holds a digest of the code of each stage, in which comments and docstrings do not count.
# cache: false puts a file into git (rows, tables, metrics, figures); the rest is in DVC's cache.
# persist: true keeps the measured rows when a stage runs again: it measures what is missing. What else is in git is kept, too,
# until there is something to put in its place.
"""
#: The first stage of dvc.yaml runs whenever a value of params.yaml, or the file of a device or a pair, changed.
_ALL = (
    Stage(name=CHECK, function="edgeplan.chapters.check:check_params", outputs={}, reads=("config/devices", "config/pairs")),
    *STAGES,
)
_RULES_HEAD = '"""Rules of {title}. Written by `make wire` from {source}; change that."""\n'


class _Flow(list[Any]):
    """Marks a list that YAML writes on one line."""


class _Dumper(yaml.SafeDumper):
    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:  # noqa: ARG002  lists are indented
        super().increase_indent(flow, indentless=False)


_Dumper.add_representer(_Flow, lambda dumper, data: dumper.represent_sequence("tag:yaml.org,2002:seq", data, flow_style=True))


def noted_code() -> Mapping[str, str]:
    """Read the digests in the workspace's file, by stage; none where it has none."""
    return json.loads(CODE.read_text(encoding="utf-8")) if CODE.is_file() else {}


def code_digest(module: str) -> str:
    """Return the digest of a stage's code: of the modules that its own imports, and of sources beside them."""
    found = imported(module)
    if PACKAGE / "devices/pairs.py" in found:  # which imports the processors of pairs by their names
        own = (one.processor for one in PROCESSORS.values() if one.processor.startswith("edgeplan."))
        found = found.union(*(imported(name.partition(":")[0]) for name in own))
    return digest(found)


def main() -> None:
    """Write the files of the folder that the package lies in."""
    for path, text in written().items():
        if not (ROOT / path).is_file() or (ROOT / path).read_text(encoding="utf-8") != text:
            write_text(ROOT / path, text)


def written() -> dict[Path, str]:
    """Make the files that come from the stages, by their paths below the root."""
    rules = {Path(f"workflow/rules/{name}.smk"): _rules(chapter) for name, chapter in CHAPTERS.items()}
    outputs = [*(f'update("{path}")' for path in REPORT.outputs.values()), "update(merged_figures(config))"]
    rules[Path("workflow/rules/report.smk")] = _RULES_HEAD.format(
        title="the report", source="workflow/edgeplan/chapters/registry.py"
    ) + _rule(REPORT, ["[] if CURRENT else list(parts_of_report(config))"], outputs)
    code = {stage.name: code_digest(stage.module) for stage in _ALL}
    return {Path("dvc.yaml"): document(), **rules, CODE: json.dumps(code, indent=1) + "\n"}


# dvc.yaml


def document() -> str:
    """Write dvc.yaml from the stages of the chapters."""
    stages = {stage.name: _entry(stage) for stage in _ALL}
    plots = [
        {one.path: {"template": "bar_horizontal", "title": one.title, "x": one.x, "y": one.y}}
        for chapter in CHAPTERS.values()
        for one in chapter.compared
    ]
    return _DVC_HEAD + yaml.dump({"stages": stages, "plots": plots}, Dumper=_Dumper, sort_keys=False, width=200)


def _entry(stage: Stage) -> dict[str, Any]:
    made: dict[str, Any] = {"desc": _about(stage.module), "cmd": stage.command}
    if stage.read:
        made["deps"] = sorted(stage.read)
    made["params"] = [*(stage.params if stage.name != CHECK else [{"params.yaml": None}]), {str(CODE): _Flow([stage.name])}]
    own = [path for path in stage.written if path not in (*stage.plots, *stage.metrics)]
    kinds = {"outs": own, "plots": stage.plots, "metrics": stage.metrics}
    entries = {kind: [_out(path, stage) for path in paths] for kind, paths in kinds.items()}
    entries["outs"] += [{stage.rows: dict(_KEPT)}] if stage.rows else []
    made |= {kind: of_kind for kind, of_kind in entries.items() if of_kind}
    return _targeted(made, stage)


def _out(path: str, stage: Stage) -> str | dict[str, Mapping[str, bool]]:
    return path if covered(path, stage.cached) else {path: dict(_KEPT)}


def _targeted(entry: dict[str, Any], stage: Stage) -> dict[str, Any]:
    """Return the entry of a stage for all its targets, with DVC's names of them in place of Snakemake's wildcards."""
    targets = stage.targets
    if targets is None:
        return entry
    fixed = not stage.wildcards
    names = {
        w: f"${{{targets.path}.{w}}}" if fixed else "${item}" if len(targets.wildcards) == 1 else f"${{item.{w}}}"
        for w in targets.wildcards
    }
    made: dict[str, Any] = _renamed(entry, names)
    return made if fixed else {"foreach": f"${{{targets.path}}}", "do": made}


def _renamed(value: Any, names: Mapping[str, str]) -> Any:
    if isinstance(value, str):
        for wildcard, name in names.items():
            value = value.replace(f"{{{wildcard}}}", name)
        return value
    if isinstance(value, dict):
        return {_renamed(key, names): _renamed(item, names) for key, item in value.items()}
    return type(value)(_renamed(item, names) for item in value) if isinstance(value, list) else value


# Snakemake's rules


def _rules(chapter: Chapter) -> str:
    source = f"workflow/edgeplan/chapters/{chapter.name}/chapter.py"
    made = (
        _rule(
            stage,
            [
                *(_path(path, stage) for path in stage.inputs.values()),
                *(f"made_here({_path(path, stage)})" for path in stage.finds),
            ],
            list(_outputs(stage, chapter)),
        )
        for stage in chapter.stages
    )
    return _RULES_HEAD.format(title=f"the chapter {chapter.name}", source=source) + "".join(made)


def _rule(stage: Stage, inputs: Iterable[str], outputs: Iterable[str]) -> str:
    """Return a rule as text, laid out as snakefmt does."""
    log = stage.log
    blocks = {
        "input": inputs,
        "output": outputs,
        "log": [f'"{log}"'],
        "benchmark": [f'"{log.replace("logs", "benchmarks").replace(".log", ".tsv")}"'],
        "threads": ["cores_taken" if _on_device(stage) else "workflow.cores"] if stage.all_cores else [],
        "resources": _resources(stage),
        "params": [f"{name.replace('.', '_')}={_value(name)}" for name in stage.params],
    }
    lines = [f"rule {stage.name}:", '    """', f"    {_about(stage.module)}", '    """']
    for name, values in blocks.items():
        comma = "" if name in ("benchmark", "threads") else ","
        shown = [f"        {line}" for value in values for line in f"{value}{comma}".split("\n")]
        lines += (
            [f"    {name}: {shown[0].strip()}"] if name == "threads" and shown else [f"    {name}:", *shown] if shown else []
        )
    command = stage.command.replace("{", "{wildcards.")
    return "\n\n" + "\n".join([*lines, "    shell:", f'        "{command}"']) + "\n"


def _on_device(stage: Stage) -> bool:
    """Tell whether a stage measures on devices, which may be boards; pairs are of this machine."""
    return bool(stage.rows) and "device" in stage.wildcards


def _resources(stage: Stage) -> list[str]:
    if _on_device(stage):
        return ["device=measuring_here", "gres=machine_asked"]
    return ["device=1", 'gres="device:local:1"'] if stage.rows else []


def _value(key: str, quote: str = '"') -> str:
    """Return a value of params.yaml as a rule names it: `config["memory"]["devices"]`."""
    return "config" + "".join(f"[{quote}{part}{quote}]" for part in key.split("."))


def _path(path: str, stage: Stage) -> str:
    """Return a path as Snakemake takes it: wildcards stay, a stage's one target is found in params.yaml."""
    if not stage.targets or stage.wildcards or "{" not in path:
        return f'"{path}"'
    for name in stage.targets.wildcards:
        path = path.replace(f"{{{name}}}", f"{{{_value(f'{stage.targets.path}.{name}', chr(39))}}}")
    return f'f"{path}"'


def _outputs(stage: Stage, chapter: Chapter) -> Iterator[str]:
    """List the outputs of a rule. `update`: it stays until there is something to put in its place."""
    yield from (f"update({_path(path, stage)})" for path in stage.outputs.values())
    for path in stage.shown:  # for `snakemake --report`
        kind = path.rpartition("/")[2]
        arguments = (
            f"update(directory({_path(path, stage)})),",
            f'patterns=["{{shown}}.{ {"tables": "csv", "figures": "svg"}[kind] }"],',
            f'category="{chapter.title}: {kind}",',
            f'subcategory="{", ".join(f"{{{name}}}" for name in stage.wildcards)}",',
            'labels={"id": "{shown}"},',
        )
        yield "\n".join(["report(", *(f"    {argument}" for argument in arguments), ")"])


def _about(module: str) -> str:
    """Describe a stage by the first line of its module."""
    tree = ast.parse(PACKAGE.parent.joinpath(*module.split(".")).with_suffix(".py").read_text(encoding="utf-8"))
    first = (ast.get_docstring(tree) or "").partition("\n")[0].partition(": ")[2]
    return first[:1].upper() + first[1:]


if __name__ == "__main__":
    main()
