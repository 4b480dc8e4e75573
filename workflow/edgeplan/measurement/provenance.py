"""By which state of the code rows are measured."""

from __future__ import annotations

import subprocess
from pathlib import Path

import edgeplan

NOT_RECORDED = "not recorded"
#: Marks a commit whose measuring code, the package, was changed without being committed.
CHANGED = "+changes"


def source_commit() -> str:
    """The git commit of the package, e.g. "1a3dce2f90ab", marked where files of it were changed since.

    Returns:
        "not recorded" where the package is not in a git repository or git is not installed.
    """
    package = Path(edgeplan.__file__).parent
    commit = _git(package, "rev-parse", "--short=12", "HEAD")
    if not commit:
        return NOT_RECORDED
    return commit + (CHANGED if _git(package, "status", "--porcelain", "--", ".") else "")


def _git(folder: Path, *arguments: str) -> str:
    try:
        done = subprocess.run(["git", "-C", str(folder), *arguments], capture_output=True, text=True, check=False)  # noqa: S603, S607  no shell
    except OSError:
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""
