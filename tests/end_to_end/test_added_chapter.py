"""The files that a chapter with a stage, a protocol, a profile and a command touches besides its folder: counted."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from workspace import DEVICE, Workspace, add_toy_chapter, make_workspace

pytestmark = pytest.mark.long

_FOLDER = "workflow/edgeplan/chapters/toy/"
#: Files that `make wire` and `make schema` write.
_GENERATED = {
    *("dvc.yaml", "workflow/code.json", "workflow/rules/toy.smk", "workflow/rules/report.smk"),
    "config/schema/params.schema.json",
}


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    made = make_workspace(tmp_path_factory.mktemp("added"))
    add_toy_chapter(made)
    return made


def test_a_chapter_touches_its_line_and_its_settings(workspace: Workspace) -> None:
    changed = {line[3:] for line in workspace.run("git", "status", "--porcelain", "--untracked-files=all").splitlines()}
    touched = {path for path in changed if not path.startswith(_FOLDER)} - _GENERATED
    assert touched == {"workflow/edgeplan/chapters/__init__.py", "params.yaml"}
    before = json.loads(workspace.run("git", "show", "HEAD:workflow/code.json"))
    after = json.loads((workspace.folder / "workflow/code.json").read_text())
    assert {name: digest for name, digest in after.items() if name != "toy"} == before, "no other stage is built again"


def test_all_that_it_declares_is_there(workspace: Workspace) -> None:
    values = workspace.values()
    assert "toy.sizes=[100]" in values
    assert "numbers sorted in" in workspace.run("edgeplan", "sort", "1000")
    workspace.run("edgeplan", "stage", "toy", "--device", DEVICE)
    results = Path("results") / DEVICE / "toy/sorting.csv"
    assert len((workspace.folder / results).read_text().splitlines()) == 4
    assert "edgeplan stage toy --device {wildcards.device}" in (workspace.folder / "workflow/rules/toy.smk").read_text()
    assert "rule toy:" in workspace.run("snakemake", "-n", "--quiet", "host", "--force", str(results))
