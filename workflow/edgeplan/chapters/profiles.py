"""Reads the values of a profile, and prints them as `-S section.key=value` arguments for `dvc exp run`: python -m PROFILE.yaml.

An empty profile stands for the committed values: of these, all that the params.yaml of the workspace has changed are printed.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from edgeplan.chapters.registry import CHAPTERS


def profile(path: Path) -> dict[str, Any]:
    """Read the values of a profile by its name: of its file, and of the chapters' own `profiles.yaml`."""
    values: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
    for name in CHAPTERS:
        own = Path(__file__).parent / name / "profiles.yaml"
        if own.is_file():
            values = merged(values, yaml.safe_load(own.read_text(encoding="utf-8")).get(path.stem, {}))
    return values


def merged(base: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """Return a document with values in place of its own, mappings key by key."""
    return {**base, **{k: merged(base.get(k, {}), v) if isinstance(v, Mapping) else v for k, v in values.items()}}


def overrides(values: dict[str, Any], prefix: str = "") -> Iterator[str]:
    """Yield a `key.path=value` for each leaf; lists and text are written so that neither YAML nor a shell splits them."""
    for key, value in values.items():
        path = f"{prefix}{key}"
        if isinstance(value, dict):
            yield from overrides(value, f"{path}.")
        else:
            yield f"{path}={value if isinstance(value, str) else json.dumps(value, separators=(',', ':'))}"


def committed(params: Path) -> Iterator[str]:
    """Yield the committed values that a params file has changed; none outside a git repository."""
    command = ["git", "-C", str(params.resolve().parent), "show", f"HEAD:./{params.name}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603  no shell
    if done.returncode == 0:
        now = set(overrides(yaml.safe_load(params.read_text())))
        yield from (value for value in overrides(yaml.safe_load(done.stdout)) if value not in now)


def main() -> None:
    """Print the arguments on one line."""
    values = profile(Path(sys.argv[1]))
    found = overrides(values) if values else committed(Path("params.yaml"))
    sys.stdout.write(" ".join(f"-S {override}" for override in found) + "\n")


if __name__ == "__main__":
    main()
