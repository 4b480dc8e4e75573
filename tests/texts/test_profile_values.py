"""What `make reproduce PROFILE=...` gives to DVC: the values of a profile, or the committed ones."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
COMMITTED = {"seed": 7, "training": {"trials": 12, "seeds": [0, 1]}, "truth": {"repeat": ["cpu-a"]}}


def _printed(folder: Path, profile: str) -> str:
    command = [sys.executable, ROOT / "workflow/scripts/profile_values.py", ROOT / "config/profiles" / f"{profile}.yaml"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True).stdout.strip()


def _committed(folder: Path) -> Path:
    path = folder / "params.yaml"
    path.write_text(yaml.safe_dump(COMMITTED))
    author = ("-c", "user.name=a", "-c", "user.email=a@b")
    for command in (("init", "-q"), ("add", "params.yaml"), (*author, "commit", "-qm", "one")):
        subprocess.run(["git", *command], cwd=folder, check=True)
    return path


@pytest.mark.parametrize("name", ["tiny", "quick"])
def test_no_value_of_a_profile_is_split_by_a_shell(tmp_path: Path, name: str) -> None:
    _committed(tmp_path)
    words = _printed(tmp_path, name).split()
    assert words[0::2] == ["-S"] * (len(words) // 2)
    assert all("=" in word for word in words[1::2])


def test_the_full_profile_puts_the_committed_values_back(tmp_path: Path) -> None:
    path = _committed(tmp_path)
    assert _printed(tmp_path, "full") == ""
    changed = {**COMMITTED, "training": {"trials": 3, "seeds": [0, 1]}, "truth": {"repeat": []}}
    path.write_text(yaml.safe_dump(changed))
    assert _printed(tmp_path, "full") == '-S training.trials=12 -S truth.repeat=["cpu-a"]'
