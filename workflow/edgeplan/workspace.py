"""Finds device files, measured rows and results: in a workspace found upwards from here, or in what the package ships."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from edgeplan.errors import DeviceError, ParamsError
from edgeplan.support.files import FilePath, state_folder

VARIABLE = "EDGEPLAN_WORKSPACE"
#: A folder a shipped device: its device file, and its predictors, distilled. And one a shipped pair, with its pair file.
SHIPPED = Path(__file__).parent / "shipped"
DEVICE_NAME = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")
#: Of the files of devices and of pairs, below a workspace.
DEVICE_FOLDER, PAIR_FOLDER = Path("config/devices"), Path("config/pairs")
_FOLDERS = {"device": DEVICE_FOLDER, "pair": PAIR_FOLDER}
_RESULTS = Path("results")
_PAIR_NAME = "pair-"  # begins the names of all pairs, and of no device
_PREDICTORS = "card.json"
RULES = "rules.json"
#: Nodes that a predictor was trained on, beside it.
KERNELS = "kernels.parquet"


@dataclass(frozen=True)
class Workspace:
    """Names the folders of a workspace, which need not have anything in it.

    Attributes:
        root: its folder; "." when the current folder is it, so that messages name paths as a user does.
        found: whether there is one; else rows and results are kept in the state folder of the user.
    """

    root: Path
    found: bool

    @property
    def rows(self) -> Path:
        """Return the folder of the measured rows, by device."""
        return self.root / "data/rows"

    @property
    def results(self) -> Path:
        """Return the folder of the results, by device."""
        return self.root / _RESULTS

    def files(self, kind: str) -> dict[str, Path]:
        """Return the known files of a kind ("device", "pair") by name: the workspace's before the shipped ones."""
        shipped = {p.stem: p for p in sorted(SHIPPED.glob("*/*.yaml")) if p.stem.startswith(_PAIR_NAME) == (kind == "pair")}
        return shipped | {path.stem: path for path in sorted((self.root / _FOLDERS[kind]).glob("*.yaml"))}

    def path(self, kind: str, name_or_path: FilePath) -> Path:
        """Return the file of a kind of a name, or the one at a path."""
        if is_path(name_or_path):
            return Path(name_or_path)
        name, known = os.fspath(name_or_path), self.files(kind)
        if not DEVICE_NAME.fullmatch(name) or name not in known:
            raise DeviceError(
                f"unknown {kind} {name!r}",
                where=f"{self.root / _FOLDERS[kind]}, and what the package ships" if self.found else "what the package ships",
                next_step=f"known {kind}s: {', '.join(sorted(known))}; or name the path of a {kind} file",
            )
        return known[name]


def shipped_rules(name: str, *, where: str) -> Path:
    """Return the file of a device's fusion rules, which stages learn from; DeviceError where none are shipped."""
    path = SHIPPED / name / RULES
    if not (DEVICE_NAME.fullmatch(name) and path.is_file()):
        known = ", ".join(sorted(p.parent.name for p in SHIPPED.glob(f"*/{RULES}")))
        raise DeviceError(
            f"the package ships nothing of a device {name!r} to learn from",
            where=where,
            next_step=f"name devices that it does ({known}), or none: -S '{where}=[]'",
        )
    return path


def is_path(name_or_path: FilePath) -> bool:
    """Say whether a device is given by the path of its file rather than by name."""
    text = os.fspath(name_or_path)
    return text.endswith((".yaml", ".yml")) or os.sep in text


def workspace(given: Path | None = None) -> Workspace:
    """Find the workspace: the one given, else the environment's (EDGEPLAN_WORKSPACE), else the nearest folder upwards.

    Raises:
        ParamsError: what is given is no folder.
    """
    named = given or (Path(os.environ[VARIABLE]) if os.environ.get(VARIABLE) else None)
    if named is not None:
        if not named.is_dir():
            raise ParamsError(
                "there is no such folder" if not named.exists() else "a workspace is a folder",
                where=f"{named}, from {'--workspace' if given else VARIABLE}",
                next_step="name the folder that holds config/devices or results, or leave it out",
            )
        return Workspace(named, found=True)
    for folder in _upwards():
        if _is_workspace(folder):
            return Workspace(folder, found=True)
    return Workspace(state_folder() / "workspace", found=False)


def own_rows() -> Path:
    """Name the folder of rows of users' models, by device: outside of any workspace, whose rows are in git."""
    return Workspace(state_folder() / "workspace", found=False).rows


def _upwards() -> Iterator[Path]:
    """Yield this folder and those above it: the first as ".", the others absolute."""
    try:
        here = Path.cwd()
    except FileNotFoundError:  # somebody has deleted it
        return
    yield Path()
    yield from here.parents


def _is_workspace(folder: Path) -> bool:
    try:
        return (folder / DEVICE_FOLDER).is_dir() or any((folder / _RESULTS).glob(f"*/predictors/{_PREDICTORS}"))
    except OSError:  # it may not be looked into
        return False


def use(given: Path | None) -> Path | None:
    """Let whatever is called from now on, processes included, find the workspace that the command line names."""
    if given is not None:
        os.environ[VARIABLE] = str(Path(workspace(given).root).absolute())
    return given


#: The option of every command that needs devices, rows or results.
WorkspaceOption = Annotated[
    Path | None,
    typer.Option(
        "--workspace",
        help=f"Folder with config/devices, data/rows and results. Default: {VARIABLE}, else the nearest folder upwards.",
        callback=use,
    ),
]
#: The option of every command that needs predictors.
ResultsOption = Annotated[
    Path | None,
    typer.Option(
        "--results", help="Folder of results with trained predictors. Default: the workspace's, else the shipped predictors."
    ),
]
