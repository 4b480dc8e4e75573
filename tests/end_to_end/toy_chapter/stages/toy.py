"""Stage `toy`: sorting timed, each size once for a key."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

import numpy as np
import pandas as pd
from edgeplan.chapters.toy.settings import ToySettings

from edgeplan.reporting import chapter_report as kit
from edgeplan.reporting.page import ChapterPage, write_chapter, write_table
from edgeplan.support.files import write_json
from edgeplan.support.store import Journal, Protocol


@dataclass(frozen=True)
class Evidence:
    """What the chapter measured: size, sort_ms."""

    sorted: pd.DataFrame


PROTOCOL = Protocol("toy/1")
#: Every table by id.
TABLES: Mapping[str, kit.TableSpec[Evidence]] = kit.registry(
    kit.TableSpec("sorting", "Sorting", lambda e: e.sorted, ("sorted.sort_ms",)),
)


def measure(*, seed: int, toy: ToySettings, device: str, rows: Path, table: Path, metrics: Path, part: Path) -> None:
    """Measure what no row holds, and write all of it."""
    journal = Journal(rows / "rows.jsonl")
    known = {row["key"]: row["ms"] for row in journal.query()}
    for size in toy.sizes:
        key = _key(device, size, seed)
        if key not in known:
            known[key] = _sort_ms(size, seed)
            journal.commit({"key": key, "ms": known[key]})
    frame = pd.DataFrame({"size": toy.sizes, "sort_ms": [known[_key(device, size, seed)] for size in toy.sizes]})
    write_json(metrics, {"toy.sort_ms": float(frame["sort_ms"].sum())})
    seen = Evidence(frame)
    (shown,) = kit.page_tables(TABLES, kit.make(TABLES, seen)[0], seen)
    write_table(shown, frame, table.parent, "now")
    page = ChapterPage("toy", f"Sorting, on {device}", "How long sorting takes.", "now", tables=(shown,))
    write_chapter(page, part, tables=table.parent, figures=table.parent)


def _sort_ms(size: int, seed: int) -> float:
    values = np.random.default_rng(seed).random(size)
    start = perf_counter()
    np.sort(values)
    return 1e3 * (perf_counter() - start)


def _key(device: str, size: int, seed: int) -> str:
    return hashlib.sha256(json.dumps([PROTOCOL.name, device, size, seed]).encode()).hexdigest()[:12]
