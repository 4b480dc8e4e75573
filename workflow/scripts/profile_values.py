"""Print a profile (config/profiles/<name>.yaml) as `-S section.key=value` arguments for `dvc exp run`."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml


def overrides(values: dict[str, Any], prefix: str = "") -> Iterator[str]:
    """One `key.path=value` a leaf; lists and text are written so that neither YAML nor a shell splits them."""
    for key, value in values.items():
        path = f"{prefix}{key}"
        if isinstance(value, dict):
            yield from overrides(value, f"{path}.")
        else:
            yield f"{path}={value if isinstance(value, str) else json.dumps(value, separators=(',', ':'))}"


def main() -> None:
    """Print the arguments on one line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("profile", type=Path)
    values = yaml.safe_load(parser.parse_args().profile.read_text())
    print(*(f"-S {override}" for override in overrides(values)))  # noqa: T201 - its output is its purpose


if __name__ == "__main__":
    main()
