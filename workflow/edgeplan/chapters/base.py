"""A chapter is one question, the stages that answer it, and what the report shows of it.

Values only: functions are named as `module:function` and imported where they are called, so that
the list of chapters loads nothing that measures, learns or draws.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

#: Name of a device file without its suffix.
DeviceName = Annotated[str, Field(pattern=r"^[a-z0-9]+(-[a-z0-9]+)*$")]


class Section(BaseModel):
    """Bounds a section of params.yaml: a misspelt key is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class ChapterParams(Section):
    """Declares parameters that every chapter may read of params.yaml; a chapter's `settings` adds its own sections.

    Attributes:
        seed: of everything that is drawn.
        devices: the devices whose latencies are predicted.
    """

    seed: Annotated[int, Field(ge=0, le=2**31)]
    devices: Annotated[list[DeviceName], Field(min_length=1)]


@dataclass(frozen=True, slots=True)
class Targets:
    """Targets are the names in params.yaml that stages run for.

    Attributes:
        path: where they stand, by its keys ("cold_start.devices"): a list of names, a list of mappings from wildcards to names
            (pairs of devices), or one such mapping.
        wildcards: how paths of stages name them.
    """

    path: str
    wildcards: tuple[str, ...] = ("device",)

    def of(self, params: Mapping[str, Any]) -> list[dict[str, str]]:
        """Return the targets in params.yaml: a name for each wildcard. KeyError: there is no such section."""
        found: Any = params
        for key in self.path.split("."):
            found = found[key]
        items = [found] if isinstance(found, Mapping) else found
        return [{w: item if isinstance(item, str) else item[w] for w in self.wildcards} for item in items]


#: The devices that the first chapter is about.
DEVICES = Targets("devices")
#: The pairs of processors.
PAIRS = Targets("partition.pairs", wildcards=("pair",))


@dataclass(frozen=True, slots=True)
class Stage:
    """Declares a stage of the pipeline, here alone: Snakemake's rule and DVC's stage are made from it (`make wire`).

    Paths hold wildcards of the targets in braces. What a stage writes stays until there is something to put in its place: one
    that fails takes nothing away. The function gets every parameter that it has by name: `params`, or a path
    of `paths`, `outputs` or `inputs`, or else a wildcard.

    Attributes:
        inputs, outputs: files, by the names that the function knows them by.
        paths: folders that the function reads or writes besides, by name.
        params: sections of params.yaml that it depends on, or keys of one ("memory.devices").
        rows: the folder of rows of a stage that measures. They are kept when it runs again, and it holds the device.
        reads: files and folders that it depends on besides its inputs.
        finds: files that it takes where another stage makes them, and does without elsewhere: made first, no dependencies.
        writes: files and folders that it writes besides its outputs, or that its outputs lie in.
        cached: what of both goes into DVC's cache instead of git.
        plots, metrics: files and folders that `dvc plots` and `dvc metrics` show.
        shown: folders of `writes` and `plots` whose tables (CSV) or figures (SVG) `snakemake --report` shows.
    """

    name: str
    function: str
    outputs: Mapping[str, str]
    inputs: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    paths: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    params: tuple[str, ...] = ()
    targets: Targets | None = None
    rows: str = ""
    reads: tuple[str, ...] = ()
    finds: tuple[str, ...] = ()
    writes: tuple[str, ...] = ()
    cached: tuple[str, ...] = ()
    plots: tuple[str, ...] = ()
    metrics: tuple[str, ...] = ()
    shown: tuple[str, ...] = ()
    all_cores: bool = False

    @property
    def module(self) -> str:
        """Return the module of the stage's function."""
        return self.function.partition(":")[0]

    @property
    def wildcards(self) -> tuple[str, ...]:
        """Return the names that a command gives for it to run; none of a stage that runs once, for params.yaml's one target."""
        names = self.targets.wildcards if self.targets else ()
        return tuple(name for name in names if any(f"{{{name}}}" in path for path in self.outputs.values()))

    @property
    def command(self) -> str:
        """Write the command that runs it, with its wildcards in braces."""
        return " ".join(["edgeplan stage", self.name, *(f"--{name} {{{name}}}" for name in self.wildcards)])

    @property
    def log(self) -> str:
        """Return where the stage logs to, with its wildcards in braces."""
        return f"work/logs/{'-'.join([self.name, *(f'{{{name}}}' for name in self.wildcards)])}.log"

    @property
    def folders(self) -> Mapping[str, str]:
        """Return the folders that the function is given by name."""
        return {**self.paths, "rows": self.rows} if self.rows else self.paths

    @property
    def written(self) -> tuple[str, ...]:
        """List the outputs that DVC follows: folders and files written, each once."""
        own = (*self.writes, *self.plots, *self.metrics)
        return (*(path for path in self.outputs.values() if not covered(path, own)), *self.writes)

    @property
    def read(self) -> tuple[str, ...]:
        """List the inputs that DVC looks at: files and folders read, each once."""
        return tuple(dict.fromkeys((*self.reads, *(p for p in self.inputs.values() if not covered(p, self.reads)))))


def tables_stage(
    name: str,
    function: str,
    targets: Targets,
    inputs: Mapping[str, str],
    measured: str,
    chapter: str,
    *,
    with_figures: bool = True,
) -> Stage:
    """Declare the stage that makes tables, figures, metrics and a page of what another one measured; see `Stage`.

    Tables and figures go into the folder that was `measured`; `chapter` names the files of metrics and of the page without
    their suffixes.
    """
    tables, figures = f"{measured}/tables", f"{measured}/figures"
    return Stage(
        name=name,
        function=function,
        targets=targets,
        inputs=inputs,
        outputs={"metrics": f"{chapter}.json", "chapter": f"{chapter}.page.json"},
        metrics=(f"{chapter}.json",),
        paths={"measured": measured},
        writes=(tables,),
        plots=(figures,) if with_figures else (),
        shown=(tables, figures) if with_figures else (tables,),
    )


@dataclass(frozen=True, slots=True)
class Compared:
    """Names a table that `dvc plots diff` draws of two revisions beside each other, as bars: file, title, columns."""

    path: str
    title: str
    x: str
    y: str


@dataclass(frozen=True, slots=True)
class Chapter:
    """A chapter declares its stages, settings, tables and page.

    Attributes:
        tables, figures: its registries as `module:NAME`, declarations of `edgeplan.reporting.chapter_report` by id; their
            captions lie beside the chapter.
        named_devices, named_pairs: where else in params.yaml devices and pairs are named; each has to have a file.
        shipped_devices: where devices are named that stages learn from; each has to be shipped with its rules.
        compared: tables of the committed results that `dvc plots diff` draws.
    """

    name: str
    title: str
    paper: str
    settings: type[ChapterParams]
    targets: Targets
    stages: tuple[Stage, ...]
    tables: str = ""
    figures: str = ""
    named_devices: tuple[Targets, ...] = ()
    named_pairs: tuple[Targets, ...] = ()
    shipped_devices: tuple[Targets, ...] = ()
    compared: tuple[Compared, ...] = ()


def covered(path: str, folders: tuple[str, ...]) -> bool:
    """Say whether a path is one of the folders, or lies in one."""
    return any(path == folder or path.startswith(f"{folder}/") for folder in folders)


def expanded(pattern: str, targets: Targets | None, params: Mapping[str, Any]) -> Iterator[str]:
    """Yield a path for every target."""
    yield from [pattern] if targets is None else (pattern.format(**target) for target in targets.of(params))
