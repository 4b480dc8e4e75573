"""A clone without old versions of files, as README.md recommends, holds what `make report` reads."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
#: The stages behind `make report`, in the order in which it runs them.
REPORT = ("cold_tables", "report")


def _git(*arguments: str | Path, folder: Path, config: Path) -> str:
    environment = {**os.environ, "GIT_CONFIG_GLOBAL": str(config), "GIT_TERMINAL_PROMPT": "0"}
    return subprocess.run(
        ["git", *arguments], cwd=folder, env=environment, capture_output=True, text=True, check=True
    ).stdout.strip()


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, int]:
    """A filtered clone of this repository, and how many of its objects are left at the origin."""
    if not (ROOT / ".git").exists():
        pytest.skip("not a git checkout")
    folder = tmp_path_factory.mktemp("clone")
    config = folder / "gitconfig"
    # hosts of repositories allow filters; a plain folder has to be told to
    config.write_text("[uploadpack]\n\tallowFilter = true\n\tallowAnySHA1InWant = true\n[safe]\n\tdirectory = *\n")
    _git("clone", "--quiet", "--filter=blob:none", ROOT.as_uri(), folder / "edgeplan", folder=folder, config=config)
    missing = _git("rev-list", "--objects", "--missing=print", "HEAD", folder=folder / "edgeplan", config=config)
    return folder / "edgeplan", sum(line.startswith("?") for line in missing.splitlines())


def test_old_versions_stay_at_the_origin(clone: tuple[Path, int]) -> None:
    commits = _git("rev-list", "--count", "HEAD", folder=clone[0], config=Path(os.devnull))
    assert clone[1] > 0 or int(commits) == 1


@pytest.mark.parametrize("name", REPORT)
def test_what_the_reports_are_made_from_is_in_it(clone: tuple[Path, int], name: str) -> None:
    pipeline: dict[str, Any] = yaml.safe_load((ROOT / "dvc.yaml").read_text())
    params: dict[str, Any] = yaml.safe_load((ROOT / "params.yaml").read_text())
    devices = params["devices"] if name == "report" else params["cold_start"]["devices"]
    stage = pipeline["stages"][name]
    needed = [path.replace("${item}", item) for item in devices for path in stage.get("do", stage)["deps"]]
    assert any(path.startswith("results/") for path in needed)
    assert [path for path in needed if not (clone[0] / path).exists()] == []
