"""Names the state of the code that rows are measured by."""

from __future__ import annotations

import subprocess
from pathlib import Path

import edgeplan

NOT_RECORDED = "not recorded"
#: Marks a commit whose measuring code, the package, was changed without being committed.
CHANGED = "+changes"


def source_commit() -> str:
    """Return the git commit of the package, e.g. "1a3dce2f90ab", marked where files of it were changed since.

    Returns:
        "not recorded" where the package is not in a git repository or git is not installed.
    """
    package = Path(edgeplan.__file__).parent
    tracked = _git(package, "ls-files", "--error-unmatch", "__init__.py")  # not so below an environment in another repository
    commit, changes = _git(package, "rev-parse", "--short=12", "HEAD"), _git(package, "status", "--porcelain", "--", ".")
    if not tracked or not commit or changes is None:
        return NOT_RECORDED
    return commit + (CHANGED if changes else "")


def _git(folder: Path, *arguments: str) -> str | None:
    """Return git's answer, None where it fails; it takes no lock that a commit of the user would wait for."""
    command = ["git", "--no-optional-locks", "-C", str(folder), *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603  no shell
    except OSError:
        return None
    return done.stdout.strip() if done.returncode == 0 else None
