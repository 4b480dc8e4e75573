"""Print a profile (`edgeplan.chapters.profiles.profile`) as `-S section.key=value` arguments for `dvc exp run`.

An empty profile stands for the committed values: of these, all that the params.yaml of the workspace has changed are printed.
"""

from __future__ import annotations

import argparse
import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from edgeplan.chapters.profiles import profile


def overrides(values: dict[str, Any], prefix: str = "") -> Iterator[str]:
    """One `key.path=value` a leaf; lists and text are written so that neither YAML nor a shell splits them."""
    for key, value in values.items():
        path = f"{prefix}{key}"
        if isinstance(value, dict):
            yield from overrides(value, f"{path}.")
        else:
            yield f"{path}={value if isinstance(value, str) else json.dumps(value, separators=(',', ':'))}"


def committed(params: Path) -> Iterator[str]:
    """The committed values that a params file has changed; none outside a git repository."""
    command = ["git", "-C", str(params.resolve().parent), "show", f"HEAD:./{params.name}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603  no shell
    if done.returncode == 0:
        now = set(overrides(yaml.safe_load(params.read_text())))
        yield from (value for value in overrides(yaml.safe_load(done.stdout)) if value not in now)


def main() -> None:
    """Print the arguments on one line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("profile", type=Path)
    values = profile(parser.parse_args().profile)
    found = overrides(values) if values else committed(Path("params.yaml"))
    print(*(f"-S {override}" for override in found))  # noqa: T201 - its output is its purpose


if __name__ == "__main__":
    main()
