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
from collections import Counter
from collections.abc import Mapping
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


def _counts(name: str) -> bool:
    """Tell whether a file is looked at."""
    coded = name.partition("/")[0] in _PARTS and Path(name).suffix in {*_NATIVE, ".py"}
    return coded or name in ("params.yaml", str(REASONS))


def sizes(texts: Mapping[str, str]) -> Counter[str]:
    """Count what a tree has: lines and files of each part, params, and declarations of the package."""
    found: Counter[str] = Counter(params=_leaves(yaml.safe_load(texts["params.yaml"])) if "params.yaml" in texts else 0)
    for name, text in texts.items():
        part, native = name.partition("/")[0], Path(name).suffix in _NATIVE
        if not (native or name.endswith(".py")):
            continue
        found["lines of C" if native else f"lines of {part}"] += text.count("\n")
        found[f"files of {part}"] += 1
        if name.startswith("workflow/edgeplan/"):
            for what, pattern in _DECLARED.items():
                found[what] += len(re.findall(pattern, text))
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
    with tarfile.open(fileobj=io.BytesIO(archive)) as file:
        earlier = {one.name: (file.extractfile(one) or io.BytesIO()).read().decode() for one in file if _counts(one.name)}
    now = {name: (ROOT / name).read_text(encoding="utf-8") for name in names if _counts(name) and (ROOT / name).is_file()}
    before, after = sizes(earlier), sizes(now)
    for name in sorted({*before, *after}):
        sys.stdout.write(f"{after[name]:>8}  {name} ({after[name] - before[name]:+})\n")
    try:
        grown = rises(before, after, reasons(earlier.get(str(REASONS), ""), now.get(str(REASONS), "")))
    except ValueError as error:
        grown = [str(error)]
    sys.stderr.writelines(f"error: {line}\n" for line in grown)
    return int(bool(grown))


if __name__ == "__main__":
    sys.exit(main())
