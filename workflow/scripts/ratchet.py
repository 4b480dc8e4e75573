"""Holds the tree to the sizes it had: each may fall, and rises by no more than workflow/rises.txt gives a reason for.

A tree with changes is compared with HEAD, a clean one with HEAD's first parent, and with nothing earlier. A reason is a line
that the earlier tree does not have: how much, what of, and what for, as in `+120 lines of tests: renames of inner tensors`.
"""

from __future__ import annotations

import io
import re
import subprocess
import sys
import tarfile
import tempfile
from collections import Counter
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[2]
REASONS = Path("workflow/rises.txt")
_REASON = re.compile(r"\+(\d+) ([\w ,]+): \S.*")
_PARTS = {"workflow", "tests", "native", "params.yaml"}
_NATIVE = {".c", ".cc", ".cpp", ".cl", ".cu", ".h", ".hpp"}
_DECLARED = {
    "options": r"\btyper\.Option\(|\badd\(\"--",
    "tables": r"(?<!class )\bTableSpec\(",
    "figures": r"(?<!class )\bFigureSpec\(",
    "bars": r"(?<!class )\bBar\(",
}


def _leaves(value: object) -> int:
    return sum(map(_leaves, value.values())) if isinstance(value, dict) else 1


def sizes(root: Path, names: list[str]) -> Counter[str]:
    """Count what a tree has: lines and files of each part, params, and declarations of the package."""
    found: Counter[str] = Counter()
    for name in names:
        path = root / name
        part, native = name.partition("/")[0], path.suffix in _NATIVE
        if part not in _PARTS or not (native or path.suffix == ".py") or not path.is_file():
            continue
        text = path.read_text(encoding="utf-8")
        found["lines of C" if native else f"lines of {part}"] += text.count("\n")
        found[f"files of {part}"] += 1
        if name.startswith("workflow/edgeplan/"):
            for what, pattern in _DECLARED.items():
                found[what] += len(re.findall(pattern, text))
    params = root / "params.yaml"
    found["params"] = _leaves(yaml.safe_load(params.read_text(encoding="utf-8"))) if params.is_file() else 0
    return found


def reasons(before: str, after: str) -> Counter[str]:
    """Sum up what the lines allow that the earlier text does not have; ValueError for a line that is no reason."""
    allowed: Counter[str] = Counter()
    for line in (Counter(after.splitlines()) - Counter(before.splitlines())).elements():
        if line.strip() and not line.startswith("#"):
            match = _REASON.fullmatch(line)
            if match is None:
                raise ValueError(f"{REASONS}: no reason: {line!r}; as in '+120 lines of tests: what for'")
            allowed[match[2]] += int(match[1])
    return allowed


def rises(before: Counter[str], after: Counter[str], allowed: Counter[str]) -> list[str]:
    """Say what has grown without a reason."""
    return [
        f"{name}: {before[name]} -> {after[name]}, {after[name] - before[name] - allowed[name]} more than {REASONS} allows"
        for name in sorted(after)
        if after[name] - before[name] > allowed[name]
    ]


def main() -> int:
    """Compare, print the sizes, and return the exit status."""

    def git(*words: str) -> bytes:
        return subprocess.run(["git", "-C", str(ROOT), *words], check=True, capture_output=True).stdout  # noqa: S603, S607

    try:
        base = "HEAD" if git("status", "--porcelain").strip() else "HEAD^"
        archive = git("archive", base, *_PARTS & {*git("ls-tree", "--name-only", base).decode().split()})
    except (OSError, subprocess.CalledProcessError):
        sys.stdout.write("sizes are not compared: no git, or no earlier commit, here\n")
        return 0
    names = git("ls-files", "-z", "--cached", "--others", "--exclude-standard").decode().split("\0")
    with tempfile.TemporaryDirectory() as folder:
        with tarfile.open(fileobj=io.BytesIO(archive)) as file:
            if hasattr(tarfile, "data_filter"):  # Python 3.11.4
                file.extractall(folder, filter="data")
            else:
                file.extractall(folder)  # noqa: S202  git has made it
        earlier = Path(folder)
        before = sizes(earlier, [str(path.relative_to(earlier)) for path in earlier.rglob("*")])
        texts = [root / REASONS for root in (earlier, ROOT)]
        old, new = (path.read_text(encoding="utf-8") if path.is_file() else "" for path in texts)
    after = sizes(ROOT, names)
    for name in sorted({*before, *after}):
        sys.stdout.write(f"{after[name]:>8}  {name} ({after[name] - before[name]:+})\n")
    try:
        grown = rises(before, after, reasons(old, new))
    except ValueError as error:
        grown = [str(error)]
    sys.stderr.writelines(f"error: {line}\n" for line in grown)
    return int(bool(grown))


if __name__ == "__main__":
    sys.exit(main())
