"""Hold the values of two results folders against each other: `compare_results.py BEFORE AFTER [ALL.csv]`.

Values are those of tables (CSV), of figures of merit and pages (JSON), and of rows (Parquet); of a drawing the digest.
Names that changed, went or came are printed, and with a third argument every value is written beside the other's.
The exit status is 1 where a value of something that both folders have differs.
"""

from __future__ import annotations

import csv
import hashlib
import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pandas as pd

_SHOWN = 5
#: Files by the end of their names; a page's own digests of its files say nothing that those do not.
_KINDS = (".csv", ".json", ".parquet", ".svg")
_DIGEST = "sha256"


def values(path: Path) -> Mapping[str, str]:
    """Read every value of a file as text, by its place: `column[row]` of a table, keys joined by dots of a document."""
    if path.suffix == ".svg":
        return {"drawing": hashlib.sha256(path.read_bytes()).hexdigest()[:16]}
    if path.suffix == ".json":
        return dict(_flat(json.loads(path.read_text(encoding="utf-8"))))
    frame = pd.read_parquet(path) if path.suffix == ".parquet" else pd.read_csv(path, dtype=str, keep_default_na=False)
    return {f"{column}[{row}]": str(value) for column in frame.columns for row, value in enumerate(frame[column])}


def _flat(value: Any, place: str = "") -> Iterator[tuple[str, str]]:
    """Yield a document without nesting; entries of a list go by their id, title or text, not by a place that others shift."""
    if isinstance(value, Mapping):
        for key, part in value.items():
            if key != _DIGEST:
                yield from _flat(part, f"{place}.{key}" if place else str(key))
    elif isinstance(value, list):
        for i, part in enumerate(value):
            yield from _flat(part, f"{place}[{_name(part, i)}]")
    else:
        yield place, str(value)


def _name(part: Any, i: int) -> Any:
    if isinstance(part, Mapping):
        return part.get("id", part.get("title", i))
    return part[0] if isinstance(part, list) and part else part if isinstance(part, str) else i


def beside(before: Path, after: Path) -> Iterator[tuple[str, str, str | None, str | None]]:
    """Pair every value of two folders: file, place, before, after; None where one of them does not have it."""
    folders = (before, after)
    names = {str(path.relative_to(f)) for f in folders for path in f.rglob("*") if path.suffix in _KINDS}
    for name in sorted(names):
        old, new = (values(folder / name) if (folder / name).is_file() else {} for folder in folders)
        for place in dict.fromkeys([*old, *new]):
            yield name, place, old.get(place), new.get(place)


def main(before: Path, after: Path, everything: Path | None = None) -> int:
    """Print what differs; returns how many values changed."""
    found: dict[str, dict[str, list[str]]] = {"changed": {}, "went": {}, "came": {}}
    count, both = 0, dict[str, bool]()
    rows = list(beside(before, after))
    for name, place, old, new in rows:
        both[name] = both.get(name, False) or (old is not None and new is not None)
        count += old == new
        if old != new:
            what = "went" if new is None else "came" if old is None else "changed"
            found[what].setdefault(name, []).append(f"{place}: {old} -> {new}" if what == "changed" else place)
    if everything is not None:
        with everything.open("w", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows([("file", "place", "before", "after"), *rows])
    lines = []
    for what, files in found.items():
        for name, places in files.items():
            more = [f"... and {len(places) - _SHOWN} more"] if len(places) > _SHOWN else []
            lines.append(f"{what}: {name}" + (f": {'; '.join([*places[:_SHOWN], *more])}" if both[name] else ""))
    told = {what: sum(map(len, files.values())) for what, files in found.items()}
    lines.append(f"{count} values equal, {told['changed']} changed, {told['went']} went, {told['came']} came")
    sys.stdout.write("\n".join(lines) + "\n")
    return told["changed"]


if __name__ == "__main__":
    if len(sys.argv) not in (3, 4):
        sys.exit("usage: python workflow/scripts/compare_results.py BEFORE AFTER [ALL.csv]")
    sys.exit(main(*map(Path, sys.argv[1:])) > 0)
