"""Copies of the working tree to run the pipeline in, each with journals of its own. The machine lock is that of all."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import yaml
from shipped_params import PARAMS_FILE

from edgeplan.chapters.profiles import merged, profile
from edgeplan.measurement.bench import read_rows

ROOT = Path(__file__).parents[2]
DEVICE = "cpu-onnxruntime"
COLD_DEVICE = "cpu-onednn"
_BUILT = ("workflow/edgeplan/libedgeplan.so", "workflow/edgeplan/edgeplan-run")  # by `make native`: git has none of it
Row = tuple[str, str, int, tuple[float, ...]]


@dataclass(frozen=True)
class Workspace:
    """A git repository of the project, and what its commands run with."""

    folder: Path
    environment: Mapping[str, str] = field(repr=False)

    def start(self, *command: str) -> subprocess.Popen[str]:
        """Start a command as the leader of a process group of its own."""
        return subprocess.Popen(
            command,
            cwd=self.folder,
            env=dict(self.environment),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def result(self, *command: str) -> tuple[int, str]:
        """Exit status and output of a command."""
        process = self.start(*command)
        output, _ = process.communicate()
        return process.returncode, output

    def run(self, *command: str) -> str:
        """Output of a command that has to succeed."""
        status, output = self.result(*command)
        assert status == 0, f"{' '.join(command)} ended with {status}:\n{output}"
        return output

    def commit(self, message: str) -> None:
        """Commit everything."""
        self.run("git", "add", "--all")
        self.run("git", "commit", "--quiet", "--message", message)

    def clone(self, folder: Path) -> Workspace:
        """A fresh clone, with an empty cache and journals of its own."""
        self.run("git", "clone", "--quiet", ".", os.fspath(folder))
        for name in _BUILT:
            shutil.copy2(ROOT / name, folder / name)
        return Workspace(folder, {**self.environment, "XDG_STATE_HOME": os.fspath(folder.with_name(f"{folder.name}-state"))})

    def values(self, *more: str) -> list[str]:
        """The tiny profile on one device as arguments of `dvc exp run`."""
        arguments = self.run(sys.executable, "-m", "edgeplan.chapters.profiles", "config/profiles/tiny.yaml").split()
        return [*arguments, "-S", f"devices=[{DEVICE}]", *more]

    def take_tiny_values(self, **more: object) -> None:
        """Write the values of the tiny profile, and further sections or values of them, into params.yaml, and commit them."""
        path = self.folder / "params.yaml"
        params = yaml.safe_load(path.read_text())
        for values in (profile(self.folder / "config/profiles/tiny.yaml"), more):
            params = merged(params, values)
        path.write_text(yaml.safe_dump(params, sort_keys=False))
        self.commit("tiny values")

    def rows(self) -> set[Row]:
        """Every measured row of the workspace, with the times at which it was measured."""
        return {
            (path.parent.name, row["subject"], row["sample"], tuple(row["measured_at"]))
            for path in sorted((self.folder / "data/rows" / DEVICE).rglob("*.parquet"))
            if not path.name.startswith("executed-")  # what the engine told, not how long it took
            for row in read_rows(path)
        }


def add_toy_chapter(workspace: Workspace) -> None:
    """Add the chapter of `toy_chapter`: its folder, a line, a section of params.yaml, and what is generated."""
    chapters = workspace.folder / "workflow/edgeplan/chapters"
    shutil.copytree(Path(__file__).parent / "toy_chapter", chapters / "toy", ignore=shutil.ignore_patterns("__pycache__"))
    names, line = chapters / "__init__.py", '    "cold_start",\n'
    assert names.read_text().count(line) == 1
    names.write_text(names.read_text().replace(line, f'{line}    "toy",\n'))
    with (workspace.folder / "params.yaml").open("a") as params:
        params.write(yaml.safe_dump({"toy": {"on": [DEVICE], "sizes": [1000, 20000, 3000]}}))
    workspace.run(sys.executable, "-m", "edgeplan.chapters.wiring")
    workspace.run(sys.executable, "workflow/scripts/code_documents.py", "schemas")


def make_workspace(folder: Path) -> Workspace:
    """A repository with the files of the working tree, results and rows left out."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout.split("\0")
    for name in (*filter(None, listed), *_BUILT):
        source, target = ROOT / name, folder / "tree" / name
        measured = name.startswith(("data/", "results/")) or name in {"dvc.lock", "params.yaml"}
        if source.is_file() and (not measured or name.endswith(".gitignore")):
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, target)
    (folder / "tmp").mkdir()
    identity = {f"GIT_{role}_{what}": "test@localhost" for role in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
    workspace = Workspace(
        folder / "tree",
        {
            **os.environ,
            **identity,
            "PATH": os.pathsep.join([os.fspath(Path(sys.executable).parent), os.environ["PATH"]]),
            "PYTHONPATH": os.fspath(folder / "tree/workflow"),
            "TMPDIR": os.fspath(folder / "tmp"),
            "XDG_STATE_HOME": os.fspath(folder / "state"),
            "DVC_NO_ANALYTICS": "1",
        },
    )
    params = yaml.safe_load(PARAMS_FILE.read_text())
    # Table 11 reads two devices; where one alone is measured it is held against itself.
    params |= {"devices": [DEVICE], "transfer": {"source": DEVICE, "target": DEVICE}}
    params["partition"]["checked_pairs"] = params["partition"]["pairs"]  # others need a GPU
    params["cold_gpu"]["devices"], params["unseen"]["devices"] = ["opencl-pocl"], []
    (workspace.folder / "params.yaml").write_text(yaml.safe_dump(params, sort_keys=False))
    workspace.run("git", "init", "--quiet")
    workspace.commit("start")
    return workspace
