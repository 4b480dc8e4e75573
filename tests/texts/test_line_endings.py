"""Line endings are those of the repository whatever git is set to: a shell, make and YAML read none of Windows'."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
#: Files that are no text; their content is never converted.
_BINARY = {".parquet", ".npz", ".npy", ".onnx", ".png"}


def _git(*arguments: str, folder: Path = ROOT) -> str:
    environment = {**os.environ, "GIT_CONFIG_GLOBAL": os.devnull}
    command = ["git", "-c", "safe.directory=*", *arguments]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=True).stdout


@pytest.fixture(scope="module", autouse=True)
def _checkout() -> None:
    if not (ROOT / ".git").exists():
        pytest.skip("not a git checkout")


def test_the_index_holds_no_other_line_endings() -> None:
    told = [line.partition("\t") for line in _git("ls-files", "--eol").splitlines()]
    assert len(told) > 1000
    for state, _, name in told:
        index, _, attributes = state.split(maxsplit=2)
        binary = Path(name).suffix in _BINARY
        assert index in ({"i/-text"} if binary else {"i/lf", "i/none"}), name
        assert attributes.split() == (["attr/-text"] if binary else ["attr/text=auto", "eol=lf"]), name
