"""What tests do to plan folders."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any


def body_of(folder: Path) -> dict[str, Any]:
    """What `plan.json` says."""
    found: dict[str, Any] = json.loads((folder / "plan.json").read_bytes())["body"]
    return found


def changed_plan(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Write `plan.json` with something changed, as if it had been planned so."""
    path = folder / "plan.json"
    document = json.loads(path.read_bytes())
    change(document["body"])
    body = json.dumps(document["body"], separators=(",", ":"))
    digest = hashlib.sha256(body.encode()).hexdigest()
    path.write_text(f'{{"format_version":{document["format_version"]},"sha256":"{digest}","body":{body}}}\n')
